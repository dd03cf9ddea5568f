"""Active rows in native code: each row holds the regions that reach it, and no others."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bilrp.engine.sparse_layout import Layout, Rows, Term, Winners
from bilrp.engine.maps.position_blocks import blocks
from bilrp.engine.maps.sparse_convolution import Convolving
from bilrp.engine.parallel import share
from bilrp.native import TYPES, library

SMALL = 2**14  # numbers for which threads are not worth starting
Numbers, Address, Pair = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64 * 2
Addresses = ctypes.POINTER(Address)


class _Rows(ctypes.Structure):
    _fields_ = (
        ("height", Numbers), ("width", Numbers), ("channels", Numbers),
        ("starts", Address), ("channel", Address),
        ("region_starts", Address), ("regions", Address),
        ("offsets", Address), ("numbers", Address),
    )  # fmt: skip


class _Convolution(ctypes.Structure):
    _fields_ = (
        ("source", _Rows), ("target", _Rows),
        ("kernel", Pair), ("dilation", Pair), ("stride", Pair), ("padding", Pair),
        ("terms", Numbers), ("weights", Addresses), ("before", Addresses), ("after", Addresses),
        ("input", Address), ("bias", Address), ("counted", Address), ("least", Address),
        ("blocks", Address), ("block_regions", Address), ("block_ends", Address), ("block_count", Numbers),
        ("next", ctypes.POINTER(Numbers)),
    )  # fmt: skip


class _Combination(ctypes.Structure):
    _fields_ = (
        ("target", _Rows),
        ("terms", Numbers), ("sources", ctypes.POINTER(ctypes.POINTER(_Rows))), ("rows", Addresses), ("factors", Addresses),
        ("next", ctypes.POINTER(Numbers)),
    )  # fmt: skip


class _Pooling(ctypes.Structure):
    _fields_ = (
        ("source", _Rows), ("target", _Rows),
        ("offsets", Numbers), ("stride", Pair), ("padding", Pair), ("offset", Address), ("shares", Address),
        ("next", ctypes.POINTER(Numbers)),
    )  # fmt: skip


class _Pictures(ctypes.Structure):
    _fields_ = (
        ("rows", _Rows),
        ("index", Address), ("images", Address), ("strides", Numbers * 4), ("origin", Address),
        ("next", ctypes.POINTER(Numbers)),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Ragged(Rows):
    """Rows of each position as a small matrix, one after another."""

    @staticmethod
    def size(layout: Layout) -> int:
        return layout.reached

    @cached_property
    def _tables(self) -> list[Tensor]:
        """Where rows, regions and numbers of each position begin; the channel of each row, the regions of each position."""
        layout, positions = self.layout, blocks(self.layout.cone, 1, empty=True)
        starts, ends = layout.firsts, positions.ends
        offsets = (starts.diff() * ends.diff(prepend=ends.new_zeros(1))).cumsum(0)
        first = torch.zeros(1, dtype=torch.long)
        return [
            starts,
            layout.channel,
            torch.cat([first, ends]),
            positions.columns,
            torch.cat([first, offsets]),
        ]

    @cached_property
    def _as_rows(self) -> _Rows:
        height, width, channels = self.layout.active.shape
        addresses = [_address(t) for t in (*self._tables, self.numbers)]
        return _Rows(height, width, channels, *addresses)

    def combine(self, terms: Sequence[Term]) -> None:
        sources = [term.source._as_rows for term in terms if isinstance(term.source, Ragged)]
        each = (ctypes.POINTER(_Rows) * len(terms))(*map(ctypes.pointer, sources))
        factors = [_like(self.numbers, term.factor) for term in terms]
        rows = [term.rows.contiguous() for term in terms]
        asked = _Combination(
            self._as_rows, len(terms), each, _addresses(rows), _addresses(factors), _counter()
        )
        self._call("combine", asked, rows, factors)

    def pool(self, source: Rows, work: Winners) -> None:
        assert isinstance(source, Ragged)
        shares = self.layout.of(work.shares).to(self.numbers.dtype).contiguous()
        offsets = torch.tensor(work.offsets)
        asked = _Pooling(
            source._as_rows, self._as_rows,
            len(offsets), tuple(work.stride), tuple(work.padding), _address(offsets), _address(shares), _counter(),
        )  # fmt: skip
        self._call("pool", asked, shares, offsets)

    def scale(self, factor: Tensor) -> None:
        self.combine([Term(self, torch.arange(self.layout.rows), factor)])

    def convolve(self, source: Rows, work: Convolving) -> None:
        assert isinstance(source, Ragged)
        found = blocks(self.layout.cone, work.amount(source.layout, self.layout).side)
        kernel, like = work.kernel, self.numbers
        shape = (self.layout.active.shape[2], source.layout.active.shape[2], *kernel.size)
        for weight in work.weights:
            if weight.shape != shape:  # native code would read beside it
                raise ValueError(f"weights of shape {tuple(weight.shape)} where a convolution needs {shape}")
        weights = [_like(like, w.permute(0, 2, 3, 1)) for w in work.weights]
        before, after, ratio = work.at_rows(source.layout, self.layout)
        before, after = ([_like(like, f) for f in factors] for factors in (before, after))
        behind = (None,) * 4 if ratio is None else (ratio.a, ratio.bias, ratio.counted, ratio.least)
        behind = [_like(like, f) for f in behind]
        asked = _Convolution(
            source._as_rows, self._as_rows,
            kernel.size, kernel.dilation, kernel.reach.stride, kernel.reach.padding,
            len(weights), _addresses(weights), _addresses(before), _addresses(after),
            *_addresses(behind),
            _address(found.boxes), _address(found.columns), _address(found.ends), len(found.boxes), _counter(),
        )  # fmt: skip
        self._call("convolve", asked, weights, before, after, behind)

    def collect(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        images = images.to(self.numbers.dtype)  # the model may change the type
        self._pictures("collect", images, torch.arange(len(images)), columns, origin)

    def dense(self, shape: torch.Size, columns: Tensor | None = None) -> Tensor:
        """As of all rows; channels come last in memory, as they do in rows."""
        (height, width, channels), count = self.layout.active.shape, len(self.layout.cone.low)
        chosen = torch.arange(count) if columns is None else columns
        images = self.numbers.new_zeros(len(chosen), height, width, channels).permute(0, 3, 1, 2)
        self._pictures("spread", images, torch.arange(len(chosen)), chosen, None)
        return images.reshape(len(chosen), *shape)

    def windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        made = self.numbers.new_zeros(len(columns), *size, self.layout.active.shape[2]).permute(0, 3, 1, 2)
        self._pictures("spread", made, torch.arange(len(columns)), columns, origin)
        return made

    def spread(self, out: Tensor, index: Tensor, columns: Tensor | None = None) -> None:
        height, width, channels = self.layout.active.shape
        chosen = torch.arange(len(index)) if columns is None else columns
        if out.dtype != self.numbers.dtype:
            whole = self.dense(torch.Size((channels, height, width)), chosen)
            out[index] = whole.flatten(1).to(out.dtype)
            return
        self._pictures("spread", out.view(-1, channels, height, width), index, chosen, None)

    def _pictures(
        self, name: str, images: Tensor, index: Tensor, columns: Tensor, origin: Tensor | None
    ) -> None:
        image = torch.full((len(self.layout.cone.low),), -1)
        image[columns] = index
        corners = None if origin is None else origin.contiguous()
        asked = _Pictures(
            self._as_rows, _address(image), images.data_ptr(), images.stride(),
            None if corners is None else _address(corners), _counter(),
        )  # fmt: skip
        self._call(name, asked, images, image, corners)

    def _call(self, name: str, asked: ctypes.Structure, *held: object) -> None:
        """On as many threads as torch may use; `held` is what `asked` has the addresses of, until all have ended."""
        function = getattr(library(), f"{name}_{TYPES[self.numbers.dtype]}")

        def call(_: int, _held: object = held) -> None:
            if function(ctypes.byref(asked)):
                raise MemoryError("no memory is left for the rows of a convolution")

        if self.numbers.numel() < SMALL:
            call(0)
        else:
            share(call, range(torch.get_num_threads()))


def _like(like: Tensor, tensor: Tensor | None) -> Tensor | None:
    """As native code reads it."""
    return None if tensor is None else tensor.to(like.dtype).contiguous()


def _counter() -> Any:
    return ctypes.pointer(Numbers(0))


def _address(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise ValueError("native code reads numbers one after another")
    return tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (Address * len(tensors))(*(None if t is None else _address(t) for t in tensors))
