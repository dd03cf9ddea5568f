"""One pair of photographs under every candidate: a planted patch, a known warp, occlusion, and what is unattributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.decomposition import Decomposition, decompose
from bilrp.encoder import Encoder
from bilrp.explanation import pair
from bilrp.evaluation import evaluate
from bilrp.regions import Regions, grid
from bilrp.rules import composites
from bilrp.rules.composites import Book
from bilrp.rules.reference_inputs import mean
from bilrp_studies.common.warps import warp

CANDIDATES: Mapping[str, Book] = {
    "γ = 0.25": composites.uniform(0.25),
    "γ = 0.25, biases to inputs": composites.absorbing(0.25),
    "secant to the mean colour": composites.secant("mean"),
    "secant to the blurred picture": composites.secant("blurred"),
    "secant to the blurred picture, γ = 0.25": composites.secant("blurred", gamma=0.25),
}


class Parts:
    """Decompositions under one candidate; the last few are kept, for neighbouring pairs share a picture."""

    def __init__(self, encoder: Encoder, side: int, book: Book):
        self.encoder, self.side, self.book = encoder, side, book
        self.kept: dict[int, tuple[Tensor, Decomposition]] = {}

    def __call__(self, x: Tensor) -> Decomposition:
        if id(x) not in self.kept:
            if len(self.kept) > KEPT:
                self.kept.pop(next(iter(self.kept)))
            self.kept[id(x)] = (
                x,
                decompose(self.encoder, x, regions=grid(self.side), rules=self.book, mode="push"),
            )
        return self.kept[id(x)][1]


KEPT = 8


def measured(
    encoder: Encoder,
    given: Mapping[str, Parts],
    a: Tensor,
    b: Tensor,
    third: Tensor,
    *,
    number: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """{candidate: {measure: value}} of one pair of photographs; what is planted on blurred ones is a third, made small."""
    side = next(iter(given.values())).side
    regions, generator = grid(side)(a), torch.Generator().manual_seed(seed + number)
    blur = evaluate.blurred(side)
    pasted, among_detail = own(a, b, side, generator)
    alone = small(blur(a), blur(b), third, side, generator)
    _, match, among, moved = warp(a, regions, number)
    pairs, single = occlusion(encoder, a, b, regions, (mean, blur))
    other = encoder.module(b).flatten()
    found = {}
    for name, parts in given.items():
        plain = pair(parts(a), parts(b))
        shares = {
            "planted": evaluate.pointing(pair(parts(alone[0]), parts(alone[1])), alone[2]),
            "planted among detail": evaluate.pointing(pair(parts(a), parts(pasted)), among_detail),
            "warp": evaluate.share(pair(parts(a), parts(moved)), match, among=among),
        }
        found[name] = {
            "unattributed": abs(plain.unattributed / plain.score),
            **{key: share.signed / share.chance for key, share in shares.items()},
            "occlusion of pairs": _agreement(plain.relevance, pairs),
            "occlusion": _agreement((parts(a).parts @ other)[None], single),
        }
    return found


def _agreement(found: Tensor, truths: Sequence[Tensor]) -> float:
    """Mean rank correlation with what covering says, for each of the ways to cover."""
    return sum(evaluate.rank_correlation(found, truth) for truth in truths) / len(truths)


def _place(x: Tensor, side: int, generator: torch.Generator) -> tuple[int, int]:
    """Where two by two whole regions begin."""
    down, across = (side * int(torch.randint(n // side - 1, (), generator=generator)) for n in x.shape[2:])
    return down, across


def small(
    a: Tensor, b: Tensor, third: Tensor, side: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """A small copy of a third photograph in both, each at its own place."""
    patch = F.interpolate(third, (2 * side, 2 * side), mode="bilinear", antialias=True)[0]
    at_a, at_b = _place(a, side, generator), _place(b, side, generator)
    return evaluate.planted(a, b, patch=patch, at_a=at_a, at_b=at_b)


def own(a: Tensor, b: Tensor, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A piece of a, pasted into b at another place; a stays as it is."""
    (top, left), at_b = _place(a, side, generator), _place(b, side, generator)
    patch = a[0, :, top : top + 2 * side, left : left + 2 * side]
    _, image, where = evaluate.planted(a, b, patch=patch, at_a=(top, left), at_b=at_b)
    return image, where


@torch.no_grad()
def occlusion(
    encoder: Encoder, a: Tensor, b: Tensor, regions: Regions, blanks: Sequence[Callable[[Tensor], Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """What covering does to the score, for each way to cover: to pairs of regions, and to single regions of a.

    y(a, b) − y(a∖I, b) − y(a, b∖I') + y(a∖I, b∖I') is ⟨φ(a) − φ(a∖I), φ(b) − φ(b∖I')⟩ for a dot product: as many runs as
    there are regions, not pairs.
    """
    masks = regions.masks(torch.arange(regions.count), a.dtype)[:, 0] > 0
    pairs, single = [], []
    for blank in blanks:
        whole = [encoder.module(x).flatten(1) for x in (a, b)]
        drops = [
            y - encoder.module(torch.where(masks, blank(x), x)).flatten(1)
            for x, y in zip((a, b), whole, strict=True)
        ]
        pairs.append(drops[0] @ drops[1].T)
        single.append(drops[0] @ whole[1].T)
    return pairs, [each.T for each in single]
