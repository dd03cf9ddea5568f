"""What is written down of a call while the model runs, and the steps that are made of it when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bilrp.trace.provenance import descend, entrance, sources_of
from bilrp.trace.operation import Op
from bilrp.trace.tape import Slot, Step, mapped, storage_of, tensors_in

NEVER = -1  # a version that no tensor has


class Note(NamedTuple):
    """A call and one tensor that it gave: no more than must be kept at that moment, since the model waits for it."""

    operation: Op
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[int, ...]
    owner: str | None  # the module whose weights are among its constants
    versions: tuple[int, ...]  # of its constants
    item: int | None


def steps_of(notes: Sequence[Note], values: Sequence[Tensor], versions: Sequence[int]) -> list[Step]:
    """The steps: `values` are the input and what each call gave, `versions` how often they had been written to."""
    lineage, counts, found = [entrance(0)], Counter(), []
    for number, note in enumerate(notes, 1):
        op, live, result = note.operation, tuple([values[v] for v in note.inputs]), values[number]
        parents = [lineage[v] for v in note.inputs]
        sources = sources_of(op, parents)
        alike = all(t.shape == result.shape for t in live)
        first = isinstance(next(iter((*note.args, *note.kwargs.values())), None), Slot)
        lineage.append(descend(op, parents, sources, number, alike=alike, first=first))
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
            item=note.item,
            versions=(versions[number], *note.versions),
        )
        found.append(step)
    return found


def leading_to(output: int, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Only the steps the output depends on."""
    needed, kept = {output}, []
    for step in reversed(steps):
        if step.output in needed:
            kept.append(step)
            needed.update(step.inputs)
    return tuple(reversed(kept))


def with_constants_copied(note: Note, storage: int) -> Note:
    """The note with its own copy of every constant that lives in a storage about to be overwritten.

    A copy is as untouched as what it is a copy of.
    """
    held = tensors_in((note.args, note.kwargs))
    if all(storage_of(t) != storage for t in held):
        return note
    untouched = note.versions == tuple(t._version for t in held)
    copies: list[Tensor] = []

    def copied(t: Tensor) -> Tensor:
        copies.append(t.clone() if storage_of(t) == storage else t)
        return copies[-1]

    args, kwargs = mapped(note.args, copied), mapped(note.kwargs, copied)
    versions = tuple(t._version for t in copies) if untouched else (NEVER,)
    return note._replace(args=args, kwargs=kwargs, versions=versions)
