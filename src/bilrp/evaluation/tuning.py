"""Tuning: γ for each layer, by coordinate descent over a small grid, against any evaluation (section 4 of the paper).

>>> from bilrp import evaluation, explain
>>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.rand(1, 3)
>>> found = tune(net, [(x, x)], lambda explanation, k: float(evaluation.cosine(explanation, torch.eye(3))))
>>> explain(net, x, x, composite=found.composite).relevance.shape
torch.Size([3, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bilrp import rules
from bilrp.decomposition import decompose
from bilrp.encoder import EncoderLike, InputLike, as_encoder, read_tensor
from bilrp.errors import InputError
from bilrp.explanation import Explanation, pair
from bilrp.progress import Progress, progress_bar
from bilrp.rules.composites import Composite, CompositeFunction, first_match, is_weighted, uniform
from bilrp.similarity import Similarity
from bilrp.trace.rewrite import simplify

GAMMA_GRID = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True)
class TuningResult:
    """γ by layer, the value it reached on the pairs it was tuned on, and every setting tried on the way."""

    gammas: Mapping[str, float]
    score: float
    history: Sequence[tuple[tuple[float, ...], float]]
    composite: Composite


def tune(
    encoder: Any,
    pairs: Sequence[tuple[Any, Any]],
    metric: Callable[[Explanation, int], float],
    *,
    layers: Sequence[str] | None = None,
    grid: Sequence[float] = GAMMA_GRID,
    rounds: int = 3,
    otherwise: CompositeFunction | None = None,
    similarity: str | Similarity | None = None,
    regions: Any = None,
    project: int | None = None,
    progress: bool = False,
) -> TuningResult:
    """Find the γ of each layer that makes the mean of `metric(explanation, k)` over pairs k largest.

    `layers` are names of weighted steps (all of them by default); steps not listed keep the rules of `otherwise`.
    A metric where less is better wants a minus sign. The result is tuned to these pairs: judge it on others.

    >>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.rand(1, 3)
    >>> list(tune(net, [(x, x)], lambda found, k: -abs(found.unattributed)).gammas)
    ['0']
    """
    if not pairs:
        raise InputError("tuning needs at least one pair")
    encoder = as_encoder(encoder)
    inputs = [(read_tensor(encoder, a), read_tensor(encoder, b)) for a, b in pairs]
    names = tuple(weighted_layers(encoder, inputs[0][0]) if layers is None else layers)

    def value(gammas: tuple[float, ...]) -> float:
        book = build_composite(dict(zip(names, gammas, strict=True)), otherwise=otherwise)
        found = [
            pair(
                decompose(encoder, a, composite=book, regions=regions, project=project),
                decompose(encoder, b, composite=book, regions=regions, project=project),
                similarity=similarity,
            )
            for a, b in inputs
        ]
        return sum(metric(each, k) for k, each in enumerate(found)) / len(found)

    with progress_bar(progress) as bar:
        best, reached, tried = search_gammas(value, len(names), grid=grid, rounds=rounds, bar=bar)
    gammas = dict(zip(names, best, strict=True))
    return TuningResult(gammas, reached, tried, build_composite(gammas, otherwise=otherwise))


def search_gammas(
    objective: Callable[[tuple[float, ...]], float],
    layer_count: int,
    *,
    grid: Sequence[float] = GAMMA_GRID,
    rounds: int = 3,
    bar: Progress | None = None,
) -> tuple[tuple[float, ...], float, list[tuple[tuple[float, ...], float]]]:
    """Coordinate descent: (best γs, their value, everything tried), never worse than the best uniform γ.

    It starts at the best uniform γ of the grid, then tries the grid on one layer at a time, from the top layer down,
    until a round changes nothing.

    >>> search_gammas(lambda g: -((g[0] - 0.1) ** 2) - (g[1] - 0.4) ** 2, 2)[0]
    (0.1, 0.4)
    """
    if layer_count < 1 or not grid or rounds < 0:
        raise InputError("tuning needs at least one layer and one γ to try")
    bar = bar or Progress()
    bar.start("tuning γ", len(grid) + layer_count * rounds * (len(grid) + 1))
    known: dict[tuple[float, ...], float] = {}

    def measured(gammas: tuple[float, ...]) -> float:
        if gammas not in known:
            known[gammas] = objective(gammas)
        bar.advance()
        return known[gammas]

    best = max(((gamma,) * layer_count for gamma in grid), key=measured)
    for _ in range(rounds):
        before = best
        for layer in reversed(range(layer_count)):
            options = [(*best[:layer], gamma, *best[layer + 1 :]) for gamma in grid]
            # On a tie the present setting stays, so that a round without gain ends the search.
            best = max([best, *options], key=measured)
        if best == before:
            break
    return best, known[best], list(known.items())


def weighted_layers(encoder: EncoderLike, x: InputLike) -> list[str]:
    """The names of the encoder's weighted steps, in order, as a composite sees them."""
    encoder = as_encoder(encoder)
    with torch.no_grad():
        tape = simplify(encoder.record(read_tensor(encoder, x)))
    return list(dict.fromkeys(step.name for step in tape.steps if is_weighted(step)))


def build_composite(gammas: Mapping[str, float], *, otherwise: CompositeFunction | None = None) -> Composite:
    """γ by name of step, other steps as in `otherwise` (LRP-0 by default).

    >>> build_composite({"0": 0.1, "2": 0.0}).name
    'first_match(0: gamma(0.1), 2: zero, otherwise: uniform(0))'
    """
    entries = [(name, rules.gamma(gamma) if gamma else rules.zero()) for name, gamma in gammas.items()]
    return first_match(*entries, otherwise=otherwise or uniform(0.0))
