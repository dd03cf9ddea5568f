"""Rules: each freezes one step into a linear map at this input.

A weighted step with weights W, input a and output z = Wa + b becomes J = Σ_t diag(after_t) W_t diag(before_t);
its relevance message is a_j J_kj. Constants (biases, bounds) are not part of J: what they contribute is
left unattributed.

>>> gamma(0.25).name
'gamma(0.25)'
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.engine.maps import Gated, Jacobian, Linear, Map, Pool, Scale, Term, Weighted
from bilrp.errors import RuleError
from bilrp.trace.operators import Convolution, Dense
from bilrp.trace.tape import STRUCTURAL, Slot, Step, fill


@dataclass(frozen=True)
class Rule:
    """A named pure function step → linear map."""

    name: str
    freeze: Callable[[Step], Map]

    def __call__(self, step: Step) -> Map:
        made = self.freeze(step)
        # Rules for weighted steps take the ReLU behind them into account themselves; no other rule has to.
        return made if step.gate is None or isinstance(made, Weighted) else Gated(made, step.gate)


# ---------------------------------------------------------------- weighted steps: linear and convolution


@dataclass(frozen=True, eq=False)
class Weights:
    """A weighted step taken apart: the operator, its weights and bias, its input and output."""

    operator: Dense | Convolution
    weight: Tensor
    bias: Tensor | None
    a: Tensor
    z: Tensor

    def apply(self, weight: Tensor, a: Tensor, bias: Tensor | None = None) -> Tensor:
        out = self.operator.apply(a, weight)
        return out if bias is None else out + self.operator.bias(bias)


def weights_of(step: Step) -> Weights | None:
    """Take a linear or convolution step with constant weights apart; None for any other step."""
    parts = _dense(step) if step.op in {"linear", "matmul", "addmm"} else _convolution(step)
    if parts is None:
        return None
    operator, weight, bias = parts
    return Weights(operator, weight, bias, a=step.values[0], z=step.result)


def _dense(step: Step) -> tuple[Dense, Tensor, Tensor | None] | None:
    if len(step.inputs) != 1:
        return None
    live = step.values[0]
    if step.op == "linear" and step.argument(0, "input") is live and step.argument(1, "weight").dim() == 2:
        return Dense(), step.argument(1, "weight"), step.argument(2, "bias")
    if step.op == "matmul" and step.argument(0, "input") is live and step.argument(1, "other").dim() == 2:
        return Dense(), step.argument(1, "other").T, None
    plain = step.kwargs.get("beta", 1) == 1 and step.kwargs.get("alpha", 1) == 1
    if (
        step.op == "addmm"
        and step.argument(1, "mat1") is live
        and plain
        and step.argument(0, "input").dim() == 1
    ):
        return Dense(), step.argument(2, "mat2").T, step.argument(0, "input")
    return None


def _convolution(step: Step) -> tuple[Convolution, Tensor, Tensor | None] | None:
    if (
        step.op not in CONVOLUTIONS
        or len(step.inputs) != 1
        or step.argument(0, "input") is not step.values[0]
    ):
        return None
    weight, bias = step.argument(1, "weight"), step.argument(2, "bias")
    rank, transposed = weight.dim() - 2, "transpose" in step.op
    padding, dilation = step.argument(4, "padding", 0), step.argument(7 if transposed else 5, "dilation", 1)
    operator = Convolution(
        stride=spread(step.argument(3, "stride", 1), rank),
        padding=_padding(padding, weight, spread(dilation, rank), step),
        dilation=spread(dilation, rank),
        groups=step.argument(6, "groups", 1),
        transposed=transposed,
        output_padding=spread(step.argument(5, "output_padding", 0) if transposed else 0, rank),
    )
    return operator, weight, bias


CONVOLUTIONS = {f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)}


def spread(value: Any, rank: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * rank
    value = tuple(value)
    return value * rank if len(value) == 1 else value


def _padding(padding: Any, weight: Tensor, dilation: tuple[int, ...], step: Step) -> tuple[int, ...]:
    if not isinstance(padding, str):
        return spread(padding, weight.dim() - 2)
    if padding == "valid":
        return (0,) * (weight.dim() - 2)
    pads = same_padding(weight, dilation)
    if any(before != after for before, after in pads):
        raise RuleError(
            f"{step.describe()} pads one side more than the other: call bilrp.trace.rewrite.simplify first"
        )
    return tuple(before for before, _ in pads)


def same_padding(weight: Tensor, dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """What padding='same' adds before and after each axis."""
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return [(t // 2, t - t // 2) for t in total]


def _weighted(
    name: str, terms: Callable[[Weights, Tensor | None], list[Term]], *, on_mask: bool = False
) -> Rule:
    """A rule for weighted steps from the function that makes its terms."""

    def freeze(step: Step) -> Map:
        w = weights_of(step)
        if w is None:
            raise RuleError(
                f"{name} is a rule for linear and convolution steps, but {step.describe()} is neither: "
                "give it another rule with bilrp.rulebooks.first_match"
            )
        made = Weighted(w.operator, tuple(terms(w, step.gate)), at=w.a, on_mask=on_mask)
        return made.gated(step.gate)

    return Rule(name, freeze)


def zero() -> Rule:
    """LRP-0: J = W. With it everywhere, parts equal gradient × input.

    >>> zero().name
    'zero'
    """
    return _weighted("zero", lambda w, gate: [Term(w.weight)])


def epsilon(eps: float = 1e-6) -> Rule:
    """LRP-ε: J = diag(z / (z + ε·sign z)) W, with sign 0 = +1."""
    _at_least_zero("epsilon", eps)

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        sign = torch.where(w.z < 0, -1.0, 1.0).to(w.z.dtype)
        return [Term(w.weight, after=_ratio(w.z, w.z + eps * sign))]

    return _weighted(f"epsilon({eps:g})", terms)


def gamma(value: float = 0.25) -> Rule:
    """LRP-γ, generalised to signed inputs: ρ±(w) = w + γ·w±.

    Outputs z > 0 use a⁺ρ⁺(w) + a⁻ρ⁻(w), outputs z < 0 the mirrored pair; where a ≥ 0 and z > 0 this is the
    paper's J = diag(z / (ρ(W)a + ρ(b))) ρ(W). γ = 0 is LRP-0.

    >>> gamma(0.0).name
    'gamma(0)'
    """
    _at_least_zero("gamma", value)

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        if value == 0:
            return [Term(w.weight)]
        positive = _half(w, value, above=True)
        # A ReLU right behind this step removes every output z < 0: no need to compute its half.
        return positive if gate is not None else [*positive, *_half(w, value, above=False)]

    return _weighted(f"gamma({value:g})", terms)


def _half(w: Weights, value: float, *, above: bool) -> list[Term]:
    """The terms of γ for outputs of one sign: ρ⁺ favours what pushes z up, ρ⁻ what pushes it down."""
    more, less = w.weight + value * w.weight.clamp(min=0), w.weight + value * w.weight.clamp(max=0)
    for_positive, for_negative = (more, less) if above else (less, more)
    signed = bool((w.a < 0).any())
    denominator = w.apply(for_positive, w.a.clamp(min=0))
    if signed:
        denominator = denominator + w.apply(for_negative, w.a.clamp(max=0))
    if w.bias is not None:
        favoured = w.bias.clamp(min=0) if above else w.bias.clamp(max=0)
        denominator = denominator + w.operator.bias(w.bias + value * favoured)
    after = torch.where(w.z > 0 if above else w.z < 0, _ratio(w.z, denominator), 0)
    if not signed:
        return [Term(for_positive, after=after)]
    positive, negative = ((side).to(w.a.dtype) for side in (w.a > 0, w.a < 0))
    return [Term(for_positive, positive, after), Term(for_negative, negative, after)]


def zplus() -> Rule:
    """z⁺: only positive contributions count, J = diag(z / z⁺)(W⁺1[a>0] + W⁻1[a<0]), z⁺ = W⁺a⁺ + W⁻a⁻ + b⁺."""
    rule = alphabeta(1.0, 0.0)
    return Rule("zplus", rule.freeze)


def alphabeta(alpha: float = 2.0, beta: float = 1.0) -> Rule:
    """αβ: J = α·diag(z/z⁺)·(positive contributions) − β·diag(z/z⁻)·(negative contributions), α − β = 1."""
    if not math.isclose(alpha - beta, 1.0):
        raise RuleError(f"alphabeta needs alpha - beta = 1 to conserve relevance, got {alpha:g} - {beta:g}")

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        plus, minus = w.weight.clamp(min=0), w.weight.clamp(max=0)
        found = _contributions(w, plus, minus, alpha, low=None)
        return [*found, *_contributions(w, minus, plus, -beta, low=0)] if beta else found

    return _weighted(f"alphabeta({alpha:g}, {beta:g})", terms)


def _contributions(
    w: Weights, of_positive: Tensor, of_negative: Tensor, factor: float, low: int | None
) -> list[Term]:
    """Terms for the contributions of one sign: a⁺·of_positive + a⁻·of_negative (+ the bias of that sign)."""
    bias = None if w.bias is None else (w.bias.clamp(min=0) if low is None else w.bias.clamp(max=0))
    total = w.apply(of_positive, w.a.clamp(min=0), bias) + w.apply(of_negative, w.a.clamp(max=0))
    after, dtype = factor * _ratio(w.z, total), w.a.dtype
    return [Term(of_positive, (w.a > 0).to(dtype), after), Term(of_negative, (w.a < 0).to(dtype), after)]


def zbox(low: float | Tensor | tuple[float, ...], high: float | Tensor | tuple[float, ...]) -> Rule:
    """z^B for the first layer on pixels with bounds l ≤ x ≤ h: contributions x·w − l·w⁺ − h·w⁻.

    J maps a region's mask m to diag(z / z_B)(W(x⊙m) − W⁺(l⊙m) − W⁻(h⊙m)), z_B = Wx − W⁺l − W⁻h: the bias cancels.
    Bounds are numbers, one per channel, or tensors shaped like the input.

    >>> zbox(-1.0, (1.0, 2.0, 3.0)).name
    'zbox(-1, (1, 2, 3))'
    """

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        lower, upper = _bound(low, w.a), _bound(high, w.a)
        _within(w.a, lower, upper)
        plus, minus = w.weight.clamp(min=0), w.weight.clamp(max=0)
        total = w.apply(w.weight, w.a) - w.apply(plus, lower) - w.apply(minus, upper)
        after = _ratio(w.z, total)
        return [Term(w.weight, w.a, after), Term(plus, -lower, after), Term(minus, -upper, after)]

    return _weighted(f"zbox({_show(low)}, {_show(high)})", terms, on_mask=True)


def flat() -> Rule:
    """Flat, for the first layer: every feature in the receptive field gets the same share, J = diag(z / n)·1."""

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        ones = torch.ones_like(w.weight)
        return [Term(ones, after=_ratio(w.z, w.apply(ones, torch.ones_like(w.a))))]

    return _weighted("flat", terms, on_mask=True)


def wsquare() -> Rule:
    """w², for the first layer: shares in proportion to the squared weights, J = diag(z / Σw²) W²."""

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        square = w.weight**2
        return [Term(square, after=_ratio(w.z, w.apply(square, torch.ones_like(w.a))))]

    return _weighted("wsquare", terms, on_mask=True)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, 0 where there is nothing to divide by."""
    empty = denominator == 0
    return torch.where(empty, 0, numerator / torch.where(empty, 1, denominator))


