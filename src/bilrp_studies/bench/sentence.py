"""bench, of a sentence: what explaining it costs, counted and timed side by side.

All ways are for one sentence and every coordinate of its embedding, in units of running that sentence once. What would
take long is done for a few coordinates or points and multiplied, which the table says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.utils.flop_counter import FlopCounterMode

from bilrp.encoder import Encoder, read_item
from bilrp.evaluation.baselines import integrated_hessians
from bilrp.pipeline import decompose
from bilrp.rules.composites import uniform

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_TEXT = "Unbelievably, a kitten was sleeping on the neighbour's doormat all afternoon."
TIMED_COORDINATES = 8  # that the loop is timed on
INTEGRATION_POINTS, TIMED_POINTS = 32, 2  # of integrated Jacobians


@dataclass(frozen=True)
class Cost:
    """One line of the table: multiplications and processor time, in forward passes, and how much of it `bilrp` takes."""

    name: str
    relative_flops: float
    relative_cpu_time: float
    slowdown: float  # times the processor time of bilrp


def run(encoder: Encoder, text: str = DEFAULT_TEXT, *, rounds: int = 3) -> tuple[Cost, ...]:
    """Count and time every way for one sentence.

    >>> [row.name for row in run(bilrp.encoders.sentence(), rounds=1)][:2]  # doctest: +SKIP
    ['one forward pass', 'bilrp, all words at once']
    """
    found = _methods(encoder, text)
    work = {name: times * count_flops(each) for name, (each, times) in found.items()}
    spent = {name: times * time_cpu(each, rounds) for name, (each, times) in found.items()}
    once, ours = list(found)[:2]
    return tuple(
        Cost(name, work[name] / work[once], spent[name] / spent[once], spent[name] / spent[ours])
        for name in found
    )


def build_table(rows: tuple[Cost, ...], text: str) -> Table:
    """The rows as a rich table."""
    from rich.table import Table
    from rich.text import Text

    found = Table(title=Text(text))
    for name in (
        "",
        "multiplications, in forward passes",
        "processor time, in forward passes",
        "of bilrp's time",
    ):
        found.add_column(name, justify="left" if not name else "right")
    for row in rows:
        found.add_row(
            row.name, f"{row.relative_flops:.1f}", f"{row.relative_cpu_time:.1f}", f"{row.slowdown:.1f}×"
        )
    return found


def _methods(encoder: Encoder, text: str) -> dict[str, tuple[Callable[[], object], float]]:
    """Name → (work, by how much to multiply what it costs)."""
    x = read_item(encoder, text).x
    size = encoder.module(x).numel()

    def loop() -> None:
        for coordinate in range(TIMED_COORDINATES):
            given = x.clone().requires_grad_()
            encoder.module(given)[0, coordinate].backward()

    return {
        "one forward pass": (lambda: encoder.module(x), 1.0),
        "bilrp, all words at once": (lambda: decompose(encoder, text), 1.0),
        "bilrp, γ = 0.25": (lambda: decompose(encoder, text, composite=uniform(0.25)), 1.0),
        f"loop: forward and backward for each of {size} coordinates (of {TIMED_COORDINATES})": (
            loop,
            size / TIMED_COORDINATES,
        ),
        # both sides of a pair are integrated, so half of it is one sentence's
        f"integrated Jacobians, {INTEGRATION_POINTS} points, words at once (of {TIMED_POINTS})": (
            lambda: integrated_hessians(encoder, text, text, steps=TIMED_POINTS, similarity="dot"),
            INTEGRATION_POINTS / TIMED_POINTS / 2,
        ),
    }


def count_flops(work: Callable[[], object]) -> float:
    """Multiplications and additions of matrix products and convolutions, as torch counts them."""
    with FlopCounterMode(display=False) as flops:
        work()
    return float(flops.get_total_flops())


def time_cpu(work: Callable[[], object], rounds: int = 3) -> float:
    """Processor seconds, the best of a few rounds: other people's work on the machine does not count."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best
