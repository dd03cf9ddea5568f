"""Every rule × layer kind against a slow matrix form: the layer becomes a dense matrix by pushing a basis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions, rules
from bilrp.errors import RuleError
from bilrp.rules import Rule
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from type_asserts import assert_not_none

LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "linear": (partial(nn.Linear, 6, 5), (6,)),
    "linear-3d": (partial(nn.Linear, 4, 3), (3, 4)),
    "conv1d": (partial(nn.Conv1d, 2, 3, 3, stride=2, padding=1), (2, 7)),
    "conv2d": (partial(nn.Conv2d, 2, 3, 3, padding=1), (2, 4, 4)),
    "conv2d-strided-dilated": (partial(nn.Conv2d, 2, 3, (3, 2), stride=(2, 1), padding=(2, 0), dilation=(2, 1)), (2, 6, 5)),
    "conv2d-grouped": (partial(nn.Conv2d, 4, 6, 3, groups=2), (4, 4, 5)),
    "conv2d-depthwise": (partial(nn.Conv2d, 3, 3, 3, padding=1, groups=3), (3, 4, 4)),
    "conv2d-same": (partial(nn.Conv2d, 2, 2, 2, padding="same"), (2, 4, 4)),
    "conv3d": (partial(nn.Conv3d, 1, 2, 2, stride=1, padding=1), (1, 3, 3, 3)),
    "transposed": (partial(nn.ConvTranspose2d, 2, 3, 3, stride=2, padding=1, output_padding=1), (2, 3, 3)),
    "transposed-grouped": (partial(nn.ConvTranspose2d, 4, 2, 2, groups=2, dilation=2), (4, 3, 3)),
    "transposed-1d": (partial(nn.ConvTranspose1d, 2, 3, 4, stride=3), (2, 4)),
}  # fmt: skip
LOW, HIGH = -4.0, 4.0


def matrix_form(name: str, w: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Messages [features, outputs] of z = W a + b under a rule, with explicit sums; b is zero where there is none."""
    z = w @ a + b
    contribution = w * a  # [outputs, features]: what a_j adds to z_k
    zero = torch.zeros(())
    messages = torch.zeros_like(w)
    for k in range(len(z)):
        zk, wk, ck, bk = z[k], w[k], contribution[k], b[k]
        if name == "zero":
            messages[k] = ck
        elif name.startswith("epsilon"):
            messages[k] = ck * zk / (zk + (-0.3 if zk < 0 else 0.3))
        elif name == "gamma, bias=inputs":
            # the bias is distributed to the inputs in proportion to |w·a|
            side = (lambda t: torch.maximum(t, zero)) if zk > 0 else (lambda t: torch.minimum(t, zero))
            increased, bias_part = ck + 0.4 * side(ck), bk + 0.4 * side(bk)
            if zk != 0 and ck.any():
                spread = ck.abs() / ck.abs().sum()
                messages[k] = (increased + bias_part * spread) * zk / (increased.sum() + bias_part)
        elif name.startswith("gamma"):
            # contributions (and the bias) of the sign of z are increased by γ times themselves
            side = (lambda t: torch.maximum(t, zero)) if zk > 0 else (lambda t: torch.minimum(t, zero))
            if zk != 0:
                increased = ck + 0.4 * side(ck)
                messages[k] = increased * zk / (increased.sum() + bk + 0.4 * side(bk))
        elif name.startswith(("alphabeta", "zplus")):
            alpha, beta = (1.0, 0.0) if name == "zplus" else (2.0, 1.0)
            for factor, side in ((alpha, torch.maximum), (-beta, torch.minimum)):
                total = side(ck, zero).sum() + side(bk, zero)
                if factor and total != 0:
                    messages[k] = messages[k] + factor * side(ck, zero) * zk / total
        elif name.startswith("zbox"):
            share = ck - LOW * torch.maximum(wk, zero) - HIGH * torch.minimum(wk, zero)
            if share.sum() != 0:
                messages[k] = share * zk / share.sum()
        elif name == "wsquare":
            messages[k] = wk**2 * zk / (wk**2).sum() if wk.any() else 0 * wk
        elif name == "flat":
            field = (wk != 0).double()  # random weights are never zero inside the receptive field
            messages[k] = field * zk / field.sum() if field.any() else field
        else:
            raise AssertionError(name)
    return messages.T


