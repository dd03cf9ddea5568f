"""Random attention nets: masks of every type, writes in place, each net written in three ways, under several composites.

What decides is written here, without bilrp and without autograd: finite differences for true gradients, and a reference that
carries a region through the net by hand for LRP-γ with detached softmax weights. Other composites must agree on all three.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from attack import cases
from attack.mutate import fewest
from attack.table import Failure, Row
from bilrp import composites
from bilrp.errors import BilrpError
from bilrp.rules.composites import CompositeFunction
from type_asserts import assert_not_none

TRIALS = 40  # nets a round
CLOSE, NEAR = 1e-9, 1e-6  # to the reference or another form; to finite differences
MASKS = (
    "none", "bool", "float64", "float32", "head", "causal", "hint", "padding", "float padding", "both",
)  # fmt: skip
TYPES = (
    "bool",
    "uint8",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)  # of a mask in a net's own arithmetic
LOW = -10_000  # exp(LOW) is 0 in float64, too
WRITES = ("add", "mul", "fill", "relu", "copy", "sub")
SPELLINGS = ("module", "sdpa", "eager")
Layer = dict[str, Any]


def drawn(draw: random.Random) -> dict[str, Any]:
    """A net of attention, feed-forward layers, norms and writes in place, on a few tokens."""
    layers = [_layer(draw) for _ in range(draw.randrange(0, 3))]
    layers.insert(draw.randrange(len(layers) + 1), _attention(draw))
    return {
        "layers": layers, "seed": draw.randrange(2**16), "tokens": draw.randrange(2, 6), "heads": draw.choice((1, 2)),
        "embed": draw.choice(("table", "linear")), "writes": draw.sample(WRITES, draw.randrange(0, 3)),
        "head": draw.choice(("mean", "first", "flat")), "gamma": draw.choice((0.0, 0.1, 0.25)),
        "composite": draw.choice(("attnlrp", "secant", "bias_to_inputs", "secant gamma")),
        "other": draw.choice(SPELLINGS[1:]), "mode": draw.choice(("auto", "push", "pull")),
    }  # fmt: skip


def _layer(draw: random.Random) -> Layer:
    kind = draw.choice(("attend", "feed", "norm"))
    return _attention(draw) if kind == "attend" else {"kind": kind, "gate": draw.choice(("relu", "gelu"))}


def _attention(draw: random.Random) -> Layer:
    layer = {
        "kind": "attend", "mask": draw.choice(MASKS), "bias": draw.random() < 0.7, "extra": draw.random() < 0.15,
        "zero": draw.random() < 0.15, "weights": draw.random() < 0.5, "first": draw.random() < 0.5,
        "residual": draw.random() < 0.6, "type": draw.choice(TYPES),
    }  # fmt: skip
    if layer["mask"] == "hint":  # what torch makes of one more key then depends on need_weights
        layer |= {"extra": False, "zero": False}
    return layer


class Net(nn.Module):
    """The net written in one of three ways; weights and masks are the same in all of them."""

    def __init__(self, spec: dict[str, Any], form: str) -> None:
        super().__init__()
        self.spec, self.form = spec, form
        self.generator = torch.Generator().manual_seed(spec["seed"])
        self.heads, self.tokens = spec["heads"], spec["tokens"]
        self.width = width = 2 * self.heads
        self.words = nn.Embedding(7, width, dtype=torch.float64)
        self.words.weight.data = self.normal(7, width)
        self.embed, self.positions = self.normal(width, width), self.normal(self.tokens, width)
        self.hidden = torch.arange(self.tokens)[:, None] % 3 == 2
        self.blocks = nn.ModuleList(self.block(layer) for layer in spec["layers"])

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def block(self, layer: Layer) -> nn.Module:
        """The module that holds a layer's weights, and for an attention its masks."""
        width = self.width
        if layer["kind"] == "norm":
            module: nn.Module = nn.LayerNorm(width, dtype=torch.float64)
        elif layer["kind"] == "feed":
            module = nn.Linear(width, width, dtype=torch.float64)
        else:
            options = {"bias": layer["bias"], "add_bias_kv": layer["extra"], "add_zero_attn": layer["zero"]}
            first = layer["first"]
            module = nn.MultiheadAttention(
                width, self.heads, batch_first=first, dtype=torch.float64, **options
            )
        for parameter in module.parameters():
            parameter.data = self.normal(*parameter.shape) / parameter.shape[-1] ** 0.5
            parameter.requires_grad_(False)
        return module.eval()

    def masks(self, layer: Layer, number: int) -> dict[str, Any]:
        """What nn.MultiheadAttention is given: in its boolean masks True hides. Each token sees itself."""
        n, name = self.tokens, layer.get("mask", "none")
        generator = torch.Generator().manual_seed(self.spec["seed"] + number)
        hide = (torch.rand(n, n, generator=generator) < 0.4) & ~torch.eye(n, dtype=torch.bool)
        causal = torch.ones(n, n, dtype=torch.bool).triu(1)
        padding = (torch.arange(n) >= max(1, n - 2))[None]
        added = torch.zeros(n, n, dtype=torch.float64).masked_fill(hide, -torch.inf)
        noise = torch.randn(self.heads, n, n, generator=generator, dtype=torch.float64)
        weak = torch.randn(1, n, generator=generator, dtype=torch.float64)
        return {
            "none": {}, "bool": {"attn_mask": hide}, "float64": {"attn_mask": added + noise[0]},
            "float32": {"attn_mask": added.float()}, "head": {"attn_mask": noise}, "causal": {"attn_mask": causal},
            "hint": {"attn_mask": causal, "is_causal": True}, "padding": {"key_padding_mask": padding},
            "float padding": {"key_padding_mask": weak}, "both": {"attn_mask": causal, "key_padding_mask": padding},
        }[name]  # fmt: skip

    def forward(self, given: Tensor) -> Tensor:
        h = self.words(given) if self.spec["embed"] == "table" else F.linear(given, self.embed)
        for write in self.spec["writes"]:
            h = self.written(h, write)
        for number, (layer, block) in enumerate(zip(self.spec["layers"], self.blocks, strict=True)):
            h = self.applied(h, layer, block, self.masks(layer, number))
        return {"mean": lambda: h.mean(1), "first": lambda: h[:, 0], "flat": lambda: h.flatten(1)}[
            self.spec["head"]
        ]()

    def written(self, h: Tensor, how: str) -> Tensor:
        if how == "add":
            h += self.positions
            return h
        if how == "sub":
            return h.sub_(self.positions)
        if how == "mul":
            return h.mul_(0.5)
        if how == "fill":
            return h.masked_fill_(self.hidden, 0.0)
        if how == "copy":
            return torch.empty_like(h).copy_(h).add_(1.0)
        return F.relu(h, inplace=True)

    def applied(self, h: Tensor, layer: Layer, block: nn.Module, masks: dict[str, Any]) -> Tensor:
        if isinstance(block, nn.LayerNorm):
            return block(h)
        if isinstance(block, nn.Linear):
            return F.relu(block(h)) if layer["gate"] == "relu" else F.gelu(block(h))
        assert isinstance(block, nn.MultiheadAttention)
        if self.form == "module":
            t = h if layer["first"] else h.transpose(0, 1)
            exact = {
                k: m.double() if isinstance(m, Tensor) and m.dtype == torch.float32 else m
                for k, m in masks.items()
            }
            out = block(t, t, t, need_weights=layer["weights"], **exact)[0]
            out = out if layer["first"] else out.transpose(0, 1)
        else:
            out = self.attended(h, layer, block, masks)
        return h + out if layer["residual"] else out

    def attended(
        self, h: Tensor, layer: Layer, block: nn.MultiheadAttention, masks: dict[str, Any]
    ) -> Tensor:
        q, k, v = F.linear(h, block.in_proj_weight, block.in_proj_bias).chunk(3, -1)
        if block.bias_k is not None and block.bias_v is not None:
            k, v = (
                torch.cat([k, block.bias_k.transpose(0, 1)], 1),
                torch.cat([v, block.bias_v.transpose(0, 1)], 1),
            )
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        if layer["zero"]:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        mask, more = merged(masks), int(layer["extra"]) + int(layer["zero"])
        if self.form == "sdpa":
            hint = masks.get("is_causal", False) and not more
            if mask is not None and mask.dtype == torch.bool:
                mask = F.pad(~mask, (0, more), value=True)  # there True keeps
            elif mask is not None:
                mask = F.pad(mask, (0, more))
            mixed = F.scaled_dot_product_attention(q, k, v, None if hint else mask, is_causal=hint)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            if mask is not None and mask.dtype == torch.bool:
                hide = F.pad(mask, (0, more)).to(getattr(torch, layer["type"]))
                if hide.dtype in (torch.bool, torch.uint8):
                    scores = scores.masked_fill(hide == 1, -torch.inf)
                else:
                    scores = scores + hide * LOW
            elif mask is not None:
                scores = scores + F.pad(mask, (0, more))
            mixed = torch.softmax(scores, -1) @ v
        return block.out_proj(mixed.transpose(1, 2).flatten(2))


