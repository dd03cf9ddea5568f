"""What is written down of a call while the model runs, and the steps that are made of it when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bilrp.trace.operation import Op
from bilrp.trace.provenance import derive_provenance, resolve_sources, start_provenance
from bilrp.trace.tape import Slot, Step, collect_tensors, get_storage_pointer, tree_map

NO_VERSION = -1  # a version that no tensor has


class CallRecord(NamedTuple):
    """A call and one tensor that it gave: no more than must be kept at that moment, since the model waits for it."""

    operation: Op
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    owner: str | None  # the module whose weights are among its constants
    versions: tuple[int, ...]  # of its constants
    output_index: int | None


def build_steps(
    records: Sequence[CallRecord], values: Sequence[Tensor], versions: Sequence[int]
) -> list[Step]:
    """The steps: `values` are the input and what each call gave, `versions` how often they had been written to."""
    lineage, counts, found = [start_provenance(0)], Counter(), []
    for number, note in enumerate(records, 1):
        op, live, result = note.operation, tuple([values[v] for v in note.inputs]), values[number]
        parents = [lineage[v] for v in note.inputs]
        sources = resolve_sources(op, parents)
        alike = all(t.shape == result.shape for t in live)
        first = isinstance(next(iter((*note.args, *note.kwargs.values())), None), Slot)
        lineage.append(
            derive_provenance(op, parents, sources, number, same_shapes=alike, first_is_live=first)
        )
        counts[op.name] += note.owner is None
        step = Step(
            operation=op,
            name=note.owner or f"{op.name}_{counts[op.name]}",
            call=note.call,
            args=note.args,
            kwargs=note.kwargs,
            inputs=note.inputs,
            values=live,
            output=number,
            result=result,
            sources=sources,
            output_index=note.output_index,
            versions=(versions[number], *note.versions),
        )
        found.append(step)
    return found


def prune_steps(output: int, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Only the steps the output depends on."""
    needed, kept = {output}, []
    for step in reversed(steps):
        if step.output in needed:
            kept.append(step)
            needed.update(step.inputs)
    return tuple(reversed(kept))


def copy_constants(record: CallRecord, storage: int) -> CallRecord:
    """The note with its own copy of every constant that lives in a storage about to be overwritten.

    A copy is as untouched as what it is a copy of.
    """
    held = collect_tensors((record.args, record.kwargs))
    if all(get_storage_pointer(t) != storage for t in held):
        return record
    untouched = record.versions == tuple(t._version for t in held)
    copies: list[Tensor] = []

    def copied(t: Tensor) -> Tensor:
        copies.append(t.clone() if get_storage_pointer(t) == storage else t)
        return copies[-1]

    args, kwargs = tree_map(record.args, copied), tree_map(record.kwargs, copied)
    versions = tuple(t._version for t in copies) if untouched else (NO_VERSION,)
    return record._replace(args=args, kwargs=kwargs, versions=versions)
