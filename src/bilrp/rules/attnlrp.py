"""Rules of AttnLRP (Achtibat et al. 2024) in their efficient form: relevance is split between the factors of a product.

`frozen` attention treats the softmax weights as constants and propagates to values only. AttnLRP also propagates to
queries and keys: ½ of the relevance of P·V goes to V and ½ to P; the softmax is propagated by its true derivative, and ½
of that goes to each of Q and K. At a fixed input all of this is linear, so push = pull. The softmax is not homogeneous
and in general does not conserve relevance; the difference is unattributed.
"""

from __future__ import annotations

from torch import Tensor

from bilrp.engine.maps import Jacobian, Linear, Map
from bilrp.errors import RuleError
from bilrp.rules.attention import make_unfused_attention
from bilrp.rules.rule import Rule, format_number
from bilrp.trace.tape import Slot, Step


def split_product() -> Rule:
    """Split a product of two live tensors in halves: J(s, t) = ½ (s·v + u·t).

    >>> split_product().name
    'split_product'
    """

    def freeze(step: Step) -> Map:
        if len(step.inputs) != 2 or step.operation.rule != "product":
            raise RuleError(
                f"split_product is a rule for a product of two live tensors, not for {step.describe()}"
            )
        left, right = (value.detach() for value in step.values)

        def function(s: Tensor, t: Tensor) -> Tensor:
            return (step.run(s, right) + step.run(left, t)) / 2

        return Linear(function, step.values, (0, 1))

    return Rule("split_product", freeze)


def split_attention(query: float = 0.25, key: float = 0.25, value: float = 0.5) -> Rule:
    """Use the true derivative of a fused attention, times a share for each of queries, keys and values.

    Args:
        query, key, value: Shares of the queries, the keys and the values.

    >>> split_attention().name
    'split_attention(0.25, 0.25, 0.5)'
    """
    shares = {"query": query, "key": key, "value": value}

    def freeze(step: Step) -> Map:
        if step.operation.kind != "attention":
            raise RuleError(f"split_attention is a rule for attention, not for {step.describe()}")
        by_slot = _shares_by_slot(step, shares)
        at, plain = step.values, make_unfused_attention(step)

        def function(*live: Tensor) -> Tensor:
            # At t = v, the derivative of f(v + share·(t − v)) is that of f times the share.
            return plain(*(v + share * (t - v) for t, v, share in zip(live, at, by_slot, strict=True)))

        return Jacobian(function, at, tuple(range(len(at))))

    return Rule(
        f"split_attention({format_number(query)}, {format_number(key)}, {format_number(value)})", freeze
    )


def _shares_by_slot(step: Step, shares: dict[str, float]) -> list[float]:
    """Return the share of each live tensor by its argument; 0 for a live mask."""
    by_input = [0.0] * len(step.inputs)
    for position, (name, share) in enumerate(shares.items()):
        place = step.args[position] if position < len(step.args) else step.kwargs.get(name)
        if isinstance(place, Slot):
            by_input[place.index] = share
    if not any(by_input):
        raise RuleError(f"{step.describe()}: no live query, key or value to share relevance among")
    return by_input


def is_unfused_attention(step: Step) -> bool:
    """Return whether the step is the product P V of an attention written as matmul, softmax, matmul."""
    weights = any(source.factor == "attention" for source in step.sources)
    return len(step.inputs) == 2 and step.operation.rule == "product" and weights
