"""All measures of `bilrp.evaluation` for one pair of photographs, by every method at every layer."""

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
    """The encoder, its copy with random weights, and the settings."""

    encoder: Encoder
    randomized_encoder: Encoder
    settings: FaithfulnessSettings

    def decompose(self, x: Tensor, *, randomized: bool = False) -> SidesByMethod:
        """Decompose one image by every method, with the trained or the randomised network."""
        return decompose_sides(
            self.randomized_encoder if randomized else self.encoder,
            x,
            self.settings,
            purpose="blank" if randomized else "",
        )


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """One photograph, decomposed three times for use in both of its pairs: as it is, with noise, and with random weights."""

    name: str
    x: Tensor
    plain: SidesByMethod
    noisy: SidesByMethod
    randomized: SidesByMethod


def prepare_image(context: EvaluationContext, name: str, x: Tensor) -> PreparedImage:
    """Decompose a photograph as it is, with noise, and with random weights.

    Args:
        context: The two encoders and the settings.
        name: Name of the photograph in the report.
        x: The input, (1, C, H, W).
    """
    # Independent noise for each image: shared noise would be shared content and raise the similarity.
    generator = torch.Generator().manual_seed(derive_seed(x, context.settings, "noise"))
    # Clamp to the pixel range, which the z^B rule of the first layer assumes.
    low, high = (torch.tensor(bound).reshape(1, -1, 1, 1).to(x) for bound in images.pixel_bounds())
    shaken = evaluation.add_noise(x, context.settings.noise, generator).clamp(low, high)
    return PreparedImage(
        name, x, context.decompose(x), context.decompose(shaken), context.decompose(x, randomized=True)
    )


def measure_pair(
    context: EvaluationContext, a: PreparedImage, b: PreparedImage, number: int
) -> dict[str, Any]:
    """Return every measure of one pair, {layer: {method: {measure: value}}}, with the names, the warp and the chance levels.

    Args:
        context: The two encoders and the settings.
        a: The first photograph.
        b: The second photograph.
        number: Index of the pair; selects the warp and the seed, and every settings.cascade-th pair gets a cascade.
    """
    settings = context.settings
    regions = grid(settings.regions)(a.x)
    kind, match, among, warped = apply_warp(a.x, regions, number)
    after = context.decompose(warped)
    image, pasted = plant_patch(a.x, b.x, regions, seed=settings.seed + number)
    with_patch = context.decompose(image)
    curves = measure_curves(context, a, b, regions)
    result: dict[str, dict[str, dict[str, float | None]]] = {}
    for layer in settings.layers:
        result[str(layer)] = {}
        for method in METHODS:
            plain, noisy, blank = (
                pair_relevance(method, getattr(a, form)[method][layer], getattr(b, form)[method][layer])
                for form in ("plain", "noisy", "randomized")
            )
            to_warp = pair_relevance(method, a.plain[method][layer], after[method][layer])
            to_patch = pair_relevance(method, a.plain[method][layer], with_patch[method][layer])
            result[str(layer)][method] = {
                **conservation_measures(method, plain, a.plain[method][layer], b.plain[method][layer]),
                **curves[method][layer],
                **_share_measures("warp", evaluation.relevance_share(to_warp, match, mask=among)),
                **_share_measures("planted", evaluation.relevance_share(to_patch, pasted)),
                "randomisation": abs(evaluation.rank_correlation(plain, blank)),
                "stability": float(evaluation.cosine(noisy, plain).nan_to_num(0.0)),
            }
    chance = {"warp": float((match * among).sum() / among.sum()), "planted": float(pasted.mean())}
    row = {"a": a.name, "b": b.name, "warp": kind, "chance": chance, "layers": result}
    if settings.cascade and number % settings.cascade == 0:
        row["cascade"] = measure_cascade(context, a, b)
    return row


def conservation_measures(
    method: str, relevance: Tensor, a: SideParts, b: SideParts
) -> dict[str, float | None]:
    """Return the unattributed share of the score and the negative share of the relevance.

    Args:
        method: Name of the method; those that ignore the model have no unattributed share (None).
        relevance: Relevance of the pair.
        a: The first image.
        b: The second image.
    """
    total = relevance.double().abs().sum()
    negative = float(relevance.double().clamp(max=0).abs().sum() / total) if float(total) else 0.0
    if method in MODEL_FREE_METHODS:  # their relevance does not sum to the similarity
        return {"unattributed": None, "negative": negative}
    score = float(a.embedding.double() @ b.embedding.double())
    missing = abs(score - float(relevance.double().sum())) / abs(score) if score else 0.0
    return {"unattributed": missing, "negative": negative}


