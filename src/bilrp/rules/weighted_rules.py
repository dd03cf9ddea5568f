"""Rules for weighted steps: linear, convolution, transposed convolution.

A weighted step with weights W, input a and output z = Wa + b becomes J = Σ_t diag(after_t) W_t diag(before_t);
its relevance message is a_j J_kj. Constants (biases, bounds) are not part of J; their contribution is unattributed.

>>> gamma(0.25).name
'gamma(0.25)'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from bilrp.engine.maps import Map, Term, Weighted
from bilrp.engine.maps.base import sum_in_place
from bilrp.errors import RuleError
from bilrp.rules.rule import Rule, format_number
from bilrp.trace.devices import is_on_cpu
from bilrp.trace.fingerprint import hash_tensors
from bilrp.trace.layer_weights import Weights, empty_weights_like, extract_weights, to_kernel_layout
from bilrp.trace.linear_operators import Convolution
from bilrp.trace.numerics import all_finite, all_negative, compute_relu_gate, has_negative
from bilrp.trace.tape import Step
from bilrp.trace.weight_cache import cache_tensor


def by_terms(
    name: str, terms: Callable[[Weights, Tensor | None], list[Term]], *, on_mask: bool = False
) -> Rule:
    """Build a rule for weighted steps from the terms of its map, J = Σ_t diag(after_t) W_t diag(before_t).

    Args:
        name: Name of the rule; include every parameter that changes J.
        terms: Returns the terms for (weights, gate). The gate is the 0/1 mask of a ReLU fused into the step, or None.
            It is applied afterwards; `terms` may use it to skip outputs that it sets to zero.
        on_mask: Whether the map acts on a region's 0/1 mask instead of its values, as first-layer rules do.

    >>> by_terms("doubled", lambda w, gate: [Term(2 * w.weight)]).name
    'doubled'
    """

    def freeze(step: Step) -> Map:
        w = extract_weights(step)
        if w is None:
            raise RuleError(
                f"{name} is a rule for linear and convolution steps, but {step.describe()} is neither: "
                "give it another rule with bilrp.composites.first_match"
            )
        return Weighted(w.operator, tuple(terms(w, step.gate)), at=w.a, on_mask=on_mask)

    return Rule(name, freeze)


def zero() -> Rule:
    """LRP-0: J = W. With it everywhere, parts equal gradient × input.

    >>> zero().name
    'zero'
    """
    return by_terms("zero", lambda w, gate: [Term(_weights_in_kernel_layout(w))])


def epsilon(eps: float = 1e-6) -> Rule:
    """LRP-ε: J = diag(z / (z + ε·sign z)) W, with sign 0 = +1."""
    check_nonnegative("epsilon", eps)

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        sign = torch.where(w.z < 0, -1.0, 1.0).to(w.z.dtype)
        return [Term(w.weight, after=_safe_divide(w.z, w.z + eps * sign))]

    return by_terms(f"epsilon({format_number(eps)})", terms)


BiasOption: TypeAlias = Literal["rest", "inputs"]
"""Where the bias of a layer goes: unattributed, or to its inputs in proportion to |w·a|."""

BIAS_OPTIONS: tuple[BiasOption, ...] = get_args(BiasOption)


def gamma(value: float = 0.25, *, bias: BiasOption = "rest") -> Rule:
    """LRP-γ, generalised to signed inputs: ρ±(w) = w + γ·w±.

    Outputs z > 0 use a⁺ρ⁺(w) + a⁻ρ⁻(w), outputs z < 0 the mirrored pair; where a ≥ 0 and z > 0 this is the
    paper's J = diag(z / (ρ(W)a + ρ(b))) ρ(W).

    Args:
        value: γ ≥ 0; 0 is LRP-0.
        bias: "rest" leaves the contribution of the bias unattributed; "inputs" distributes it over the inputs by |w·a|,
            for networks in which batch norm produces biases that absorb most of the score.

    >>> gamma(0.0).name, gamma(0.25, bias="inputs").name
    ('gamma(0)', 'gamma(0.25, bias=inputs)')
    """
    check_nonnegative("gamma", value)
    if bias not in BIAS_OPTIONS:
        raise RuleError(f"unknown bias={bias!r} for gamma: use one of {', '.join(BIAS_OPTIONS)}")

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        if bias == "inputs" and w.bias is not None:
            return _bias_to_inputs_terms(w, w.bias, value)
        return (
            [Term(_weights_in_kernel_layout(w))]
            if value == 0
            else gamma_terms(w, value, gated=gate is not None)
        )

    return by_terms(f"gamma({format_number(value)}{', bias=inputs' if bias == 'inputs' else ''})", terms)


def _weights_in_kernel_layout(w: Weights) -> Tensor:
    """Return the weights of a convolution in the memory layout of the windowed and sparse kernels."""
    if not isinstance(w.operator, Convolution) or w.operator.transposed or w.operator.groups > 1:
        return w.weight
    return cache_tensor("kernel layout", [w.weight], lambda: to_kernel_layout(w.weight))


def _bias_to_inputs_terms(w: Weights, bias: Tensor, value: float) -> list[Term]:
    """J = diag(u) ((1 + γ/2) W + diag(γ/2 sign z + β) |W| diag(sign a)), β = ((1 + γ/2) b + γ/2 sign z |b|) / |W||a|.

    u as in `gamma_terms`. J a = z wherever |W||a| > 0, so that nothing is unattributed there.
    """
    one_plus_half_gamma, half_gamma = 1 + value / 2, value / 2
    size, sign = w.weight.abs(), torch.sign(w.z)
    abs_sum = w.apply(size, w.a.abs())
    b = w.operator.bias(bias).expand_as(w.z)
    u = (
        _safe_divide(w.z.abs(), one_plus_half_gamma * w.z.abs() + half_gamma * (abs_sum + b.abs()))
        if value
        else torch.ones_like(w.z)
    )
    bias_share = _safe_divide(one_plus_half_gamma * b + half_gamma * sign * b.abs(), abs_sum)
    signs = torch.where(w.a < 0, -1.0, 1.0).to(w.a.dtype)
    return [
        Term(w.weight, after=one_plus_half_gamma * u),
        Term(size, signs, u * (half_gamma * sign + bias_share)),
    ]


def gamma_terms(w: Weights, value: float, *, gated: bool) -> list[Term]:
    """Return the terms of J = diag(u) ((1 + γ/2) W + γ/2 diag(sign z) |W| diag(sign a)).

    This writes ρ± with W and |W|: two products instead of four, with one denominator,
    u = |z| / ((1 + γ/2)|z| + γ/2 (|W||a| + |b|)). If all inputs have one sign, and all relevant outputs too, W and |W| are
    summed in advance: one product.

    Args:
        w: Weights, bias, input and output of the step.
        value: γ.
        gated: Whether a ReLU is fused into the step, so that outputs z < 0 are irrelevant.
    """
    one_plus_half_gamma, half_gamma = 1 + value / 2, value / 2
    mixed, sign = has_negative(w.a, w.ranges), 1.0
    if mixed and all_negative(w.a, w.ranges):
        mixed, sign = False, -1.0
    # A fused ReLU removes every output z < 0.
    if not mixed and (gated or not has_negative(w.z, w.ranges)):
        return [_one_sided_term(w, one_plus_half_gamma, half_gamma, sign)]
    size = cache_tensor("size", [w.weight], lambda: torch.abs(w.weight, out=empty_weights_like(w.weight)))
    total = w.apply(size, w.a.abs(), None if w.bias is None else w.bias.abs())
    u = _safe_divide(w.z.abs(), one_plus_half_gamma * w.z.abs() + half_gamma * total)
    sided = half_gamma * (u * compute_relu_gate(w.z) if gated else torch.where(w.z > 0, u, -u))
    if not mixed:
        return [Term(w.weight, after=one_plus_half_gamma * u), Term(size, after=sign * sided)]
    signs = torch.where(w.a < 0, -1.0, 1.0).to(w.a.dtype)
    return [Term(w.weight, after=one_plus_half_gamma * u), Term(size, signs, sided)]


def _one_sided_term(w: Weights, one_plus_half_gamma: float, half_gamma: float, sign: float) -> Term:
    """Return diag(z / ρ(z)) ρ(W) for outputs z > 0 if all inputs have one sign, ρ(W) = (1 + γ/2) W ± γ/2 |W|."""
    factors = one_plus_half_gamma, half_gamma * sign
    shares = cache_tensor(("shared", *factors), [w.weight], lambda: _modified_weights(w.weight, *factors))
    bias = None if w.bias is None else one_plus_half_gamma * w.bias + half_gamma * w.bias.abs()
    # Torch brings weight and input into one memory format: convert the smaller one.
    total = w.apply(shares.contiguous() if shares.numel() < w.a.numel() else shares, w.a, bias)
    z = torch.relu(w.z)
    # ρ(z) ≥ (1 + γ/2) z, enforced against rounding. Where z = 0 any normal number will do: subnormal division is slow.
    lowest = (one_plus_half_gamma * z).clamp_(min=_smallest_denominator(z.dtype))
    total = torch.maximum(total, lowest, out=total)
    return Term(shares, after=torch.div(z, total, out=total))


def _smallest_denominator(dtype: torch.dtype) -> float:
    """Smallest normal number; in float16, where that is a large 6e-5, the smallest subnormal."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny


