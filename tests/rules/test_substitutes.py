"""What a rule uses instead of a call is compared with the recorded result, on a sample of its rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp.engine.maps import ConstantMatmul
from bilrp.errors import RuleError

TOKENS = 50  # more than are compared


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.keys, self.values = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x)[:, None] for each in (self.queries, self.keys, self.values))
        return F.scaled_dot_product_attention(q, k, v).mean((1, 2))


MODELS = {"norm": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)), "attention": Attention}


def decompose(name: str) -> bilrp.Decomposition:
    torch.manual_seed(1)
    x = torch.randn(1, TOKENS, 8)
    model = MODELS[name]()
    return bilrp.decompose(lambda t: model(t).flatten(1), x, regions=bilrp.regions.features())


@pytest.mark.parametrize("name", MODELS)
def test_a_right_form_is_accepted(name: str) -> None:
    assert decompose(name).parts.abs().max() > 1e-6


@pytest.mark.parametrize("factor", [1.01, 0.0, torch.nan])
def test_wrong_statistics_are_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.native_layer_norm
    monkeypatch.setattr(torch, "native_layer_norm", lambda *a: (*right(*a)[:2], factor * right(*a)[2]))
    with pytest.raises(RuleError, match="gives another result"):
        decompose("norm")


@pytest.mark.parametrize("factor", [1.01, 0.0, torch.nan])
def test_wrong_attention_is_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    push = ConstantMatmul.push
    monkeypatch.setattr(ConstantMatmul, "push", lambda self, *tangents: factor * push(self, *tangents))
    with pytest.raises(RuleError, match="gives another result"):
        decompose("attention")
