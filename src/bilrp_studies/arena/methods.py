"""The methods of the arena: each is one function (encoder, a, b, regions) → explanation or relevance matrix.

A method of your own has the same signature and is named on the command line as `--entry package.module:function`. Its
`regions` is the side of a region in pixels (None for texts: the encoder's), its relevance [regions of a, regions of b].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from bilrp import baselines
from bilrp.decomposition import Decomposition
from bilrp.encoder import Encoder, read_item, resolve_regions
from bilrp.errors import InputError
from bilrp.evaluation.baselines import TracedInput, integrate_gradients, trace_input, trace_inputs
from bilrp.evaluation.feature_baselines import (
    decompose_last_layer,
    occlude_each_region,
    pair_occlusions,
    pair_vectors,
)
from bilrp.evaluation.positions import find_last
from bilrp.explanation import Explanation, pair
from bilrp.pipeline import decompose
from bilrp.progress import progress_bar
from bilrp.regions import Regions
from bilrp.rules import composites
from bilrp.rules.composites import Composite
from bilrp.similarity import resolve_similarity
from bilrp_studies.arena.truth import Case
from bilrp_studies.common.cache import hash_array
from bilrp_studies.common.word_subsets import StudySentence

Method: TypeAlias = Callable[[Encoder, Any, Any, int | None], Explanation | Tensor]

OUR_METHOD = "default"
RANKING_METHODS = (
    "Shapley pairs",
    "Grad-CAM",
    "PAIR-X",
    "same place",
    "random",
)  # they give relevance alone, without what is left of the score
MAX_CACHED = 64  # decompositions of one method: a photograph is in several pairs
MAX_EXACT_WORDS = 6  # exact Shapley values take 2ⁿ forward passes for n words; longer texts have a sample
SHAPLEY_ORDERS = 4  # random orders of the words of a longer text, each also backwards


def image_methods(integration_steps: int) -> dict[str, Method]:
    """Return the methods for photographs; `integration_steps` is the number of points of integrated Jacobians."""
    return {
        OUR_METHOD: composite_method(None),
        "Hessian×Product": composite_method(composites.hessian_product()),
        "integrated Jacobians": one_sided(partial(_integrate, steps=integration_steps)),
        "occlusion": one_sided(_cover, pair_occlusions),
        "last layer": one_sided(decompose_last_layer),
        "Grad-CAM": grad_cam,
        "PAIR-X": pairx,
        "same place": same_place,
        "random": random_relevance,
    }


def text_methods(integration_steps: int) -> dict[str, Method]:
    """Return the methods for texts; `integration_steps` is the number of points of integrated Jacobians."""
    every = image_methods(integration_steps)
    attnlrp = composite_method(composites.attnlrp())
    return {OUR_METHOD: every.pop(OUR_METHOD), "AttnLRP": attnlrp, "Shapley pairs": shapley_pairs, **every}


def load_entry(name: str) -> Method:
    """Import a method by package.module:function."""
    module, _, function = name.partition(":")
    try:
        method: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"--entry {name}: give package.module:function ({error})") from error
    if not callable(method):
        raise InputError(f"--entry {name} is not a function: give one with (encoder, a, b, regions)")
    return cast(Method, method)


def composite_method(composite: Composite | None) -> Method:
    """Return BiLRP with a composite; None is the encoder's default."""

    def decompose_input(encoder: Encoder, x: Any, regions: int | None) -> Decomposition:
        return decompose(encoder, x, regions=regions, composite=composite)

    return pair_cached(decompose_input, pair)


def one_sided(
    decompose_side: Callable[[TracedInput], Decomposition],
    pair_sides: Callable[[Decomposition, Decomposition], Explanation] = pair,
) -> Method:
    """Return a method that decomposes each input alone, and pairs the two.

    Args:
        decompose_side: recorded input → decomposition.
        pair_sides: two decompositions → explanation.
    """

    def decompose_input(encoder: Encoder, x: Any, regions: int | None) -> Decomposition:
        with torch.no_grad():
            return decompose_side(trace_input(encoder, x, regions))

    return pair_cached(decompose_input, pair_sides)


def pair_cached(
    decompose_input: Callable[[Encoder, Any, int | None], Decomposition],
    pair_sides: Callable[[Decomposition, Decomposition], Explanation],
) -> Method:
    """Return a method that decomposes an input once, though it is in several pairs and is read anew for each."""
    cache: dict[tuple[int, int | None, str], tuple[Encoder, Decomposition]] = {}

    def explain(encoder: Encoder, a: Any, b: Any, regions: int | None) -> Explanation:
        sides = []
        for x in (a, b):
            key = id(encoder), regions, x if isinstance(x, str) else hash_array(x)
            if key not in cache:
                if len(cache) >= MAX_CACHED:
                    cache.pop(next(iter(cache)))
                # The encoder is kept with its decomposition: ids of freed objects are used again.
                cache[key] = encoder, decompose_input(encoder, x, regions)
            sides.append(cache[key][1])
        return pair_sides(*sides)

    return explain


