"""Other explanation methods for the same scores, to compare BiLRP with."""

from __future__ import annotations

from bilrp.evaluation.baselines import curvature, hessian_product, integrated_hessians, saliency

__all__ = ["curvature", "hessian_product", "integrated_hessians", "saliency"]