def _bound(bound: Any, a: Tensor) -> Tensor:
    value = torch.as_tensor(bound, dtype=a.dtype, device=a.device)
    if value.dim() == 1 and a.dim() > 2:
        value = value.reshape(-1, *[1] * (a.dim() - 2))
    try:
        return value.expand_as(a)
    except RuntimeError:
        raise RuleError(
            f"bounds of shape {tuple(value.shape)} do not fit an input of shape {tuple(a.shape)}: give zbox a number, "
            "one for each channel, or a tensor shaped like the input"
        ) from None


def _within(a: Tensor, low: Tensor, high: Tensor) -> None:
    if not bool((low <= high).all()):
        raise RuleError("zbox needs bounds low ≤ high everywhere, and these are not")
    beyond = torch.maximum(low - a, a - high).flatten()
    if float(beyond.max()) > 1e-3 * float((high - low).abs().max()):
        worst = int(beyond.argmax())
        value, lowest, highest = (float(t.flatten()[worst]) for t in (a, low, high))
        raise RuleError(
            f"the input has a value of {value:.3g} where the bounds given to zbox are {lowest:.3g} to {highest:.3g}: "
            "give it the range of your pixels"
        )


def _show(bound: Any) -> str:
    if isinstance(bound, Tensor):
        bound = tuple(bound.flatten().tolist()) if bound.numel() <= 8 else f"tensor{tuple(bound.shape)}"
    if isinstance(bound, tuple | list):
        return "(" + ", ".join(f"{v:g}" for v in bound) + ")"
    return bound if isinstance(bound, str) else f"{bound:g}"


