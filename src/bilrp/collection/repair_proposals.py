"""The repair that each suspect of an audit gets, with its measured effect, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bilrp.collection.repair_selection import RefusedRepairError
from bilrp.errors import InputError
from bilrp.findings.formatting import format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bilrp.collection.audit import Suspect
    from bilrp.collection.core import Collection
    from bilrp.collection.repair import Repair
    from bilrp.collection.repair_report import RepairReport
    from bilrp.collection.text_audit import TextSuspect

MAX_PROPOSALS = 3  # suspects that a repair is measured for; the first have the largest excess


@dataclass(frozen=True, eq=False)
class RepairProposal:
    """What a repair of one suspect would do.

    Args:
        suspect: its number, from 1.
        repair: the proposed repair; None where there is none.
        report: what was measured, of a refused repair too; None where nothing could be measured.
        refusal: why there is no repair.
    """

    suspect: int
    repair: Repair | None
    report: RepairReport | None
    refusal: str = ""

    def __str__(self) -> str:
        if self.repair is None or self.report is None:
            return f"no repair of {self.suspect}: {self.refusal}"
        before, after, clean = self.report.before, self.report.after, self.report.clean_attraction
        text = (
            f"repair of {self.suspect}: {after.label}: neighbours that have it too {format_percent(before.attraction)} → "
            f"{format_percent(after.attraction)} ({format_percent(clean)} if no item had it), right neighbours of items "
            f"with it {format_percent(before.restored)} → {format_percent(after.restored)}, of the others "
            f"{format_percent(before.others)} → {format_percent(after.others)}"
        )
        return "; misses: ".join([text, ", ".join(self.report.missed)]) if self.report.missed else text

    def to_dict(self) -> dict[str, object]:
        """Return the proposal, JSON-ready."""
        report = None if self.report is None else self.report.to_dict() | {"missed": self.report.missed}
        return {
            "suspect": self.suspect,
            "proposed": self.repair is not None,
            "report": report,
            "refusal": self.refusal,
        }


def propose_repairs(
    collection: Collection, suspects: Sequence[Suspect | TextSuspect], *, progress: bool = False
) -> tuple[RepairProposal, ...]:
    """Measure a repair for each of the first suspects.

    Args:
        collection, suspects: the audited collection, and the suspects of its audit, in order.
        progress: show progress bars.
    """
    return tuple(
        propose_repair(collection, suspect, number, progress=progress)
        for number, suspect in enumerate(suspects[:MAX_PROPOSALS], start=1)
    )


def propose_repair(
    collection: Collection, suspect: Suspect | TextSuspect, number: int, *, progress: bool = False
) -> RepairProposal:
    """Measure the repair of one suspect.

    Args:
        collection, suspect, number: the audited collection, the suspect, and its number, from 1.
        progress: show progress bars.
    """
    try:
        repair = collection.repair(suspect=suspect, progress=progress)
    except RefusedRepairError as error:
        return RepairProposal(number, None, error.report, str(error))
    except InputError as error:
        return RepairProposal(number, None, None, str(error))
    return RepairProposal(number, repair, repair.report)
