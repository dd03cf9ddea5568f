"""Which operation produced a factor of a product, which decides whether it is a gate, a scale or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bilrp.trace.operation import ELEMENTWISE, Op
from bilrp.trace.operation_table import INPUT_OP, MANUAL_ACTIVATION_OP

# Operations whose result keeps the role of their input: the square of a gate is a gate, the root of a scale is a
# scale, masked attention weights and their top k are attention weights.
SOURCE_PRESERVING_OPS = {
    "square": {"gate"},
    "pow": {"gate"},
    "sqrt": {"scale"},
    "masked_fill": {"attention"},
    "topk": {"attention", "scale"},
}
ROOT_OPS = {"pow", "sqrt"}  # as broadcast factors they are the scale of a norm


@dataclass(frozen=True)
class Provenance:
    """Where a value comes from.

    Args:
        source: the operation that produced it, ignoring operations that only move or rescale it.
        root: number of the value it is an elementwise function of, possibly itself.
        is_multiple: it is a constant multiple of its root.
    """

    source: Op
    root: int
    is_multiple: bool = True


def start_provenance(number: int) -> Provenance:
    """Return the provenance of the input."""
    return Provenance(INPUT_OP, number)


def resolve_sources(op: Op, parents: Sequence[Provenance]) -> tuple[Op, ...]:
    """Return the source of each live operand; the second factor of x·f(x) is a gate for any f, also of x·(αx)."""
    sources = [parent.source for parent in parents]
    multiples = [parent.is_multiple for parent in parents]
    if _is_elementwise_product(op, parents) and any(multiples):
        other = 1 if all(multiples) else multiples.index(False)
        sources[other] = sources[other] if sources[other].factor else MANUAL_ACTIVATION_OP
    return tuple(sources)


def derive_provenance(
    op: Op,
    parents: Sequence[Provenance],
    sources: Sequence[Op],
    number: int,
    *,
    same_shapes: bool,
    first_is_live: bool,
) -> Provenance:
    """Return the provenance of the result of `op`.

    Args:
        op: the operation.
        parents: provenance of its live operands.
        sources: their sources, by `resolve_sources`.
        number: value number of the result.
        same_shapes: all live operands have the shape of the result.
        first_is_live: the first operand is live.
    """
    if not parents:
        return Provenance(op, number)
    source = op
    keeps_source = len(parents) == 1 and (
        op.mask == "keeps" or sources[0].factor in SOURCE_PRESERVING_OPS.get(op.name, ())
    )
    if keeps_source or op.mask == "moves" or (op.rule == "quotient" and first_is_live):
        source = sources[0]
    elif _is_elementwise_product(op, parents) and find_detached_factor(sources) is not None:
        source = MANUAL_ACTIVATION_OP  # x · gate(x): a GELU or SiLU written as a product
    if op.kind not in ELEMENTWISE or not same_shapes or len({parent.root for parent in parents}) > 1:
        return Provenance(source, number)
    rescales = (
        op.kind in {"identity", "random"} or op.rule == "product" or (op.rule == "quotient" and first_is_live)
    )
    return Provenance(source, parents[0].root, len(parents) == 1 and parents[0].is_multiple and rescales)


def find_detached_factor(sources: Sequence[Op], broadcast: int | None = None) -> int | None:
    """Return the index of the factor of a product that rules detach: the only scale, or else the only gate, or None.

    Args:
        sources: the operation that produced each factor.
        broadcast: index of the factor that is broadcast. If there is no scale but a gate, this factor is the scale:
            ReLU also produces features, which squeeze-and-excite scales.

    >>> from bilrp.trace.operation_table import OPERATIONS
    >>> find_detached_factor([OPERATIONS.find("gelu"), OPERATIONS.find("linalg_vector_norm")])
    1
    >>> find_detached_factor([OPERATIONS.find("relu"), OPERATIONS.find("clamp")], broadcast=1)
    1
    """
    scales, gates = (
        [slot for slot, source in enumerate(sources) if source.factor in kinds]
        for kinds in ({"scale", "attention"}, {"gate"})
    )
    if broadcast is not None and not scales and (gates or sources[broadcast].name in ROOT_OPS):
        return broadcast
    return next((slots[0] for slots in (scales, gates) if len(slots) == 1), None)


def _is_elementwise_product(op: Op, parents: Sequence[Provenance]) -> bool:
    """Return whether two elementwise functions of one value are multiplied elementwise."""
    elementwise = op.rule == "product" and op.kind in ELEMENTWISE
    return elementwise and len(parents) == 2 and parents[0].root == parents[1].root
