"""Raw records of calls, taken while the model runs, and the steps built from them afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bilrp.trace.operation import Op
from bilrp.trace.provenance import derive_provenance, resolve_sources, start_provenance
from bilrp.trace.tape import Slot, Step, collect_tensors, get_storage_pointer, tree_map

NO_VERSION = -1  # not a version of any tensor


class CallRecord(NamedTuple):
    """A recorded call and one tensor that it returned."""

    operation: Op
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    owner: str | None  # name of the module whose weights it uses
    versions: tuple[int, ...]  # of its constants
    output_index: int | None


def build_steps(
    records: Sequence[CallRecord], values: Sequence[Tensor], versions: Sequence[int]
) -> list[Step]:
    """Build the steps of a tape.

    Args:
        records: the recorded calls.
        values: the input, and the result of each call.
        versions: version counters of the values.
    """
    provenances, counts, steps = [start_provenance(0)], Counter(), []
    for number, record in enumerate(records, 1):
        op, live, result = record.operation, tuple([values[v] for v in record.inputs]), values[number]
        parents = [provenances[v] for v in record.inputs]
        sources = resolve_sources(op, parents)
        same_shapes = all(t.shape == result.shape for t in live)
        first_is_live = isinstance(next(iter((*record.args, *record.kwargs.values())), None), Slot)
        provenances.append(
            derive_provenance(
                op, parents, sources, number, same_shapes=same_shapes, first_is_live=first_is_live
            )
        )
        counts[op.name] += record.owner is None
        step = Step(
            operation=op,
            name=record.owner or f"{op.name}_{counts[op.name]}",
            call=record.call,
            args=record.args,
            kwargs=record.kwargs,
            inputs=record.inputs,
            values=live,
            output=number,
            result=result,
            sources=sources,
            output_index=record.output_index,
            versions=(versions[number], *record.versions),
        )
        steps.append(step)
    return steps


def prune_steps(output: int, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps that the output depends on."""
    needed, used_steps = {output}, []
    for step in reversed(steps):
        if step.output in needed:
            used_steps.append(step)
            needed.update(step.inputs)
    return tuple(reversed(used_steps))


def copy_constants(record: CallRecord, storage: int) -> CallRecord:
    """Return the record with its own copy of every constant in a storage that is about to be overwritten.

    A copy of a constant that was modified since it was recorded counts as modified too.
    """
    constants = collect_tensors((record.args, record.kwargs))
    if all(get_storage_pointer(t) != storage for t in constants):
        return record
    unmodified = record.versions == tuple(t._version for t in constants)
    copies: list[Tensor] = []

    def copy(t: Tensor) -> Tensor:
        copies.append(t.clone() if get_storage_pointer(t) == storage else t)
        return copies[-1]

    args, kwargs = tree_map(record.args, copy), tree_map(record.kwargs, copy)
    versions = tuple(t._version for t in copies) if unmodified else (NO_VERSION,)
    return record._replace(args=args, kwargs=kwargs, versions=versions)
