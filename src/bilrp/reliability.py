"""Reliability of inputs: weights in [0, 1] from the user, from an image file, or from the encoder itself."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bilrp import inputs
from bilrp.decomposition import Decomposition, Weights
from bilrp.encoder import Encoder
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.similarity import Similarity

OWN = "own"
"""The encoder's own confidence in its input, `Encoder.reliability`."""

ReliabilitySpec: TypeAlias = Weights | str | os.PathLike[str]
"""Weights of regions, a mask of the input, the path of an image (white is reliable), or "own"."""

ReliabilitySpecs: TypeAlias = ReliabilitySpec | tuple[ReliabilitySpec | None, ReliabilitySpec | None]
"""One spec for both inputs, or one for each; None is fully reliable."""


def weight_sides(
    sides: tuple[Decomposition, Decomposition],
    encoders: tuple[Encoder, Encoder],
    items: tuple[Item, Item],
    reliability: ReliabilitySpecs,
) -> tuple[Decomposition, Decomposition]:
    """Return two decompositions with their weights.

    Args:
        sides, encoders, items: The decompositions, with the encoder and the input of each.
        reliability: One spec for both, or a tuple of two.
    """
    specs = reliability if isinstance(reliability, tuple) else (reliability, reliability)
    if len(specs) != 2:
        raise InputError(f"reliability needs one spec for both inputs, or a tuple of two, got {len(specs)}")
    a, b = (
        side if spec is None else side.weight(resolve_weights(spec, encoder, item))
        for side, spec, encoder, item in zip(sides, specs, encoders, items, strict=True)
    )
    return a, b


def score_without_weights(a: Decomposition, b: Decomposition, similarity: Similarity) -> float | None:
    """Return y(φ, φ') of the embeddings before `Decomposition.weight`; None if neither was weighted.

    Args:
        a, b: The decompositions.
        similarity: The similarity y.
    """
    if a.unweighted_embedding is None and b.unweighted_embedding is None:
        return None
    before = (d.embedding if d.unweighted_embedding is None else d.unweighted_embedding for d in (a, b))
    return similarity.score(*before)


def mean_pair_weight(
    a: Decomposition, b: Decomposition, rows: Sequence[int], columns: Sequence[int]
) -> float | None:
    """Return the mean of w_I w'_I' over pairs of regions; None if neither side was weighted.

    Args:
        a, b: The decompositions.
        rows, columns: Regions of a and of b.
    """
    if a.reliability is None and b.reliability is None:
        return None
    sides = ((a.reliability, rows), (b.reliability, columns))
    return math.prod(1.0 if weights is None else float(weights[list(own)].mean()) for weights, own in sides)


def resolve_weights(spec: ReliabilitySpec, encoder: Encoder, item: Item) -> Weights:
    """Return weights or a mask for `Decomposition.weight`.

    Args:
        spec: Weights, a mask, the path of an image, or "own".
        encoder, item: The encoder, and the input.
    """
    if not isinstance(spec, str | os.PathLike):
        return spec
    if spec != OWN:
        return read_mask(spec, item)
    if encoder.reliability is None:
        raise InputError(
            f"the encoder {encoder.name} has no confidence of its own: give weights or a mask as reliability"
        )
    return encoder.reliability(item.x).clamp(0, 1)


def read_mask(path: str | os.PathLike[str], item: Item) -> Tensor:
    """Read the image of a mask, white where the input is reliable and black where it is not, as [height, width] in [0, 1].

    It shows the same as the input's image, at any size; resizing and cropping of the input are applied to it.
    """
    from PIL import Image as Pillow

    from bilrp.encoders.images import open_image

    view = item.view
    if not isinstance(view, inputs.Image):
        raise InputError(f"{path}: an image of a mask is for images; give texts weights, one for each region")
    mask = open_image(path).convert("L").convert("RGB").resize(view.size, Pillow.Resampling.BILINEAR)
    high, wide = item.x.shape[-2:]
    pixels = inputs.Image(np.asarray(mask), view.box).crop_to_input((high, wide))
    return torch.from_numpy(pixels[..., 0].astype(np.float32) / 255)
