"""Random architectures: equal to autograd, push = pull, every forced plan alike, and the model as it was.

A net is a list of plain words and numbers, so that a failing one can be made smaller and kept as JSON.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
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
from bilrp.engine import plan
from bilrp.engine.costs import Schedule, all_schedules
from bilrp.engine.executor import execute_plan
from bilrp.engine.plan import PlanContext
from bilrp.errors import BilrpError
from bilrp.regions import grid
from bilrp.rules.freezing import freeze
from bilrp.sparse_parts import densify
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify

TRIALS, PLANS = 40, 5  # nets a round, and plans of each that are forced
MIXTURES = 8  # random mixtures of coordinates that are compared with autograd
MOST = 800  # numbers in a value
CLOSE = 1e-9
Layer = list[Any]

# Steps whose frozen map under LRP-0 is their true derivative; the rest only under the true derivatives of everything.
LINEAR = ("conv", "relu", "leaky", "abs", "maxpool", "avgpool", "batchnorm", "residual", "cat", "upsample", "pad",
          "transposed", "flip", "roll", "scale", "maximum", "minimum", "channels", "dropout")  # fmt: skip
SMOOTH = ("gelu", "silu", "tanh", "sigmoid", "hardtanh", "groupnorm", "layernorm", "attention", "gate", "softmax", "elu",
          "square", "normalize")  # fmt: skip


def drawn(draw: random.Random) -> dict[str, Any]:
    """A net of up to nine layers on a small image, and how to take it apart."""
    smooth = draw.random() < 0.4
    names = LINEAR + SMOOTH if smooth else LINEAR
    layers = [[draw.choice(names), draw.randrange(2**16)] for _ in range(draw.randrange(1, 10))]
    if draw.random() < 0.7:
        layers.insert(0, ["conv", draw.randrange(2**16)])
    shape = [draw.randrange(1, 4), draw.randrange(4, 12), draw.randrange(4, 12)]
    return {
        "layers": layers, "shape": shape, "seed": draw.randrange(2**16), "regions": draw.randrange(1, 7),
        "head": draw.choice(("none", "flat", "mean", "linear")),
    }  # fmt: skip


class Net(nn.Module):
    """The layers, each fitted to what comes out of the one before; one that doesn't fit is left out."""

    def __init__(self, spec: dict[str, Any], *, written_out: bool = False) -> None:
        super().__init__()
        self.written_out = written_out
        self.steps, self.weights = [], nn.ParameterDict()
        self.generator = torch.Generator().manual_seed(spec["seed"])
        x = torch.zeros(1, *spec["shape"], dtype=torch.float64)
        for number, (name, seed) in enumerate(spec["layers"]):
            step = self.made(name, random.Random(seed), x, f"w{number}")
            out = None if step is None else _fitting(step, x)
            if out is not None and 0 < out.numel() <= MOST:
                self.steps.append(step)
                x = out
        self.head = spec["head"]
        if self.head == "linear":
            self.w("head", 5, x.numel())

    def w(self, name: str, *shape: int) -> Callable[[], Tensor]:
        drawn = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        self.weights[name] = nn.Parameter(drawn / max(1, drawn[0].numel()) ** 0.5, requires_grad=False)
        return lambda: self.weights[name]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        if self.head == "linear":
            return F.linear(x.flatten(1), self.weights["head"])
        return {"none": lambda: x, "flat": lambda: x.flatten(1), "mean": lambda: x.mean((2, 3))}[self.head]()

    def made(self, name: str, draw: random.Random, x: Tensor, key: str) -> Callable[[Tensor], Tensor] | None:
        _, c, high, wide = x.shape
        least, out = min(high, wide), draw.randrange(1, 5)
        kernel = draw.randrange(1, min(4, least) + 1)
        stride, padding, dilation = draw.choice((1, 1, 2, 3)), draw.randrange(0, 2), draw.choice((1, 1, 2))
        bias = self.w(f"{key}b", out) if draw.random() < 0.6 else None
        if name == "conv":
            if dilation * (kernel - 1) + 1 > least + 2 * padding:
                dilation = 1
            groups = c if draw.random() < 0.25 else 1
            out = out * groups if groups > 1 else out
            weight, bias = (
                self.w(key, out, c // groups, kernel, kernel),
                self.w(f"{key}b", out) if bias else None,
            )
            return lambda t: F.conv2d(t, weight(), bias and bias(), stride, padding, dilation, groups)
        if name == "transposed":
            weight = self.w(key, c, out, kernel, kernel)
            return lambda t: F.conv_transpose2d(t, weight(), bias and bias(), min(stride, 2))
        if name == "maxpool":
            return lambda t: F.max_pool2d(
                t, kernel, stride, min(padding, kernel // 2), 1, ceil_mode=bool(padding)
            )
        if name == "batchnorm":
            mean, var, scale = self.w(f"{key}m", c), self.w(f"{key}v", c), self.w(f"{key}s", c)
            if (
                self.written_out
            ):  # torch's own backward pass is wrong for gradients that lie in some orders in memory
                centre, spread = (
                    (lambda: mean()[:, None, None]),
                    (lambda: (var().square() + 0.5)[:, None, None]),
                )
                return lambda t: (t - centre()) / (spread() + 1e-5).sqrt() * scale()[:, None, None]
            return lambda t: F.batch_norm(t, mean(), var().square() + 0.5, scale(), None)
        if name in ("residual", "cat"):
            weight, second = self.w(key, c, c, 3, 3), self.w(f"{key}s", c, c, 1, 1)
            left = lambda t: F.conv2d(F.relu(F.conv2d(t, weight(), None, 1, 1)), second())  # noqa: E731
            return (
                (lambda t: left(t) + t)
                if name == "residual"
                else (lambda t: torch.cat([left(t), t.flip(1)], 1))
            )
        if name in ("maximum", "minimum", "gate"):
            weight, second = self.w(key, c, c, 1, 1), self.w(f"{key}s", c, c, 1, 1)
            join = {
                "maximum": torch.maximum,
                "minimum": torch.minimum,
                "gate": lambda a, b: torch.sigmoid(a) * b,
            }[name]
            return lambda t: join(F.conv2d(t, weight()), F.conv2d(t, second()))
        if name == "attention":
            weight = self.w(key, 3 * c, c)

            def attend(t: Tensor) -> Tensor:
                tokens = t.flatten(2).transpose(1, 2)
                query, key, value = F.linear(tokens, weight()).chunk(3, -1)
                mixed = F.scaled_dot_product_attention(query, key, value)
                return mixed.transpose(1, 2).reshape(t.shape)

            return attend
        factor = draw.uniform(-2, 2)
        plain: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": F.relu, "leaky": lambda t: F.leaky_relu(t, 0.1), "abs": torch.abs, "gelu": F.gelu, "silu": F.silu,
            "avgpool": lambda t: F.avg_pool2d(t, kernel, stride, min(padding, kernel // 2)),
            "upsample": lambda t: F.interpolate(t, scale_factor=2, mode=("nearest", "bilinear")[padding]),
            "pad": lambda t: F.pad(t, (padding, 1, 0, kernel)), "flip": lambda t: t.flip(2 + padding),
            "roll": lambda t: t.roll(kernel, 2 + padding), "scale": lambda t: t * factor - padding,
            "channels": lambda t: t[:, torch.randperm(c, generator=torch.Generator().manual_seed(kernel))],
            "dropout": lambda t: F.dropout(t, 0.5, training=False), "tanh": torch.tanh, "sigmoid": torch.sigmoid,
            "hardtanh": lambda t: F.hardtanh(t, -0.5, 0.7), "groupnorm": lambda t: F.group_norm(t, 1, eps=0.1),
            "layernorm": lambda t: F.layer_norm(t, t.shape[1:], eps=0.1), "elu": F.elu, "square": torch.square,
            "softmax": lambda t: torch.softmax(t, 1), "normalize": lambda t: F.normalize(t, dim=1, eps=0.1),
        }  # fmt: skip
        return plain[name]


def _fitting(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """What the step makes of x; None where torch itself refuses (a group norm of one number)."""
    try:
        return step(x)
    except (RuntimeError, ValueError):
        return None


def check(spec: dict[str, Any]) -> tuple[Failure | bool, int]:
    """What went wrong, or whether the net was explained (True) or refused (False); and how many plans were forced."""
    try:
        return _check(spec)
    except BilrpError as error:
        return (
            False if "\n" not in str(error) else Failure("unexpected error", f"more than one line: {error}")
        ), 0
    except Exception as error:
        return Failure("unexpected error", f"{type(error).__name__}: {error}"[:300]), 0


def _check(spec: dict[str, Any]) -> tuple[Failure | bool, int]:
    net = Net(spec).eval()
    x = torch.randn(
        1, *spec["shape"], generator=torch.Generator().manual_seed(spec["seed"] + 1), dtype=torch.float64
    )
    with torch.no_grad():
        before, result = {name: t.clone() for name, t in net.state_dict().items()}, net(x).flatten()
    smooth = any(name in SMOOTH for name, _ in spec["layers"])
    exact = composites.hessian_product() if smooth else composites.uniform(0.0)
    where = grid(spec["regions"])
    parts = {
        mode: bilrp.decompose(net, x, composite=exact, regions=where, mode=mode)
        for mode in ("auto", "push", "pull")
    }
    mixed = torch.randn(
        MIXTURES, len(result), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    truth = _by_autograd(Net(spec, written_out=True).eval(), x, where(x).labels.flatten(), mixed)
    for mode, each in parts.items():
        if (off := _apart(mixed @ each.parts.T, truth)) > CLOSE:
            return Failure("wrong", f"{mode}: off autograd by {off:.1e}"), 0
        if _apart(each.parts.sum(0) + each.unattributed, result) > CLOSE:
            return Failure("wrong", f"{mode}: parts and unattributed do not sum to the embedding"), 0
    with torch.no_grad():
        program = freeze(simplify(record(net, x)), composites.uniform(0.25) if not smooth else exact)
        setting = PlanContext(program, where(x), program.result.numel(), budget=2**20)
        reference = densify(execute_plan(setting, plan.plan_for(setting, Schedule("pull")))[program.output])
        options = [
            *([Schedule("pull", tiled_end=setting.chain_length)] if setting.chain_length else []),
            *all_schedules(setting),
        ]
        options = list(dict.fromkeys(options))
        some = random.Random(spec["seed"]).sample(options, min(PLANS, len(options)))
        for way in some:
            off = _apart(
                densify(execute_plan(setting, plan.plan_for(setting, way))[program.output]), reference
            )
            if off > CLOSE:
                return Failure("wrong", f"the plan {tuple(way)} is off by {off:.1e}"), 0
    after = net.state_dict()
    if (
        net.training
        or set(after) != set(before)
        or any(not torch.equal(after[n], t) for n, t in before.items())
    ):
        return Failure("wrong", "the model was changed"), 0
    return True, len(some)


def _by_autograd(net: Net, x: Tensor, labels: Tensor, mixed: Tensor) -> Tensor:
    """x ⊙ ∇⟨c, φ(x)⟩ summed over each region, for every mixture c of coordinates: one plain backward pass each."""
    live = x.clone().requires_grad_(True)
    result = net(live).flatten()
    slopes = [torch.autograd.grad(result, live, c, retain_graph=True)[0].flatten() for c in mixed]
    shares = torch.stack(slopes) * x.flatten()
    return shares.new_zeros(len(mixed), int(labels.max()) + 1).index_add_(1, labels, shares)


def _apart(a: Tensor, b: Tensor) -> float:
    scale = max(
        float(b.abs().max()), 1e-4
    )  # numbers are about one: what is much smaller is zero but for rounding
    off = float((a - b).abs().max()) / scale
    return off if off == off else float("inf")


def attack(seed: int, path: Path) -> list[Row]:
    draw, row, plans = random.Random(seed), Row("nets"), Row("forced plans")
    for trial in range(TRIALS):
        spec = drawn(draw)
        outcome, forced = check(spec)
        plans.right += forced
        if isinstance(outcome, Failure):
            row.failed(
                outcome.what, f"seed {seed} trial {trial}: {outcome.description}; {_shrunk(spec, outcome)}"
            )
        elif outcome:
            row.right += 1
        else:
            row.refused += 1
    return [row, plans]


def _shrunk(spec: dict[str, Any], outcome: Failure) -> str:
    def fails(layers: list[Layer]) -> bool:
        second = check({**spec, "layers": layers})[0]
        return isinstance(second, Failure) and second.what == outcome.what

    small = {**spec, "layers": fewest(spec["layers"], fails)}
    return cases.keep("nets", json.dumps(small).encode(), ".json")
