"""The template of every study's report: answer, sections, how it was measured, settings, files left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bilrp.render.report import Paragraph, Picture, Report, Section, Table
from bilrp_studies.common.image_folders import SkippedFile
from bilrp_studies.common.study import Settings, flag_name

Block = str | Paragraph | Table | Picture
Estimate = Mapping[str, float] | tuple[float, float, float]  # mean, low, high


def build_study_report(
    title: str,
    answer: str,
    sections: Mapping[str, Sequence[Block]],
    *,
    settings: Settings,
    results: Mapping[str, Any],
    protocol: Sequence[str] = (),
    skipped: Sequence[SkippedFile] = (),
    attachments: Mapping[str, str | bytes] | None = None,
) -> Report:
    """Fill the template: `sections` in order, then how it was measured, the settings, and the files left out.

    Args:
        title: The question of the study.
        answer: What came out, in a paragraph with numbers.
        sections: {heading: blocks}; a string is a paragraph, and headings without blocks are left out.
        settings: The settings of the study: a table in the report, and "settings" in results.json.
        results: Other content of results.json.
        protocol: Paragraphs about how it was measured.
        skipped: Files that could not be used, with reasons.
        attachments: Other files to write, by name.
    """
    options = settings.result_options()
    rows = [(flag_name(name), _format_option(value)) for name, value in options.items()]
    content = {**sections, "How it was measured": protocol, "Settings": [Table(("option", "value"), rows)]}
    if skipped:
        content["What was left out"] = [
            Table(("file", "reason"), [(each.file, each.reason) for each in skipped])
        ]
    return Report(
        title,
        answer,
        [
            Section(heading, [Paragraph(block) if isinstance(block, str) else block for block in blocks])
            for heading, blocks in content.items()
            if blocks
        ],
        {"settings": options, **results, "skipped": [asdict(each) for each in skipped]},
        attachments or {},
    )


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> pluralize(1, "step"), pluralize(2, "step")
    ('1 step', '2 steps')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_words(items: Sequence[Any]) -> str:
    """Join items with commas and "and".

    >>> join_words([5]), join_words([17, 31]), join_words([5, 17, 31])
    ('5', '17 and 31', '5, 17 and 31')
    """
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def format_interval(estimate: Estimate | None, digits: int = 2) -> str | None:
    """Format a mean and its interval; None stays None, which a table shows as a dash.

    >>> format_interval({"mean": 0.5, "low": 0.25, "high": 0.75}), format_interval((1.0, 0.5, 2.0), 1)
    ('0.50 (0.25\xa0to\xa00.75)', '1.0 (0.5\xa0to\xa02.0)')
    """
    if estimate is None:
        return None
    values = estimate if isinstance(estimate, tuple) else [estimate[key] for key in ("mean", "low", "high")]
    mean, low, high = (f"{value:z.{digits}f}" for value in values)
    return f"{mean} ({low}\u00a0to\u00a0{high})"


def tabulate_intervals(
    header: Sequence[str],
    rows: Mapping[Any, Mapping[Any, Estimate]],
    columns: Sequence[Any],
    caption: str = "",
    *,
    digits: int = 2,
) -> Table:
    """Return a table of means with intervals, one row for each key of `rows`.

    Args:
        header: Heading of the first column, then of each of `columns`.
        rows: {name of the row: {column: estimate}}; a tuple as the name fills several cells.
        columns: Keys of the estimates; missing ones become a dash.
        caption: Caption of the table.
        digits: Decimals.
    """
    cells = [
        (
            *(name if isinstance(name, tuple) else (name,)),
            *(format_interval(by.get(key), digits) for key in columns),
        )
        for name, by in rows.items()
    ]
    return Table(header, cells, caption)


def _format_option(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
