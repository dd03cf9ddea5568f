"""Sparse tangents in native code: a row holds only the regions whose receptive field contains it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bilrp import native
from bilrp.engine.executors.sparse_layout import Kernel, RowTerm, SparseLayout, SparseTangent, WeightTerm
from bilrp.engine.parallel import parallel_for

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


class _ProgressStruct(ctypes.Structure):
    _fields_ = (("position", Int64), ("macs", Int64))


class _ConvolutionStruct(ctypes.Structure):
    _fields_ = (
        ("source", _TangentStruct), ("target", _TangentStruct),
        ("kernel", Int64Pair), ("dilation", Int64Pair), ("stride", Int64Pair), ("padding", Int64Pair),
        ("terms", Int64), ("weights", Addresses), ("before", Addresses), ("after", Addresses),
        ("progress", ctypes.POINTER(_ProgressStruct)),
    )  # fmt: skip


class _CombinationStruct(ctypes.Structure):
    _fields_ = (
        ("target", _TangentStruct), ("terms", Int64), ("stride", Int64Pair),
        ("sources", ctypes.POINTER(ctypes.POINTER(_TangentStruct))), ("shift", Address), ("factors", Addresses),
        ("progress", ctypes.POINTER(_ProgressStruct)),
    )  # fmt: skip


class _ImagesStruct(ctypes.Structure):
    _fields_ = (
        ("rows", _TangentStruct),
        ("index", Address), ("images", Address), ("strides", Int64 * 4), ("origin", Address),
        ("progress", ctypes.POINTER(_ProgressStruct)),
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
        layout, (region_offsets, regions) = self.layout, self.layout.cone.regions_by_position
        sizes = layout.row_offsets.diff() * region_offsets.diff()
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        return [layout.row_offsets, layout.channel, region_offsets, regions, offsets]

    @cached_property
    def _struct(self) -> _TangentStruct:
        height, width, channels = self.layout.mask.shape
        addresses = [_address(t) for t in (*self._index_tables, self.values)]
        return _TangentStruct(height, width, channels, *addresses)

    def combine(self, terms: Sequence[RowTerm], stride: tuple[int, ...] = (1, 1)) -> None:
        sources = [term.source._struct for term in terms if isinstance(term.source, NativeSparseTangent)]
        pointers = (ctypes.POINTER(_TangentStruct) * len(terms))(*map(ctypes.pointer, sources))
        factors = [_contiguous_like(self.values, term.factor) for term in terms]
        shifts = torch.tensor([term.shift for term in terms])
        progress = _ProgressStruct()
        arguments = _CombinationStruct(
            self._struct, len(terms), tuple(stride), pointers, _address(shifts), _addresses(factors),
            ctypes.pointer(progress),
        )  # fmt: skip
        self._call("combine", arguments, factors, shifts)

    def convolve(self, source: SparseTangent, terms: Sequence[WeightTerm], kernel: Kernel) -> None:
        assert isinstance(source, NativeSparseTangent)
        shape = (self.layout.mask.shape[2], source.layout.mask.shape[2], *kernel.size)
        for term in terms:
            if term.weight.shape != shape:  # native code does not check bounds
                raise ValueError(
                    f"convolution needs weights of shape {shape}, got {tuple(term.weight.shape)}"
                )
        weights = [_contiguous_like(self.values, term.weight.permute(0, 2, 3, 1)) for term in terms]
        before, after = ([_contiguous_like(self.values, f) for f in factors]
                         for factors in ([t.before for t in terms], [t.after for t in terms]))  # fmt: skip
        progress = _ProgressStruct()
        arguments = _ConvolutionStruct(
            source._struct, self._struct,
            kernel.size, kernel.dilation, kernel.geometry.stride, kernel.geometry.padding,
            len(weights), _addresses(weights), _addresses(before), _addresses(after), ctypes.pointer(progress),
        )  # fmt: skip
        self._call("convolve", arguments, weights, before, after)
        native.report_multiply_adds(progress.macs)

    def load_columns(self, images: Tensor, columns: Tensor, origin: Tensor | None = None) -> None:
        images = images.to(self.values.dtype)  # the model may change the dtype
        self._copy_images("gather", images, columns, torch.arange(len(columns)), origin)

    def to_dense(self, columns: Tensor | None = None) -> Tensor:
        """Return dense tangents in channels-last memory format, the order of the rows."""
        height, width, channels = self.layout.mask.shape
        chosen = torch.arange(self.layout.column_count) if columns is None else columns
        images = self.values.new_zeros(len(chosen), height, width, channels).permute(0, 3, 1, 2)
        self._copy_images("scatter", images, chosen, torch.arange(len(chosen)), None)
        return images

    def write(self, out: Tensor, index: Tensor) -> None:
        if out.dtype != self.values.dtype:
            return super().write(out, index)
        height, width, channels = self.layout.mask.shape
        images = out.view(-1, channels, height, width)
        return self._copy_images("scatter", images, torch.arange(len(index)), index, None)

    def to_windows(self, columns: Tensor, origin: Tensor, size: tuple[int, int]) -> Tensor:
        """Return columns on windows (K, C, h, w) that contain their receptive fields, in channels-last memory format."""
        windows = self.values.new_zeros(len(columns), *size, self.layout.mask.shape[2]).permute(0, 3, 1, 2)
        self._copy_images("scatter", windows, columns, torch.arange(len(columns)), origin)
        return windows

    def _copy_images(
        self, name: str, images: Tensor, columns: Tensor, numbers: Tensor, origin: Tensor | None
    ) -> None:
        """Copy columns from or to images with these numbers."""
        index = torch.full((self.layout.column_count,), -1)
        index[columns] = numbers
        corners, progress = None if origin is None else origin.contiguous(), _ProgressStruct()
        arguments = _ImagesStruct(
            self._struct, _address(index), images.data_ptr(), images.stride(),
            None if corners is None else _address(corners), ctypes.pointer(progress),
        )  # fmt: skip
        self._call(name, arguments, images, index, corners)

    def _call(self, name: str, arguments: ctypes.Structure, *keep_alive: object) -> None:
        """Call a native function on `torch.get_num_threads()` threads.

        Args:
            name: Function name without its dtype suffix.
            arguments: The struct it takes, with a counter that the threads share.
            keep_alive: Objects whose addresses `arguments` holds; referenced until all threads have finished.
        """
        function = getattr(native.load_library(), f"{name}_{native.DTYPE_SUFFIXES[self.values.dtype]}")

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


def _address(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise ValueError("native code needs contiguous tensors: call .contiguous() first")
    return tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (Address * len(tensors))(*(None if t is None else _address(t) for t in tensors))
