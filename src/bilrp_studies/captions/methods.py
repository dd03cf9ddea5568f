"""The compared methods: each computes relevance on the patches of a scene and the words of its caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.evaluation import baselines
from bilrp.explanation import explain
from bilrp.regions import grid
from bilrp_studies.captions.caption_model import PATCH_PIXELS, CaptionModel
from bilrp_studies.captions.scenes import Scene, stack_pixels

Relevance = Float[Tensor, "patches words"]
OUR_METHOD = "BiLRP"


@dataclass(frozen=True)
class Method:
    """A method's name, its description for the report, and its function (model, scene) → relevance."""

    name: str
    description: str
    explain: Callable[[CaptionModel, Scene], Relevance]


def all_methods(integration_steps: int) -> list[Method]:
    """Return all methods, BiLRP first; `integration_steps` is the number of points of integrated Jacobians."""
    return [
        Method(OUR_METHOD, "the package's default rules for each tower", _by_explainer(explain)),
        Method("Hessian×Product", "true gradients times inputs", _by_explainer(baselines.hessian_product)),
        Method(
            "integrated Jacobians",
            f"gradients along the way from zero, {integration_steps} points",
            lambda model, scene: (
                baselines.integrated_hessians(
                    model.dual_encoder, scene, scene.caption, steps=integration_steps, similarity="dot"
                ).relevance
            ),
        ),
        Method("occlusion", "what is lost when a patch is made grey, and a word is deleted", occlusion),
        Method(
            "hidden states",
            "the last features of each place against those of each word",
            hidden_state_products,
        ),
        Method("curvature", "squared second derivatives", _by_explainer(baselines.curvature)),
        Method(
            "saliency", "squared inputs, which knows nothing of the model", _by_explainer(baselines.saliency)
        ),
    ]


def _by_explainer(explainer: Callable) -> Callable[[CaptionModel, Scene], Relevance]:
    return lambda model, scene: explainer(model.dual_encoder, scene, scene.caption).relevance


def occlusion(model: CaptionModel, scene: Scene) -> Relevance:
    """⟨φ(x) − φ(x without I), φ'(x') − φ'(x' without I')⟩: a patch is set to the scene's mean, a word is deleted."""
    x = stack_pixels([scene])
    regions = grid(PATCH_PIXELS)(x)
    masks = regions.masks(torch.arange(regions.count), x.dtype)[:, 0]
    without = x * (1 - masks) + x.mean((2, 3), keepdim=True) * masks
    patches = model.image_encoder(x) - model.image_encoder(without)
    words = scene.caption.split()
    left = [" ".join(words[:k] + words[k + 1 :]) for k in range(len(words))]
    return patches @ (model.embed_captions([scene.caption]) - model.embed_captions(left)).T


def hidden_state_products(model: CaptionModel, scene: Scene) -> Relevance:
    """Dot products of the projected last hidden states of each position and each word, before pooling."""
    places = model.image_encoder.hidden_states(stack_pixels([scene]))[0] @ model.image_encoder.head.weight.T
    words = (
        model.text_encoder.hidden_states(model.read_caption(scene.caption).x)[0]
        @ model.text_encoder.head.weight.T
    )
    return places @ words.T / (len(places) * len(words))
