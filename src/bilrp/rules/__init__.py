"""Step → map: rules freeze one step each into a linear map at this input; rule books say which rule for which step.

May import errors, trace and the engine's maps and program.
"""

from bilrp.rules.activations import clamp, gate
from bilrp.rules.affine import jacobian, linear
from bilrp.rules.attnlrp import halves, shared_attention
from bilrp.rules.default_rules import frozen, natural
from bilrp.rules.product_rules import product
from bilrp.rules.rule import Rule
from bilrp.rules.secants import secant
from bilrp.rules.selection import select
from bilrp.rules.weighted_rules import alphabeta, by_terms, epsilon, flat, gamma, wsquare, zbox, zero, zplus
from bilrp.trace.layer_weights import weights_of

__all__ = [
    "Rule",
    "alphabeta",
    "by_terms",
    "clamp",
    "epsilon",
    "flat",
    "frozen",
    "gamma",
    "gate",
    "halves",
    "jacobian",
    "linear",
    "natural",
    "product",
    "secant",
    "select",
    "shared_attention",
    "weights_of",
    "wsquare",
    "zbox",
    "zero",
    "zplus",
]
