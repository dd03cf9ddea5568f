"""The methods compared: what each finds on the patches of a scene and the words of its caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.explanation import explain
from bilrp.evaluation import baselines
from bilrp.regions import grid
from bilrp_studies.captions.caption_model import PATCH, Model
from bilrp_studies.captions.scenes import Scene, pixels_in

Relevance = Float[Tensor, "patches words"]
OURS = "BiLRP"


@dataclass(frozen=True)
class Method:
    """A name, what it is in words, and the relevance it finds on patches and words."""

    name: str
    about: str
    found: Callable[[Model, Scene], Relevance]


def methods(path: int) -> list[Method]:
    """All of them, ours first; `path` is the number of points of integrated Jacobians."""
    return [
        Method(OURS, "the package's default rules for each tower", _explained(explain)),
        Method("Hessian×Product", "true gradients times inputs", _explained(baselines.hessian_product)),
        Method(
            "integrated Jacobians",
            f"gradients along the way from zero, {path} points",
            lambda model, scene: (
                baselines.integrated_hessians(model.towers, scene, scene.caption, steps=path).relevance
            ),
        ),
        Method("occlusion", "what is lost when a patch is made grey, and a word is deleted", occlusion),
        Method("hidden states", "the last features of each place against those of each word", hidden),
        Method("curvature", "squared second derivatives", _explained(baselines.curvature)),
        Method(
            "saliency", "squared inputs, which knows nothing of the model", _explained(baselines.saliency)
        ),
    ]


def _explained(how: Callable) -> Callable[[Model, Scene], Relevance]:
    return lambda model, scene: how(model.towers, scene, scene.caption).relevance


def occlusion(model: Model, scene: Scene) -> Relevance:
    """⟨φ(x) − φ(x without I), φ'(x') − φ'(x' without I')⟩: a patch becomes the scene's mean, a word is deleted."""
    x = pixels_in([scene])
    regions = grid(PATCH)(x)
    masks = regions.masks(torch.arange(regions.count), x.dtype)[:, 0]
    without = x * (1 - masks) + x.mean((2, 3), keepdim=True) * masks
    patches = model.pictures(x) - model.pictures(without)
    words = scene.caption.split()
    left = [" ".join(words[:k] + words[k + 1 :]) for k in range(len(words))]
    return patches @ (model.read([scene.caption]) - model.read(left)).T


def hidden(model: Model, scene: Scene) -> Relevance:
    """What each place and each word adds to the two embeddings, read from the last states alone."""
    places = model.pictures.states(pixels_in([scene]))[0] @ model.pictures.head.weight.T
    words = model.captions.states(model.text(scene.caption).x)[0] @ model.captions.head.weight.T
    return places @ words.T / (len(places) * len(words))
