"""What a repair was measured to cost: for each candidate, what it restores and what it changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bilrp.errors import InputError
from bilrp.findings.formatting import format_percent

MAX_ATTRACTION_EXCESS = 0.05  # of the neighbours, above the level without the part
MIN_OF_CEILING = 0.9  # of the recall that filling in and encoding again reaches
MAX_OTHERS_LOSS = 0.02  # of the recall of items without the part
MAX_RELEVANCE_LEFT = 0.05  # of the relevance
MIN_GAIN = 0.01  # of the recall: a smaller gain does not count as a repair


@dataclass(frozen=True)
class Measurement:
    """One candidate on items that the part was added to: their neighbours without the part are known.

    Args:
        method: "none" before the repair, "projection", "filling" or "removal".
        rank: number of directions of a projection.
        strength: fraction that is removed.
        source: what directions were made of, or what fills the part in: "mirrored surroundings" or "a blank (zero input)".
        attraction: share of the neighbours of items with the part that have the part too.
        restored: recall@10 of items with the part, against the ranking without it.
        others: recall@10 of items without the part.
        relevance: share of the relevance on the part, between carriers; None where it was not measured.
    """

    method: str
    attraction: float
    restored: float
    others: float
    rank: int = 0
    strength: float = 1.0
    source: str = ""
    relevance: float | None = None

    @property
    def label(self) -> str:
        if self.method != "projection":
            by = f" by {self.source}" if self.source else ""
            return {"none": "as it is", "filling": f"part filled in{by}", "removal": "own part removed"}[
                self.method
            ]
        several = f"{self.rank} directions" if self.rank > 1 else "one direction"
        weight = "" if self.strength == 1 else f", {format_percent(self.strength)} removed"
        return f"{several} from {self.source}{weight}"


@dataclass(frozen=True)
class RepairReport:
    """What the chosen repair changes, measured on items that were not used to make it.

    Args:
        part: the part in words.
        items: number of items.
        carriers: number of items that have the part.
        corrected: number of carriers with a corrected embedding.
        planted: number of items that the part was added to for the measurement.
        area: share of the regions that are in the part.
        clean_attraction: attraction without the part: the same items before the part was added.
        before, after: the similarity as it is, and the chosen repair.
        candidates: all that were measured, each with its choice of rank and strength.
        carriers_before, carriers_after: attraction of the carriers themselves, in the collection as it is and repaired.
    """

    part: str
    items: int
    carriers: int
    corrected: int
    planted: int
    area: float
    clean_attraction: float
    before: Measurement
    after: Measurement
    candidates: tuple[Measurement, ...] = field(default=())
    carriers_before: float | None = None
    carriers_after: float | None = None

    @property
    def method(self) -> str:
        return self.after.method

    @property
    def missed(self) -> list[str]:
        """The goals that the repair misses, in words."""
        ceiling = max((each.restored for each in self.candidates if each.method == "filling"), default=0.0)
        return list_missed(self.after, self.before, self.clean_attraction, ceiling)

    def to_dict(self) -> dict[str, object]:
        """Return the report, JSON-ready."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RepairReport:
        """Rebuild a report from `to_dict`."""
        known: dict[str, Any] = dict(values)
        known |= {key: Measurement(**values[key]) for key in ("before", "after")}
        known |= {"candidates": tuple(Measurement(**each) for each in values["candidates"])}
        if known["after"].method not in ("projection", "filling", "removal"):
            raise InputError("its report names no method")
        return RepairReport(**known)

    def __str__(self) -> str:
        b, a = self.before, self.after
        lines = [f"{self.part}: in {self.carriers} of {self.items} items. Proposed: {a.label}."]
        if self.carriers_before is not None and self.carriers_after is not None:
            change = _format_change(self.carriers_before, self.carriers_after)
            lines.append(f"  their neighbours that have it too  {change}")
        lines += [
            f"  measured on {self.planted} others that it was added to (half of them chose the method):",
            f"  neighbours that have it too        {_format_change(b.attraction, a.attraction)}"
            f" ({format_percent(self.clean_attraction)} if no item had it)",
            f"  right neighbours, items with it    {_format_change(b.restored, a.restored)}",
            f"  right neighbours, items without it {_format_change(b.others, a.others)}",
            "  right: the neighbours of an item if no item had it",
        ]
        if a.relevance is not None and b.relevance is not None:
            lines.append(
                f"  relevance on it                    {_format_change(b.relevance, a.relevance)}"
                f" (its area: {format_percent(self.area)})"
            )
        if self.corrected:
            lines.append(f"  corrected embeddings: {self.corrected} of {self.carriers} items that have it")
        lines += [f"  misses: {each}" for each in self.missed]
        return "\n".join(lines)


def list_missed(
    after: Measurement, before: Measurement, clean_attraction: float, ceiling: float
) -> list[str]:
    """Return the goals that a candidate misses, in words.

    Args:
        after, before: the candidate, and the similarity as it is.
        clean_attraction: attraction without the part.
        ceiling: recall that filling in and encoding again reaches; 0 where that is not known.
    """
    missed = []
    excess = after.attraction - clean_attraction
    if excess > MAX_ATTRACTION_EXCESS:
        missed.append(f"neighbours with the part are {format_percent(excess)} above the level without it")
    if after.restored < MIN_OF_CEILING * ceiling:
        missed.append(f"restores {format_percent(after.restored / ceiling)} of what filling in would")
    if before.others - after.others > MAX_OTHERS_LOSS:
        missed.append(
            f"items without the part lose {format_percent(before.others - after.others)} of neighbours"
        )
    if after.relevance is not None and after.relevance > MAX_RELEVANCE_LEFT:
        missed.append(f"{format_percent(after.relevance)} of the relevance is left on the part")
    return missed


def compute_net_gain(after: Measurement, before: Measurement, share: float) -> float:
    """Return neighbours restored minus neighbours lost, where `share` of the items have the part.

    Args:
        after, before: Measured with and without the candidate.
        share: Fraction of the items that have the part.
    """
    return share * (after.restored - before.restored) + (1 - share) * (after.others - before.others)


def is_worth_it(after: Measurement, before: Measurement, share: float) -> bool:
    """Return whether a candidate does more good than harm.

    Args:
        after, before, share: As for `compute_net_gain`.
    """
    return after.restored - before.restored >= MIN_GAIN and compute_net_gain(after, before, share) > 0


def _format_change(before: float, after: float) -> str:
    return f"{format_percent(before)} → {format_percent(after)}"
