"""Metrics of every candidate composite on one pair of photographs: planted patches, a warp, occlusion, unattributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp import evaluation
from bilrp.decomposition import Decomposition
from bilrp.encoder import Encoder
from bilrp.explanation import pair
from bilrp.pipeline import decompose
from bilrp.regions import Regions, grid
from bilrp.rules import composites
from bilrp.rules.composites import Composite
from bilrp.rules.reference_inputs import mean
from bilrp_studies.common.warps import apply_warp

CANDIDATE_COMPOSITES: Mapping[str, Composite] = {
    "γ = 0.25": composites.uniform(0.25),
    "γ = 0.25, biases to inputs": composites.bias_to_inputs(0.25),
    "secant to the mean colour": composites.secant("mean"),
    "secant to the blurred picture": composites.secant("blurred"),
    "secant to the blurred picture, γ = 0.25": composites.secant("blurred", gamma=0.25),
}


class CachedDecomposer:
    """Decomposes images with one composite; the last few are cached, since consecutive pairs share an image."""

    def __init__(self, encoder: Encoder, region_size: int, composite: Composite):
        self.encoder, self.region_size, self.composite = encoder, region_size, composite
        self.cache: dict[int, tuple[Tensor, Decomposition]] = {}

    def __call__(self, x: Tensor) -> Decomposition:
        if id(x) not in self.cache:
            if len(self.cache) > MAX_CACHED:
                self.cache.pop(next(iter(self.cache)))
            self.cache[id(x)] = (
                x,
                decompose(
                    self.encoder, x, regions=grid(self.region_size), composite=self.composite, mode="push"
                ),
            )
        return self.cache[id(x)][1]


MAX_CACHED = 8


def measure_pair(
    encoder: Encoder,
    decomposers: Mapping[str, CachedDecomposer],
    a: Tensor,
    b: Tensor,
    patch_source: Tensor,
    *,
    number: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Return {candidate: {measure: value}} for one pair of photographs.

    Args:
        encoder: The network.
        decomposers: One per candidate composite.
        a: The first photograph, (1, C, H, W).
        b: The second photograph.
        patch_source: A third photograph, planted as a small copy into the blurred pair.
        number: Index of the pair; selects the warp and the seed.
        seed: Seed of the study.
    """
    side = next(iter(decomposers.values())).region_size
    regions, generator = grid(side)(a), torch.Generator().manual_seed(seed + number)
    blur = evaluation.blur_baseline(side)
    pasted, among_detail = paste_patch(a, b, side, generator)
    alone = plant_small_copy(blur(a), blur(b), patch_source, side, generator)
    _, match, among, moved = apply_warp(a, regions, number)
    pairs, single = occlusion_effects(encoder, a, b, regions, (mean, blur))
    other = encoder.module(b).flatten()
    by_name = {}
    for name, parts in decomposers.items():
        plain = pair(parts(a), parts(b), similarity="dot")
        shares = {
            "planted": evaluation.pointing_game(
                pair(parts(alone[0]), parts(alone[1]), similarity="dot"), alone[2]
            ),
            "planted among detail": evaluation.pointing_game(
                pair(parts(a), parts(pasted), similarity="dot"), among_detail
            ),
            "warp": evaluation.relevance_share(
                pair(parts(a), parts(moved), similarity="dot"), match, mask=among
            ),
        }
        by_name[name] = {
            "unattributed": abs(plain.unattributed / plain.score),
            **{key: share.signed / share.chance for key, share in shares.items()},
            "occlusion of pairs": _mean_rank_correlation(plain.relevance, pairs),
            "occlusion": _mean_rank_correlation((parts(a).parts @ other)[None], single),
        }
    return by_name


def _mean_rank_correlation(relevance: Tensor, references: Sequence[Tensor]) -> float:
    """Return the mean rank correlation with the occlusion effects, over the ways of filling."""
    return sum(evaluation.rank_correlation(relevance, truth) for truth in references) / len(references)


def _random_corner(x: Tensor, region_size: int, generator: torch.Generator) -> tuple[int, int]:
    """Draw the top left corner of a block of two by two whole regions."""
    down, across = (
        region_size * int(torch.randint(n // region_size - 1, (), generator=generator)) for n in x.shape[2:]
    )
    return down, across


def plant_small_copy(
    a: Tensor, b: Tensor, patch_source: Tensor, region_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Paste a small copy of a third photograph into both, at different positions; return both and the pixel map.

    Args:
        a: The first image.
        b: The second image.
        patch_source: The image to scale down to two by two regions.
        region_size: Side of a region in pixels.
        generator: Source of randomness.
    """
    patch = F.interpolate(patch_source, (2 * region_size, 2 * region_size), mode="bilinear", antialias=True)[
        0
    ]
    at_a, at_b = _random_corner(a, region_size, generator), _random_corner(b, region_size, generator)
    return evaluation.paste_patch(a, b, patch=patch, at_a=at_a, at_b=at_b)


def paste_patch(a: Tensor, b: Tensor, region_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Paste a patch of a into b at another position; return the new b and the pixel map.

    Args:
        a: Source image, unchanged.
        b: Image to paste into.
        region_size: Side of a region in pixels; the patch covers two by two regions.
        generator: Source of randomness.
    """
    (top, left), at_b = _random_corner(a, region_size, generator), _random_corner(b, region_size, generator)
    patch = a[0, :, top : top + 2 * region_size, left : left + 2 * region_size]
    _, image, where = evaluation.paste_patch(a, b, patch=patch, at_a=(top, left), at_b=at_b)
    return image, where


@torch.no_grad()
def occlusion_effects(
    encoder: Encoder, a: Tensor, b: Tensor, regions: Regions, fills: Sequence[Callable[[Tensor], Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Effects of occlusion on the score, for each fill: of pairs of regions, and of single regions of a.

    y(a, b) − y(a∖I, b) − y(a, b∖I') + y(a∖I, b∖I') is ⟨φ(a) − φ(a∖I), φ(b) − φ(b∖I')⟩ for a dot product, which takes one
    forward pass per region instead of one per pair.

    Args:
        encoder: The network.
        a: The first image.
        b: The second image.
        regions: Regions of both images.
        fills: Functions that return an image of replacement pixels.
    """
    masks = regions.masks(torch.arange(regions.count), a.dtype)[:, 0] > 0
    pairs, single = [], []
    for blank in fills:
        full = [encoder.module(x).flatten(1) for x in (a, b)]
        drops = [
            y - encoder.module(torch.where(masks, blank(x), x)).flatten(1)
            for x, y in zip((a, b), full, strict=True)
        ]
        pairs.append(drops[0] @ drops[1].T)
        single.append(drops[0] @ full[1].T)
    return pairs, [each.T for each in single]
