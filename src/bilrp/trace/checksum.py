"""A checksum of tensors at the speed of memory: in C (`native/sums.c`) or numpy.

Tensors on an accelerator are summed there, and only the sums are copied to the host.
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

COLUMNS, ROWS_PER_GROUP = 1021, 7  # 64-bit words in a row (a prime number), rows in a group
GROUP_BYTES = 8 * ROWS_PER_GROUP * COLUMNS
CHUNK_BYTES = 64 * GROUP_BYTES  # small enough for the CPU cache
MIX_SHIFT_BITS = np.uint64(29)
# Odd factors are invertible modulo 2⁶⁴.
GROUP_FACTORS = np.random.default_rng(0).integers(2**63, size=64, dtype=np.uint64) * np.uint64(2) + np.uint64(
    1
)
DEVICE_FACTORS = np.random.default_rng(1).integers(-(2**62), 2**62, size=1024) * 2 + 1
DEVICE_CHUNK_BYTES = len(DEVICE_FACTORS) * GROUP_BYTES  # summed by one call


def compute_checksum(tensors: Iterable[Tensor]) -> int:
    """Return a checksum of the tensors' bytes, many times faster than a cryptographic hash.

    Groups of seven rows of 64-bit words are added column by column; the sums are mixed, multiplied by a factor for each
    group, added, and hashed by CRC-32 together with the bytes that do not fill a group.

    Collisions: a permutation is undetected only if it swaps two words of one column within a group. The number of
    columns is prime, so swapping rows of a matrix does not do that. Sign changes (the highest bits) are undetected only
    if an even number of them falls into each column of a group.
    """
    checksum, device_tensors = 0, list[Tensor]()
    for t in tensors:
        if not is_on_cpu(t):
            device_tensors.append(t)
            continue
        memory = view_bytes(t)
        for start in range(0, len(memory), CHUNK_BYTES):
            words = memory[start : start + CHUNK_BYTES]
            end = len(words) // GROUP_BYTES * GROUP_BYTES
            if end:
                checksum = zlib.crc32(sum_columns(words[:end]).data, checksum)
            checksum = zlib.crc32(words[end:].data, checksum)
    for device in dict.fromkeys(t.device for t in device_tensors):
        sums = sum_on_device([t for t in device_tensors if t.device == device])
        checksum = zlib.crc32(view_bytes(sums).data, checksum)
    return checksum


def view_bytes(t: Tensor) -> np.ndarray:
    """Return the tensor's bytes in row-major order; a view of its memory if it is contiguous on the CPU."""
    return t.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()


def sum_on_device(tensors: Sequence[Tensor]) -> Tensor:
    """Return sums [n] of tensors on one device; the same method as on the CPU, with other values."""
    factors = torch.from_numpy(DEVICE_FACTORS).to(tensors[0].device)
    sums: list[Tensor] = []
    remainders: list[Tensor] = []  # bytes that do not fill a group: mostly biases

    def add(memory: Tensor) -> None:
        groups = memory.view(torch.int64).reshape(-1, ROWS_PER_GROUP, COLUMNS).sum(1)
        columns = (_mix(groups) * factors[: len(groups), None]).sum(0)
        sums.append((_mix(columns) * factors[:COLUMNS]).sum())

    for t in tensors:
        memory = t.detach().contiguous().reshape(-1).view(torch.uint8)
        end = len(memory) // GROUP_BYTES * GROUP_BYTES
        remainders.append(memory[end:])
        memory = memory if memory.storage_offset() % 8 == 0 else memory.clone()
        for start in range(0, end, DEVICE_CHUNK_BYTES):
            add(memory[start : min(start + DEVICE_CHUNK_BYTES, end)])
    remainder = torch.cat(remainders)
    padded = remainder.new_zeros(max(1, -(-len(remainder) // GROUP_BYTES)) * GROUP_BYTES)
    padded[: len(remainder)] = remainder
    for chunk in padded.split(DEVICE_CHUNK_BYTES):
        add(chunk)
    return torch.stack(sums)


def _mix(sums: Tensor) -> Tensor:
    return sums ^ (sums >> int(MIX_SHIFT_BITS))


def sum_columns(groups: np.ndarray) -> np.ndarray:
    """Return Σ_g factor_g · mix(Σ_{rows of g} words) for each column; at most 64 complete groups."""
    library = native.load_library()
    if library is None:
        return sum_columns_numpy(groups)
    sums = np.empty(COLUMNS, np.uint64)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (groups, GROUP_FACTORS, sums)]
    library.sum_columns(*addresses, ctypes.c_int64(len(groups) // GROUP_BYTES))
    return sums


def sum_columns_numpy(groups: np.ndarray) -> np.ndarray:
    """Compute `sum_columns` in numpy; mix(s) = s xor (s >> 29)."""
    sums = groups.view(np.uint64).reshape(-1, ROWS_PER_GROUP, COLUMNS).sum(1)
    sums ^= sums >> MIX_SHIFT_BITS
    return GROUP_FACTORS[: len(sums)] @ sums
