"""What explaining a sentence costs, counted and timed side by side: python benchmarks/sentences.py ["A sentence."]

All ways are for one sentence and every coordinate of its embedding, in units of running that sentence once. What would
take long is done for a few coordinates or points and multiplied, which the table says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp.encoder import read_item

SENTENCE = "Unbelievably, a kitten was sleeping on the neighbour's doormat all afternoon."
COORDINATES, POINTS = (
    8,
    32,
)  # coordinates that the loop is timed on; points of integrated Jacobians (timed on 2)


def ways(encoder: bilrp.Encoder, text: str, size: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Name → (work, by how much to multiply what it costs)."""
    item = read_item(encoder, text)

    def loop() -> None:
        for coordinate in range(COORDINATES):
            x = item.x.clone().requires_grad_()
            encoder.module(x)[0, coordinate].backward()

    def integrated() -> object:
        return bilrp.baselines.integrated_hessians(encoder, text, text, steps=2)

    return {
        "one forward pass": (lambda: encoder.module(item.x), 1.0),
        "bilrp, all words at once": (lambda: bilrp.decompose(encoder, text), 1.0),
        "bilrp, γ = 0.25": (lambda: bilrp.decompose(encoder, text, rules=bilrp.rulebooks.uniform(0.25)), 1.0),
        f"loop: forward and backward for each of {size} coordinates": (loop, size / COORDINATES),
        # both sides of a pair are integrated, so half of it is one sentence's
        f"integrated Jacobians, {POINTS} points": (integrated, POINTS / 2 / 2),
    }


def counted(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as flops:
        work()
    return float(flops.get_total_flops())


def timed(work: Callable[[], object], rounds: int = 3) -> float:
    """Processor seconds, the best of a few rounds: other people's work on the machine does not count."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def main(text: str = SENTENCE, source: str | Path = "minilm") -> list[tuple[str, float, float]]:
    """Rows: name, multiplications and processor time, both in forward passes."""
    encoder = bilrp.encoders.sentence(source)
    x = read_item(encoder, text).x
    found = ways(encoder, text, encoder.module(x).numel())
    work = {name: times * counted(each) for name, (each, times) in found.items()}
    spent = {name: times * timed(each) for name, (each, times) in found.items()}
    once = next(iter(found))
    print(f"{x.shape[1]} tokens: {text}\n")
    print("| | multiplications, in forward passes | processor time, in forward passes |\n|---|---|---|")
    rows = [(name, work[name] / work[once], spent[name] / spent[once]) for name in found]
    for name, passes, seconds in rows:
        print(f"| {name} | {passes:.1f} | {seconds:.1f} |")
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:2])
