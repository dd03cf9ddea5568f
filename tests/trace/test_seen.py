"""What models do besides calling layers: each of these is seen by the tape and gets the right numbers.

The oracle is autograd: with true gradients everywhere, parts are gradient × input; where a rule detaches a factor,
parts are the gradient × input of the same function with that factor detached.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions
from bilrp.pipeline import Mode
from bilrp.trace.recorder import record
from models import Net, randomize_norms


def gradient_times_input(function, x: Tensor) -> Tensor:
    """parts [features, h] by autograd."""
    jacobian = torch.autograd.functional.jacobian(lambda t: function(t).flatten(), x)
    assert isinstance(jacobian, Tensor)
    return (jacobian.flatten(1) * x.flatten()).T


def parts(function, x: Tensor, rules: float | str, mode: Mode = "push") -> Tensor:
    """Single features under LRP-0 (default rules elsewhere), or under the true gradient everywhere."""
    composite = composites.hessian_product() if rules == "gradient" else composites.uniform(float(rules))
    return bilrp.decompose(function, x, regions=regions.features(), composite=composite, mode=mode).parts


def layer(kind: Callable[..., Net], *sizes: int, seed: int = 0, **options: Any) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return randomize_norms(kind(*sizes, **options))


linear = layer(nn.Linear, 6, 6)
wide = layer(nn.Linear, 6, 8, seed=2)
conv = layer(nn.Conv2d, 4, 4, 3, padding=1)
bn = layer(nn.BatchNorm2d, 4)
leaky = nn.LeakyReLU(0.1, inplace=True)
weight = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
constant = torch.linspace(-1, 1, 6, dtype=torch.float64)


def skip_in_place(x):
    y = linear(x)
    y += x
    y *= 2
    return y.relu_() + x


def reused(x):
    return linear(F.relu(linear(F.relu(linear(x)))))


def in_place_on_input(x):
    x.mul_(constant)
    return linear(x)


def control_flow(x):
    return linear(x) if x.sum() > 0 else wide(x)


def loop_over_rows(x):
    return torch.stack([F.relu(row) * (i + 1) for i, row in enumerate(x.reshape(3, 2))]).sum(0, keepdim=True)


def unpacked(x):
    a, b, c = x.reshape(3, 1, 2)
    return a + 2 * b - c


def tied(x):
    return F.linear(F.relu(linear(x)), linear.weight.T)


def chunks(x):
    a, b = wide(x).chunk(2, -1)
    c, d = wide(x).split([5, 3], -1)
    return torch.cat([a - b, c[:, :2] * 2, d.unbind(-1)[1][:, None]], -1)


def second_output_only(x):
    return wide(x).split([5, 3], -1)[1]


def constant_buffer_filled(x):
    buffer = torch.zeros(1, 6, dtype=x.dtype)
    buffer += x
    buffer.mul_(3)
    return linear(buffer)


def copied_into_new(x):
    return linear(torch.empty_like(x).copy_(x))


def constant_changed_later(x):
    scale = torch.ones(6, dtype=x.dtype) * 2
    y = x * scale
    scale.mul_(10)
    return linear(y * scale)


def constant_set_later(x):
    scale = torch.ones(6, dtype=x.dtype)
    y = linear(x) * scale
    scale[0] = 7.0
    return y - scale


def broadcasts(x):
    column = x.reshape(6, 1)
    return torch.maximum(column, x).sum(0) + torch.min(x + column, 2 * x).mean(0) + (column - x).amax(1)


def expands(x):
    y = x.unsqueeze(1).expand(1, 3, 6)
    return (
        linear(y.reshape(3, 6)).mean(0, keepdim=True)
        + x.repeat(1, 2)[:, 3:9]
        + x.repeat_interleave(2, -1)[:, ::2]
    )


def where_live(x):
    y = linear(x)
    return torch.where(y > 0, y, 0.1 * x) + torch.where(x > 1, torch.zeros_like(x), y)


def masked_then_max(x):
    y = linear(x).masked_fill(constant > 0.5, -math.inf)
    return torch.stack([y.amax(-1), y.max(-1).values], -1)


def added_mask(x):
    y = linear(x) + torch.where(constant > 0.5, -1e9, 0.0)
    return torch.cat([y.topk(2, -1).values, y.sort(-1, descending=True).values[:, :3]], -1)


def indexing(x):
    index = torch.tensor([2, 0, 5])
    picked = torch.cat([x[:, index], x[..., -1:], x[:, ::2], x[:, constant > 0], x[None, :, 1]], -1)
    return picked * picked.new_full((1,), 2.0)


def gathers(x):
    index = torch.tensor([[2, 0, 5]])
    out = x.gather(1, index) + x.index_select(1, index[0]) + torch.take_along_dim(x, index, 1)
    return out.scatter_add(1, torch.tensor([[0, 0, 1]]), out) + torch.zeros(1, 3).double().index_add(
        1, index[0] % 3, out
    )


def layouts(x):
    y = x.reshape(1, 2, 3).permute(0, 2, 1).contiguous().view(1, 6)
    return torch.movedim(y.T, 0, -1).flip(-1).roll(2, -1) @ weight


def left_matmul(x):
    return (weight @ x.T).T + torch.einsum("nl,ml->nm", x, weight) + torch.tensordot(x, weight, 1)


def addmm(x):
    return (
        torch.addmm(constant, x, weight) + torch.baddbmm(constant.expand(1, 1, 6), x[None], weight[None])[0]
    )


def lerps(x):
    return torch.lerp(x, linear(x), 0.3) + torch.addcmul(x, constant, constant, value=0.5)


def no_gradients(x):
    with torch.no_grad():
        return F.relu(linear(x)) + x


def weight_of_parameters(x):
    return F.linear(x, weight / weight.norm(dim=1, keepdim=True) * constant[:, None])


def three_dimensional(x):
    return linear(x.reshape(1, 1, 6).expand(1, 2, 6))


def leaky_in_place(x):
    return leaky(linear(x)) + x


def clamps(x):
    y = linear(x)
    return y.clamp(min=0) + y.clamp(-0.2, 0.3) + y.clamp(min=0.1)


def sums_of_every_kind(x):
    y = linear(x).reshape(1, 2, 3)
    return torch.cat(
        [y.sum((1, 2))[:, None], y.mean(-1), y.sum(dim=1, keepdim=True)[:, 0], y.cumsum(-1)[:, 0]], -1
    )


def operands_by_name_in_any_order(x):
    """Rules count operands as the signature does, not as the call wrote them."""
    y = linear(x)
    larger = torch.maximum(other=y, input=x) + torch.min(other=y, input=2 * x)
    return larger + torch.sub(other=y, input=x, alpha=3) + torch.add(alpha=2, other=y, input=x)


FLAT = [
    operands_by_name_in_any_order,
    *(skip_in_place, reused, in_place_on_input, control_flow, loop_over_rows, unpacked, tied, chunks),
    *(
        second_output_only,
        constant_buffer_filled,
        copied_into_new,
        constant_changed_later,
        constant_set_later,
    ),
    *(broadcasts, expands, where_live, masked_then_max, added_mask, indexing, gathers, layouts, left_matmul),
    *(
        addmm,
        lerps,
        no_gradients,
        weight_of_parameters,
        three_dimensional,
        leaky_in_place,
        clamps,
        sums_of_every_kind,
    ),
]


def channels_last(x):
    y = x.to(memory_format=torch.channels_last)
    return conv(y).contiguous(memory_format=torch.channels_last).flatten(1)


def unbatched(x):
    return F.max_pool2d(F.relu(conv(x[0])), 2)


def same_padding(x):
    return F.conv2d(x, conv.weight[:, :, :2, :], padding="same") + F.conv2d(
        x, conv.weight, padding="same", dilation=2
    )


def pools(x):
    y = F.max_pool2d(x, 3, stride=2, ceil_mode=True) + F.avg_pool2d(x, 3, stride=2, ceil_mode=True)
    z = (
        F.adaptive_max_pool2d(x, 3)
        + F.adaptive_avg_pool2d(x, (3, 3))
        + F.max_pool2d(x, 2, 2, padding=1, dilation=1)[..., :3, :3]
    )
    return torch.cat([y.flatten(1), z.flatten(1), F.max_pool2d(x, 2, dilation=2, stride=1).flatten(1)], 1)


def pool_with_indices(x):
    values, _ = F.max_pool2d(x, 2, return_indices=True)
    return values


def unfolds(x):
    columns = F.unfold(x, 3, padding=1, stride=2)
    return F.fold(columns, (5, 5), 3, padding=1, stride=2) + x.unfold(2, 1, 1)[..., 0]


def resized(x):
    return torch.cat(
        [
            F.interpolate(x, scale_factor=2, mode=mode).flatten(1)
            for mode in ("nearest", "bilinear", "bicubic", "area")
        ],
        1,
    )


def resized_antialias(x):
    return F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True)


def padded(x):
    pads = [F.pad(x, (1, 1, 0, 1), mode=mode) for mode in ("constant", "reflect", "replicate", "circular")]
    return torch.cat(pads, 1) + F.pad(x, (1, 1, 0, 1), value=3.0).repeat(1, 4, 1, 1)


def shuffled(x):
    return F.pixel_shuffle(x, 2) + F.pad(x.mean(1, keepdim=True), (0, 5, 0, 5))


def functional_conv(x):
    return F.conv2d(x, conv.weight, None, 2, 1) + F.conv2d(
        input=x, weight=conv.weight, bias=conv.bias, stride=2, padding=1
    )


def batch_norm_alone(x):
    return bn(x) + bn(conv(x)) + bn(F.relu(conv(x)))


def sampled(x):
    grid = F.affine_grid(
        torch.tensor([[[0.9, 0.1, 0.0], [0.0, 1.1, 0.1]]]).double(), [1, 4, 5, 5], align_corners=False
    )
    return F.grid_sample(x, grid, align_corners=False)


IMAGES = [
    *(channels_last, unbatched, same_padding, pools, pool_with_indices, unfolds, resized, resized_antialias),
    *(padded, shuffled, functional_conv, batch_norm_alone, sampled),
]


# Autograd itself refuses, or is switched off by, these: the same function written otherwise.
REFERENCES = {
    constant_changed_later: lambda x: linear(40 * x),
    constant_set_later: lambda x: linear(x) - 1,
    no_gradients: lambda x: F.relu(linear(x)) + x,
}


def example(function, *shape: int, seed: int = 2) -> Tensor:
    return torch.randn(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("function", FLAT, ids=lambda f: f.__name__)
def test_flat_models_get_their_gradients(function) -> None:
    check_gradients(function, example(function, 6))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("function", IMAGES, ids=lambda f: f.__name__)
def test_image_models_get_their_gradients(function) -> None:
    check_gradients(function, example(function, 4, 5, 5))


def check_gradients(function, x: Tensor) -> None:
    stored = x.clone()
    result = [parts(function, x, rules, mode) for rules in (0.0, "gradient") for mode in ("push", "pull")]
    expected = gradient_times_input(lambda t: REFERENCES.get(function, function)(t.clone()), x)
    assert torch.equal(x, stored), "the caller's input was changed"
    for one in result[2:]:
        torch.testing.assert_close(one, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(result[0], result[1], rtol=1e-10, atol=1e-10)
    if function not in (leaky_in_place, clamps):  # there f(a)/a is not the slope
        torch.testing.assert_close(result[0], expected, rtol=1e-10, atol=1e-10)


# ------------------------------------------------ detached factors, against reference implementations that call detach()

norm, rms, group, instance = (
    layer(nn.LayerNorm, 6), layer(nn.RMSNorm, 6), layer(nn.GroupNorm, 2, 4), layer(nn.InstanceNorm2d, 4, affine=True)
)  # fmt: skip
slope = layer(nn.PReLU, 6)
attention = layer(nn.MultiheadAttention, 6, 2, batch_first=True)
attention_kv = layer(nn.MultiheadAttention, 6, 3, kdim=6, vdim=6, add_bias_kv=True, add_zero_attn=True)
batch_statistics = layer(nn.BatchNorm2d, 4, track_running_stats=False)


def ratio(f, a: Tensor) -> Tensor:
    """diag(f(a)/a)·a, with the ratio detached."""
    return a * (f(a) / a).detach()


def centred(a: Tensor, axes, eps: float = 1e-5) -> Tensor:
    deviation = (a.var(axes, unbiased=False, keepdim=True) + eps).sqrt()
    return (a - a.mean(axes, keepdim=True)) / deviation.detach()


def rms_by_hand(x, keep=lambda t: t):
    return x * keep(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * constant


def norm_by_hand(x, keep=lambda t: t):
    return x / keep(x.norm(dim=-1, keepdim=True)) + x / keep(torch.linalg.vector_norm(linear(x)))


def gated(x, keep=lambda t: t):
    return linear(x) * keep(torch.sigmoid(F.linear(x, weight))) + keep(F.silu(x @ weight)) * linear(x)


def squeeze_excite(x, keep=lambda t: t):
    squeezed = F.relu(F.adaptive_avg_pool2d(x, 1).flatten(1) @ weight[:4, :4])
    return conv(x) * keep(torch.sigmoid(squeezed)).view(1, 4, 1, 1)


def gelu_by_hand(x, keep=lambda t: t):
    return x * 0.5 * (1.0 + keep(torch.erf(x / math.sqrt(2.0))))


def t5_gated_gelu(x, keep=lambda t: t):
    """T5's feed-forward: the GELU written out with tanh is the gate of the other branch."""
    h = linear(x)
    gelu = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
    return keep(gelu) * F.linear(x, linear.weight.flip(1))