RULES: dict[str, Rule] = {
    "zero": rules.zero(),
    "epsilon": rules.epsilon(0.3),
    "gamma": rules.gamma(0.4),
    "gamma, bias=inputs": rules.gamma(0.4, bias="inputs"),
    "zplus": rules.zplus(),
    "alphabeta": rules.alphabeta(2.0, 1.0),
    "zbox": rules.zbox(LOW, HIGH),
    "flat": rules.flat(),
    "wsquare": rules.wsquare(),
}


def matrix(layer: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """W and b of the layer as a dense matrix and vector, by pushing a basis through it."""
    size = torch.Size(shape).numel()
    with torch.no_grad():
        b = layer(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        basis = torch.eye(size, dtype=torch.float64).reshape(size, 1, *shape)
        return torch.stack([layer(e).flatten() - b for e in basis], 1), b


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", RULES)
def test_rule_equals_its_matrix_form(name: str, kind: str, bias: bool) -> None:
    if kind == "conv2d-same" and name in {"zbox", "flat", "wsquare"}:
        pytest.skip("the row of zeros that pads one side only is a constant there, and keeps its share")
    build, shape = LAYERS[kind]
    layer = build(bias=bias).double()
    for x in (torch.randn(1, *shape, dtype=torch.float64), torch.rand(1, *shape, dtype=torch.float64)):
        w, b = matrix(layer, shape)
        expected = matrix_form(name, w, b, x.flatten())
        for mode in ("push", "pull"):
            decomposition = bilrp.decompose(
                layer, x, regions=regions.features(), composite=RULES[name], mode=mode
            )
            torch.testing.assert_close(decomposition.parts, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", ["linear", "conv2d", "transposed"])
@pytest.mark.parametrize("name", RULES)
def test_a_relu_behind_the_step_only_gates_it(name: str, kind: str) -> None:
    build, shape = LAYERS[kind]
    layer = build().double()
    x = torch.randn(1, *shape, dtype=torch.float64)
    w, b = matrix(layer, shape)
    expected = matrix_form(name, w, b, x.flatten()) * (w @ x.flatten() + b > 0)
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(
            nn.Sequential(layer, nn.ReLU()), x, regions=regions.features(), composite=RULES[name], mode=mode
        )
        torch.testing.assert_close(decomposition.parts, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "kind", ["linear", "conv1d", "conv2d-grouped", "conv3d", "transposed", "transposed-grouped"]
)
@pytest.mark.parametrize("name", ["zero", "gamma", "alphabeta", "zbox"])
def test_batch_norm_is_folded_into_the_step_before_it(name: str, kind: str) -> None:
    build, shape = LAYERS[kind]
    layer = build().double()
    x = torch.randn(1, *shape, dtype=torch.float64)
    channels = layer(x).shape[1]
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[layer(x).dim()](
        channels
    )
    for t in (norm.running_mean, norm.weight.data, norm.bias.data):
        t.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    model = nn.Sequential(layer, norm).double().eval()
    assert [s.op for s in simplify(record(model, x)).steps] != [s.op for s in record(model, x).steps]
    w, b = matrix(model, shape)
    decomposition = bilrp.decompose(model, x, regions=regions.features(), composite=RULES[name])
    torch.testing.assert_close(
        decomposition.parts, matrix_form(name, w, b, x.flatten()), rtol=1e-9, atol=1e-10
    )


def test_gamma_is_the_papers_rule_on_positive_inputs() -> None:
    """R_j ← Σ_k a_j ρ(w_jk) / Σ_j a_j ρ(w_jk) · R_k with ρ(w) = w + γ max(w, 0), for outputs that a ReLU lets through."""
    layer = nn.Linear(6, 5, bias=False).double()
    x = torch.rand(1, 6, dtype=torch.float64)
    rho = layer.weight.detach() + 0.4 * layer.weight.detach().clamp(min=0)
    z = layer(x)[0].detach().clamp(min=0)
    expected = (rho * x[0] / (rho @ x[0])[:, None] * z[:, None]).T
    decomposition = bilrp.decompose(
        nn.Sequential(layer, nn.ReLU()), x, composite=rules.gamma(0.4), regions=regions.features()
    )
    torch.testing.assert_close(decomposition.parts, expected, rtol=1e-12, atol=1e-12)


@given(
    st.floats(0, 5),
    st.integers(0, 2**16),
    st.sampled_from(["linear", "conv2d", "conv1d", "transposed"]),
    st.booleans(),
)
def test_conserving_rules_conserve(value: float, seed: int, kind: str, signed: bool) -> None:
    """Without a bias, γ and αβ hand on exactly what they receive (αβ where there are contributions of both signs)."""
    torch.manual_seed(seed)
    build, shape = LAYERS[kind]
    layer = build(bias=False).double()
    x = torch.randn(1, *shape, dtype=torch.float64) if signed else torch.rand(1, *shape, dtype=torch.float64)
    decomposition = bilrp.decompose(layer, x, composite=rules.gamma(value), regions=regions.features())
    torch.testing.assert_close(
        decomposition.unattributed, torch.zeros_like(decomposition.embedding), rtol=0, atol=1e-11
    )


@given(
    st.integers(0, 2**16),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1),
    st.integers(1, 2),
    st.booleans(),
)
def test_max_pool_selects_and_shares_ties(
    seed: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool
) -> None:
    """Against a loop over windows; small integers make ties likely."""
    pad = min(pad, kernel // 2)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (1, 2, 6, 5), generator=generator).double()
    pool = nn.MaxPool2d(kernel, stride, pad, dilation, ceil_mode=ceil)
    out = pool(x)
    expected = torch.zeros(*out.shape[1:], *x.shape[1:], dtype=torch.float64)
    for c, i, j in torch.cartesian_prod(*(torch.arange(n) for n in out.shape[1:])).tolist():
        rows = [i * stride - pad + dilation * k for k in range(kernel)]
        columns = [j * stride - pad + dilation * k for k in range(kernel)]
        inside = [(r, s) for r in rows for s in columns if 0 <= r < 6 and 0 <= s < 5]
        winners = [(r, s) for r, s in inside if x[0, c, r, s] == out[0, c, i, j]]
        for r, s in winners:
            expected[c, i, j, c, r, s] = x[0, c, r, s] / len(winners)
    for mode in ("push", "pull"):
        parts = bilrp.decompose(pool, x, regions=regions.features(), mode=mode).parts
        torch.testing.assert_close(parts, expected.flatten(0, 2).flatten(1).T, rtol=0, atol=1e-14)


def test_ties_between_operands_and_along_axes_are_shared() -> None:
    x = torch.tensor([[2.0, 2.0, 1.0, -3.0, -3.0, 0.0]])
    for function, expected in (
        (lambda t: torch.maximum(t[:, :1], t[:, 1:2]), [1, 1, 0, 0, 0, 0]),
        (lambda t: t.amax(-1, keepdim=True), [1, 1, 0, 0, 0, 0]),
        (lambda t: t.min(-1, keepdim=True).values, [0, 0, 0, -1.5, -1.5, 0]),
        (lambda t: t.max()[None], [1, 1, 0, 0, 0, 0]),
        (lambda t: torch.minimum(t, t)[:, 3:4], [0, 0, 0, -3, 0, 0]),
        (lambda t: torch.maximum(t, torch.full((6,), 2.0))[:, :1], [1, 0, 0, 0, 0, 0]),
    ):
        for mode in ("push", "pull"):
            parts = bilrp.decompose(function, x, regions=regions.features(), mode=mode).parts[:, 0]
            assert parts.tolist() == expected


def test_paper_vgg_refuses_a_layer_it_cannot_number() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x).relu()

    with pytest.raises(RuleError, match=r"no rule in paper_vgg for step 'conv'.*rules\.gamma"):
        bilrp.decompose(Named(), torch.rand(1, 3, 8, 8), composite=composites.paper_vgg())


def test_composites_choose_rules() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()  # fmt: skip
    steps = record(net, torch.rand(1, 3, 6, 6).double()).steps
    choices = [
        composites.uniform(0.0),
        composites.uniform(0.5),
        composites.resnet(0.1),
        composites.paper_vgg(),
    ]
    choices.append(composites.hessian_product())
    chosen = {composite.name: [getattr(composite(s), "name", None) for s in steps] for composite in choices}
    assert chosen["uniform(0)"] == ["zero", "gate", "zero", "gate", "linear", "zero"]
    assert chosen["uniform(0.5)"][::2] == ["gamma(0.5)", "gamma(0.5)", "linear"]
    assert chosen["resnet(0.1)"] == ["gamma(0.1)", "gate", "gamma(0.1)", "gate", "linear", "zero"]
    assert (
        assert_not_none(chosen["paper_vgg"][0]).startswith("zbox") and chosen["paper_vgg"][2] == "gamma(0.5)"
    )
    assert chosen["hessian_product"] == ["zero", "gate", "zero", "gate", "linear", "zero"]
    composite = composites.first_match(
        ("2", rules.epsilon(0.1)),
        (lambda s: s.op == "linear", rules.zplus()),
        otherwise=composites.uniform(0.5),
    )
    assert [getattr(composite(s), "name", None) for s in steps][::2] == [
        "gamma(0.5)",
        "epsilon(0.1)",
        "linear",
    ]
    assert getattr(composite(steps[-1]), "name", None) == "zplus"


def test_the_papers_gamma_by_layer() -> None:
    """2–10: .5, 11–17: .25, 18–24: .1, 25–31: 0, counted from 1: the first convolution of block 3 is layer 11."""
    features = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    expected = [None, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0]
    results = [None if i == 0 else composites.paper_gamma(i + 1) for i in features]
    assert results == expected


def test_zbox_sees_through_a_normalisation_in_the_model() -> None:
    """Pixels in 0 … 1, normalised inside the model: the first layer's bounds are those of what it receives."""
    mean, std = (
        torch.tensor([0.4, 0.5]).double().view(1, 2, 1, 1),
        torch.tensor([0.2, 0.3]).double().view(1, 2, 1, 1),
    )
    conv = nn.Conv2d(2, 3, 3).double()
    x = torch.rand(1, 2, 5, 5, dtype=torch.float64)
    low, high = tuple((-mean / std).flatten().tolist()), tuple(((1 - mean) / std).flatten().tolist())
    inside = bilrp.decompose(
        lambda t: F.relu(conv((t - mean) / std)), x, composite=rules.zbox(low, high), regions=2
    )
    outside = bilrp.decompose(
        lambda t: F.relu(conv(t)), (x - mean) / std, composite=rules.zbox(low, high), regions=2
    )
    torch.testing.assert_close(inside.parts, outside.parts, rtol=1e-10, atol=1e-10)


def products(rule: Rule, x: Tensor, *, relu: bool) -> int:
    """How many products with weights a region takes in a linear step under the rule."""
    layer = nn.Linear(6, 5).double()
    model = nn.Sequential(layer, nn.ReLU()) if relu else layer
    decomposition = bilrp.decompose(model, x, regions=regions.features(), composite=rule, mode="push")
    return assert_not_none(decomposition.plan).flops // (2 * 6 * layer.weight.numel())


def test_gamma_takes_two_products_where_inputs_have_both_signs_and_one_where_one_is_enough() -> None:
    signed = torch.randn(1, 6, dtype=torch.float64)
    assert products(rules.gamma(0.3), signed, relu=False) == 2
    assert products(rules.gamma(0.3), signed.abs(), relu=True) == 1
    assert products(rules.gamma(0.3), -signed.abs(), relu=True) == 1
    assert products(rules.zplus(), signed.abs(), relu=False) == 1
    assert products(rules.alphabeta(2.0, 1.0), signed.abs(), relu=False) == 2


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["gamma", "zplus", "alphabeta"])
def test_inputs_of_one_sign_need_no_rule_of_their_own(name: str, sign: int) -> None:
    build, shape = LAYERS["conv2d"]
    layer = build().double()
    x = sign * torch.rand(1, *shape, dtype=torch.float64)
    w, b = matrix(layer, shape)
    expected = matrix_form(name, w, b, x.flatten())
    for mode in ("push", "pull"):
        for model, gate in ((layer, 1), (nn.Sequential(layer, nn.ReLU()), w @ x.flatten() + b > 0)):
            decomposition = bilrp.decompose(
                model, x, regions=regions.features(), composite=RULES[name], mode=mode
            )
            torch.testing.assert_close(decomposition.parts, expected * gate, rtol=1e-10, atol=1e-11)
