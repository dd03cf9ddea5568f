"""Composites for `explain(..., composite=...)`, which assign a rule to each step.

>>> from bilrp.rules import jacobian
>>> first_match(("softmax", jacobian()), otherwise=uniform(0.25)).name
'first_match(softmax: jacobian, otherwise: uniform(0.25))'
"""

from __future__ import annotations

from bilrp.rules.composites import (
    Composite,
    attnlrp,
    bias_to_inputs,
    centered,
    conv_attention,
    first_match,
    graded,
    hessian_product,
    is_weighted,
    paper_gamma,
    paper_vgg,
    resnet,
    secant,
    transformer,
    uniform,
)

__all__ = [
    "Composite",
    "attnlrp",
    "bias_to_inputs",
    "centered",
    "conv_attention",
    "first_match",
    "graded",
    "hessian_product",
    "is_weighted",
    "paper_gamma",
    "paper_vgg",
    "resnet",
    "secant",
    "transformer",
    "uniform",
]