def _modified_weights(weight: Tensor, factor: float, abs_factor: float) -> Tensor:
    """Return factor · W + abs_factor · |W|."""
    return torch.abs(weight, out=empty_weights_like(weight)).mul_(abs_factor).add_(weight, alpha=factor)


def zplus() -> Rule:
    """z⁺: only positive contributions, J = diag(z / z⁺)(W⁺1[a>0] + W⁻1[a<0]), z⁺ = W⁺a⁺ + W⁻a⁻ + b⁺."""
    rule = alphabeta(1.0, 0.0)
    return Rule("zplus", rule.freeze)


def alphabeta(alpha: float = 2.0, beta: float = 1.0) -> Rule:
    """αβ: J = α·diag(z/z⁺)·(positive contributions) − β·diag(z/z⁻)·(negative contributions), α − β = 1."""
    if not math.isclose(alpha - beta, 1.0):
        raise RuleError(f"alphabeta needs alpha - beta = 1 to conserve relevance, got {alpha:g} - {beta:g}")

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        plus, minus = w.weight.clamp(min=0), w.weight.clamp(max=0)
        positive = _signed_terms(w, plus, minus, alpha, positive=True)
        return [*positive, *_signed_terms(w, minus, plus, -beta, positive=False)] if beta else positive

    return by_terms(f"alphabeta({format_number(alpha)}, {format_number(beta)})", terms)