def generalised_mean(x):
    return F.avg_pool2d(x.clamp(min=1e-6).pow(3.0), (5, 5)).pow(1.0 / 3.0)


def generalised_mean_reference(x):
    inside = (x * (x >= 1e-6).to(x)) + 1e-6 * (x < 1e-6).to(x)
    return ratio(lambda a: a.pow(1.0 / 3.0), F.avg_pool2d(ratio(lambda a: a.pow(3.0), inside), (5, 5)))


def self_attention(x):
    sequence = x.reshape(1, 3, 6)
    return attention(sequence, sequence, sequence, need_weights=False)[0]


def self_attention_reference(x):
    sequence = x.reshape(1, 3, 6)
    result = attention(sequence, sequence, sequence, average_attn_weights=False)[1].detach()
    values = F.linear(sequence, attention.in_proj_weight[-6:], attention.in_proj_bias[-6:])
    heads = values.reshape(1, 3, 2, 3).transpose(1, 2)
    return attention.out_proj((result @ heads).transpose(1, 2).reshape(1, 3, 6))


def cross_attention(x):
    sequence = x.reshape(3, 1, 6)
    return attention_kv(sequence[:2], sequence, sequence)[0]


def cross_attention_reference(x):
    sequence = x.reshape(3, 1, 6)
    result = attention_kv(sequence[:2], sequence, sequence, average_attn_weights=False)[1].detach()
    values = F.linear(sequence, attention_kv.in_proj_weight[-6:]).reshape(3, 3, 2).transpose(0, 1)
    mixed = (result[0, :, :, :3] @ values).transpose(0, 1).reshape(2, 1, 6)
    return F.linear(mixed, attention_kv.out_proj.weight)


