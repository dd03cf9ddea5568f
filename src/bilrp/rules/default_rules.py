"""The rule that needs no choice: which one comes naturally with an operation."""

from __future__ import annotations

from collections.abc import Callable

from bilrp.engine.maps import Map
from bilrp.rules.activations import clamp, freeze_activation, gate
from bilrp.rules.affine import is_first, known_linear, linear
from bilrp.rules.attention import freeze_attention
from bilrp.rules.norms import NORMALISING, freeze_norm
from bilrp.rules.product_rules import division, evident_product
from bilrp.rules.rule import Rule
from bilrp.rules.selection import select, selects
from bilrp.trace.tape import Step


def natural(step: Step) -> Rule | None:
    """The rule that needs no choice: linear, gate, frozen, select, or a product with one evident gate.

    Weighted steps come as `linear` (LRP-0); a rule book usually decides about them before asking here.
    """
    word = step.operation.rule
    return None if word is None else NATURAL[word](step)


def frozen() -> Rule:
    """Whatever scales its input by a number that depends on it, with that number frozen at this input.

    Activations with f(0) = 0 become diag(f(a)/a), norms keep their centring and freeze 1/std, attention freezes its
    softmax weights: y = P V.
    """
    return Rule("frozen", _freeze_scale)


def _freeze_scale(step: Step) -> Map:
    if step.op in NORMALISING:
        return freeze_norm(step)
    return freeze_attention(step) if step.operation.kind == "attention" else freeze_activation(step)


def _linear(step: Step) -> Rule | None:
    if selects(step):  # a write of the largest
        return select()
    return linear() if known_linear(step) else None


def _frozen(step: Step) -> Rule | None:
    return frozen() if len(step.inputs) == 1 or step.operation.kind == "attention" else None


def _clamp(step: Step) -> Rule | None:
    return clamp() if len(step.inputs) == 1 and is_first(step) else None


# What the words of the table of operations mean.
NATURAL: dict[str, Callable[[Step], Rule | None]] = {
    "linear": _linear,
    "gate": lambda step: gate(),
    "frozen": _frozen,
    "clamp": _clamp,
    "select": lambda step: select(),
    "product": lambda step: evident_product(step) if len(step.inputs) == 2 else _linear(step),
    "quotient": division,
}