def _at_least_zero(name: str, value: float) -> None:
    if not isinstance(value, Real):
        raise RuleError(f"{name} needs a number, got {type(value).__name__}: call it, as in {name}(0.1)")
    if not 0 <= value < math.inf:
        raise RuleError(f"{name} needs a value of at least 0, got {value}")


# ---------------------------------------------------------------- steps without weights


def linear() -> Rule:
    """Already linear: J is the step itself (add, cat, reshape, pad, mean, average pooling, interpolation …)."""
    return Rule("linear", lambda step: _any_linear(step))


def _any_linear(step: Step) -> Map:
    slots = tuple(range(len(step.inputs)))
    if not _known_linear(step):
        _check_linear(step)
    if step.op in {
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    }:
        return Linear(lambda x: x, step.values)
    return Linear(step.run, step.values, slots)


def _check_linear(step: Step) -> None:
    """An operation we do not know: with g(a) = f(a) − f(0), g(a − 2r) must be g(a) − 2g(r), or it is not linear.

    r is random: |a|, max and sort pass for linear wherever they are only tried on multiples of a.
    """
    generator = torch.Generator().manual_seed(0)
    zero = step.run(*(torch.zeros_like(v) for v in step.values))
    for _ in range(4):  # one r can have the same winner as a
        other = [
            v.abs().mean() * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v)
            for v in step.values
        ]
        mixed = step.run(*(v - 2 * r for v, r in zip(step.values, other, strict=True))) - zero
        apart = step.result - zero - 2 * (step.run(*other) - zero)
        largest = float(apart.abs().max())
        if not math.isfinite(largest) or not torch.allclose(mixed, apart, rtol=1e-4, atol=1e-4 * largest):
            raise RuleError(
                f"linear is a rule for linear steps, and {step.describe()} is not: use bilrp.rules.jacobian()"
            )


