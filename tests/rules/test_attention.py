"""Attention with masks of every type, and one attention written in several ways: the same parts under every composite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, rules
from bilrp.errors import RuleError, TapeError
from bilrp.rules.composites import CompositeFunction
from bilrp.trace import fused
from bilrp.trace.recorder import record
from bilrp.trace.tape import ReferenceValues, Step

X = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
TOKENS = bilrp.regions.tokens()


def draw_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def other(x: Tensor) -> Tensor:
    return draw_tensor(*x.shape, seed=11)


COMPOSITES: dict[str, CompositeFunction] = {
    "uniform(0)": composites.uniform(0.0),
    "uniform(0.25)": composites.uniform(0.25),
    "transformer(0.1)": composites.transformer(0.1),
    "bias_to_inputs": composites.bias_to_inputs(0.25),
    "conv_attention": composites.conv_attention(0.25),
    "attnlrp(0)": composites.attnlrp(),
    "attnlrp(0.25)": composites.attnlrp(0.25),
    "hessian_product": composites.hessian_product(),
    "secant": composites.secant(other),
    "secant(0.25)": composites.secant(other, gamma=0.25),
}
EVERY_COMPOSITE = pytest.mark.parametrize("composite", COMPOSITES.values(), ids=list(COMPOSITES))


def parts(
    model: Callable[[Tensor], Tensor], composite: CompositeFunction, x: Tensor = X, mode: Any = "auto"
) -> Tensor:
    decomposition = bilrp.decompose(model, x, composite=composite, regions=TOKENS, mode=mode)
    torch.testing.assert_close(
        decomposition.parts.sum(0) + decomposition.unattributed, model(x).flatten().detach()
    )
    return decomposition.parts


# ---------------------------------------------------------------- masks

KEEP = torch.ones(5, 5, dtype=torch.bool).tril(1)
ADDED = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~KEEP, -torch.inf)
W = draw_tensor(3, 6, 6, seed=5)


def attend(mask: Tensor | None, **more: Any) -> Callable[[Tensor], Tensor]:
    def model(x: Tensor) -> Tensor:
        q, k, v = (F.linear(x, w).unflatten(-1, (2, 3)).transpose(1, 2) for w in W)
        return F.scaled_dot_product_attention(q, k, v, mask, **more).transpose(1, 2).flatten(2).mean(1)

    return model


@EVERY_COMPOSITE
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_boolean_mask_is_the_mask_of_zeros_and_infinities(composite: CompositeFunction, mode: str) -> None:
    result, expected = (parts(attend(mask), composite, mode=mode) for mask in (KEEP, ADDED))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_a_query_that_attends_to_nothing_has_no_parts() -> None:
    """Its weights are zero, as torch's kernels have it, and not 0/0."""
    hidden = KEEP.clone()
    hidden[2] = False
    result = parts(attend(hidden), composites.transformer(0.1))
    seen = attend(hidden)(X) * 5  # a sum over the queries, of which one gives zero
    torch.testing.assert_close(result.sum(0) * 5, seen[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "mask", [KEEP, ADDED.float(), draw_tensor(2, 5, 5), KEEP[:, :1].expand(5, 5)], ids=["bool", "float32", "float64", "rows"]
)  # fmt: skip
def test_true_gradients_by_finite_differences(mask: Tensor) -> None:
    model, step = attend(mask), 1e-5
    result = parts(model, composites.hessian_product())
    for token in range(5):
        moved = torch.zeros_like(X)
        moved[:, token] = X[:, token]
        slope = (model(X + step * moved) - model(X - step * moved)) / (2 * step)
        torch.testing.assert_close(result[token], slope[0], rtol=0, atol=1e-8)


# ---------------------------------------------------------------- substitutes


def step_of(model: Callable[[Tensor], Tensor], op: str, x: Tensor = X) -> Step:
    return next(step for step in record(model, x).steps if step.op == op)


IMAGE = draw_tensor(1, 4, 6, 6, seed=2)
SUBSTITUTES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, rules.Rule]] = {
    "scaled_dot_product_attention frozen": (attend(KEEP), X, rules.frozen()),
    "scaled_dot_product_attention": (attend(KEEP), X, rules.jacobian()),
    "scaled_dot_product_attention shared": (attend(KEEP), X, rules.split_attention()),
    "layer_norm": (lambda x: F.layer_norm(x, (6,), W[0, 0], W[0, 1]), X, rules.frozen()),
    "group_norm": (lambda x: F.group_norm(x, 2, W[0, 0, :4]), IMAGE, rules.frozen()),
    "instance_norm": (lambda x: F.instance_norm(x), IMAGE, rules.frozen()),
    "rms_norm": (lambda x: F.rms_norm(x, (6,), W[0, 0]), X, rules.frozen()),
    "normalize": (lambda x: F.normalize(x, dim=-1), X, rules.frozen()),
    "batch_norm": (lambda x: F.batch_norm(x, W[0, 0, :4], W[0, 1, :4] ** 2), IMAGE, rules.frozen()),
    "batch_norm derivative": (lambda x: F.batch_norm(x, W[0, 0, :4], W[0, 1, :4] ** 2), IMAGE, rules.jacobian()),
    "mean": (lambda x: x.mean((2, 3)), IMAGE, rules.linear()),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMAGE, rules.select()),
    "matmul": (lambda x: torch.softmax(x @ x.mT, -1) @ x, X, rules.product(freeze=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SUBSTITUTES)
def test_a_substitute_that_gives_other_numbers_is_refused(name: str) -> None:
    model, x, rule = SUBSTITUTES[name]
    op = name.split()[0]
    step = [step for step in record(model, x).steps if step.op == op][-1]
    rule(step)
    with pytest.raises(RuleError, match=f"step '.*' .{op}: .* gives another result") as refusal:
        rule(replace(step, result=step.result * 1.01))
    assert "\n" not in str(refusal.value)


def test_a_secant_that_misses_its_end_is_refused() -> None:
    step = step_of(attend(KEEP), "scaled_dot_product_attention")
    moved = tuple(value.flip(-2) * 0.7 for value in step.values)
    at = ReferenceValues(moved, step.run(*moved))
    rules.secant()(replace(step, reference=at))
    with pytest.raises(RuleError, match="gives another result"):
        rules.secant()(replace(step, reference=replace(at, result=at.result * 1.01)))


# ---------------------------------------------------------------- one network, written in two ways


def by_hand(
    net: nn.MultiheadAttention, hide: Tensor | None = None, causal: bool = False
) -> Callable[[Tensor], Tensor]:
    """`net` on one sequence, batch first, with F.linear and SDPA; `hide`, added to the scores, or boolean (True: hide)."""

    def model(x: Tensor) -> Tensor:
        packed = F.linear(x, net.in_proj_weight, net.in_proj_bias)
        q, k, v = (t.unflatten(-1, (net.num_heads, -1)).transpose(1, 2) for t in packed.chunk(3, -1))
        mask = None if hide is None else ~hide if hide.dtype == torch.bool else hide
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return net.out_proj(mixed.transpose(1, 2).flatten(2))

    return model


def heads(**more: Any) -> nn.MultiheadAttention:
    torch.manual_seed(7)
    net = nn.MultiheadAttention(6, 2, **{"batch_first": True, "dtype": torch.float64, **more}).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    return net


CAUSAL = ~torch.ones(5, 5, dtype=torch.bool).tril()
PADDING = torch.tensor([[False, False, False, True, True]])
MASKS: dict[str, tuple[dict[str, Any], Tensor | None]] = {
    "none": ({}, None),
    "boolean": ({"attn_mask": ~KEEP}, ~KEEP),
    "float": ({"attn_mask": draw_tensor(5, 5)}, draw_tensor(5, 5)),
    "by head": ({"attn_mask": draw_tensor(2, 5, 5)}, draw_tensor(2, 5, 5)),
    "padding": ({"key_padding_mask": PADDING}, PADDING[:, None, None]),
    "float padding": ({"key_padding_mask": draw_tensor(1, 5)}, draw_tensor(1, 5)[:, None, None]),
    "both": ({"key_padding_mask": PADDING, "attn_mask": CAUSAL}, CAUSAL | PADDING[:, None, None]),
    "causal": ({"attn_mask": CAUSAL, "is_causal": True}, CAUSAL),
}


def parts_of_both_forms(
    masks: str, composite: CompositeFunction, need_weights: bool
) -> tuple[Tensor, Tensor]:
    """Parts of the module and of its written-out form."""
    net, (given, hide) = heads(), MASKS[masks]
    one = parts(lambda x: net(x, x, x, need_weights=need_weights, **given)[0], composite)
    return one, parts(by_hand(net, hide), composite)


@EVERY_COMPOSITE
def test_multi_head_attention_equals_its_written_out_form(composite: CompositeFunction) -> None:
    one, two = parts_of_both_forms("both", composite, need_weights=False)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_every_mask_gives_the_parts_of_the_written_out_form(masks: str, need_weights: bool) -> None:
    one, two = parts_of_both_forms(masks, composites.attnlrp(0.25), need_weights)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "bias of keys and values": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "all of them": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 4, "vdim": 3},
    "separate": {"kdim": 4, "vdim": 3},
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_way_to_call_it_is_followed(settings: str, unbatched: bool, batch_first: bool) -> None:
    """Numbers of the model itself, and its gradient × input by autograd without the tape."""
    more = SETTINGS[settings]
    net, keys, values = heads(**more, batch_first=batch_first), more.get("kdim", 6), more.get("vdim", 6)

    def model(x: Tensor) -> Tensor:
        operands = [x, x[..., :keys], x[..., :values]]
        operands = [t[0] if unbatched else t if batch_first else t.transpose(0, 1) for t in operands]
        mask = PADDING[0] if unbatched else PADDING
        out, weights = net(*operands, key_padding_mask=mask, average_attn_weights=batch_first)
        out = out[None] if unbatched else out if batch_first else out.transpose(0, 1)
        return out.flatten(1) + weights.flatten()[:3].sum()

    decomposition = bilrp.decompose(
        model, X, composite=composites.hessian_product(), regions=bilrp.regions.features()
    )
    truth = torch.autograd.functional.jacobian(lambda t: model(t)[0], X)
    assert isinstance(truth, Tensor)
    torch.testing.assert_close(
        decomposition.embedding.flatten(), model(X).flatten().detach(), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(decomposition.parts.T, (truth[:, 0] * X[0]).flatten(1), rtol=0, atol=1e-11)


def test_static_keys_and_values_are_followed() -> None:
    net, keys, values = heads(), draw_tensor(2, 4, 3, seed=1), draw_tensor(2, 4, 3, seed=2)

    def model(x: Tensor) -> Tensor:
        t = x.transpose(0, 1)
        more = {"training": False, "static_k": keys, "static_v": values}
        out = net.out_proj
        return F.multi_head_attention_forward(
            t, t, t, 6, 2, net.in_proj_weight, net.in_proj_bias, None, None, False, 0.0, out.weight, out.bias, **more
        )[0].flatten()[None]  # fmt: skip

    truth = torch.autograd.functional.jacobian(lambda t: model(t)[0], X)
    assert isinstance(truth, Tensor)
    expected = (truth[:, 0] * X[0]).sum(-1).T
    torch.testing.assert_close(parts(model, composites.hessian_product()), expected, rtol=0, atol=1e-11)


def test_projections_bear_the_name_of_their_module() -> None:
    net = nn.ModuleDict({"attend": heads()})
    steps = record(lambda x: net["attend"](x, x, x)[0], X).steps
    assert [step.name for step in steps if step.op == "linear"] == [
        "attend",
        "attend",
        "attend",
        "attend.out_proj",
    ]
    assert "multi_head_attention_forward" not in {step.op for step in steps}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_fast_path_is_not_taken(padded: bool, norm_first: bool) -> None:
    """In evaluation torch runs a whole encoder layer as one call; under the tape it runs the calls it consists of."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(
        6, 2, 8, batch_first=True, norm_first=norm_first, dtype=torch.float64
    ).eval()
    mask = PADDING if padded else None

    def model(x: Tensor) -> Tensor:
        return layer(x, src_key_padding_mask=mask)[:, 0]

    with torch.no_grad():
        decomposition = bilrp.decompose(
            model, X, composite=composites.hessian_product(), regions=bilrp.regions.features()
        )
        ops = {step.op for step in record(model, X).steps}
    assert "scaled_dot_product_attention" in ops
    assert not ops & {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
    truth = torch.autograd.functional.jacobian(lambda t: model(t)[0], X)
    assert isinstance(truth, Tensor)
    torch.testing.assert_close(decomposition.parts.T, (truth[:, 0] * X[0]).flatten(1), rtol=0, atol=1e-11)


def test_a_fused_call_that_is_not_its_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fused.FUSED_EXPANSIONS["multi_head_attention_forward"]

    def wrong(*args: Any, **kwargs: Any) -> Any:
        out, weights = right(*args, **kwargs)
        return out * 1.01, weights

    monkeypatch.setitem(fused.FUSED_EXPANSIONS, "multi_head_attention_forward", wrong)
    net = heads()
    with pytest.raises(TapeError, match="gives other numbers than the plain calls it consists of") as refusal:
        record(lambda x: net(x, x, x)[0], X)
    assert "\n" not in str(refusal.value)
