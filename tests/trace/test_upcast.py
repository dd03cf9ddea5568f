"""Casts inside a float64 run are removed, so that no map rounds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bilrp
from bilrp import composites


class Rounding(nn.Module):
    """Linear, a root-mean-square norm in float32 as language models write it, softmax in float32, linear."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).to(torch.float32)
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        weights = torch.softmax(h, -1, dtype=torch.float32).to(x.dtype)
        return self.second(weights * h)


def test_push_equals_pull_past_a_norm_in_float32() -> None:
    net = Rounding().double().eval()
    x = torch.randn(1, 6, dtype=torch.float64)
    for composite in (composites.uniform(0.0), composites.hessian_product()):
        pushed, pulled = (
            bilrp.decompose(net, x, composite=composite, mode=mode, regions=bilrp.regions.features())
            for mode in ("push", "pull")
        )
        assert pushed.parts.dtype == torch.float64
        torch.testing.assert_close(pushed.parts, pulled.parts, rtol=1e-13, atol=1e-15)


def test_a_float32_run_stays_as_it_is() -> None:
    net = Rounding().eval()
    result = bilrp.decompose(net, torch.randn(1, 6), composite=composites.uniform(0.0))
    assert result.parts.dtype == torch.float32
