"""The pointing game: for the words of an object, does the strongest relevance fall inside that object's box?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilrp_studies.captions.methods import Method, Relevance
from bilrp_studies.captions.caption_model import PATCH, Model
from bilrp_studies.captions.scenes import SIDE, Box, Scene

CHANCE = "chance"
Row = dict[str, Any]


def patches_in(box: Box) -> Bool[Tensor, " patches"]:
    """Which patches have their middle inside a box.

    >>> patches_in((0, 0, 16, 16)).nonzero().flatten().tolist()
    [0, 1, 8, 9]
    """
    middles = torch.arange(SIDE // PATCH) * PATCH + PATCH / 2
    top, left, bottom, right = box
    down, across = ((middles >= a) & (middles < b) for a, b in ((top, bottom), (left, right)))
    return (down[:, None] & across).flatten()


def of_words(relevance: Relevance, scene: Scene) -> Float[Tensor, "objects patches"]:
    """The relevance of each named object's words, summed, on every patch."""
    return torch.stack(
        [
            relevance[:, [word for word, owner in enumerate(scene.owners) if owner == number]].sum(1)
            for number in range(len(scene.named))
        ]
    )


def pointed(relevance: Relevance, scene: Scene) -> tuple[float, float]:
    """Over the named objects: how often the strongest patch lies in the box; the share of positive relevance in it.

    An object whose words have no positive relevance anywhere is missed.
    """
    hits, shares = [], []
    for values, thing in zip(of_words(relevance.double(), scene), scene.named, strict=True):
        inside, positive = patches_in(thing.box), values.clamp(min=0)
        total = float(positive.sum())
        hits.append(float(inside[values.argmax()]) if total else 0.0)
        shares.append(float(positive[inside].sum()) / total if total else 0.0)
    return sum(hits) / len(hits), sum(shares) / len(shares)


def judged(compared: Sequence[Method], model: Model, scene: Scene) -> Row:
    """What each method scores on one scene, and what a patch taken at random would."""
    row: Row = {method.name: pointed(method.found(model, scene), scene) for method in compared}
    area = sum(float(patches_in(thing.box).double().mean()) for thing in scene.named) / len(scene.named)
    return {**row, CHANCE: (area, area)}


def gathered(rows: Sequence[Mapping[str, Sequence[float]]], which: int) -> dict[str, list[float]]:
    """For each method one of its two values (0 hits, 1 shares) on every scene."""
    return {name: [row[name][which] for row in rows] for name in rows[0]}
