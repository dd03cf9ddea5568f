"""Other explanation methods for the same scores, to compare BiLRP with."""

from __future__ import annotations

from bilrp.evaluation.baselines import curvature, hessian_product, integrated_hessians, saliency
from bilrp.evaluation.feature_baselines import last_layer, occlusion, pairx

__all__ = [
    "curvature",
    "hessian_product",
    "integrated_hessians",
    "last_layer",
    "occlusion",
    "pairx",
    "saliency",
]
