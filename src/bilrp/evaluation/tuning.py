"""Tune γ of each layer by coordinate descent over a small grid, for any metric (section 4 of the paper).

>>> from bilrp import evaluation, explain
>>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.rand(1, 3)
>>> result = tune(net, [(x, x)], lambda explanation, k: float(evaluation.cosine(explanation, torch.eye(3))))
>>> explain(net, x, x, composite=result.composite).relevance.shape
torch.Size([3, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from bilrp import rules
from bilrp.encoder import EncoderLike, InputLike, as_encoder, read_tensor
from bilrp.errors import InputError
from bilrp.explanation import Explanation, pair
from bilrp.pipeline import decompose
from bilrp.progress import Progress, progress_bar
from bilrp.regions import RegionSpec
from bilrp.rules.composites import Composite, CompositeFunction, first_match, is_weighted, uniform
from bilrp.similarity import Similarity
from bilrp.trace.rewrite import simplify

GAMMA_GRID = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 1.0)


@dataclass(frozen=True)
class TuningResult:
    """Result of `tune`.

    Args:
        gammas: γ by layer.
        score: metric of these γ on the tuning pairs.
        history: all γ that were tried, with their metric.
        composite: composite with these γ.
    """

    gammas: Mapping[str, float]
    score: float
    history: Sequence[tuple[tuple[float, ...], float]]
    composite: Composite


def tune(
    encoder: EncoderLike,
    pairs: Sequence[tuple[InputLike, InputLike]],
    metric: Callable[[Explanation, int], float],
    *,
    layers: Sequence[str] | None = None,
    grid: Sequence[float] = GAMMA_GRID,
    rounds: int = 3,
    otherwise: CompositeFunction | None = None,
    similarity: str | Similarity | None = None,
    regions: RegionSpec | None = None,
    project: int | None = None,
    progress: bool = False,
) -> TuningResult:
    """Find the γ of each layer that maximises the mean of `metric(explanation, k)` over pairs k.

    Evaluate the result on other pairs than those it was tuned on.

    Args:
        encoder: encoder of all inputs.
        pairs: pairs of inputs.
        metric: larger is better.
        layers: names of the weighted steps to tune; all by default.
        grid: values of γ to try.
        rounds: maximal number of passes over the layers.
        otherwise: composite of the other steps; LRP-0 by default.
        similarity: similarity of the embeddings.
        regions: regions of the inputs; the encoder's by default.
        project: number of random projections of the embedding, as in `decompose`.
        progress: show a progress bar.

    >>> net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.rand(1, 3)
    >>> list(tune(net, [(x, x)], lambda explanation, k: -abs(explanation.unattributed)).gammas)
    ['0']
    """
    if not pairs:
        raise InputError("tuning needs at least one pair")
    encoder = as_encoder(encoder)
    inputs = [(read_tensor(encoder, a), read_tensor(encoder, b)) for a, b in pairs]
    names = tuple(list_weighted_layers(encoder, inputs[0][0]) if layers is None else layers)

    def mean_metric(gammas: tuple[float, ...]) -> float:
        composite = build_composite(dict(zip(names, gammas, strict=True)), otherwise=otherwise)
        explanations = [
            pair(
                decompose(encoder, a, composite=composite, regions=regions, project=project),
                decompose(encoder, b, composite=composite, regions=regions, project=project),
                similarity=similarity,
            )
            for a, b in inputs
        ]
        return sum(metric(each, k) for k, each in enumerate(explanations)) / len(explanations)

    with progress_bar(progress) as bar:
        best, score, history = search_gammas(mean_metric, len(names), grid=grid, rounds=rounds, bar=bar)
    gammas = dict(zip(names, best, strict=True))
    return TuningResult(gammas, score, history, build_composite(gammas, otherwise=otherwise))


def search_gammas(
    objective: Callable[[tuple[float, ...]], float],
    layer_count: int,
    *,
    grid: Sequence[float] = GAMMA_GRID,
    rounds: int = 3,
    bar: Progress | None = None,
) -> tuple[tuple[float, ...], float, list[tuple[tuple[float, ...], float]]]:
    """Return (best γs, their objective, history) by coordinate descent, never worse than the best uniform γ.

    The search starts at the best uniform γ of the grid, then tries the grid on one layer at a time, from the last layer
    to the first, until a round changes nothing.

    Args:
        objective: function of one γ per layer, to maximise.
        layer_count: number of layers.
        grid, rounds: as for `tune`.
        bar: progress bar.
    """
    if layer_count < 1 or not grid or rounds < 0:
        raise InputError("tuning needs at least one layer and one γ to try")
    bar = bar or Progress()
    bar.start("tuning γ", len(grid) + layer_count * rounds * (len(grid) + 1))
    known: dict[tuple[float, ...], float] = {}

    def evaluate(gammas: tuple[float, ...]) -> float:
        if gammas not in known:
            known[gammas] = objective(gammas)
        bar.advance()
        return known[gammas]

    best = max(((gamma,) * layer_count for gamma in grid), key=evaluate)
    for _ in range(rounds):
        before = best
        for layer in reversed(range(layer_count)):
            options = [(*best[:layer], gamma, *best[layer + 1 :]) for gamma in grid]
            # `best` comes first: on a tie it stays, so that a round without gain ends the search.
            best = max([best, *options], key=evaluate)
        if best == before:
            break
    return best, known[best], list(known.items())


def list_weighted_layers(encoder: EncoderLike, x: InputLike) -> list[str]:
    """Return the names of the encoder's weighted steps in order, as used by composites."""
    encoder = as_encoder(encoder)
    with torch.no_grad():
        tape = simplify(encoder.record(read_tensor(encoder, x)))
    return list(dict.fromkeys(step.name for step in tape.steps if is_weighted(step)))


def build_composite(gammas: Mapping[str, float], *, otherwise: CompositeFunction | None = None) -> Composite:
    """Return a composite with γ by step name, and `otherwise` (LRP-0 by default) for other steps."""
    entries = [(name, rules.gamma(gamma) if gamma else rules.zero()) for name, gamma in gammas.items()]
    return first_match(*entries, otherwise=otherwise or uniform(0.0))
