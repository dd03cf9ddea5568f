"""Benchmark of explaining one sentence: floating-point operations and CPU time.

Every method covers all coordinates of the embedding of one sentence; costs are in units of one forward pass. Slow methods
are run on a few coordinates or integration points and extrapolated, as the table states.
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
TIMED_COORDINATES = 8  # coordinates on which the loop is timed
INTEGRATION_POINTS, TIMED_POINTS = 32, 2  # integrated Jacobians: points reported, and points actually run


@dataclass(frozen=True)
class Cost:
    """One row of the table: FLOPs and CPU time in units of one forward pass, and CPU time relative to bilrp."""

    name: str
    relative_flops: float
    relative_cpu_time: float
    slowdown: float  # CPU time divided by that of bilrp


def run(encoder: Encoder, text: str = DEFAULT_TEXT, *, rounds: int = 3) -> tuple[Cost, ...]:
    """Count FLOPs and time every method on one sentence.

    Args:
        encoder: A text encoder.
        text: The sentence.
        rounds: Repetitions of each timing; the fastest counts.

    >>> [row.name for row in run(bilrp.encoders.sentence(), rounds=1)][:2]  # doctest: +SKIP
    ['one forward pass', 'bilrp, all words at once']
    """
    decompose(encoder, text)  # embeds the typical inputs, once for each encoder
    methods = _methods(encoder, text)
    work = {name: times * count_flops(each) for name, (each, times) in methods.items()}
    spent = {name: times * time_cpu(each, rounds) for name, (each, times) in methods.items()}
    once, ours = list(methods)[:2]
    return tuple(
        Cost(name, work[name] / work[once], spent[name] / spent[once], spent[name] / spent[ours])
        for name in methods
    )


def build_table(rows: tuple[Cost, ...], text: str) -> Table:
    """Return the rows as a rich table."""
    from rich.table import Table
    from rich.text import Text

    result = Table(title=Text(text))
    for name in (
        "",
        "multiplications, in forward passes",
        "processor time, in forward passes",
        "of bilrp's time",
    ):
        result.add_column(name, justify="left" if not name else "right")
    for row in rows:
        result.add_row(
            row.name, f"{row.relative_flops:.1f}", f"{row.relative_cpu_time:.1f}", f"{row.slowdown:.1f}×"
        )
    return result


def _methods(encoder: Encoder, text: str) -> dict[str, tuple[Callable[[], object], float]]:
    """Return {name: (work, factor to multiply its cost by)}."""
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
        # integrated_hessians integrates both sides of a pair: halve its cost for one sentence
        f"integrated Jacobians, {INTEGRATION_POINTS} points, words at once (of {TIMED_POINTS})": (
            lambda: integrated_hessians(encoder, text, text, steps=TIMED_POINTS, similarity="dot"),
            INTEGRATION_POINTS / TIMED_POINTS / 2,
        ),
    }


def count_flops(work: Callable[[], object]) -> float:
    """Return the FLOPs of matrix products and convolutions, as counted by torch's FlopCounterMode."""
    with FlopCounterMode(display=False) as flops:
        work()
    return float(flops.get_total_flops())


def time_cpu(work: Callable[[], object], rounds: int = 3) -> float:
    """Return CPU seconds, the minimum over the rounds; other processes do not count."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best