def merged(masks: dict[str, Any]) -> Tensor | None:
    """Both masks of nn.MultiheadAttention in one, of their own type."""
    mask, padding = masks.get("attn_mask"), masks.get("key_padding_mask")
    if padding is None:
        return mask
    padding = padding[:, None, None]
    return padding if mask is None else mask | padding


class Reference:
    """The net by hand: the value of each layer, and where it sends a region's share under LRP-γ, side by side."""

    def __init__(self, net: Net, gamma: float) -> None:
        self.net, self.gamma = net, gamma

    def __call__(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        net = self.net
        a, t = self.linear(x, s, net.embed, None) if net.spec["embed"] == "linear" else (x, s)
        for how in net.spec["writes"]:
            a, t = self.written(a, t, how)
        for number, (layer, block) in enumerate(zip(net.spec["layers"], net.blocks, strict=True)):
            a, t = self.applied(a, t, layer, block, net.masks(layer, number))
        pooled = {
            "mean": lambda v: v.sum(1) / v.shape[1],
            "first": lambda v: v[:, 0],
            "flat": lambda v: v.flatten(1),
        }
        return pooled[net.spec["head"]](a)[0], pooled[net.spec["head"]](t)[0]

    def written(self, a: Tensor, t: Tensor, how: str) -> tuple[Tensor, Tensor]:
        keep, shift = (~self.net.hidden).double(), self.net.positions
        factor = {"mul": torch.tensor(0.5), "fill": keep, "relu": (a > 0).double()}.get(
            how, torch.tensor(1.0)
        )
        added = {"add": shift, "sub": -shift, "copy": torch.ones_like(shift)}.get(
            how, torch.zeros_like(shift)
        )
        return a * factor + added, t * factor

    def linear(self, a: Tensor, t: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """z_k = Σ_j w_kj a_j + b_k, and z_k Σ_j ρ(w_kj) t_j / (Σ_j ρ(w_kj) a_j + ρ(b_k)): what has z's sign counts 1 + γ."""
        terms, b = weight * a[..., None, :], torch.zeros(len(weight)).double() if bias is None else bias
        z = terms.sum(-1) + b
        side = z.sign()
        favoured = 1 + self.gamma * (terms * side[..., None] > 0).double()
        below = (favoured * terms).sum(-1) + b * (1 + self.gamma * (b * side > 0).double())
        above = (favoured * weight * t[..., None, :]).sum(-1)
        return z, torch.where(z == 0, 0, z / below * above) if self.gamma else (weight * t[..., None, :]).sum(
            -1
        )

    def applied(
        self, a: Tensor, t: Tensor, layer: Layer, block: nn.Module, masks: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        if isinstance(block, nn.LayerNorm):
            centred, moved = (v - v.mean(-1, keepdim=True) for v in (a, t))
            scale = block.weight / (centred.square().mean(-1, keepdim=True) + block.eps).sqrt()
            return centred * scale + block.bias, moved * scale
        if isinstance(block, nn.Linear):
            z, moved = self.linear(a, t, block.weight, block.bias)
            factor = (z > 0).double() if layer["gate"] == "relu" else (1 + torch.erf(z / 2**0.5)) / 2
            return z * factor, moved * factor
        assert isinstance(block, nn.MultiheadAttention)
        out, moved = self.attended(a, t, layer, block, masks)
        return (a + out, t + moved) if layer["residual"] else (out, moved)

    def attended(
        self, a: Tensor, t: Tensor, layer: Layer, block: nn.MultiheadAttention, masks: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        n, heads = a.shape[1], self.net.heads
        weights = block.in_proj_weight.chunk(3)
        bias = dict(block.named_parameters()).get("in_proj_bias")
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        (q, _), (k, _), (v, s) = (self.linear(a, t, w, b) for w, b in zip(weights, biases, strict=True))
        extra = [] if block.bias_k is None else [(block.bias_k, assert_not_none(block.bias_v))]
        extra += [(torch.zeros(1, 1, 1).double(),) * 2] if layer["zero"] else []
        for key, value in extra:
            k, v = (torch.cat([x, y.expand(1, 1, x.shape[-1])], 1) for x, y in ((k, key), (v, value)))
            s = torch.cat([s, torch.zeros_like(s[:, :1])], 1)
        hidden = torch.zeros(1, heads, n, k.shape[1]).double()
        mask = merged(masks)
        if mask is not None:
            hidden[..., :n] += torch.where(mask, -torch.inf, 0.0) if mask.dtype == torch.bool else mask
        mixed, moved = torch.empty_like(q), torch.empty_like(q)
        for head, some in enumerate(torch.arange(q.shape[-1]).chunk(heads)):
            scores = (q[..., some] @ k[..., some].mT) / len(some) ** 0.5 + hidden[:, head]
            power = (scores - scores.amax(-1, keepdim=True)).exp()
            shares = power / power.sum(-1, keepdim=True)
            mixed[..., some], moved[..., some] = shares @ v[..., some], shares @ s[..., some]
        return self.linear(mixed, moved, block.out_proj.weight, block.out_proj.bias)


class WrongNumber(Exception):
    """Numbers that are not the model's own."""


def check(spec: dict[str, Any]) -> tuple[Failure | bool, float]:
    """What went wrong, or whether the net was explained (True) or refused (False); and the largest error."""
    try:
        with torch.no_grad():
            return _check(spec)
    except BilrpError as error:
        return (
            False if "\n" not in str(error) else Failure("unexpected error", f"more than one line: {error}")
        ), 0.0
    except WrongNumber as error:
        return Failure("wrong", str(error)), 0.0
    except Exception as error:
        return Failure("unexpected error", f"{type(error).__name__}: {error}"[:300]), 0.0


def _check(spec: dict[str, Any]) -> tuple[Failure | bool, float]:
    nets = {name: Net(spec, name) for name in ("module", spec["other"])}
    net = nets["module"]
    ids = torch.randint(0, 7, (1, spec["tokens"]), generator=net.generator)
    table = spec["embed"] == "table"
    given = ids if table else net.normal(1, spec["tokens"], net.width)
    x = net.words.weight[ids] if table else given
    regions = bilrp.regions.tokens()

    def parts(name: str, composite: CompositeFunction) -> Tensor:
        encoder = bilrp.Encoder(nets[name], name="net", input_layer="words") if table else nets[name]
        decomposition = bilrp.decompose(
            encoder, given, composite=composite, regions=regions, mode=spec["mode"]
        )
        if _apart(decomposition.embedding.flatten(), nets[name](given.clone()).flatten()) > CLOSE:
            raise WrongNumber(f"{name}, {spec['embed']}: the embedding is not the model's own")
        return decomposition.parts

    masks = [torch.zeros_like(x) for _ in range(spec["tokens"])]
    for token, mask in enumerate(masks):
        mask[:, token] = x[:, token]
    reference, plain = Reference(net, spec["gamma"]), Reference(net, 0.0)
    expected = torch.stack([reference(x, mask)[1] for mask in masks])
    worst = 0.0
    for name in nets:
        off = _apart(parts(name, composites.uniform(spec["gamma"])), expected)
        worst = max(worst, off)
        if off > CLOSE:
            return Failure("wrong", f"{name}: off the reference by {off:.1e}"), worst
    true = parts(spec["other"] if spec["seed"] % 2 else "module", composites.hessian_product())
    errors = []
    for size in (1e-3, 1e-4, 1e-5):  # a kink of a ReLU may lie within the larger ones
        slopes = torch.stack([_slope(plain, x, mask, size) for mask in masks])
        errors.append(_apart(true, slopes))
        if errors[-1] <= NEAR:
            break
    if min(errors) > NEAR:
        return Failure("wrong", f"hessian_product: off finite differences by {min(errors):.1e}"), worst
    composites_by_name = {
        "attnlrp": composites.attnlrp(spec["gamma"]), "bias_to_inputs": composites.bias_to_inputs(0.25),
        "secant": composites.secant(_reference), "secant gamma": composites.secant(_reference, gamma=0.25),
    }  # fmt: skip
    one, two = (parts(name, composites_by_name[spec["composite"]]) for name in nets)
    off = _apart(one, two)
    return (
        Failure("wrong", f"{spec['composite']}: two forms {off:.1e} apart") if off > CLOSE else True
    ), max(worst, off)


def _reference(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=x.dtype)


def _slope(net: Reference, x: Tensor, way: Tensor, size: float) -> Tensor:
    """The derivative along `way`, by central differences of two sizes so that the error is of the fourth order."""
    neighbours, far = (
        (net(x + h * way, way)[0] - net(x - h * way, way)[0]) / (2 * h) for h in (size, 2 * size)
    )
    return (4 * neighbours - far) / 3


def _apart(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    off = float((a - b).abs().max()) / max(float(b.abs().max()), 1e-4)
    return off if off == off else float("inf")


def attack(seed: int, path: Path) -> list[Row]:
    draw, row, worst = random.Random(seed), Row("attention"), 0.0
    for trial in range(TRIALS):
        spec = drawn(draw)
        result, off = check(spec)
        if isinstance(result, Failure):
            row.failed(
                result.what, f"seed {seed} trial {trial}: {result.description}; {_shrunk(spec, result)}"
            )
        elif result:
            row.right += 1
            worst = max(worst, off)
        else:
            row.refused += 1
    row.note = f"worst error {worst:.0e}"
    return [row]


def _shrunk(spec: dict[str, Any], failure: Failure) -> str:
    def fails(layers: list[Layer]) -> bool:
        second = check({**spec, "layers": layers})[0]
        return isinstance(second, Failure) and second.what == failure.what

    small = {**spec, "layers": fewest(spec["layers"], fails)}
    return cases.keep("attention", json.dumps(small).encode(), ".json")
