"""The checksum of weights in native code equals the numpy version bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bilrp import native
from bilrp.trace import checksum
from bilrp.trace.checksum import CHUNK_BYTES, GROUP_BYTES, compute_checksum

needs_library = pytest.mark.skipif(native.load_library() is None, reason="needs the compiled library")
NEAR = [
    edge + step
    for edge in (GROUP_BYTES, 2 * GROUP_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES)
    for step in (-8, -1, 0, 1, 8)
]
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
]  # fmt: skip


def draw_numbers(length: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(256, size=length, dtype=np.uint8))


def in_numpy(weights: list[Tensor]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "load_library", lambda: None)
        return compute_checksum(weights)


@needs_library
@pytest.mark.parametrize("length", [0, 1, 7, 8, *NEAR, 3 * CHUNK_BYTES + 5 * GROUP_BYTES + 13])
def test_native_sums_are_those_of_numpy_at_every_length(length: int) -> None:
    weights = [draw_numbers(length)]
    assert compute_checksum(weights) == in_numpy(weights)


@needs_library
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5 * GROUP_BYTES), max_size=4), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_native_sums_are_those_of_numpy_wherever_memory_begins(
    lengths: list[int], start: int, seed: int
) -> None:
    weights = [draw_numbers(start + length, seed)[start:] for length in lengths]
    assert compute_checksum(weights) == in_numpy(weights)


@needs_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native_sums_are_those_of_numpy_for_every_type_and_order(dtype: torch.dtype) -> None:
    full = draw_numbers(2 * 300 * 16 * 64).view(300, 16 * 128) % 2  # also as booleans
    weight = full.view(dtype)
    for weights in ([weight], [weight.T], [weight[1:, 1:]], [weight[::2], weight.T[3:]]):
        assert compute_checksum(weights) == in_numpy(weights)
        assert compute_checksum(weights) == compute_checksum([w.clone() for w in weights])


@needs_library
def test_the_native_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "sum_columns_numpy", None)
    assert compute_checksum([draw_numbers(GROUP_BYTES)]) != compute_checksum(
        [draw_numbers(GROUP_BYTES, seed=1)]
    )
