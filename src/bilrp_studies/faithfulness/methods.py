"""Five methods, one side at a time: each picture is taken apart once for each set of rules, at all layers in one sweep."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilrp.decomposition import decompose
from bilrp.io.cache import content_of, key_of
from bilrp.encoder import Encoder
from bilrp.regions import grid
from bilrp.rules import composites
from bilrp_studies.faithfulness.settings import FaithfulnessSettings

METHODS = ("bilrp", "hessian_product", "uniform", "saliency", "random")
BLIND = ("saliency", "random")  # they do not look at the network, so that every layer gets the same relevance


@dataclass(frozen=True, eq=False)
class Side:
    """What a method needs to know of one picture at one layer; two of them give the relevance of a pair."""

    parts: Tensor
    embedding: Tensor
    seed: int


Sides = Mapping[str, Mapping[int, Side]]  # by method, by layer


def sides(encoder: Encoder, x: Tensor, settings: FaithfulnessSettings, *, name: str = "") -> Sides:
    """One picture under every method at every layer."""
    seed = seed_of(x, settings, name)
    found: dict[str, dict[int, Side]] = {}
    for method, book in rule_books(encoder, settings).items():
        made = decompose(
            encoder,
            x,
            regions=grid(settings.regions),
            rules=book,
            project=settings.project,
            layers=settings.layers,
        )
        found[method] = {layer: Side(d.parts, d.embedding, seed) for layer, d in made.items()}
    squares = grid(settings.regions)(x).pool(x.square()[None]).T
    for method in BLIND:
        found[method] = {layer: Side(squares, side.embedding, seed) for layer, side in found["bilrp"].items()}
    return found


def seed_of(x: Tensor, settings: FaithfulnessSettings, name: str) -> int:
    """What is drawn for a picture: the same for the same picture, seed and purpose, otherwise independent."""
    return zlib.crc32(f"{name} {settings.seed} {content_of(x)}".encode())


def rule_books(encoder: Encoder, settings: FaithfulnessSettings) -> dict[str, Any]:
    """The methods that take embeddings apart, by their rules."""
    return {
        "bilrp": encoder.rules,
        "hessian_product": composites.hessian_product(),
        "uniform": composites.uniform(settings.gamma),
    }


def relevance(method: str, a: Side, b: Side) -> Tensor:
    """[regions of a, regions of b] by one method."""
    if method != "random":
        return a.parts @ b.parts.T
    # Sums of checksums would cancel what both sides have in common, such as the network: hash the two together.
    seed = int(key_of(str(a.seed), {"other": b.seed})[:12], 16)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(a.parts), len(b.parts), generator=generator).to(a.parts)