def measure_curves(
    context: EvaluationContext, a: PreparedImage, b: PreparedImage, regions: Regions
) -> dict[str, dict[int, dict[str, float]]]:
    """Return areas under pair deletion and insertion, {method: {layer: …}}; the end points of all curves are shared.

    Args:
        context: The encoder and the settings.
        a: The first photograph.
        b: The second photograph.
        regions: Regions of both photographs.
    """
    settings, module = context.settings, context.encoder.module
    total = 2 * regions.count
    counts = torch.linspace(0, total, settings.steps + 1).round().long()
    blur = evaluation.blur_baseline(settings.regions + settings.regions // 2)
    pictures, blank = (a.x, b.x), (blur(a.x), blur(b.x))
    full, empty = (layer_dot_products(module, *both, settings.layers) for both in (pictures, blank))
    result: dict[str, dict[int, dict[str, float]]] = {
        method: {layer: {} for layer in settings.layers} for method in METHODS
    }
    orders = {"deletion": evaluation.removal_order, "insertion": evaluation.insertion_order}
    for method, layers in _layers_by_relevance(settings.layers):
        table = pair_relevance(method, a.plain[method][layers[0]], b.plain[method][layers[0]])
        for key, order in orders.items():
            insert = key == "insertion"
            batches = [
                evaluation.replace_regions(x, other, regions, position, counts[1:-1], insert=insert)
                for x, other, position in zip(pictures, blank, order(table), strict=True)
            ]
            start, end = (empty, full) if insert else (full, empty)
            for layer, between in layer_dot_products(module, batches[0], batches[1], layers).items():
                scores = torch.cat([start[layer], between, end[layer]])
                result[method][layer][key] = evaluation.Curve(counts / total, scores, float(full[layer])).area
    return result


def _layers_by_relevance(layers: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield each method with the layers at which its relevance is the same, so that they share forward passes."""
    for method in METHODS:
        yield from (
            [(method, layers)] if method in MODEL_FREE_METHODS else [(method, [layer]) for layer in layers]
        )


@torch.inference_mode()
def layer_dot_products(module: Any, a: Tensor, b: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """Return ⟨φ(x), φ(x')⟩ of two batches, pair by pair, at several layers of VGG-16 from one forward pass.

    Args:
        module: VGG-16, with its layers in `features`.
        a: Batch of first images.
        b: Batch of second images, of the same size.
        layers: Layers, counted from 1.
    """
    result, value = {}, torch.cat([a, b])
    for number, layer in enumerate(module.features[: max(layers)], start=1):
        value = layer(value)
        if number in layers:
            left, right = value.flatten(1).double().split([len(a), len(b)])
            result[number] = (left * right).sum(1)
    return result


def measure_cascade(
    context: EvaluationContext, a: PreparedImage, b: PreparedImage
) -> dict[str, dict[str, dict[str, float]]]:
    """Return |rank correlation| with weights randomised from each block up, {layer: {method: {block: …}}}.

    Block 1 means that all weights are random (cascading randomisation from the top).

    Args:
        context: The two encoders and the settings.
        a: The first photograph.
        b: The second photograph.
    """
    settings = context.settings
    result: dict[str, dict[str, dict[str, float]]] = {
        str(layer): {method: {} for method in METHODS} for layer in settings.layers
    }
    for block, (start, depth) in conv_blocks(context.encoder.module).items():
        layers = tuple(layer for layer in settings.layers if layer > start)  # lower layers are unaffected
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
                result[str(layer)][method][str(block)] = abs(evaluation.rank_correlation(before, after))
    return result


def conv_blocks(module: Any) -> dict[int, tuple[int, int]]:
    """Return {block: (layers before it, convolutions in and above it)}, the top block first; a max-pooling ends a block."""
    layers = list(module.features)
    starts = [0, *(k + 1 for k, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d))]
    depths = [len(evaluation.list_weighted_modules(nn.ModuleList(layers[start:]))) for start in starts]
    result = {k: pair for k, pair in enumerate(zip(starts, depths, strict=True), start=1) if pair[1]}
    return dict(reversed(result.items()))


def plant_patch(a: Tensor, b: Tensor, regions: Regions, *, seed: int) -> tuple[Tensor, Tensor]:
    """Paste a patch of a into b; return the new b and the matrix of region pairs that both contain the patch.

    The patch covers whole regions, about a third of the width, at the same position in both images, since these models
    compare position by position. Image a is unchanged, so that the patch has its natural surroundings on one side.

    Args:
        a: Source image, (1, C, H, W).
        b: Image to paste into.
        regions: Grid regions of both images.
        seed: Determines the position.
    """
    assert regions.boxes is not None
    generator = np.random.default_rng(seed)
    side = int(regions.boxes[0, 2])
    extent = [max(1, n // side // 3) for n in a.shape[2:]]
    top, left = (int(generator.integers(n // side - m + 1)) for n, m in zip(a.shape[2:], extent, strict=True))
    rows, columns = slice(top * side, (top + extent[0]) * side), slice(left * side, (left + extent[1]) * side)
    position = (rows.start, columns.start)
    _, image, where = evaluation.paste_patch(a, b, patch=a[0, :, rows, columns], at_a=position, at_b=position)
    return image, evaluation.match_pasted_regions(where, regions, regions)


def _share_measures(name: str, share: evaluation.RelevanceShare) -> dict[str, float]:
    return {f"{name}_positive": share.positive, f"{name}_signed": share.signed}