def _integrate(side: TracedInput, *, steps: int) -> Decomposition:
    with progress_bar(False) as bar:
        return integrate_gradients(side, steps=steps, bar=bar)


def _cover(side: TracedInput) -> Decomposition:
    with progress_bar(False) as bar:
        return occlude_each_region(side, None, bar)


def pairx(encoder: Encoder, a: Any, b: Any, regions: int | None) -> Explanation:
    """Return PAIR-X."""
    return baselines.pairx(encoder, a, b, regions=regions)


def grad_cam(encoder: Encoder, a: Any, b: Any, regions: int | None) -> Tensor:
    """Return Grad-CAM for pairs: the product of the Grad-CAM of the score on the last feature map of each input.

    R_pp' = L(p) L'(p'), L(p) = max(0, Σ_c α_c F_c(p)), α_c = mean over positions of ∂y/∂F_c(p). It has no opinion on what
    goes with what: every row is a multiple of every other.
    """
    sides = trace_inputs(encoder, a, b, regions)
    embeddings = [side.tape.result.flatten() for side in sides]
    targets = pair_vectors(resolve_similarity(None, encoder.similarity), *embeddings)
    maps = []
    with torch.no_grad():
        for side, target in zip(sides, targets, strict=True):
            last = find_last(side.tape)
            channels = last.pull_gradient(target).mean(0)
            maps.append(last.region_shares(side.regions) @ (last.vectors @ channels).clamp(min=0))
    return torch.outer(*maps)


def shapley_pairs(encoder: Encoder, a: Any, b: Any, regions: int | None) -> Tensor:
    """Return the Shapley values of pairs of words under deletion; special tokens have none.

    The dot product is bilinear, so the product of both texts' values (of every coordinate) is the value of each pair; for
    cosine they are divided by the norms of the whole texts' embeddings. Exact up to MAX_EXACT_WORDS words.
    """
    is_cosine = resolve_similarity(None, encoder.similarity).unit_form is not None
    sides = []
    for text in (a, b):
        sentence = StudySentence(encoder, encoder, text)
        is_short = len(sentence.words) <= MAX_EXACT_WORDS
        values = sentence.shapley_values() if is_short else sentence.sample_shapley_values(SHAPLEY_ORDERS)
        count = resolve_regions(encoder, sentence.encoder_input, regions)[0].count
        parts = values.new_zeros(count, values.shape[1])
        parts[sentence.words] = values / (sentence.embedding.double().norm() if is_cosine else 1.0)
        sides.append(parts)
    return sides[0] @ sides[1].T


def same_place(encoder: Encoder, a: Any, b: Any, regions: int | None) -> Tensor:
    """Return relevance that ignores content: 1 for regions at the same place, less by distance, from 0 to 1."""
    first, second = (_centres(_read_regions(encoder, x, regions)[1]) for x in (a, b))
    return 1 - torch.cdist(first, second) / first.shape[1] ** 0.5


def _centres(regions: Regions) -> Tensor:
    """Return the relative place of each region: (row, column) of an image, or the place in a text."""
    if regions.boxes is not None:
        middle = (regions.boxes[:, :2] + regions.boxes[:, 2:]).double() / 2
        return middle / torch.tensor(regions.labels.shape[-2:], dtype=torch.float64)
    return (torch.arange(regions.count, dtype=torch.float64)[:, None] + 0.5) / regions.count


def random_relevance(encoder: Encoder, a: Any, b: Any, regions: int | None) -> Tensor:
    """Return normal relevance, the same for the same inputs."""
    (x, first), (y, second) = (_read_regions(encoder, each, regions) for each in (a, b))
    seed = int(1e6 * float(x.double().sum() - 2 * y.double().sum())) % 2**31
    return torch.randn(first.count, second.count, generator=torch.Generator().manual_seed(seed))


def _read_regions(encoder: Encoder, x: Any, regions: int | None) -> tuple[Tensor, Regions]:
    item = read_item(encoder, x)
    return item.x, resolve_regions(encoder, item, regions)[0]


def run_method(
    method: Method,
    default: Method,
    ours: list[Explanation],
    encoder: Encoder,
    case: Case,
    regions: int | None,
) -> Explanation:
    """Return the explanation of a method; a relevance matrix is put into the default's explanation.

    Args:
        method: the method.
        default: the default method.
        ours: the default's explanation, if it was computed before; else it is added when needed.
        encoder: the encoder.
        case: the two inputs.
        regions: side of a region of both inputs in pixels; None for the encoder's regions.
    """
    result = method(encoder, case.a, case.b, regions)
    if isinstance(result, Explanation):
        return result
    if not ours:
        explanation = default(encoder, case.a, case.b, regions)
        assert isinstance(explanation, Explanation)
        ours.append(explanation)
    if result.shape != ours[0].relevance.shape:
        raise InputError(
            f"a method gave relevance {tuple(result.shape)} for {tuple(ours[0].relevance.shape)} regions"
        )
    relevance = result.to(ours[0].relevance)
    return replace(ours[0], relevance=relevance, self_terms=None, reference_terms=None)
