"""Default rule of each operation."""

from __future__ import annotations

from collections.abc import Callable

from bilrp.engine.maps import Map
from bilrp.rules.activations import clamp, freeze_activation, gate
from bilrp.rules.affine import is_first_argument, is_known_linear, linear
from bilrp.rules.attention import freeze_attention
from bilrp.rules.norms import NORM_FREEZERS, freeze_norm
from bilrp.rules.product_rules import infer_product_rule, quotient_rule
from bilrp.rules.rule import Rule
from bilrp.rules.selection import is_selection, select
from bilrp.trace.tape import Step


def default_rule(step: Step) -> Rule | None:
    """Return the default rule of a step; None if it has none, or if it is a product without an evident gate.

    Weighted steps get `linear` (LRP-0); composites usually choose their rule before they fall back to this function.
    """
    name = step.operation.rule
    return None if name is None else DEFAULT_RULES[name](step)


def frozen() -> Rule:
    """Treat f(a)/a of an activation, 1/std of a norm and the softmax of an attention as constants (detach them).

    An activation with f(0) = 0 becomes diag(f(a)/a), a norm (s − mean s)/std · w, an attention P V with P constant.
    """
    return Rule("frozen", _freeze_scale)


def _freeze_scale(step: Step) -> Map:
    if step.op in NORM_FREEZERS:
        return freeze_norm(step)
    return freeze_attention(step) if step.operation.kind == "attention" else freeze_activation(step)


def _linear_rule(step: Step) -> Rule | None:
    if is_selection(step):  # scatter_reduce with amax or amin
        return select()
    return linear() if is_known_linear(step) else None


def _frozen_rule(step: Step) -> Rule | None:
    return frozen() if len(step.inputs) == 1 or step.operation.kind == "attention" else None


def _clamp_rule(step: Step) -> Rule | None:
    return clamp() if len(step.inputs) == 1 and is_first_argument(step) else None


# The rule for each name of a default rule in the table of operations.
DEFAULT_RULES: dict[str, Callable[[Step], Rule | None]] = {
    "linear": _linear_rule,
    "gate": lambda step: gate(),
    "frozen": _frozen_rule,
    "clamp": _clamp_rule,
    "select": lambda step: select(),
    "product": lambda step: infer_product_rule(step) if len(step.inputs) == 2 else _linear_rule(step),
    "quotient": quotient_rule,
}
