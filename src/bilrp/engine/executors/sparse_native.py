"""Sparse tangents in native code: a row holds only the regions whose receptive field contains it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bilrp.engine.executors.position_blocks import make_blocks
from bilrp.engine.executors.sparse_convolution import SparseConvolution
from bilrp.engine.executors.sparse_layout import GatherTerm, OffsetWeights, SparseLayout, SparseTangent
from bilrp.engine.parallel import parallel_for
from bilrp.native import DTYPE_SUFFIXES, load_library

MIN_THREADED_NUMEL = 2**14  # fewer elements run on one thread
Int64, Address, Int64Pair = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64 * 2
Addresses = ctypes.POINTER(Address)


class _TangentStruct(ctypes.Structure):
    _fields_ = (
        ("height", Int64), ("width", Int64), ("channels", Int64),
        ("row_starts", Address), ("channel", Address),
        ("region_starts", Address), ("regions", Address),
        ("offsets", Address), ("values", Address),
    )  # fmt: skip


class _ConvolutionStruct(ctypes.Structure):
    _fields_ = (
        ("source", _TangentStruct), ("target", _TangentStruct),
        ("kernel", Int64Pair), ("dilation", Int64Pair), ("stride", Int64Pair), ("padding", Int64Pair),
        ("terms", Int64), ("weights", Addresses), ("before", Addresses), ("after", Addresses),
        ("input", Address), ("bias", Address), ("numerator", Address), ("min_denominator", Address),
        ("blocks", Address), ("block_regions", Address), ("block_ends", Address), ("block_count", Int64),
        ("next", ctypes.POINTER(Int64)),
    )  # fmt: skip


class _CombinationStruct(ctypes.Structure):
    _fields_ = (
        ("target", _TangentStruct),
        ("terms", Int64), ("sources", ctypes.POINTER(ctypes.POINTER(_TangentStruct))), ("rows", Addresses),
        ("factors", Addresses),
        ("next", ctypes.POINTER(Int64)),
    )  # fmt: skip


class _PoolingStruct(ctypes.Structure):
    _fields_ = (
        ("source", _TangentStruct), ("target", _TangentStruct),
        ("offsets", Int64), ("stride", Int64Pair), ("padding", Int64Pair), ("offset", Address), ("shares", Address),
        ("next", ctypes.POINTER(Int64)),
    )  # fmt: skip


class _ImagesStruct(ctypes.Structure):
    _fields_ = (
        ("rows", _TangentStruct),
        ("index", Address), ("images", Address), ("strides", Int64 * 4), ("origin", Address),
        ("next", ctypes.POINTER(Int64)),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class NativeSparseTangent(SparseTangent):
    """Sparse tangent stored as one small matrix (rows × regions) per position, concatenated."""

    @staticmethod
    def count_elements(layout: SparseLayout) -> int:
        return layout.numel

    @cached_property
    def _index_tables(self) -> list[Tensor]:
        """Row offsets, channels, region offsets, regions and value offsets, as `_TangentStruct` wants them."""
        layout, positions = self.layout, make_blocks(self.layout.cone, 1, include_empty=True)
        starts, ends = layout.row_offsets, positions.ends
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
    def _struct(self) -> _TangentStruct:
        height, width, channels = self.layout.mask.shape
        addresses = [_address(t) for t in (*self._index_tables, self.values)]
        return _TangentStruct(height, width, channels, *addresses)

    def combine(self, terms: Sequence[GatherTerm]) -> None:
        sources = [term.source._struct for term in terms if isinstance(term.source, NativeSparseTangent)]
        pointers = (ctypes.POINTER(_TangentStruct) * len(terms))(*map(ctypes.pointer, sources))
        factors = [_contiguous_like(self.values, term.factor) for term in terms]
        rows = [term.rows.contiguous() for term in terms]
        arguments = _CombinationStruct(
            self._struct, len(terms), pointers, _addresses(rows), _addresses(factors), _new_counter()
        )
        self._call("combine", arguments, rows, factors)

    def combine_offsets(self, source: SparseTangent, selection: OffsetWeights) -> None:
        assert isinstance(source, NativeSparseTangent)
        shares = self.layout.gather(selection.weights).to(self.values.dtype).contiguous()
        offsets = torch.tensor(selection.offsets)
        arguments = _PoolingStruct(
            source._struct, self._struct,
            len(offsets), tuple(selection.stride), tuple(selection.padding), _address(offsets),
            _address(shares), _new_counter(),
        )  # fmt: skip
        self._call("pool", arguments, shares, offsets)

    def scale(self, factor: Tensor) -> None:
        self.combine([GatherTerm(self, torch.arange(self.layout.row_count), factor)])

    def convolve(self, source: SparseTangent, convolution: SparseConvolution) -> None:
        assert isinstance(source, NativeSparseTangent)
        blocks = make_blocks(self.layout.cone, convolution.cost(source.layout, self.layout).side)
        kernel, like = convolution.kernel, self.values
        shape = (self.layout.mask.shape[2], source.layout.mask.shape[2], *kernel.size)
        for weight in convolution.weights:
            if weight.shape != shape:  # native code does not check bounds
                raise ValueError(f"convolution needs weights of shape {shape}, got {tuple(weight.shape)}")
        weights = [_contiguous_like(like, w.permute(0, 2, 3, 1)) for w in convolution.weights]
        before, after, gamma = convolution.at_rows(source.layout, self.layout)
        before, after = ([_contiguous_like(like, f) for f in factors] for factors in (before, after))
        gamma_tensors = (
            (None,) * 4 if gamma is None else (gamma.a, gamma.bias, gamma.numerator, gamma.min_denominator)
        )
        gamma_tensors = [_contiguous_like(like, f) for f in gamma_tensors]
        arguments = _ConvolutionStruct(
            source._struct, self._struct,
            kernel.size, kernel.dilation, kernel.geometry.stride, kernel.geometry.padding,
            len(weights), _addresses(weights), _addresses(before), _addresses(after),
            *_addresses(gamma_tensors),
            _address(blocks.boxes), _address(blocks.columns), _address(blocks.ends), len(blocks.boxes), _new_counter(),
        )  # fmt: skip
        self._call("convolve", arguments, weights, before, after, gamma_tensors)

    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        """Load some columns from dense images, or from windows at `origin`.

        Args:
            images: Images or windows (K, C, h, w).
            columns: Column of each of them.
            origin: Upper left corner (K, 2) of each window; None for whole images.
        """
        images = images.to(self.values.dtype)  # the model may change the dtype
        self._copy_images("gather", images, torch.arange(len(images)), columns, origin)

    def to_dense(self, shape: torch.Size, columns: Tensor | None = None) -> Tensor:
        """Return dense tangents in channels-last memory format, the order of the rows."""
        (height, width, channels), count = self.layout.mask.shape, len(self.layout.cone.low)
        chosen = torch.arange(count) if columns is None else columns
        images = self.values.new_zeros(len(chosen), height, width, channels).permute(0, 3, 1, 2)
        self._copy_images("scatter", images, torch.arange(len(chosen)), chosen, None)
        return images.reshape(len(chosen), *shape)

    def to_windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        """Return columns on windows (K, C, h, w) in channels-last memory format.

        Args:
            columns: Columns to return.
            origin: Upper left corner (K, 2) of each window.
            size: Window size, large enough for the receptive field of each column.
        """
        windows = self.values.new_zeros(len(columns), *size, self.layout.mask.shape[2]).permute(0, 3, 1, 2)
        self._copy_images("scatter", windows, torch.arange(len(columns)), columns, origin)
        return windows

    def scatter(self, out: Tensor, index: Tensor, columns: Tensor | None = None) -> None:
        """Write columns into flattened images that are zero.

        Args:
            out: Flattened images (n, C·H·W).
            index: Row of `out` for each column.
            columns: Columns to write; None for all.
        """
        height, width, channels = self.layout.mask.shape
        chosen = torch.arange(len(index)) if columns is None else columns
        if out.dtype != self.values.dtype:
            dense = self.to_dense(torch.Size((channels, height, width)), chosen)
            out[index] = dense.flatten(1).to(out.dtype)
            return
        self._copy_images("scatter", out.view(-1, channels, height, width), index, chosen, None)

    def _copy_images(
        self, name: str, images: Tensor, index: Tensor, columns: Tensor, origin: Tensor | None
    ) -> None:
        image = torch.full((len(self.layout.cone.low),), -1)
        image[columns] = index
        corners = None if origin is None else origin.contiguous()
        arguments = _ImagesStruct(
            self._struct, _address(image), images.data_ptr(), images.stride(),
            None if corners is None else _address(corners), _new_counter(),
        )  # fmt: skip
        self._call(name, arguments, images, image, corners)

    def _call(self, name: str, arguments: ctypes.Structure, *keep_alive: object) -> None:
        """Call a native function on `torch.get_num_threads()` threads.

        Args:
            name: Function name without its dtype suffix.
            arguments: The struct it takes, with a counter that the threads share.
            keep_alive: Objects whose addresses `arguments` holds; referenced until all threads have finished.
        """
        function = getattr(load_library(), f"{name}_{DTYPE_SUFFIXES[self.values.dtype]}")

        def call(_: int, _keep_alive: object = keep_alive) -> None:
            if function(ctypes.byref(arguments)):
                raise MemoryError(f"out of memory in native {name}: use larger regions or a smaller input")

        if self.values.numel() < MIN_THREADED_NUMEL:
            call(0)
        else:
            parallel_for(call, range(torch.get_num_threads()))


def _contiguous_like(like: Tensor, tensor: Tensor | None) -> Tensor | None:
    """Return the tensor contiguous and in the dtype of `like`."""
    return None if tensor is None else tensor.to(like.dtype).contiguous()


def _new_counter() -> Any:
    return ctypes.pointer(Int64(0))


def _address(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise ValueError("native code needs contiguous tensors: call .contiguous() first")
    return tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (Address * len(tensors))(*(None if t is None else _address(t) for t in tensors))
