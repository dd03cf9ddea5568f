"""Five methods, one side at a time: each picture is taken apart once for each set of rules, at all layers in one sweep."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilrp.encoder import Encoder
from bilrp.io.cache import compute_key, hash_array
from bilrp.pipeline import decompose
from bilrp.regions import grid
from bilrp.rules import composites
from bilrp_studies.faithfulness.settings import FaithfulnessSettings

METHODS = ("bilrp", "hessian_product", "uniform", "saliency", "random")
MODEL_FREE_METHODS = (
    "saliency",
    "random",
)  # they do not look at the network, so that every layer gets the same relevance


@dataclass(frozen=True, eq=False)
class SideParts:
    """What a method needs to know of one picture at one layer; two of them give the relevance of a pair."""

    parts: Tensor
    embedding: Tensor
    seed: int


SidesByMethod = Mapping[str, Mapping[int, SideParts]]  # by method, by layer


def decompose_sides(
    encoder: Encoder, x: Tensor, settings: FaithfulnessSettings, *, purpose: str = ""
) -> SidesByMethod:
    """One picture under every method at every layer."""
    seed = derive_seed(x, settings, purpose)
    found: dict[str, dict[int, SideParts]] = {}
    for method, book in composites_by_method(encoder, settings).items():
        made = decompose(
            encoder,
            x,
            regions=grid(settings.regions),
            composite=book,
            project=settings.project,
            layers=settings.layers,
        )
        found[method] = {layer: SideParts(d.parts, d.embedding, seed) for layer, d in made.items()}
    squares = grid(settings.regions)(x).pool(x.square()[None]).T
    for method in MODEL_FREE_METHODS:
        found[method] = {
            layer: SideParts(squares, side.embedding, seed) for layer, side in found["bilrp"].items()
        }
    return found


def derive_seed(x: Tensor, settings: FaithfulnessSettings, purpose: str) -> int:
    """What is drawn for a picture: the same for the same picture, seed and purpose, otherwise independent."""
    return zlib.crc32(f"{purpose} {settings.seed} {hash_array(x)}".encode())


def composites_by_method(encoder: Encoder, settings: FaithfulnessSettings) -> dict[str, Any]:
    """The methods that take embeddings apart, by their rules."""
    return {
        "bilrp": encoder.composite,
        "hessian_product": composites.hessian_product(),
        "uniform": composites.uniform(settings.gamma),
    }


def pair_relevance(method: str, a: SideParts, b: SideParts) -> Tensor:
    """[regions of a, regions of b] by one method."""
    if method != "random":
        return a.parts @ b.parts.T
    # Sums of checksums would cancel what both sides have in common, such as the network: hash the two together.
    seed = int(compute_key(str(a.seed), {"other": b.seed})[:12], 16)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(a.parts), len(b.parts), generator=generator).to(a.parts)
