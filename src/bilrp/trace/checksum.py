"""A checksum of tensors' numbers, as fast as memory can be read: in native code (`native/sums.c`), or in numpy.

An accelerator sums its own tensors, and only the sums are copied to the host.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from bilrp import native
from bilrp.trace.devices import is_on_cpu

COLUMNS, ROWS_PER_GROUP = 1021, 7  # words in a row, rows that are summed as one
GROUP_BYTES = 8 * ROWS_PER_GROUP * COLUMNS  # their bytes
CHUNK_BYTES = (
    64 * GROUP_BYTES
)  # bytes that are looked at in turn: numpy's sums of them stay near the processor
MIX_SHIFT_BITS = np.uint64(29)
GROUP_FACTORS = np.random.default_rng(0).integers(2**63, size=64, dtype=np.uint64) * np.uint64(2) + np.uint64(
    1
)  # odd: nothing is lost
DEVICE_FACTORS = np.random.default_rng(1).integers(-(2**62), 2**62, size=1024) * 2 + 1
DEVICE_CHUNK_BYTES = len(DEVICE_FACTORS) * GROUP_BYTES  # bytes that are summed by one call


def compute_checksum(tensors: Iterable[Tensor]) -> int:
    """Many times faster than a hash: 64-bit words summed in columns, seven rows together, and these sums, once mixed, each
    with a factor of its own; a CRC-32 of that and of what is left over.

    What it misses must leave every sum as it was. Two words that change places do not, unless they stand in one column of
    seven rows: the columns' number is prime, so that rows of a matrix which change places do not. Signs that change, which
    are the words' highest bits, do not unless by twos in every column of seven rows.
    """
    found, elsewhere = 0, list[Tensor]()
    for t in tensors:
        if not is_on_cpu(t):
            elsewhere.append(t)
            continue
        memory = view_bytes(t)
        for start in range(0, len(memory), CHUNK_BYTES):
            words = memory[start : start + CHUNK_BYTES]
            whole = len(words) // GROUP_BYTES * GROUP_BYTES
            if whole:
                found = zlib.crc32(sum_columns(words[:whole]).data, found)
            found = zlib.crc32(words[whole:].data, found)
    for device in dict.fromkeys(t.device for t in elsewhere):
        sums = sum_on_device([t for t in elsewhere if t.device == device])
        found = zlib.crc32(view_bytes(sums).data, found)
    return found


def view_bytes(t: Tensor) -> np.ndarray:
    """The tensor's numbers one after another, byte by byte; its own memory where they lie so."""
    return t.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()


def sum_on_device(tensors: Sequence[Tensor]) -> Tensor:
    """Sums [n] of tensors on one device by its own 64-bit arithmetic: other numbers than the CPU's, by the same thoughts."""
    factors = torch.from_numpy(DEVICE_FACTORS).to(tensors[0].device)
    sums: list[Tensor] = []
    rest: list[Tensor] = []  # what fills no group: biases, mostly

    def add(memory: Tensor) -> None:
        groups = memory.view(torch.int64).reshape(-1, ROWS_PER_GROUP, COLUMNS).sum(1)
        columns = (_mix(groups) * factors[: len(groups), None]).sum(0)
        sums.append((_mix(columns) * factors[:COLUMNS]).sum())

    for t in tensors:
        memory = t.detach().contiguous().reshape(-1).view(torch.uint8)
        whole = len(memory) // GROUP_BYTES * GROUP_BYTES
        rest.append(memory[whole:])
        memory = memory if memory.storage_offset() % 8 == 0 else memory.clone()
        for start in range(0, whole, DEVICE_CHUNK_BYTES):
            add(memory[start : min(start + DEVICE_CHUNK_BYTES, whole)])
    together = torch.cat(rest)
    padded = together.new_zeros(max(1, -(-len(together) // GROUP_BYTES)) * GROUP_BYTES)
    padded[: len(together)] = together
    for piece in padded.split(DEVICE_CHUNK_BYTES):
        add(piece)
    return torch.stack(sums)


def _mix(sums: Tensor) -> Tensor:
    return sums ^ (sums >> int(MIX_SHIFT_BITS))


def sum_columns(groups: np.ndarray) -> np.ndarray:
    """Σ_g factor_g · mixed(Σ_{rows of g} words), column by column, of at most as many whole groups as there are factors."""
    library = native.load_library()
    if library is None:
        return sum_columns_numpy(groups)
    sums = np.empty(COLUMNS, np.uint64)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (groups, GROUP_FACTORS, sums)]
    library.sum_columns(*addresses, ctypes.c_int64(len(groups) // GROUP_BYTES))
    return sums


def sum_columns_numpy(groups: np.ndarray) -> np.ndarray:
    """The plain twin of native code: mixed(s) = s xor (s >> 29)."""
    sums = groups.view(np.uint64).reshape(-1, ROWS_PER_GROUP, COLUMNS).sum(1)
    sums ^= sums >> MIX_SHIFT_BITS
    return GROUP_FACTORS[: len(sums)] @ sums
