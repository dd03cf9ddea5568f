"""One pair of photographs under the whole suite of `bilrp.evaluation`, by every method at every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp import evaluation
from bilrp.encoder import Encoder
from bilrp.encoders import images
from bilrp.regions import Regions, grid
from bilrp_studies.common.warps import apply_warp
from bilrp_studies.faithfulness.methods import (
    METHODS,
    MODEL_FREE_METHODS,
    SideParts,
    SidesByMethod,
    decompose_sides,
    derive_seed,
    pair_relevance,
)
from bilrp_studies.faithfulness.settings import FaithfulnessSettings


@dataclass(frozen=True, eq=False)
class EvaluationContext:
    """The encoder, its randomised copy, and what was chosen."""

    encoder: Encoder
    randomized_encoder: Encoder
    settings: FaithfulnessSettings

    def decompose(self, x: Tensor, *, randomized: bool = False) -> SidesByMethod:
        """One picture under every method, by the trained or by the randomised network."""
        return decompose_sides(
            self.randomized_encoder if randomized else self.encoder,
            x,
            self.settings,
            purpose="blank" if randomized else "",
        )


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """One photograph with everything that both of its pairs need: itself, with noise, and by random weights."""

    name: str
    x: Tensor
    plain: SidesByMethod
    noisy: SidesByMethod
    randomized: SidesByMethod


def prepare_image(context: EvaluationContext, name: str, x: Tensor) -> PreparedImage:
    """Take a photograph apart in its three forms."""
    # Each picture its own noise: what both sides had in common would be content, and similar.
    generator = torch.Generator().manual_seed(derive_seed(x, context.settings, "noise"))
    # Noise must not leave the range of pixels, which the first layer's rule relies on.
    low, high = (torch.tensor(bound).reshape(1, -1, 1, 1).to(x) for bound in images.pixel_bounds())
    shaken = evaluation.add_noise(x, context.settings.noise, generator).clamp(low, high)
    return PreparedImage(
        name, x, context.decompose(x), context.decompose(shaken), context.decompose(x, randomized=True)
    )


def measure_pair(
    context: EvaluationContext, a: PreparedImage, b: PreparedImage, number: int
) -> dict[str, Any]:
    """Every measure of one pair: {layer: {method: {measure: value}}}, and what was done to it."""
    settings = context.settings
    regions = grid(settings.regions)(a.x)
    kind, match, among, warped = apply_warp(a.x, regions, number)
    after = context.decompose(warped)
    image, pasted = plant_patch(a.x, b.x, regions, seed=settings.seed + number)
    with_patch = context.decompose(image)
    curves = measure_curves(context, a, b, regions)
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for layer in settings.layers:
        found[str(layer)] = {}
        for method in METHODS:
            plain, noisy, blank = (
                pair_relevance(method, getattr(a, form)[method][layer], getattr(b, form)[method][layer])
                for form in ("plain", "noisy", "randomized")
            )
            to_warp = pair_relevance(method, a.plain[method][layer], after[method][layer])
            to_patch = pair_relevance(method, a.plain[method][layer], with_patch[method][layer])
            found[str(layer)][method] = {
                **conservation_measures(method, plain, a.plain[method][layer], b.plain[method][layer]),
                **curves[method][layer],
                **_share_measures("warp", evaluation.relevance_share(to_warp, match, mask=among)),
                **_share_measures("planted", evaluation.relevance_share(to_patch, pasted)),
                "randomisation": abs(evaluation.rank_correlation(plain, blank)),
                "stability": float(evaluation.cosine(noisy, plain).nan_to_num(0.0)),
            }
    chance = {"warp": float((match * among).sum() / among.sum()), "planted": float(pasted.mean())}
    row = {"a": a.name, "b": b.name, "warp": kind, "chance": chance, "layers": found}
    if settings.cascade and number % settings.cascade == 0:
        row["cascade"] = measure_cascade(context, a, b)
    return row


def conservation_measures(
    method: str, relevance: Tensor, a: SideParts, b: SideParts
) -> dict[str, float | None]:
    """Conservation: what adds up to the score, and how much of the relevance is negative."""
    total = relevance.double().abs().sum()
    negative = float(relevance.double().clamp(max=0).abs().sum() / total) if float(total) else 0.0
    if method in MODEL_FREE_METHODS:  # scores of pairs, not shares of the similarity
        return {"unattributed": None, "negative": negative}
    score = float(a.embedding.double() @ b.embedding.double())
    missing = abs(score - float(relevance.double().sum())) / abs(score) if score else 0.0
    return {"unattributed": missing, "negative": negative}


def measure_curves(
    context: EvaluationContext, a: PreparedImage, b: PreparedImage, regions: Regions
) -> dict[str, dict[int, dict[str, float]]]:
    """Areas under pair deletion and insertion, {method: {layer: …}}; the ends of all curves are shared."""
    settings, module = context.settings, context.encoder.module
    total = 2 * regions.count
    counts = torch.linspace(0, total, settings.steps + 1).round().long()
    blur = evaluation.blur_baseline(settings.regions + settings.regions // 2)
    pictures, blank = (a.x, b.x), (blur(a.x), blur(b.x))
    whole, empty = (layer_dot_products(module, *both, settings.layers) for both in (pictures, blank))
    found: dict[str, dict[int, dict[str, float]]] = {
        method: {layer: {} for layer in settings.layers} for method in METHODS
    }
    orders = {"deletion": evaluation.removal_order, "insertion": evaluation.insertion_order}
    for method, layers in _layers_by_relevance(settings.layers):
        table = pair_relevance(method, a.plain[method][layers[0]], b.plain[method][layers[0]])
        for key, order in orders.items():
            insert = key == "insertion"
            batches = [
                evaluation.replace_regions(x, other, regions, place, counts[1:-1], insert=insert)
                for x, other, place in zip(pictures, blank, order(table), strict=True)
            ]
            start, end = (empty, whole) if insert else (whole, empty)
            for layer, between in layer_dot_products(module, batches[0], batches[1], layers).items():
                scores = torch.cat([start[layer], between, end[layer]])
                found[method][layer][key] = evaluation.Curve(counts / total, scores, float(whole[layer])).area
    return found


def _layers_by_relevance(layers: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    """Each method with the layers at which its relevance is the same, so that one run of the network serves them."""
    for method in METHODS:
        yield from (
            [(method, layers)] if method in MODEL_FREE_METHODS else [(method, [layer]) for layer in layers]
        )


@torch.inference_mode()
def layer_dot_products(module: Any, a: Tensor, b: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """⟨φ(x), φ(x')⟩ of two batches, pair by pair, at several layers of VGG-16 in one run."""
    found, value = {}, torch.cat([a, b])
    for number, layer in enumerate(module.features[: max(layers)], start=1):
        value = layer(value)
        if number in layers:
            left, right = value.flatten(1).double().split([len(a), len(b)])
            found[number] = (left * right).sum(1)
    return found


def measure_cascade(
    context: EvaluationContext, a: PreparedImage, b: PreparedImage
) -> dict[str, dict[str, dict[str, float]]]:
    """|Rank correlation| with random weights from each block up, {layer: {method: {block: …}}}; block 1 is all of them."""
    settings = context.settings
    found: dict[str, dict[str, dict[str, float]]] = {
        str(layer): {method: {} for method in METHODS} for layer in settings.layers
    }
    for block, (start, depth) in conv_blocks(context.encoder.module).items():
        layers = tuple(layer for layer in settings.layers if layer > start)  # the others stay as they are
        if block == 1:
            left, right = a.randomized, b.randomized
        else:
            other = evaluation.randomize_weights(context.encoder, depth, seed=settings.seed)
            few = replace(settings, layers=layers)
            left, right = (
                decompose_sides(other, each.x, few, purpose=f"from block {block}") for each in (a, b)
            )
        for layer in layers:
            for method in METHODS:
                before = pair_relevance(method, a.plain[method][layer], b.plain[method][layer])
                after = pair_relevance(method, left[method][layer], right[method][layer])
                found[str(layer)][method][str(block)] = abs(evaluation.rank_correlation(before, after))
    return found


def conv_blocks(module: Any) -> dict[int, tuple[int, int]]:
    """{block: (layers before it, convolutions in it and above)}, the top block first; a pooling ends a block."""
    layers = list(module.features)
    starts = [0, *(k + 1 for k, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d))]
    depths = [len(evaluation.weighted_modules(nn.ModuleList(layers[start:]))) for start in starts]
    found = {k: pair for k, pair in enumerate(zip(starts, depths, strict=True), start=1) if pair[1]}
    return dict(reversed(found.items()))


def plant_patch(a: Tensor, b: Tensor, regions: Regions, *, seed: int) -> tuple[Tensor, Tensor]:
    """Paste a patch of a into b: (new b, the pairs of regions that join the two). It covers whole regions.

    The patch is about a third of the width and lies in the same place in both, since these models compare place with
    place. The picture a stays as it is, so that the patch has its natural surroundings on one side.
    """
    assert regions.boxes is not None
    generator = np.random.default_rng(seed)
    side = int(regions.boxes[0, 2])
    extent = [max(1, n // side // 3) for n in a.shape[2:]]
    top, left = (int(generator.integers(n // side - m + 1)) for n, m in zip(a.shape[2:], extent, strict=True))
    rows, columns = slice(top * side, (top + extent[0]) * side), slice(left * side, (left + extent[1]) * side)
    place = (rows.start, columns.start)
    _, image, where = evaluation.paste_patch(a, b, patch=a[0, :, rows, columns], at_a=place, at_b=place)
    return image, evaluation.match_pasted_regions(where, regions, regions)


def _share_measures(name: str, share: evaluation.RelevanceShare) -> dict[str, float]:
    return {f"{name}_positive": share.positive, f"{name}_signed": share.signed}
