"""In-place writes into memory that several tensors share, expressed without the write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jaxtyping
import torch
from torch import Tensor, nn

from bilrp.errors import TapeError
from bilrp.trace.tape import get_storage_pointer

# torch, this package, and jaxtyping's wrappers
LIBRARY_PATH_PREFIXES = ("<@", str(Path(__file__).parent), *torch.__path__, *jaxtyping.__path__)


def apply_assignments(base: Tensor, *writes: tuple[Any, Any]) -> Tensor:
    """Return a copy of `base` after base[index] = value for each (index, value).

    >>> apply_assignments(torch.zeros(3), (slice(1, None), torch.tensor([5.0, 6.0])), (2, 7.0))
    tensor([0., 5., 7.])
    """
    sources = torch.arange(base.numel(), device=base.device).reshape(base.shape)
    values, first = [], base.numel()
    for index, value in writes:
        value = value if isinstance(value, Tensor) else torch.tensor(value, dtype=base.dtype)
        positions = torch.arange(first, first + value.numel(), device=base.device)
        sources[index] = positions.reshape(value.shape)
        values.append(value.to(base.device, base.dtype))
        first += value.numel()
    return gather_elements(sources, base, *values)


def gather_elements(sources: Tensor, *tensors: Tensor) -> Tensor:
    """Gather elements by their index into the concatenation of all (flattened) tensors."""
    flat = torch.cat([t.reshape(-1) for t in tensors])
    return flat.index_select(0, sources.reshape(-1)).reshape(sources.shape)


def storage_indices(t: Tensor) -> Tensor:
    """Return the index of each element in the tensor's storage."""
    size = t.untyped_storage().nbytes() // t.element_size()
    return torch.arange(size, device=t.device).as_strided(t.shape, t.stride(), t.storage_offset())


def resolve_overwrites(t: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Return where the elements of `t` come from after writes into `targets`, which share its memory.

    The first result is the index for `gather_elements(index, t, *needed targets)`, the second the needed targets.
    """
    own, first, needed = storage_indices(t), t.numel(), []
    latest = torch.full((t.untyped_storage().nbytes() // t.element_size(),), -1, device=t.device)
    for number, target in enumerate(targets):
        latest[storage_indices(target)] = number
    writer = latest[own]
    sources = torch.arange(t.numel(), device=t.device).reshape(t.shape)
    for number, target in enumerate(targets):
        is_writer = writer == number
        if bool(is_writer.any()):
            order = torch.zeros_like(latest)
            order[storage_indices(target)] = torch.arange(target.numel(), device=t.device).reshape(
                target.shape
            )
            sources = torch.where(is_writer, first + order[own], sources)
            needed.append(number)
            first += target.numel()
    return sources, needed


def make_strided_reader(t: Tensor) -> Callable[..., Tensor]:
    """Return `as_strided` on the memory of `t` as a function of tensors with any memory layout."""
    size = t.untyped_storage().nbytes() // t.element_size()
    order, start = torch.full((size,), -1, device=t.device), t.storage_offset()
    order[storage_indices(t)] = torch.arange(t.numel(), device=t.device).reshape(t.shape)

    def read(source: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
        """Read `source` as if it had the memory layout of `t`.

        Args:
            source: a tensor of the shape of `t`.
            size: shape of the result.
            stride: strides of the result in the storage of `t`.
            storage_offset: first element; None is that of `t`.
        """
        return gather_elements(
            order.as_strided(size, stride, start if storage_offset is None else storage_offset), source
        )

    return read


class InplaceWrite(NamedTuple):
    """A recorded in-place write: its target, the value number and version since then, and its location."""

    target: Tensor
    number: int
    version: int
    location: str


class InplaceWriteLog:
    """The in-place writes of a run, by storage."""

    def __init__(self, module_names: Mapping[int, str]):
        self.module_names = module_names  # id -> name
        self.by_storage: dict[int, list[InplaceWrite]] = {}

    def add(self, target: Tensor, number: int, *, merged: bool) -> None:
        """Add a write.

        Args:
            target: the tensor that was written to.
            number: number of the value after the write.
            merged: it is one step with the last write, because nothing read the tensor in between.
        """
        writes = self.by_storage.setdefault(get_storage_pointer(target), [])
        if merged:
            writes[-1] = writes[-1]._replace(number=number, version=target._version)
        else:
            writes.append(InplaceWrite(target, number, target._version, self.call_location()))

    def call_location(self) -> str:
        """Return module name and source line of the current call."""
        return find_call_location(self.module_names)

    def writes_after(self, t: Tensor, number: int) -> list[InplaceWrite]:
        """Return the writes into the memory of a tensor after value `number` was computed."""
        return [write for write in self.by_storage.get(get_storage_pointer(t), ()) if write.number > number]

    def raise_overwritten(self, t: Tensor, op: str) -> NoReturn:
        """Raise `TapeError` for a tensor that was overwritten before the operation `op` used it."""
        writes = self.by_storage.get(get_storage_pointer(t))
        location = f" ({writes[-1].location})" if writes and writes[-1].location else ""
        raise TapeError(
            f"a tensor of shape {tuple(t.shape)} was overwritten through a view{location} before '{op}' used it, which "
            "cannot be recorded: write out of place (torch.cat, torch.where, masked_fill, index_fill, x = x + y)"
        )


def find_call_location(module_names: Mapping[int, str]) -> str:
    """Return module name and source line of the call that is being recorded."""
    frame, line = sys._getframe(1), ""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(LIBRARY_PATH_PREFIXES):
            line = line or f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in module_names:
                name = module_names[id(owner)]  # empty for the model itself
                return f"{type(owner).__name__}{name and f' {name!r}'}, {line}"
        frame = frame.f_back
    return line
