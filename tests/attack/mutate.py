"""Bytes made worse, and a failing case made smaller."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence

ODD = (
    0,
    1,
    2,
    3,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
HEAD = 160  # bytes at the start, where formats say what they are


def mutate_bytes(data: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """One to six changes: flipped bits, odd numbers, cuts, copies, pieces of other files; a PNG's sums are put right."""
    buffer = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        if not buffer:
            break
        position = draw.randrange(min(len(buffer), HEAD) if draw.random() < 0.5 else len(buffer))
        kind = draw.randrange(9)
        if kind == 0:
            buffer[position] ^= 1 << draw.randrange(8)
        elif kind == 1:
            buffer[position] = draw.randrange(256)
        elif kind == 2:
            size = draw.choice((1, 2, 4, 8))
            number = draw.choice(ODD) & (256**size - 1)
            buffer[position : position + size] = number.to_bytes(size, draw.choice(("little", "big")))
        elif kind == 3:
            del buffer[position:]
        elif kind == 4:
            del buffer[position : position + draw.randrange(1, 32)]
        elif kind == 5:
            start = draw.randrange(len(buffer))
            buffer[position:position] = buffer[start : start + draw.randrange(1, 256)]
        elif kind == 6:
            buffer[position : position + 64] = draw.randbytes(draw.randrange(64))
        elif kind == 7 and others:
            other = draw.choice(others)
            start = draw.randrange(len(other))
            buffer[position : position + 256] = other[start : start + draw.randrange(1, 256)]
        else:
            size = draw.randrange(1, 64)
            buffer[position : position + size] = bytes(len(buffer[position : position + size]))
    full = bytes(buffer)
    return with_right_sums(full) if full.startswith(b"\x89PNG") and draw.random() < 0.8 else full


def with_right_sums(png: bytes) -> bytes:
    """The same chunks, each with the checksum it should have: what is wrong in them passes the first check."""
    buffer, position = bytearray(png[:8]), 8
    while position + 8 <= len(png):
        (size,) = struct.unpack(">I", png[position : position + 4])
        chunk = png[position + 4 : position + 8 + size]
        buffer += struct.pack(">I", size) + chunk + struct.pack(">I", zlib.crc32(chunk))
        position += 12 + size
    return bytes(buffer)


def smallest(data: bytes, fails: Callable[[bytes], bool], tries: int = 400) -> bytes:
    """Ever smaller pieces left out or set to zero as long as it still fails.

    >>> smallest(b"a long text with an X in it", lambda data: b"X" in data)
    b'X'
    """
    size = len(data)
    while size >= 1 and tries > 0:
        size, position = max(size // 2, 1), 0
        shorter = False
        while position < len(data) and tries > 0:
            tries -= 1
            tried = data[:position] + data[position + size :]
            if fails(tried):
                data, shorter = tried, True
            else:
                position += size
        if size == 1 and not shorter:
            break
    return data


def fewest(items: list, fails: Callable[[list], bool]) -> list:
    """The same for a list: items left out one by one, as long as it still fails.

    >>> fewest([1, 2, 3, 4], lambda items: 3 in items)
    [3]
    """
    position = 0
    while position < len(items):
        tried = items[:position] + items[position + 1 :]
        if fails(tried):
            items, position = tried, 0
        else:
            position += 1
    return items
