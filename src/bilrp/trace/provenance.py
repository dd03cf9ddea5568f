"""Where values come from: what made a factor of a product decides whether it is a gate, a scale or neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bilrp.trace.operation import ELEMENTWISE, Op
from bilrp.trace.operation_table import INPUT_OP, MANUAL_ACTIVATION_OP

# The square of a ReLU is a gate as it is, attention weights of which some are set to zero are attention weights.
# The largest of them are, too, and the root of a scale is a scale.
SOURCE_PRESERVING_OPS = {
    "square": {"gate"},
    "pow": {"gate"},
    "sqrt": {"scale"},
    "masked_fill": {"attention"},
    "topk": {"attention", "scale"},
}
ROOT_OPS = {"pow", "sqrt"}  # as spread factors they are a norm's scale


@dataclass(frozen=True)
class Provenance:
    """The operation that made a value, looking through what only moves or rescales it, and its root.

    The root is the value it is an elementwise function of (itself, if nothing else); `multiple` says that it is just a
    multiple of that.
    """

    source: Op
    root: int
    is_multiple: bool = True


def start_provenance(number: int) -> Provenance:
    """The lineage of the input."""
    return Provenance(INPUT_OP, number)


def resolve_sources(op: Op, parents: Sequence[Provenance]) -> tuple[Op, ...]:
    """What made each live operand. The second factor of x·f(x) is a gate, whatever f is; also of x·(αx)."""
    found = [parent.source for parent in parents]
    multiples = [parent.is_multiple for parent in parents]
    if _is_elementwise_product(op, parents) and any(multiples):
        other = 1 if all(multiples) else multiples.index(False)
        found[other] = found[other] if found[other].factor else MANUAL_ACTIVATION_OP
    return tuple(found)


def derive_provenance(
    op: Op,
    parents: Sequence[Provenance],
    sources: Sequence[Op],
    number: int,
    *,
    same_shapes: bool,
    first_is_live: bool,
) -> Provenance:
    """The lineage of value `number`, made by `op`; `alike`: all shapes are one; `first`: its first operand is live."""
    if not parents:
        return Provenance(op, number)
    source = op
    kept = len(parents) == 1 and (
        op.mask == "keeps" or sources[0].factor in SOURCE_PRESERVING_OPS.get(op.name, ())
    )
    if kept or op.mask == "moves" or (op.rule == "quotient" and first_is_live):
        source = sources[0]
    elif _is_elementwise_product(op, parents) and find_frozen_factor(sources) is not None:
        source = MANUAL_ACTIVATION_OP  # x · gate(x): a GELU or a SiLU by hand
    if op.kind not in ELEMENTWISE or not same_shapes or len({parent.root for parent in parents}) > 1:
        return Provenance(source, number)
    rescales = (
        op.kind in {"identity", "random"} or op.rule == "product" or (op.rule == "quotient" and first_is_live)
    )
    return Provenance(source, parents[0].root, len(parents) == 1 and parents[0].is_multiple and rescales)


def find_frozen_factor(sources: Sequence[Op], broadcast: int | None = None) -> int | None:
    """Which factor of a product is evidently a scale, or else a gate; None where there is none, or more than one.

    Where the only evidence is a gate, `spread`, the factor whose numbers are each used for many of the other's, is the
    scale: ReLU makes features, too, and it is squeeze-and-excite that scales them.

    >>> from bilrp.trace.operation_table import OPERATIONS
    >>> find_frozen_factor([OPERATIONS.find("gelu"), OPERATIONS.find("linalg_vector_norm")])
    1
    >>> find_frozen_factor([OPERATIONS.find("relu"), OPERATIONS.find("clamp")], spread=1)
    1
    """
    evident, gates = (
        [slot for slot, source in enumerate(sources) if source.factor in kinds]
        for kinds in ({"scale", "attention"}, {"gate"})
    )
    if broadcast is not None and not evident and (gates or sources[broadcast].name in ROOT_OPS):
        return broadcast
    return next((found[0] for found in (evident, gates) if len(found) == 1), None)


def _is_elementwise_product(op: Op, parents: Sequence[Provenance]) -> bool:
    """Two functions of one value, multiplied number by number."""
    elementwise = op.rule == "product" and op.kind in ELEMENTWISE
    return elementwise and len(parents) == 2 and parents[0].root == parents[1].root