def fused_attention(x):
    q, k, v = x.reshape(3, 1, 2, 3).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_attention_reference(x):
    q, k, v = x.reshape(3, 1, 2, 3).unbind(0)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(3)).masked_fill(torch.ones(2, 2).triu(1).bool(), -math.inf)
    return scores.softmax(-1).detach() @ v


def manual_attention(x, keep=lambda t: t):
    sequence = x.reshape(1, 3, 6)
    scores = linear(sequence) @ (sequence @ weight).transpose(-1, -2)
    scores = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf)
    return keep(F.dropout(scores.softmax(-1), 0.5, training=False)) @ linear(sequence)


def detached(function):
    return lambda x: function(x, keep=lambda t: t.detach())


DETACHED = {
    "layer_norm": (norm, lambda x: centred(x, -1) * norm.weight + norm.bias, (6,)),
    "rms_norm": (rms, lambda x: x * (rms(x) / x).detach(), (6,)),
    "group_norm": (
        group,
        lambda x: centred(x.reshape(1, 2, -1), -1).reshape(x.shape) * group.weight[:, None, None],
        (4, 5, 5),
    ),
    "instance_norm": (instance, lambda x: centred(x, (2, 3)) * instance.weight[:, None, None], (4, 5, 5)),
    "batch_statistics": (
        batch_statistics,
        lambda x: centred(x, (0, 2, 3)) * batch_statistics.weight[:, None, None],
        (4, 5, 5),
    ),
    "normalize": (
        lambda x: F.normalize(linear(x), dim=-1),
        lambda x: linear(x) / linear(x).norm().detach(),
        (6,),
    ),
    "gelu": (lambda x: F.gelu(linear(x)), lambda x: ratio(F.gelu, linear(x)), (6,)),
    "silu_tanh": (lambda x: F.silu(x).tanh(), lambda x: ratio(torch.tanh, ratio(F.silu, x)), (6,)),
    "prelu": (lambda x: slope(linear(x)), lambda x: ratio(slope, linear(x)), (6,)),
    "rms_by_hand": (rms_by_hand, detached(rms_by_hand), (6,)),
    "norm_by_hand": (norm_by_hand, detached(norm_by_hand), (6,)),
    "gated": (gated, detached(gated), (6,)),
    "squeeze_excite": (squeeze_excite, detached(squeeze_excite), (4, 5, 5)),
    "gelu_by_hand": (gelu_by_hand, detached(gelu_by_hand), (6,)),
    "t5_gated_gelu": (t5_gated_gelu, detached(t5_gated_gelu), (6,)),
    "generalised_mean": (generalised_mean, generalised_mean_reference, (4, 5, 5)),
    "self_attention": (self_attention, self_attention_reference, (18,)),
    "cross_attention": (cross_attention, cross_attention_reference, (18,)),
    "fused_attention": (fused_attention, fused_attention_reference, (18,)),
    "manual_attention": (manual_attention, detached(manual_attention), (18,)),
}


