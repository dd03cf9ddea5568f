"""Functions in C, available if the package was built with a compiler.

Each file has a slower Python equivalent: `sums.c` in numpy (`trace.checksum`), `rows.c` in torch
(`engine.executors.sparse_torch`), which is also used for other dtypes than float32 and float64, and while a
TorchDispatchMode is active. May import nothing of the package.
"""

from __future__ import annotations

import ctypes
import platform
import zlib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

NATIVE_FOLDER = Path(__file__).parent
DTYPE_SUFFIXES = {torch.float32: "float32", torch.float64: "float64"}


@cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled library; None if it is missing, out of date, or this CPU lacks AVX2."""
    has_avx = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if platform.machine() in ("x86_64", "AMD64") and not has_avx:
        return None
    try:
        library = ctypes.CDLL(str(NATIVE_FOLDER / "native.compiled"))
        checksum = ctypes.c_uint32.in_dll(library, "native_source_checksum").value
        return library if checksum == source_checksum() else None
    except (OSError, ValueError):
        return None


def source_checksum() -> int:
    """Return the checksum of the C sources; a library built from other sources may have other structs."""
    return zlib.crc32(b"".join(source.read_bytes() for source in sorted(NATIVE_FOLDER.glob("*.c"))))


def call(name: str, *arguments: Tensor | int | tuple[int, ...]) -> int:
    """Call a function of the library with integers, tuples of integers, and tensors (as pointers)."""
    library = load_library()
    assert library is not None
    function = getattr(library, name)
    function.restype = ctypes.c_int64
    result = function(*map(_to_ctypes, arguments))
    if result < 0:
        raise MemoryError(f"out of memory in {name}: use fewer regions or smaller inputs")
    return result


def _to_ctypes(
    argument: Tensor | int | tuple[int, ...],
) -> ctypes.c_void_p | ctypes.c_int64 | ctypes.Array[ctypes.c_int64]:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return (
        (ctypes.c_int64 * len(argument))(*argument)
        if isinstance(argument, tuple)
        else ctypes.c_int64(argument)
    )


def is_supported(like: Tensor) -> bool:
    """Return whether the library supports the tensor; not while a TorchDispatchMode must see torch's operations."""
    is_cpu_float = like.dtype in DTYPE_SUFFIXES and like.device.type == "cpu"
    return is_cpu_float and not torch._C._len_torch_dispatch_stack() and load_library() is not None
