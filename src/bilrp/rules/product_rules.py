"""Products of two live tensors: one factor is detached, by default the one that is recognised as a gate or scale."""

from __future__ import annotations

from torch import Tensor

from bilrp.engine.maps import ConstantMatmul, Linear, Map, Scale
from bilrp.errors import RuleError
from bilrp.rules.affine import is_first_argument, linear
from bilrp.rules.rule import Rule
from bilrp.rules.verification import verify_substitute
from bilrp.trace.provenance import find_detached_factor
from bilrp.trace.tape import Step


def product(freeze: int) -> Rule:
    """Detach one factor of a product of two live tensors: it counts as a constant; the other stays live.

    Args:
        freeze: Index of the detached factor, 0 or 1; for a quotient only 1, the denominator.

    >>> product(freeze=1).name
    'product(freeze=1)'
    """

    def freeze_product(step: Step) -> Map:
        if len(step.inputs) != 2:
            raise RuleError(
                f"product is a rule for two live tensors, but {step.describe()} has {len(step.inputs)}"
            )
        rule_name = step.operation.rule
        if rule_name not in {"product", "quotient"} or (rule_name == "quotient" and freeze == 0):
            raise RuleError(
                f"product(freeze={freeze}) leaves {step.describe()} nonlinear in its other operand: "
                "use bilrp.rules.jacobian()"
            )
        live = 1 - freeze
        constant = step.values[freeze].detach()

        def function(s: Tensor) -> Tensor:
            return step.run(s, constant) if live == 0 else step.run(constant, s)

        elementwise = rule_name == "product" and step.operation.kind == "arithmetic"
        if elementwise and step.values[live].shape == step.result.shape:
            return Scale(constant.expand_as(step.result), slots=(live,))
        heads = {step.values[live].shape[:-2], constant.shape[:-2], step.result.shape[:-2]}
        if step.op in {"matmul", "bmm"} and freeze == 0 and constant.dim() > 1 and len(heads) == 1:
            mix = ConstantMatmul(constant, slots=(live,))  # unfused attention: softmax weights times values
            verify_substitute(step, lambda *values: mix.push(values[live][None])[0])
            return mix
        return Linear(function, (step.values[live],), (live,))

    return Rule(f"product(freeze={freeze})", freeze_product)


def infer_product_rule(step: Step) -> Rule | None:
    """Return the rule of a product if one factor is evidently a gate or scale, or both are one tensor; else None."""
    if step.inputs[0] == step.inputs[1]:
        return product(freeze=1)
    evident = find_detached_factor(step.sources, _broadcast_factor(step))
    return None if evident is None else product(freeze=evident)


def _broadcast_factor(step: Step) -> int | None:
    """Return the index of the factor that is broadcast over the other, e.g. one value per channel; None if there is none."""
    sizes = [value.numel() for value in step.values]
    larger = sizes.index(max(sizes))
    elementwise = step.operation.kind == "arithmetic" and step.values[larger].shape == step.result.shape
    return 1 - larger if elementwise and sizes[0] != sizes[1] else None


def quotient_rule(step: Step) -> Rule | None:
    """Return the rule of a quotient: a live denominator is detached; None for a constant divided by a live tensor."""
    if step.kwargs.get("rounding_mode") is not None:
        return None
    if len(step.inputs) == 2:
        return product(freeze=1)
    return linear() if is_first_argument(step) else None
