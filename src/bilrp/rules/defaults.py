"""The rule that needs no choice: which one comes naturally with an operation."""

from __future__ import annotations

from bilrp.engine.maps import Map
from bilrp.rules.activations import clamp, freeze_activation, gate
from bilrp.rules.affine import is_first, known_linear, linear
from bilrp.rules.attention import ATTENTIONS
from bilrp.rules.norms import NORMALISING
from bilrp.rules.products import division, evident_product
from bilrp.rules.rule import Rule
from bilrp.rules.selection import select
from bilrp.trace.ops import ACTIVATIONS, ATTENTION, CLAMPS, NORMS, PRODUCTS, SELECTIONS
from bilrp.trace.tape import Step


def natural(step: Step) -> Rule | None:
    """The rule that needs no choice: linear, gate, frozen, select, or a product with one evident gate.

    Weighted steps come as `linear` (LRP-0); a rule book usually decides about them before asking here.
    """
    if step.op == "relu":
        return gate()
    if step.op in ACTIVATIONS | NORMS | ATTENTION:
        return frozen() if len(step.inputs) == 1 or step.op in ATTENTION else None
    if step.op in SELECTIONS:
        return select()
    if step.op in CLAMPS:
        return clamp() if len(step.inputs) == 1 and is_first(step) else None
    if step.op in PRODUCTS and len(step.inputs) == 2:
        return evident_product(step)
    if step.op == "div":
        return division(step)
    return linear() if known_linear(step) else None


def frozen() -> Rule:
    """Whatever scales its input by a number that depends on it, with that number frozen at this input.

    Activations with f(0) = 0 become diag(f(a)/a), norms keep their centring and freeze 1/std, attention freezes its
    softmax weights: y = P V.
    """
    return Rule("frozen", _freeze_scale)


def _freeze_scale(step: Step) -> Map:
    special = {**NORMALISING, **ATTENTIONS}.get(step.op)
    return special(step) if special else freeze_activation(step)