def gate() -> Rule:
    """ReLU and other gates: J = diag(1[a > 0])."""

    def made(step: Step) -> Map:
        elementwise = len(step.inputs) == 1 and step.values[0].shape == step.result.shape
        if not elementwise or weights_of(step) is not None:
            raise RuleError(
                f"gate is a rule for elementwise functions of one tensor, not for {step.describe()}"
            )
        return Scale((step.values[0] > 0).to(step.result.dtype))

    return Rule("gate", made)


def frozen() -> Rule:
    """Whatever scales its input by a number that depends on it, with that number frozen at this input.

    Activations with f(0) = 0 become diag(f(a)/a), norms keep their centring and freeze 1/std, attention freezes its
    softmax weights: y = P V.
    """
    return Rule("frozen", _freeze_scale)


def product(freeze: int) -> Rule:
    """A product of two live tensors: the factor number `freeze` (0 or 1) is frozen, the other stays live.

    >>> product(freeze=1).name
    'product(freeze=1)'
    """

    def made(step: Step) -> Map:
        if len(step.inputs) != 2:
            raise RuleError(
                f"product is a rule for two live tensors, but {step.describe()} has {len(step.inputs)}"
            )
        if step.op not in PRODUCTS | {"div"} or (step.op == "div" and freeze == 0):
            raise RuleError(
                f"product(freeze={freeze}) leaves {step.describe()} nonlinear in its other operand: "
                "use bilrp.rules.jacobian()"
            )
        live = 1 - freeze
        kept = step.values[freeze].detach()

        def function(s: Tensor) -> Tensor:
            return step.run(s, kept) if live == 0 else step.run(kept, s)

        same = step.op == "mul" and step.values[live].shape == step.result.shape
        if same:
            return Scale(kept.expand_as(step.result), slots=(live,))
        return Linear(function, (step.values[live],), (live,))

    return Rule(f"product(freeze={freeze})", made)


def jacobian() -> Rule:
    """The true derivative at this input, whatever the step: gradient × input."""
    return Rule("jacobian", lambda step: Jacobian(step.run, step.values, tuple(range(len(step.inputs)))))


def select() -> Rule:
    """Max and min, over windows, axes or operands: J selects the winner; ties share equally."""
    return Rule("select", _freeze_selection)


def _freeze_scale(step: Step) -> Map:
    special = {
        "layer_norm": _layer_norm,
        "group_norm": _group_norm,
        "instance_norm": _instance_norm,
        "rms_norm": _rms_norm,
        "normalize": _normalize,
        "batch_norm": _batch_norm,
        "scaled_dot_product_attention": _attention,
        "multi_head_attention_forward": _multi_head_attention,
    }.get(step.op)
    return special(step) if special else _activation(step)


