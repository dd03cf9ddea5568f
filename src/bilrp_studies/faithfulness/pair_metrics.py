"""One pair of photographs under the whole suite of `bilrp.evaluate`, by every method at every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder
from bilrp.encoders import images
from bilrp.evaluation import evaluate
from bilrp.regions import Regions, grid
from bilrp_studies.common.warps import warp
from bilrp_studies.faithfulness.methods import BLIND, METHODS, Side, Sides, relevance, seed_of, sides
from bilrp_studies.faithfulness.settings import FaithfulnessSettings


@dataclass(frozen=True, eq=False)
class Bench:
    """The encoder, its randomised copy, and what was chosen."""

    encoder: Encoder
    blank: Encoder
    settings: FaithfulnessSettings

    def sides(self, x: Tensor, *, blank: bool = False) -> Sides:
        """One picture under every method, by the trained or by the randomised network."""
        return sides(self.blank if blank else self.encoder, x, self.settings, name="blank" if blank else "")


@dataclass(frozen=True, eq=False)
class Picture:
    """One photograph with everything that both of its pairs need: itself, with noise, and by random weights."""

    name: str
    x: Tensor
    plain: Sides
    noisy: Sides
    blank: Sides


def prepared(bench: Bench, name: str, x: Tensor) -> Picture:
    """Take a photograph apart in its three forms."""
    # Each picture its own noise: what both sides had in common would be content, and similar.
    generator = torch.Generator().manual_seed(seed_of(x, bench.settings, "noise"))
    # Noise must not leave the range of pixels, which the first layer's rule relies on.
    low, high = (torch.tensor(bound).reshape(1, -1, 1, 1).to(x) for bound in images.bounds())
    shaken = evaluate.noisy(x, bench.settings.noise, generator).clamp(low, high)
    return Picture(name, x, bench.sides(x), bench.sides(shaken), bench.sides(x, blank=True))


def measured(bench: Bench, a: Picture, b: Picture, number: int) -> dict[str, Any]:
    """Every measure of one pair: {layer: {method: {measure: value}}}, and what was done to it."""
    settings = bench.settings
    regions = grid(settings.regions)(a.x)
    kind, match, among, warped = warp(a.x, regions, number)
    after = bench.sides(warped)
    image, pasted = plant(a.x, b.x, regions, seed=settings.seed + number)
    with_patch = bench.sides(image)
    curves = follow(bench, a, b, regions)
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for layer in settings.layers:
        found[str(layer)] = {}
        for method in METHODS:
            plain, noisy, blank = (
                relevance(method, getattr(a, form)[method][layer], getattr(b, form)[method][layer])
                for form in ("plain", "noisy", "blank")
            )
            to_warp = relevance(method, a.plain[method][layer], after[method][layer])
            to_patch = relevance(method, a.plain[method][layer], with_patch[method][layer])
            found[str(layer)][method] = {
                **account(method, plain, a.plain[method][layer], b.plain[method][layer]),
                **curves[method][layer],
                **_shares("warp", evaluate.share(to_warp, match, among=among)),
                **_shares("planted", evaluate.share(to_patch, pasted)),
                "randomisation": abs(evaluate.rank_correlation(plain, blank)),
                "stability": float(evaluate.cosine(noisy, plain).nan_to_num(0.0)),
            }
    chance = {"warp": float((match * among).sum() / among.sum()), "planted": float(pasted.mean())}
    row = {"a": a.name, "b": b.name, "warp": kind, "chance": chance, "layers": found}
    if settings.cascade and number % settings.cascade == 0:
        row["cascade"] = cascade(bench, a, b)
    return row


def account(method: str, found: Tensor, a: Side, b: Side) -> dict[str, float | None]:
    """Conservation: what adds up to the score, and how much of the relevance is negative."""
    total = found.double().abs().sum()
    negative = float(found.double().clamp(max=0).abs().sum() / total) if float(total) else 0.0
    if method in BLIND:  # scores of pairs, not shares of the similarity
        return {"unattributed": None, "negative": negative}
    score = float(a.embedding.double() @ b.embedding.double())
    missing = abs(score - float(found.double().sum())) / abs(score) if score else 0.0
    return {"unattributed": missing, "negative": negative}


def follow(bench: Bench, a: Picture, b: Picture, regions: Regions) -> dict[str, dict[int, dict[str, float]]]:
    """Areas under pair deletion and insertion, {method: {layer: …}}; the ends of all curves are shared."""
    settings, module = bench.settings, bench.encoder.module
    total = 2 * regions.count
    counts = torch.linspace(0, total, settings.steps + 1).round().long()
    blur = evaluate.blurred(settings.regions + settings.regions // 2)
    pictures, blank = (a.x, b.x), (blur(a.x), blur(b.x))
    whole, empty = (dots(module, *both, settings.layers) for both in (pictures, blank))
    found: dict[str, dict[int, dict[str, float]]] = {
        method: {layer: {} for layer in settings.layers} for method in METHODS
    }
    orders = {"deletion": evaluate.removal_order, "insertion": evaluate.insertion_order}
    for method, layers in _alike(settings.layers):
        table = relevance(method, a.plain[method][layers[0]], b.plain[method][layers[0]])
        for key, order in orders.items():
            insert = key == "insertion"
            batches = [
                evaluate.replaced(x, other, regions, place, counts[1:-1], insert=insert)
                for x, other, place in zip(pictures, blank, order(table), strict=True)
            ]
            start, end = (empty, whole) if insert else (whole, empty)
            for layer, between in dots(module, batches[0], batches[1], layers).items():
                scores = torch.cat([start[layer], between, end[layer]])
                found[method][layer][key] = evaluate.Curve(counts / total, scores, float(whole[layer])).area
    return found


def _alike(layers: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    """Each method with the layers at which its relevance is the same, so that one run of the network serves them."""
    for method in METHODS:
        yield from [(method, layers)] if method in BLIND else [(method, [layer]) for layer in layers]


@torch.inference_mode()
def dots(module: Any, a: Tensor, b: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """⟨φ(x), φ(x')⟩ of two batches, pair by pair, at several layers of VGG-16 in one run."""
    found, value = {}, torch.cat([a, b])
    for number, layer in enumerate(module.features[: max(layers)], start=1):
        value = layer(value)
        if number in layers:
            left, right = value.flatten(1).double().split([len(a), len(b)])
            found[number] = (left * right).sum(1)
    return found


def cascade(bench: Bench, a: Picture, b: Picture) -> dict[str, dict[str, dict[str, float]]]:
    """|Rank correlation| with random weights from each block up, {layer: {method: {block: …}}}; block 1 is all of them."""
    settings = bench.settings
    found: dict[str, dict[str, dict[str, float]]] = {
        str(layer): {method: {} for method in METHODS} for layer in settings.layers
    }
    for block, (start, depth) in blocks(bench.encoder.module).items():
        layers = tuple(layer for layer in settings.layers if layer > start)  # the others stay as they are
        if block == 1:
            left, right = a.blank, b.blank
        else:
            other = evaluate.randomised(bench.encoder, depth, seed=settings.seed)
            few = replace(settings, layers=layers)
            left, right = (sides(other, each.x, few, name=f"from block {block}") for each in (a, b))
        for layer in layers:
            for method in METHODS:
                before = relevance(method, a.plain[method][layer], b.plain[method][layer])
                after = relevance(method, left[method][layer], right[method][layer])
                found[str(layer)][method][str(block)] = abs(evaluate.rank_correlation(before, after))
    return found


def blocks(module: Any) -> dict[int, tuple[int, int]]:
    """{block: (layers before it, convolutions in it and above)}, the top block first; a pooling ends a block."""
    layers = list(module.features)
    starts = [0, *(k + 1 for k, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d))]
    depths = [len(evaluate.weighted_modules(nn.ModuleList(layers[start:]))) for start in starts]
    found = {k: pair for k, pair in enumerate(zip(starts, depths, strict=True), start=1) if pair[1]}
    return dict(reversed(found.items()))


def plant(a: Tensor, b: Tensor, regions: Regions, *, seed: int) -> tuple[Tensor, Tensor]:
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
    _, image, where = evaluate.planted(a, b, patch=a[0, :, rows, columns], at_a=place, at_b=place)
    return image, evaluate.pasted(where, regions, regions)


def _shares(name: str, found: evaluate.Share) -> dict[str, float]:
    return {f"{name}_positive": found.positive, f"{name}_signed": found.signed}