@pytest.mark.parametrize("name", DETACHED)
def test_detached_factors_equal_a_reference_that_calls_detach(name: str) -> None:
    function, reference, shape = DETACHED[name]
    x = example(function, *shape)
    expected = gradient_times_input(reference, x)
    for mode in ("push", "pull"):
        torch.testing.assert_close(parts(function, x, 0.0, mode), expected, rtol=1e-9, atol=1e-10)
    true = gradient_times_input(function, x)
    torch.testing.assert_close(parts(function, x, "gradient", "pull"), true, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(parts(function, x, "gradient", "push"), true, rtol=1e-9, atol=1e-10)


def test_a_ratio_at_zero_is_its_limit() -> None:
    x = torch.tensor([[0.0, 1.0, -0.0, 2.0, 0.0, -1.0]], dtype=torch.float64)
    net = nn.Sequential(nn.GELU(), nn.Linear(6, 2)).double()
    result = bilrp.decompose(net, x, regions=regions.features(), composite=composites.uniform(0.0))
    assert torch.isfinite(result.parts).all()


def test_batch_norm_counts_channels_where_they_are() -> None:
    """An unbatched conv1d puts channels on axis 0, the batch norm behind it reads axis 1: they must not be folded."""
    first, second = layer(nn.Conv1d, 5, 5, 3, padding=1), layer(nn.BatchNorm1d, 5)
    check_gradients(lambda x: second(first(x[0])), example(None, 5, 5))


def test_names_come_from_the_parameters_also_through_a_function() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 2))).double()
    for encoder in (net, lambda x: net(x), net.forward):
        assert [s.name for s in record(encoder, torch.ones(1, 6).double()).steps] == ["0", "relu_1", "1.1"]


def test_a_recording_does_not_load_torchs_compiler() -> None:
    """It would take longer than explaining two small pictures."""
    script = (
        "import sys, torch, bilrp; torch.vmap(torch.neg)(torch.ones(1)); print('torch._dynamo' in sys.modules);"
        "net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten());"
        "bilrp.decompose(net, torch.rand(1, 3, 8, 8), regions=4); print('torch._dynamo' in sys.modules)"
    )
    source = str(Path(bilrp.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source}, check=True
    )  # fmt: skip
    before, after = done.stdout.split()
    if before == "True":
        pytest.skip("this torch's own vmap loads it")
    assert after == "False"
