"""The five compared methods: each image is decomposed once per composite, at all layers in one pass."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilrp.encoder import Encoder
from bilrp.pipeline import decompose
from bilrp.regions import grid
from bilrp.rules import composites
from bilrp_studies.common.cache import compute_key, hash_array
from bilrp_studies.faithfulness.settings import FaithfulnessSettings

METHODS = ("bilrp", "hessian_product", "uniform", "saliency", "random")
MODEL_FREE_METHODS = (
    "saliency",
    "random",
)  # independent of the network: the same relevance at every layer


@dataclass(frozen=True, eq=False)
class SideParts:
    """Parts, embedding and seed of one image at one layer; two of them give the relevance of a pair."""

    parts: Tensor
    embedding: Tensor
    seed: int


SidesByMethod = Mapping[str, Mapping[int, SideParts]]  # by method, by layer


def decompose_sides(
    encoder: Encoder, x: Tensor, settings: FaithfulnessSettings, *, purpose: str = ""
) -> SidesByMethod:
    """Decompose one image by every method at every layer.

    Args:
        encoder: VGG-16 up to the highest layer.
        x: The input, (1, C, H, W).
        settings: Layers, regions, projection and seed.
        purpose: Varies the seed of the random method.
    """
    seed = derive_seed(x, settings, purpose)
    result: dict[str, dict[int, SideParts]] = {}
    for method, composite in composites_by_method(encoder, settings).items():
        decomposition = decompose(
            encoder,
            x,
            regions=grid(settings.regions),
            composite=composite,
            project=settings.project,
            layers=settings.layers,
        )
        result[method] = {layer: SideParts(d.parts, d.embedding, seed) for layer, d in decomposition.items()}
    squares = grid(settings.regions)(x).pool(x.square()[None]).T
    for method in MODEL_FREE_METHODS:
        result[method] = {
            layer: SideParts(squares, side.embedding, seed) for layer, side in result["bilrp"].items()
        }
    return result


def derive_seed(x: Tensor, settings: FaithfulnessSettings, purpose: str) -> int:
    """Derive a seed from image, settings and purpose: reproducible, and independent between different ones.

    Args:
        x: The image, hashed.
        settings: Provides the study's seed.
        purpose: A name for the use of the seed.
    """
    return zlib.crc32(f"{purpose} {settings.seed} {hash_array(x)}".encode())


def composites_by_method(encoder: Encoder, settings: FaithfulnessSettings) -> dict[str, Any]:
    """Return the composites of the methods that decompose embeddings."""
    return {
        "bilrp": encoder.composite,
        "hessian_product": composites.hessian_product(),
        "uniform": composites.uniform(settings.gamma),
    }


def pair_relevance(method: str, a: SideParts, b: SideParts) -> Tensor:
    """Return the relevance [regions of a, regions of b] by one method.

    Args:
        method: One of METHODS.
        a: The first image at one layer.
        b: The second image at the same layer.
    """
    if method != "random":
        return a.parts @ b.parts.T
    # Hash the two seeds together: in a sum of CRCs, what both sides have in common, such as the network, would cancel.
    seed = int(compute_key(str(a.seed), {"other": b.seed})[:12], 16)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(a.parts), len(b.parts), generator=generator).to(a.parts)