def _activation(step: Step) -> Map:
    """diag(f(a)/a), and the limit f'(0) at a = 0."""
    a = step.values[0]
    if len(step.inputs) != 1 or a.shape != step.result.shape:
        raise RuleError(
            f"frozen is a rule for elementwise functions, norms and attention, not for {step.describe()}"
        )
    at_zero, slope = torch.func.jvp(step.run, (torch.zeros_like(a),), (torch.ones_like(a),))[:2]
    if bool((at_zero != 0).any()):
        raise RuleError(
            f"{step.describe()} does not send 0 to 0, so it cannot be frozen into a scale: choose its rule yourself, "
            f"e.g. bilrp.rulebooks.first_match(('{step.name}', bilrp.rules.jacobian()), otherwise=...)"
        )
    factor = torch.where(a == 0, slope, step.result / torch.where(a == 0, 1, a))
    return Scale(torch.where(factor.isfinite(), factor, 0))


def clamp() -> Rule:
    """Clamping: inside the range the identity; outside, f(a)/a where the range contains 0, else constant (0)."""

    def made(step: Step) -> Map:
        if step.op not in CLAMPS or len(step.inputs) != 1 or not _is_first(step):
            raise RuleError(f"clamp is a rule for clamping to constants, not for {step.describe()}")
        if bool((step.run(torch.zeros_like(step.values[0])) == 0).all()):
            return _activation(step)
        return Scale((step.values[0] == step.result).to(step.result.dtype))

    return Rule("clamp", made)


def _layer_norm(step: Step) -> Map:
    shape, weight = step.argument(1, "normalized_shape"), step.argument(2, "weight")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    axes = tuple(range(-len(shape), 0))
    return _centred(step, lambda t: t, axes, step.argument(4, "eps", 1e-5), weight)


def _group_norm(step: Step) -> Map:
    groups, weight = step.argument(1, "num_groups"), step.argument(2, "weight")
    value = step.values[0]

    def grouped(t: Tensor) -> Tensor:
        return t.reshape(t.shape[0], groups, -1)

    return _centred(step, grouped, (-1,), step.argument(4, "eps", 1e-5), _per_channel(weight, value))


def _instance_norm(step: Step) -> Map:
    if not step.argument(5, "use_input_stats", True):
        return _batch_norm(step)
    value, weight = step.values[0], step.argument(3, "weight")
    eps = step.argument(7, "eps", 1e-5)
    return _centred(step, lambda t: t.flatten(2), (-1,), eps, _per_channel(weight, value))


def _per_channel(weight: Tensor | None, value: Tensor) -> Tensor | None:
    return None if weight is None else weight.reshape(-1, *[1] * (value.dim() - 2))


def _centred(step: Step, view, axes: tuple[int, ...], eps: float, weight: Tensor | None) -> Map:
    """(s − mean s) / std · w: the centring is linear and stays live, 1/std is frozen."""
    grouped = view(step.values[0])
    rstd = (grouped.var(axes, unbiased=False, keepdim=True) + eps).rsqrt()

    def function(s: Tensor) -> Tensor:
        g = view(s)
        out = ((g - g.mean(axes, keepdim=True)) * rstd).reshape(s.shape)
        return out if weight is None else out * weight

    return Linear(function, step.values)


def _rms_norm(step: Step) -> Map:
    a, weight = step.values[0], step.argument(2, "weight")
    shape, eps = step.argument(1, "normalized_shape"), step.argument(3, "eps")
    axes = tuple(range(-(1 if isinstance(shape, int) else len(shape)), 0))
    eps = torch.finfo(a.dtype).eps if eps is None else eps
    factor = (a.square().mean(axes, keepdim=True) + eps).rsqrt().expand_as(a)
    return Scale(factor if weight is None else factor * weight)


def _normalize(step: Step) -> Map:
    a = step.values[0]
    p, dim, eps = step.argument(1, "p", 2.0), step.argument(2, "dim", 1), step.argument(3, "eps", 1e-12)
    return Scale((1 / a.norm(p, dim, keepdim=True).clamp(min=eps)).expand_as(a))


def batch_norm_scale(step: Step) -> tuple[Tensor, Tensor]:
    """Batch norm in evaluation as one affine map per channel: z = scale·a + shift."""
    mean, var = step.argument(1, "running_mean"), step.argument(2, "running_var")
    weight, bias = step.argument(3, "weight"), step.argument(4, "bias")
    scale = (var + step.argument(7, "eps", 1e-5)).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias


