"""What every attack reports: how often it tried, what came of it, and every failure with a description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FAILURES = ("executed", "wrong", "unexpected error", "over budget", "lost", "leftover files")
"""Something ran; other numbers without a word; another error than ours; more than 1 GB or 5 s; work that was saved is
gone or torn; files or processes that stay behind."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, and what was tried: enough to try it again."""

    what: str
    description: str

    def __post_init__(self) -> None:
        assert self.what in FAILURES, self.what


@dataclass
class Row:
    """`right`: the right answer; `refused`: one clear line; everything else is a failure."""

    kind: str
    right: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)
    note: str = ""

    @property
    def trials(self) -> int:
        return self.right + self.refused + len(self.failures)

    def failed(self, what: str, description: object) -> None:
        self.failures.append(Failure(what, str(description)[:500]))

    def count(self, what: str) -> int:
        return sum(failure.what == what for failure in self.failures)

    def add(self, other: Row) -> None:
        self.right += other.right
        self.refused += other.refused
        self.failures += other.failures
        self.note = other.note or self.note


def table(rows: Sequence[Row]) -> str:
    """
    >>> print(table([Row("images", right=3, refused=2)]))
    attack                trials    right  refused  executed  wrong  unexpected error  over budget  lost  leftover files
    images                     5        3        2         0      0                 0            0     0               0
    """
    heads = "".join(f"  {what}" for what in FAILURES)
    lines = [f"{'attack':<20}{'trials':>8}{'right':>9}{'refused':>9}{heads}"]
    for row in rows:
        counts = "".join(f"{row.count(what):>{len(what) + 2}}" for what in FAILURES)
        lines.append(
            f"{row.kind:<20}{row.trials:>8}{row.right:>9}{row.refused:>9}{counts}  {row.note}".rstrip()
        )
    return "\n".join(lines)
