"""Means and sums over positions."""

from __future__ import annotations

import pytest
import torch

import bilrp
from bilrp import regions


def test_positions_that_are_none() -> None:
    """A model that treats some positions otherwise may have none of them."""
    none = torch.zeros(5, dtype=torch.bool)
    x = torch.rand(1, 5, 4, dtype=torch.float64)

    def encode(x: torch.Tensor) -> torch.Tensor:
        special = (x[:, none] * 2).tanh().sum(1)
        return x.mean(1) + special

    parts = bilrp.decompose(encode, x, regions=regions.features()).parts
    torch.testing.assert_close(parts.sum(0), x.mean(1)[0])


def test_a_mean_of_no_axes_or_of_a_single_number_is_one_still() -> None:
    for function in (
        lambda x: x.mean(),
        lambda x: x.sum().sum(0),
        lambda x: x.mean(axis=1),
        lambda x: x.mean([]),
    ):
        x = torch.randn(1, 4, dtype=torch.float64)
        decomposition = bilrp.decompose(lambda x, function=function: function(x).reshape(1, -1), x)
        rest = decomposition.parts.sum(0) + decomposition.unattributed - decomposition.embedding
        assert float(rest.abs().max()) < 1e-12
        assert torch.equal(decomposition.embedding, function(x).flatten())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_mean_is_one_in_every_type(dtype: torch.dtype) -> None:
    """1/49 is no number of a narrow type, and all features would miss by the same part."""
    x = torch.rand(1, 6, 7, 7).to(dtype)
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(lambda x: x.mean((2, 3)), x, regions=3, mode=mode)
        rest = decomposition.parts.double().sum(0) - x.double().mean((2, 3)).flatten()
        assert float(rest.abs().max()) <= 2 * torch.finfo(dtype).eps
        assert dtype == torch.bfloat16 or float(rest.mean().abs()) <= 0.4 * torch.finfo(dtype).eps
