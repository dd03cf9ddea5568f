"""Native: the products of the rows stage in one call, where this installation was built with a C compiler.

`rows.c` has a slower twin in torch (`engine.maps.products.plain`), which works where there is no library, where numbers are
neither float32 nor float64, and where somebody listens to torch's operations.
"""

from __future__ import annotations

import ctypes
import platform
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bilrp.engine.threads import share

if TYPE_CHECKING:
    from bilrp.engine.maps.blocks import Blocks
    from bilrp.engine.maps.products import Convolving

FOLDER = Path(__file__).parent
TYPES = {torch.float32: "float32", torch.float64: "float64"}


class Work(ctypes.Structure):
    """What `rows.c` calls Work."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("height", "width", "channels", "across")),
        *((name, ctypes.c_int64 * 2) for name in ("kernel", "dilation", "stride", "padding")),
        ("terms", ctypes.c_int64),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("weights", "before", "after")),
        *((name, ctypes.c_void_p) for name in ("starts", "along", "target_starts", "target_channel")),
        *((name, ctypes.c_void_p) for name in ("source", "target")),
        ("columns", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("blocks", "block_columns", "block_ends")),
        ("block_count", ctypes.c_int64),
        ("next", ctypes.POINTER(ctypes.c_int64)),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled `rows.c`, where this installation has one that this processor can run."""
    fast = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if platform.machine() in ("x86_64", "AMD64") and not fast:  # it is built for AVX2
        return None
    try:
        found = ctypes.CDLL(str(FOLDER / "rows.so"))
        source = ctypes.c_uint32.in_dll(found, "rows_source").value
    except (OSError, ValueError):
        return None
    return found if source == checksum() else None


def checksum() -> int:
    """Of the source: a library that was built from another one would read its work wrongly."""
    return zlib.crc32((FOLDER / "rows.c").read_bytes())


def takes(rows: Tensor) -> bool:
    """Can a library work on such rows? Where somebody listens to torch's operations, they have to be torch's."""
    return rows.dtype in TYPES and rows.device.type == "cpu" and not torch._C._len_torch_dispatch_stack()


def convolve(library: ctypes.CDLL, work: Convolving, blocks: Blocks, rows: Tensor, out: Tensor) -> None:
    """Rows of the source → rows of the target, on as many threads as torch may use."""
    kernel, (height, width, channels) = work.kernel, work.layout.active.shape
    held = [
        torch.tensor(work.layout.starts), work.along, torch.tensor(work.target.starts), work.target.channel,
        rows, out, blocks.boxes, blocks.columns, blocks.ends,
    ]  # fmt: skip
    starts, along, target_starts, channel, source, target, boxes, columns, ends = (_address(t) for t in held)
    asked = Work(
        height, width, channels, work.target.active.shape[1],
        kernel.size, kernel.dilation, kernel.reach.stride, kernel.reach.padding,
        len(work.weights), *(_addresses(each) for each in (work.weights, work.before, work.after)),
        starts, along, target_starts, channel, source, target, rows.shape[1],
        boxes, columns, ends, len(blocks.boxes), ctypes.pointer(ctypes.c_int64(0)),
    )  # fmt: skip
    function = getattr(library, f"convolve_{TYPES[rows.dtype]}")

    def call(_: int) -> None:
        if function(ctypes.byref(asked)):
            raise MemoryError("no memory is left for the rows of a convolution")

    share(call, range(torch.get_num_threads()))


def _address(tensor: Tensor) -> int:
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else _address(t) for t in tensors))
