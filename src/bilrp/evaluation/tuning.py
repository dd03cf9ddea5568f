"""Tuning: γ for each layer, by coordinate descent over a small grid, against any evaluation (section 4 of the paper).

>>> from bilrp import explain
>>> from bilrp.evaluation import evaluate
>>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.rand(1, 3)
>>> found = tune(net, [(x, x)], lambda explanation, k: float(evaluate.cosine(explanation, torch.eye(3))))
>>> explain(net, x, x, rules=found.rules).relevance.shape
torch.Size([3, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bilrp import rules
from bilrp.decomposition import decompose
from bilrp.encoder import Model, Readable, as_encoder, read_input
from bilrp.progress import Progress, tracking
from bilrp.errors import InputError
from bilrp.explanation import Explanation, pair
from bilrp.rules.composites import Book, RuleBook, first_match, is_weighted, uniform
from bilrp.similarity import Similarity
from bilrp.trace.rewrite import simplify

GRID = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True)
class Tuned:
    """γ by layer, the value it reached on the pairs it was tuned on, and every setting tried on the way."""

    gammas: Mapping[str, float]
    value: float
    tried: Sequence[tuple[tuple[float, ...], float]]
    rules: Book


def tune(
    encoder: Any,
    pairs: Sequence[tuple[Any, Any]],
    evaluation: Callable[[Explanation, int], float],
    *,
    layers: Sequence[str] | None = None,
    grid: Sequence[float] = GRID,
    rounds: int = 3,
    otherwise: RuleBook | None = None,
    similarity: str | Similarity = "dot",
    regions: Any = None,
    project: int | None = None,
    progress: bool = False,
) -> Tuned:
    """Find the γ of each layer that makes the mean of `evaluation(explanation, k)` over pairs k largest.

    `layers` are names of weighted steps (all of them by default); steps not listed keep the rules of `otherwise`.
    An evaluation where less is better wants a minus sign. The result is tuned to these pairs: judge it on others.

    >>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.rand(1, 3)
    >>> list(tune(net, [(x, x)], lambda found, k: -abs(found.unattributed)).gammas)
    ['0']
    """
    if not pairs:
        raise InputError("tuning needs at least one pair")
    encoder = as_encoder(encoder)
    inputs = [(read_input(encoder, a), read_input(encoder, b)) for a, b in pairs]
    names = tuple(weighted_layers(encoder, inputs[0][0]) if layers is None else layers)

    def value(gammas: tuple[float, ...]) -> float:
        book = rule_book(dict(zip(names, gammas, strict=True)), otherwise=otherwise)
        found = [
            pair(
                decompose(encoder, a, rules=book, regions=regions, project=project),
                decompose(encoder, b, rules=book, regions=regions, project=project),
                similarity=similarity,
            )
            for a, b in inputs
        ]
        return sum(evaluation(each, k) for k, each in enumerate(found)) / len(found)

    with tracking(progress) as bar:
        best, reached, tried = search(value, len(names), grid=grid, rounds=rounds, bar=bar)
    gammas = dict(zip(names, best, strict=True))
    return Tuned(gammas, reached, tried, rule_book(gammas, otherwise=otherwise))


def search(
    value: Callable[[tuple[float, ...]], float],
    layers: int,
    *,
    grid: Sequence[float] = GRID,
    rounds: int = 3,
    bar: Progress | None = None,
) -> tuple[tuple[float, ...], float, list[tuple[tuple[float, ...], float]]]:
    """Coordinate descent: (best γs, their value, everything tried), never worse than the best uniform γ.

    It starts at the best uniform γ of the grid, then tries the grid on one layer at a time, from the top layer down,
    until a round changes nothing.

    >>> search(lambda g: -((g[0] - 0.1) ** 2) - (g[1] - 0.4) ** 2, 2)[0]
    (0.1, 0.4)
    """
    if layers < 1 or not grid or rounds < 0:
        raise InputError("tuning needs at least one layer and one γ to try")
    bar = bar or Progress()
    bar.start("tuning γ", len(grid) + layers * rounds * (len(grid) + 1))
    known: dict[tuple[float, ...], float] = {}

    def measured(gammas: tuple[float, ...]) -> float:
        if gammas not in known:
            known[gammas] = value(gammas)
        bar.advance()
        return known[gammas]

    best = max(((gamma,) * layers for gamma in grid), key=measured)
    for _ in range(rounds):
        before = best
        for layer in reversed(range(layers)):
            options = [(*best[:layer], gamma, *best[layer + 1 :]) for gamma in grid]
            # On a tie the present setting stays, so that a round without gain ends the search.
            best = max([best, *options], key=measured)
        if best == before:
            break
    return best, known[best], list(known.items())


def weighted_layers(encoder: Model, x: Readable) -> list[str]:
    """The names of the encoder's weighted steps, in order, as a rule book sees them."""
    encoder = as_encoder(encoder)
    with torch.no_grad():
        tape = simplify(encoder.record(read_input(encoder, x)))
    return list(dict.fromkeys(step.name for step in tape.steps if is_weighted(step)))


def rule_book(gammas: Mapping[str, float], *, otherwise: RuleBook | None = None) -> Book:
    """γ by name of step, other steps as in `otherwise` (LRP-0 by default).

    >>> rule_book({"0": 0.1, "2": 0.0}).name
    'first_match(0: gamma(0.1), 2: zero, otherwise: uniform(0))'
    """
    entries = [(name, rules.gamma(gamma) if gamma else rules.zero()) for name, gamma in gammas.items()]
    return first_match(*entries, otherwise=otherwise or uniform(0.0))