def _signed_terms(
    w: Weights, of_positive: Tensor, of_negative: Tensor, factor: float, *, positive: bool
) -> list[Term]:
    """Return the terms of contributions of one sign: a⁺·of_positive + a⁻·of_negative (+ the bias of that sign).

    Args:
        w: Weights, bias, input and output of the step.
        of_positive, of_negative: Weights that act on positive and on negative inputs.
        factor: α, or −β.
        positive: Whether these are the positive contributions.
    """
    bias = None if w.bias is None else (w.bias.clamp(min=0) if positive else w.bias.clamp(max=0))
    sides = [(of_positive, w.a > 0), (of_negative, w.a < 0)]
    known = None if w.ranges is None else w.ranges.get(w.a)
    some = [bool(side.any()) for _, side in sides] if known is None else [known[1] > 0, known[0] < 0]
    sides = [side for side, occurs in zip(sides, some, strict=True) if occurs] or sides[:1]
    total = sum_in_place(w.apply(weight, w.a * side) for weight, side in sides)
    after = factor * _safe_divide(w.z, total if bias is None else total + w.operator.bias(bias))
    return [Term(weight, side.to(w.a.dtype), after) for weight, side in sides]


def zbox(low: float | Tensor | tuple[float, ...], high: float | Tensor | tuple[float, ...]) -> Rule:
    """z^B for the first layer on pixels with bounds l ≤ x ≤ h: contributions x·w − l·w⁺ − h·w⁻.

    J maps a region's mask m to diag(z / z_B)(W(x⊙m) − W⁺(l⊙m) − W⁻(h⊙m)), z_B = Wx − W⁺l − W⁻h: the bias cancels.

    Args:
        low: Lower bound of the input: a number, one per channel, or a tensor shaped like the input.
        high: Upper bound, in the same form.

    >>> zbox(-1.0, (1.0, 2.0, 3.0)).name
    'zbox(-1, (1, 2, 3))'
    """

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        lower, upper = _expand_bound(low, w.a), _expand_bound(high, w.a)
        _check_bounds(w.a, lower, upper)
        plus, minus = w.weight.clamp(min=0), w.weight.clamp(max=0)
        total = w.apply(w.weight, w.a) - w.apply(plus, lower) - w.apply(minus, upper)
        after = _safe_divide(w.z, total)
        return [Term(w.weight, w.a, after), Term(plus, -lower, after), Term(minus, -upper, after)]

    return by_terms(f"zbox({_format_bound(low)}, {_format_bound(high)})", terms, on_mask=True)


def flat() -> Rule:
    """Flat, for the first layer: every feature in the receptive field gets the same share, J = diag(z / n)·1."""

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        ones = torch.ones_like(w.weight)
        return [Term(ones, after=_safe_divide(w.z, w.apply(ones, torch.ones_like(w.a))))]

    return by_terms("flat", terms, on_mask=True)


def wsquare() -> Rule:
    """w², for the first layer: shares in proportion to the squared weights, J = diag(z / Σw²) W²."""

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        square = w.weight**2
        return [Term(square, after=_safe_divide(w.z, w.apply(square, torch.ones_like(w.a))))]

    return by_terms("wsquare", terms, on_mask=True)


def _safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, and 0 where the denominator is 0."""
    ratio = numerator / denominator
    plain = is_on_cpu(ratio) and all_finite(ratio)  # on an accelerator the check would cost a synchronisation
    return ratio if plain else ratio.masked_fill_(denominator == 0, 0)


def _expand_bound(bound: Any, a: Tensor) -> Tensor:
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


def _check_bounds(a: Tensor, low: Tensor, high: Tensor) -> None:
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


def _format_bound(bound: Any) -> str:
    """Format bounds for the name of a rule: up to eight numbers, else shape and hash."""
    if isinstance(bound, Real):
        return format_number(float(bound))
    values = torch.as_tensor(bound, dtype=None if isinstance(bound, Tensor) else torch.float64)
    if values.numel() > 8:
        return f"tensor{tuple(values.shape)} {hash_tensors([values])}"
    return "(" + ", ".join(format_number(v) for v in values.flatten().tolist()) + ")"


def check_nonnegative(name: str, value: float) -> None:
    """Raise `RuleError` unless the parameter of the rule `name` is a finite number of at least 0."""
    if not isinstance(value, Real):
        raise RuleError(f"{name} needs a number, got {type(value).__name__}: call it, as in {name}(0.1)")
    if not 0 <= value < math.inf:
        raise RuleError(f"{name} needs a value of at least 0, got {value}")
