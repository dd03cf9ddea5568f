"""AttnLRP's shares against autograd's own Jacobians, and the rules chosen by what is on the tape."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, rules
from bilrp.errors import RuleError
from bilrp.pipeline import Mode
from bilrp.trace.recorder import record
from models import PLAIN, Case, Lambda, bert, vit

X = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
TOKENS = bilrp.regions.tokens()


class Attending(nn.Module):
    """One attention with weights, in one call or written out."""

    def __init__(self, written: bool, causal: bool = False):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.q, self.k, self.v = (
            nn.Parameter(torch.randn(6, 6, generator=generator, dtype=torch.float64)) for _ in range(3)
        )
        self.written, self.causal = written, causal

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.written:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores + torch.full_like(scores, -torch.inf).triu(1)
        return torch.softmax(scores, -1) @ v

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(F.linear(x, self.q), F.linear(x, self.k), F.linear(x, self.v))


def by_hand(net: Attending, x: Tensor) -> Tensor:
    """Parts [tokens, outputs]: ¼ J_q q + ¼ J_k k + ½ J_v v with autograd's Jacobians of the attention alone."""
    operands = tuple(F.linear(x, w).detach() for w in (net.q, net.k, net.v))
    jacobians = torch.autograd.functional.jacobian(net.attend, operands)
    parts = torch.zeros(x.shape[1], x.numel(), dtype=x.dtype)
    for token in range(x.shape[1]):
        for value, jacobian, share in zip(operands, jacobians, (0.25, 0.25, 0.5), strict=True):
            alone = torch.zeros_like(value)
            alone[:, token] = value[:, token]
            parts[token] += share * (jacobian.reshape(x.numel(), -1) @ alone.flatten())
    return parts


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_shares_of_attention(written: bool, causal: bool, mode: Mode) -> None:
    net = Attending(written, causal)
    decomposition = bilrp.decompose(net, X, composite=composites.attnlrp(), regions=TOKENS, mode=mode)
    torch.testing.assert_close(decomposition.parts, by_hand(net, X), rtol=0, atol=1e-12)


def test_a_fused_layer_equals_its_written_out_form() -> None:
    fused = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64).eval()
    fused.in_proj_bias.data.normal_()

    def written(x: Tensor) -> Tensor:
        q, k, v = F.linear(x, fused.in_proj_weight, fused.in_proj_bias).chunk(3, -1)
        q, k, v = (t.reshape(1, 4, 2, 3).transpose(1, 2) for t in (q, k, v))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 3**0.5, -1) @ v
        return fused.out_proj(mixed.transpose(1, 2).reshape(1, 4, 6))

    composite = composites.attnlrp()
    one = bilrp.decompose(Lambda(lambda x: fused(x, x, x)[0]), X, composite=composite, regions=TOKENS)
    two = bilrp.decompose(written, X, composite=composite, regions=TOKENS)
    torch.testing.assert_close(one.embedding, two.embedding)
    torch.testing.assert_close(one.parts, two.parts, rtol=0, atol=1e-12)


def test_halves_of_a_product() -> None:
    gate, up = (torch.randn(5, 6, dtype=torch.float64) for _ in range(2))

    def swiglu(x: Tensor) -> Tensor:
        return F.silu(x @ gate.T) * (x @ up.T)

    decomposition = bilrp.decompose(
        swiglu, X[:, 0], composite=composites.attnlrp(), regions=bilrp.regions.features()
    )
    g, u = X[:, 0] @ gate.T, X[:, 0] @ up.T
    for i in range(6):
        x = X[0, 0, i]
        by_gate = F.silu(g) / g * (x * gate[:, i]) * u
        by_up = F.silu(g) * (x * up[:, i])
        torch.testing.assert_close(decomposition.parts[i], ((by_gate + by_up) / 2)[0], rtol=0, atol=1e-12)


def test_norms_written_out_stay_detached() -> None:
    def rms(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    decomposition = bilrp.decompose(rms, X, composite=composites.attnlrp(), regions=TOKENS)
    assert float(decomposition.unattributed.abs().max()) < 1e-12


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_whole_model_pushes_as_it_pulls(attention: str) -> None:
    case = Case("bert", lambda: bert(attention), (5, 8))
    net, x = case.model(), case.input()
    pushed, pulled = (
        bilrp.decompose(net, x, composite=composites.attnlrp(0.1), regions=TOKENS, mode=mode)
        for mode in ("push", "pull")
    )
    torch.testing.assert_close(pushed.parts, pulled.parts, rtol=0, atol=1e-12)


def test_rules_for_attention_refuse_other_steps() -> None:
    for rule in (rules.split_product(), rules.split_attention()):
        with pytest.raises(RuleError, match="is a rule for"):
            rule(record(nn.Linear(3, 2), torch.ones(1, 3)).steps[0])


def test_the_default_is_chosen_by_what_is_on_the_tape() -> None:
    chosen = {
        case.name: bilrp.decompose(case.model(), case.input()).origin["composite"]
        for case in [
            *(case for case in PLAIN if case.name in {"mlp", "vgg", "residual", "transformer-first"}),
            Case("bert", lambda: bert("eager"), (5, 8)),
            Case("vit", lambda: vit("sdpa"), (3, 8, 8)),
            Case("mobile", lambda: nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.BatchNorm2d(3), nn.ReLU6()), (3, 8, 8)),
            Case("hybrid", lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), vit("sdpa")), (3, 8, 8)),
        ]
    }  # fmt: skip
    assert chosen == {
        "mlp": "uniform(0.25)",
        "vgg": "uniform(0.25)",
        "residual": "graded(0.5, 0.25, 0.1, 0)",
        "transformer-first": "transformer(0)",
        "bert": "transformer(0)",
        "vit": "transformer(0)",  # a patch embedding does not make it convolutional
        "mobile": "graded(0.5, 0.25, 0.1, 0)",  # batch norm
        "hybrid": "conv_attention(0.25)",
    }


def test_the_listing_shows_the_rules_that_will_be_used() -> None:
    case = Case("bert", lambda: bert("sdpa"), (5, 8))
    rows = bilrp.ops(case.model(), case.input())
    assert {row.rule for row in rows if row.op == "linear"} == {"zero", "not needed"}


def test_mixed_keeps_gamma_for_convolutions() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), vit("sdpa")).double().eval()
    rows = bilrp.ops(net, torch.rand(1, 3, 8, 8, dtype=torch.float64))
    assert [row.rule for row in rows if row.op.startswith("conv2d")] == ["gamma(0.25)", "gamma(0.25)"]
    assert {row.rule for row in rows if row.op == "linear"} == {"zero", "not needed"}