def _batch_norm(step: Step) -> Map:
    if step.argument(5, "training", False) or step.argument(1, "running_mean") is None:
        # No running statistics: those of this very input, as in an instance norm.
        a, weight = step.values[0], step.argument(3, "weight")
        axes = (0, *range(2, a.dim()))
        return _centred(step, lambda t: t, axes, step.argument(7, "eps", 1e-5), _per_channel(weight, a))
    scale, _ = batch_norm_scale(step)
    return Scale(scale.reshape(-1, *[1] * (step.result.dim() - 2)).expand_as(step.result))


def _attention(step: Step) -> Map:
    """y = P V with P frozen. P comes out of the same call when the values are the identity matrix."""
    value = step.argument(2, "value")
    slot = _slot_of(step, 2, "value")
    basis = torch.eye(value.shape[-2], dtype=value.dtype, device=value.device)
    stand_in = basis.expand(*value.shape[:-1], value.shape[-2])
    args = [*step.args[:2], stand_in, *step.args[3:]] if len(step.args) > 2 else list(step.args)
    kwargs = {**step.kwargs, "value": stand_in} if "value" in step.kwargs else step.kwargs
    weights = _call_with(step, args, kwargs)

    def function(v: Tensor) -> Tensor:
        heads = weights.shape[-3] if weights.dim() > 2 else 1
        if v.dim() > 2 and v.shape[-3] != heads:  # grouped queries share their values
            v = v.repeat_interleave(heads // v.shape[-3], -3)
        return weights @ v

    return Linear(function, (value,), (slot,))


def _multi_head_attention(step: Step) -> Map:
    """y = out(P · values(V)), one frozen P for each head."""
    if step.item == 1:
        raise RuleError(
            f"{step.describe()} returns its attention weights, which are frozen: use its first output"
        )
    value, slot = step.argument(2, "value"), _slot_of(step, 2, "value")
    heads, size = step.argument(4, "num_heads"), value.shape[-1]
    width = step.argument(3, "embed_dim_to_check")
    joint = step.argument(5, "in_proj_weight")
    into = joint[-width:] if joint is not None else step.kwargs["v_proj_weight"]
    out = step.argument(11, "out_proj_weight")
    kwargs = {**step.kwargs, "need_weights": True, "average_attn_weights": False}
    weights = _call_with(step, list(step.args), kwargs)[1][..., : value.shape[0]]

    def function(v: Tensor) -> Tensor:
        projected = F.linear(v.reshape(v.shape[0], -1, size), into)
        split = projected.reshape(v.shape[0], -1, heads, width // heads).permute(1, 2, 0, 3)
        mixed = (weights.reshape(-1, heads, *weights.shape[-2:]) @ split).permute(2, 0, 1, 3)
        return F.linear(mixed.reshape(*mixed.shape[:2], width), out).reshape(-1, *v.shape[1:-1], width)

    return Linear(function, (value,), (slot,))


def _call_with(step: Step, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return step.call(*fill(tuple(args), step.values), **fill(kwargs, step.values))


def _slot_of(step: Step, position: int, name: str) -> int:
    place = step.args[position] if position < len(step.args) else step.kwargs.get(name)
    if not isinstance(place, Slot):
        raise RuleError(
            f"{step.describe()} attends to constant values: nothing of the input passes through it"
        )
    return place.index


# ---------------------------------------------------------------- selection


def _freeze_selection(step: Step) -> Map:
    if step.op not in SELECTIONS:
        raise RuleError(
            f"select is a rule for max, min, topk, sort and max-pooling, not for {step.describe()}"
        )
    if step.op in {"topk", "sort"}:
        return _by_index(step)
    if "max_pool" in step.op:
        return _adaptive_pool(step) if step.op.startswith("adaptive") else _pool(step)
    operands = len(step.inputs) == 2 or isinstance(step.argument(1, "other"), Tensor)
    return _between_operands(step) if operands else _along_axes(step)


def _between_operands(step: Step) -> Map:
    """max(a, b), min(a, b): the winner's place; equal operands share."""
    left, right = step.argument(0, "input"), step.argument(1, "other")
    tie = (left == right).to(step.result.dtype) / 2
    shares = [(side == step.result).to(step.result.dtype) - tie for side in (left, right)]
    live = [shares[i] for i, side in enumerate((left, right)) if any(side is v for v in step.values)]
    if len(step.inputs) == 2 and step.inputs[0] == step.inputs[1]:
        live = [torch.full_like(tie, 0.5)] * 2
    if len(live) == 1 and step.values[0].shape == step.result.shape:
        return Scale(live[0])

    def function(*s: Tensor) -> Tensor:
        return sum((t * share for t, share in zip(s, live, strict=True)), start=torch.zeros_like(step.result))

    return Linear(function, step.values, tuple(range(len(live))))


def _along_axes(step: Step) -> Map:
    """amax, amin, max(dim), min(dim), max(): the winners along the axes."""
    a = step.values[0]
    axes = step.argument(1, "dim", None)
    axes = tuple(range(a.dim())) if axes is None or axes == () else axes
    keep = bool(step.argument(2, "keepdim", False))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)

    def spread(t: Tensor) -> Tensor:
        for axis in () if keep else sorted(x % a.dim() for x in axes):
            t = t.unsqueeze(axis)
        return t

    won = (a == spread(step.result)).to(a.dtype)
    shares = won / won.sum(axes, keepdim=True)
    return Linear(lambda s: (s * shares).sum(axes, keepdim=keep), step.values)


def _by_index(step: Step) -> Map:
    """topk and sort: each output is one input element."""
    values = fill((step.args, step.kwargs), step.values)
    index = step.call(*values[0], **values[1])[1]
    dim = step.argument(2 if step.op == "topk" else 1, "dim", -1)
    return Linear(lambda s: s.gather(dim, index), step.values)


def _pool(step: Step) -> Map:
    a, out = step.values[0], step.result
    rank = int(step.op[len("max_pool")])
    kernel = spread(step.argument(1, "kernel_size"), rank)
    stride = step.argument(2, "stride")
    stride = kernel if stride is None or stride == [] else spread(stride, rank)
    padding = spread(step.argument(3, "padding", 0), rank)
    dilation = spread(step.argument(4, "dilation", 1), rank)
    return _winners(a, out, kernel, stride, padding, dilation)


def _winners(a: Tensor, out: Tensor, kernel, stride, padding, dilation) -> Pool:
    rank = len(kernel)
    sizes_in, sizes_out = a.shape[-rank:], out.shape[-rank:]
    # zeros after the last element, as far as the last window reaches (ceil_mode reaches further)
    after = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - n - p)
        for o, s, d, k, n, p in zip(sizes_out, stride, dilation, kernel, sizes_in, padding, strict=True)
    ]
    pads = tuple(zip(padding, after, strict=True))
    offsets = tuple(
        tuple(i * d for i, d in zip(index, dilation, strict=True))
        for index in itertools.product(*(range(k) for k in kernel))
    )
    blank = Pool(shares=out.unsqueeze(0), offsets=offsets, stride=stride, padding=pads, at=a)
    lowest = F.pad(a, [p for pad in reversed(pads) for p in pad], value=-math.inf)
    won = torch.stack([(blank._window(lowest, o) == out) for o in range(len(offsets))]).to(out.dtype)
    return Pool(shares=won / won.sum(0), offsets=offsets, stride=stride, padding=pads, at=a)


