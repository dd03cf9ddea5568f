"""What every attack reports: how often it tried, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """`right`: the right answer; `refused`: one clear line; `wrong`: what was neither, each in words."""

    kind: str
    trials: int
    right: int
    refused: int
    wrong: Sequence[str] = field(default_factory=list)
    note: str = ""


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'attack':<28}{'trials':>8}{'right':>8}{'refused':>9}{'wrong':>7}"]
    for row in rows:
        line = f"{row.kind:<28}{row.trials:>8}{row.right:>8}{row.refused:>9}{len(row.wrong):>7}"
        lines.append(f"{line}   {row.note}".rstrip())
    return "\n".join(lines)
