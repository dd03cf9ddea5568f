"""Rules and composites: a rule freezes a step into a linear map at this input, a composite assigns rules to steps.

May import errors, trace and engine.
"""

from bilrp.rules.activations import clamp, gate
from bilrp.rules.affine import jacobian, linear
from bilrp.rules.attnlrp import split_attention, split_product
from bilrp.rules.default_rules import default_rule, frozen
from bilrp.rules.product_rules import product
from bilrp.rules.rule import Rule
from bilrp.rules.secants import secant
from bilrp.rules.selection import select
from bilrp.rules.weighted_rules import (
    BiasOption,
    alphabeta,
    by_terms,
    epsilon,
    flat,
    gamma,
    wsquare,
    zbox,
    zero,
    zplus,
)
from bilrp.trace.layer_weights import extract_weights

__all__ = [
    "BiasOption",
    "Rule",
    "alphabeta",
    "by_terms",
    "clamp",
    "default_rule",
    "epsilon",
    "extract_weights",
    "flat",
    "frozen",
    "gamma",
    "gate",
    "jacobian",
    "linear",
    "product",
    "secant",
    "select",
    "split_attention",
    "split_product",
    "wsquare",
    "zbox",
    "zero",
    "zplus",
]