def _adaptive_pool(step: Step) -> Map:
    a, out = step.values[0], step.result
    rank = int(step.op[len("adaptive_max_pool")])
    sizes = list(zip(a.shape[-rank:], out.shape[-rank:], strict=True))
    if all(n % m == 0 for n, m in sizes):
        kernel = tuple(n // m for n, m in sizes)
        return _winners(a, out, kernel, kernel, (0,) * rank, (1,) * rank)
    # Uneven windows overlap irregularly: follow torch's own winner (a tie goes to the first).
    pool = getattr(F, f"adaptive_max_pool{rank}d")
    index = pool(a, tuple(m for _, m in sizes), return_indices=True)[1].flatten(-rank)
    return Linear(lambda s: s.flatten(-rank).gather(-1, index).reshape(out.shape), step.values)


# ---------------------------------------------------------------- which rule comes naturally

LINEAR = STRUCTURAL | {
    *(
        "add",
        "sub",
        "rsub",
        "__rsub__",
        "neg",
        "sum",
        "mean",
        "nansum",
        "cumsum",
        "diff",
        "trace",
        "addmm",
        "baddbmm",
    ),
    *(
        "addbmm",
        "addmv",
        "mv",
        "dot",
        "bmm",
        "matmul",
        "einsum",
        "tensordot",
        "inner",
        "outer",
        "kron",
    ),
    *(
        "mul",
        "div",
        "lerp",
        "where",
        "masked_fill",
        "masked_scatter",
        "index_add",
        "scatter",
        "scatter_add",
        "addcmul",
    ),
    *(
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
    ),
    *("interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "grid_sample", "fold", "linear"),
    *(
        "ldexp",
        "copy",
        "index_copy",
        "index_fill",
        "index_put",
        "select_scatter",
        "slice_scatter",
        "sum_to_size",
    ),
    *CONVOLUTIONS,
}
ACTIVATIONS = {
    *(
        "gelu",
        "silu",
        "mish",
        "tanh",
        "tanhshrink",
        "leaky_relu",
        "elu",
        "selu",
        "celu",
        "hardswish",
        "hardtanh",
    ),
    *(
        "relu6",
        "prelu",
        "rrelu",
        "softsign",
        "softshrink",
        "hardshrink",
        "threshold",
        "abs",
        "erf",
        "sin",
        "sinh",
    ),
    *("asinh", "atan", "arctan", "sqrt", "expm1", "log1p", "square", "pow", "tan"),
}
CLAMPS = {"clamp", "clamp_min", "clamp_max"}
NORMS = {"layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize", "batch_norm"}
ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
SELECTIONS = {
    *("max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin", "topk", "sort"),
    *(f"{a}max_pool{n}d{i}" for a in ("", "adaptive_") for n in (1, 2, 3) for i in ("", "_with_indices")),
}
# A factor made by one of these is a gate or a scale: it is the one to freeze. The second set are activations
# that gate a linear branch (SwiGLU, GEGLU).
SCALES = {"softmax", "sigmoid", "hardsigmoid", "rsqrt", "reciprocal", "tanh", "erf", "softplus", "exp"}
GATING = {"silu", "gelu", "relu", "mish", "hardswish"}
PRODUCTS = {"mul", "matmul", "bmm", "einsum", "inner", "mv", "dot", "outer", "tensordot"}
MULTIPLYING = PRODUCTS | CONVOLUTIONS
MULTIPLYING |= {"addmm", "baddbmm", "addbmm", "addmv", "linear", "addcmul", "kron"}


def natural(step: Step) -> Rule | None:
    """The rule that needs no choice: linear, gate, frozen, select, or a product with one evident gate.

    Weighted steps come as `linear` (LRP-0); a rule book usually decides about them before asking here.
    """
    if step.op == "relu":
        return gate()
    if step.op in ACTIVATIONS | NORMS | ATTENTION:
        return frozen() if len(step.inputs) == 1 or step.op in ATTENTION else None
    if step.op in SELECTIONS:
        return select()
    if step.op in CLAMPS:
        return clamp() if len(step.inputs) == 1 and _is_first(step) else None
    if step.op in PRODUCTS and len(step.inputs) == 2:
        return _evident_product(step)
    if step.op == "div":
        return _division(step)
    return linear() if _known_linear(step) else None


def _known_linear(step: Step) -> bool:
    """Linear in all its live operands together, by what the operation is; nothing has to be tried."""
    if step.op == "div":
        return len(step.inputs) == 1 and _division(step) is not None
    return step.op in LINEAR and _is_linear(step)


def _is_first(step: Step) -> bool:
    """The live tensor is the step's first argument."""
    return step.argument(0, "input") is step.values[0]


def _is_linear(step: Step) -> bool:
    """Several live operands are fine for sums and concatenations, not for products."""
    if step.op == "lerp":
        return not isinstance(step.argument(2, "weight"), Tensor) or all(
            step.argument(2, "weight") is not v for v in step.values
        )
    if step.op in {"grid_sample", "ldexp"}:
        return len(step.inputs) == 1 and _is_first(step)  # the grid and the exponent are not linear
    if step.op in {"scatter", "index_add"} and step.kwargs.get("reduce", "add") != "add":
        return False
    return len(step.inputs) == 1 or step.op not in MULTIPLYING


def _division(step: Step) -> Rule | None:
    """x / live norm: the denominator is frozen. A constant over a live tensor has no rule."""
    if step.kwargs.get("rounding_mode") is not None:
        return None
    if len(step.inputs) == 2:
        return product(freeze=1)
    return linear() if _is_first(step) else None


def _evident_product(step: Step) -> Rule | None:
    if step.inputs[0] == step.inputs[1]:
        return product(freeze=1)
    for kinds in (SCALES, GATING):
        gates = [slot for slot, source in enumerate(step.sources) if source in kinds]
        if len(gates) == 1:
            return product(freeze=gates[0])
    return None
