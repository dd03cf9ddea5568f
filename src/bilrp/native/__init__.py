"""Functions in C, available if the package was built with a compiler.

Each file has a slower Python equivalent: `sums.c` in numpy (`trace.checksum`), `rows.c` in torch
(`engine.executors.sparse_layout`), which is also used for other dtypes than float32 and float64. May import nothing of
the package.
"""

from __future__ import annotations

import ctypes
import platform
import warnings
import zlib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

NATIVE_FOLDER = Path(__file__).parent
NO_LIBRARY = (
    "no compiled kernels: results are the same, convolutions take up to four times as long. Wheels of bilrp for "
    "Linux, macOS and Windows have them; with a C compiler so has pip install --no-binary bilrp bilrp"
)
DTYPE_SUFFIXES = {torch.float32: "float32", torch.float64: "float64"}


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled library; None if it is missing (which is said once), out of date, or this CPU lacks AVX2."""
    path = NATIVE_FOLDER / "native.compiled"
    if not path.exists():
        warnings.warn(NO_LIBRARY, stacklevel=2)
        return None
    has_avx = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if platform.machine() in ("x86_64", "AMD64") and not has_avx:
        return None
    try:
        library = ctypes.CDLL(str(path))
        checksum = ctypes.c_uint32.in_dll(library, "native_source_checksum").value
        return library if checksum == source_checksum() else None
    except (OSError, ValueError):
        return None


def source_checksum() -> int:
    """Return the checksum of the C sources; a library built from other sources may have other structs."""
    return zlib.crc32(b"".join(source.read_bytes() for source in sorted(NATIVE_FOLDER.glob("*.c"))))


def is_supported(like: Tensor) -> bool:
    """Return whether the library supports a tensor of this dtype and device."""
    return like.dtype in DTYPE_SUFFIXES and like.device.type == "cpu" and load_library() is not None


def report_multiply_adds(count: int) -> None:
    """Report the multiply-adds of a native call to a `FlopCounterMode`, if one is active.

    It counts the operations that torch calls, so this calls a product of as many multiply-adds on tensors without memory.
    """
    if torch._C._len_torch_dispatch_stack():
        row = torch.empty((), device="meta").expand(1, count)
        torch.mm(row, row.T)
