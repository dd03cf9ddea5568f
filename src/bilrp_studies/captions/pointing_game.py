"""The pointing game: for the words of an object, is the patch of largest relevance inside that object's box?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilrp_studies.captions.caption_model import PATCH_PIXELS, CaptionModel
from bilrp_studies.captions.methods import Method, Relevance
from bilrp_studies.captions.scenes import SCENE_PIXELS, Box, Scene

CHANCE = "chance"
Row = dict[str, Any]


def patches_in_box(box: Box) -> Bool[Tensor, " patches"]:
    """Return the mask of the patches whose centre is inside a box.

    >>> patches_in_box((0, 0, 16, 16)).nonzero().flatten().tolist()
    [0, 1, 8, 9]
    """
    middles = torch.arange(SCENE_PIXELS // PATCH_PIXELS) * PATCH_PIXELS + PATCH_PIXELS / 2
    top, left, bottom, right = box
    down, across = ((middles >= a) & (middles < b) for a, b in ((top, bottom), (left, right)))
    return (down[:, None] & across).flatten()


def sum_by_object(relevance: Relevance, scene: Scene) -> Float[Tensor, "objects patches"]:
    """Sum the relevance over the words of each named object, for every patch."""
    return torch.stack(
        [
            relevance[:, [word for word, owner in enumerate(scene.object_of_word) if owner == number]].sum(1)
            for number in range(len(scene.named_objects))
        ]
    )


def score_pointing(relevance: Relevance, scene: Scene) -> tuple[float, float]:
    """Return means over the named objects: hit rate of the strongest patch, and share of positive relevance in the box.

    An object whose words have no positive relevance counts as a miss.
    """
    hits, shares = [], []
    for values, item in zip(sum_by_object(relevance.double(), scene), scene.named_objects, strict=True):
        inside, positive = patches_in_box(item.box), values.clamp(min=0)
        total = float(positive.sum())
        hits.append(float(inside[values.argmax()]) if total else 0.0)
        shares.append(float(positive[inside].sum()) / total if total else 0.0)
    return sum(hits) / len(hits), sum(shares) / len(shares)


def score_scene(methods: Sequence[Method], model: CaptionModel, scene: Scene) -> Row:
    """Return the scores of each method on one scene, and of a patch chosen at random (chance).

    Args:
        methods: The methods to score.
        model: The model to explain.
        scene: The scene, explained with its own caption.
    """
    row: Row = {method.name: score_pointing(method.explain(model, scene), scene) for method in methods}
    area = sum(float(patches_in_box(item.box).double().mean()) for item in scene.named_objects) / len(
        scene.named_objects
    )
    return {**row, CHANCE: (area, area)}


def collect_values(rows: Sequence[Mapping[str, Sequence[float]]], index: int) -> dict[str, list[float]]:
    """Return for each method one of its two scores (0 hits, 1 shares) on every scene."""
    return {name: [row[name][index] for row in rows] for name in rows[0]}
