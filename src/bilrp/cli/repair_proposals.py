"""The repairs that an audit proposes: on the terminal, in its report, and as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bilrp.findings.formatting import format_percent

if TYPE_CHECKING:
    from bilrp.collection.repair_proposals import RepairProposal
    from bilrp.render.report import Report

HEADER = (
    "suspect",
    "proposed",
    "neighbours that have it too",
    "if no item had it",
    "right neighbours, items with it",
    "right neighbours, items without it",
)

CAPTION = "Measured before they are applied, on items that the part was added to. Right: the neighbours if no item had it."


def save_proposals(proposals: Sequence[RepairProposal], path: Path) -> dict[int, Path]:
    """Write each repair next to the report and return {suspect: file}."""
    stem = path.with_suffix("") if path.suffix.lower() == ".html" else path / "repair"
    return {
        each.suspect: each.repair.save(f"{stem}-{each.suspect}.safetensors")
        for each in proposals
        if each.repair is not None
    }


def describe_proposals(
    proposals: Sequence[RepairProposal], saved: Mapping[int, Path], collection: str
) -> Iterator[str]:
    """Yield each proposal as a line, and how to search with the first repair.

    Args:
        proposals, saved: the proposals, and their files by suspect.
        collection: name of the collection.
    """
    yield from map(str, proposals)
    for path in list(saved.values())[:1]:
        yield f"search with it: bilrp search {collection} QUERY --repair {path}"


def attach_proposals(report: Report, proposals: Sequence[RepairProposal]) -> Report:
    """Return the report of an audit with its repairs."""
    from bilrp.render.report import Paragraph, Section, Table

    if not proposals:
        return report
    rows = []
    for each in proposals:
        if each.report is None:
            rows.append((each.suspect, "none", None, None, None, None))
            continue
        before, after = each.report.before, each.report.after
        figures = [
            f"{format_percent(getattr(before, name))} → {format_percent(getattr(after, name))}"
            for name in ("attraction", "restored", "others")
        ]
        said = after.label if each.repair is not None else "none"
        clean = format_percent(each.report.clean_attraction)
        rows.append((each.suspect, said, figures[0], clean, *figures[1:]))
    refusals = [Paragraph(f"{each}.") for each in proposals if each.repair is None]
    table = Table(HEADER, rows, CAPTION)
    section = Section("Repairs", [table, *refusals])
    results = {**report.results, "repairs": [each.to_dict() for each in proposals]}
    return replace(report, sections=[*report.sections, section], results=results)
