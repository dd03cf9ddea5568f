"""Native: what is written in C, where this installation was built with a compiler.

Each file has a slower twin in Python that works where there is no library: `sums.c` in numpy (`trace.checksum`), `rows.c`
in torch (`engine.sparse_torch`), also where numbers are neither float32 nor float64, and where somebody listens to
torch's operations. May import nothing of the package.
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
    """The compiled files, where this installation has one that this processor can run."""
    fast = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if platform.machine() in ("x86_64", "AMD64") and not fast:  # it is built for AVX2
        return None
    try:
        found = ctypes.CDLL(str(NATIVE_FOLDER / "native.compiled"))
        built_from = ctypes.c_uint32.in_dll(found, "native_source_checksum").value
        return found if built_from == source_checksum() else None
    except (OSError, ValueError):
        return None


def source_checksum() -> int:
    """Of the sources: a library that was built from others would read its work wrongly."""
    return zlib.crc32(b"".join(source.read_bytes() for source in sorted(NATIVE_FOLDER.glob("*.c"))))


def call(name: str, *arguments: Tensor | int | tuple[int, ...]) -> int:
    """Call a function of the library with whole numbers, tuples of them, and tensors where their numbers begin."""
    found = load_library()
    assert found is not None
    function = getattr(found, name)
    function.restype = ctypes.c_int64
    answer = function(*map(_to_ctypes, arguments))
    if answer < 0:
        raise MemoryError(f"no memory is left for {name}")
    return answer


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
    """Is there a library for such numbers? Where somebody listens to torch's operations, they have to be torch's."""
    usual = (
        like.dtype in DTYPE_SUFFIXES
        and like.device.type == "cpu"
        and not torch._C._len_torch_dispatch_stack()
    )
    return usual and load_library() is not None
