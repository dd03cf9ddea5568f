"""Constants that a model overwrites while it runs, and weights without version counters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp.errors import TapeError
from bilrp.trace.recorder import record


class Scratch(nn.Module):
    """Keeps a factor in a buffer that it fills in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.factor: Tensor
        self.register_buffer("factor", torch.ones(4, 1, dtype=torch.float64))
        self.conv = nn.Conv2d(1, 4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        self.factor.zero_()
        self.factor.add_(torch.arange(1.0, 5.0).double()[:, None])
        return (self.conv(x).flatten(2) * self.factor).relu().flatten(1)


def test_inputs_decomposed_at_once_have_their_own_constants() -> None:
    torch.manual_seed(0)
    model, xs = Scratch(), [torch.rand(1, 1, 12, 12).double() for _ in range(24)]
    alone = [bilrp.decompose(model, x, regions=4) for x in xs]
    for result, true in zip(bilrp.decompose_many(model, xs, regions=4, workers=3), alone, strict=True):
        assert torch.equal(result.parts, true.parts) and result.origin == true.origin


def test_statistics_that_are_written_to_are_refused() -> None:
    mean, var = torch.zeros(3), torch.ones(3)
    with pytest.raises(TapeError, match="writes into its arguments"):
        record(lambda x: F.instance_norm(x, mean, var, use_input_stats=True), torch.rand(1, 3, 8, 8))


def test_weights_of_inference_mode_raise_our_own_error() -> None:
    with torch.inference_mode():
        weight = torch.randn(4, 5)
    with pytest.raises(TapeError, match="inference_mode"):
        record(lambda x: F.linear(x, weight), torch.rand(1, 5))
