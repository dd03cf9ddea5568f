"""Rules for weighted steps: linear, convolution, transposed convolution.

A weighted step with weights W, input a and output z = Wa + b becomes J = Σ_t diag(after_t) W_t diag(before_t);
its relevance message is a_j J_kj. Constants (biases, bounds) are not part of J: what they contribute is
left unattributed.

>>> gamma(0.25).name
'gamma(0.25)'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from bilrp.engine.maps import Map, Ratio, Term, Weighted
from bilrp.engine.maps.base import sum_of
from bilrp.errors import RuleError
from bilrp.rules.rule import Rule, exact
from bilrp.trace.numerics import all_finite, all_negative, gate_of, has_negative
from bilrp.trace.devices import on_host
from bilrp.trace.fingerprint import of_tensors
from bilrp.trace.linear_operators import Convolution
from bilrp.trace.weight_cache import kept
from bilrp.trace.tape import Step
from bilrp.trace.layer_weights import Weights, blank, for_reading, weights_of


def by_terms(
    name: str, terms: Callable[[Weights, Tensor | None], list[Term]], *, on_mask: bool = False
) -> Rule:
    """A rule for weighted steps from the terms of its map, J = Σ_t diag(after_t) W_t diag(before_t).

    `terms(w, gate)` gets the step taken apart and the gate of the ReLU right behind it, if there is one: it need not be
    applied, but spares the outputs it shuts. With `on_mask` the map acts on a region's mask instead of its values.

    >>> by_terms("doubled", lambda w, gate: [Term(2 * w.weight)]).name
    'doubled'
    """

    def freeze(step: Step) -> Map:
        w = weights_of(step)
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
    return by_terms("zero", lambda w, gate: [Term(_turned(w))])


def epsilon(eps: float = 1e-6) -> Rule:
    """LRP-ε: J = diag(z / (z + ε·sign z)) W, with sign 0 = +1."""
    at_least_zero("epsilon", eps)

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        sign = torch.where(w.z < 0, -1.0, 1.0).to(w.z.dtype)
        return [Term(w.weight, after=_ratio(w.z, w.z + eps * sign))]

    return by_terms(f"epsilon({exact(eps)})", terms)


def gamma(value: float = 0.25, *, bias: str = "rest") -> Rule:
    """LRP-γ, generalised to signed inputs: ρ±(w) = w + γ·w±.

    Outputs z > 0 use a⁺ρ⁺(w) + a⁻ρ⁻(w), outputs z < 0 the mirrored pair; where a ≥ 0 and z > 0 this is the
    paper's J = diag(z / (ρ(W)a + ρ(b))) ρ(W). γ = 0 is LRP-0. What the bias contributes is left over ("rest"), or handed
    to the inputs by |w·a| (`bias="inputs"`), where batch norm makes biases that swallow everything.

    >>> gamma(0.0).name, gamma(0.25, bias="inputs").name
    ('gamma(0)', 'gamma(0.25, bias=inputs)')
    """
    at_least_zero("gamma", value)
    if bias not in BIASES:
        raise RuleError(f"unknown bias={bias!r} for gamma: use one of {', '.join(BIASES)}")

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        if bias == "inputs" and w.bias is not None:
            return _handed_terms(w, w.bias, value)
        return [Term(_turned(w))] if value == 0 else gamma_terms(w, value, gated=gate is not None)

    return by_terms(f"gamma({exact(value)}{', bias=inputs' if bias == 'inputs' else ''})", terms)


BIASES = ("rest", "inputs")


def _turned(w: Weights) -> Tensor:
    """The weights of a convolution in the order in which windows and rows read them."""
    if not isinstance(w.operator, Convolution) or w.operator.transposed or w.operator.groups > 1:
        return w.weight
    return kept("turned", [w.weight], lambda: for_reading(w.weight))


def _handed_terms(w: Weights, bias: Tensor, value: float) -> list[Term]:
    """J = diag(u) ((1 + γ/2) W + diag(γ/2 sign z + β) |W| diag(sign a)), β = ((1 + γ/2) b + γ/2 sign z |b|) / |W||a|.

    u as for γ. J a = z wherever an input reaches, so that nothing is left over.
    """
    more, half = 1 + value / 2, value / 2
    size, sign = w.weight.abs(), torch.sign(w.z)
    reached = w.apply(size, w.a.abs())
    b = w.operator.bias(bias).expand_as(w.z)
    u = _ratio(w.z.abs(), more * w.z.abs() + half * (reached + b.abs())) if value else torch.ones_like(w.z)
    handed = _ratio(more * b + half * sign * b.abs(), reached)
    signs = torch.where(w.a < 0, -1.0, 1.0).to(w.a.dtype)
    return [Term(w.weight, after=more * u), Term(size, signs, u * (half * sign + handed))]


def gamma_terms(w: Weights, value: float, *, gated: bool) -> list[Term]:
    """J = diag(u) ((1 + γ/2) W + γ/2 diag(sign z) |W| diag(sign a)): ρ± written with W and |W|, two products, not four.

    Both halves have one denominator: u = |z| / ((1 + γ/2)|z| + γ/2 (|W||a| + |b|)). Where all inputs have one sign and
    all outputs that count have one, W and |W| are added up beforehand: one product.
    """
    more, half = 1 + value / 2, value / 2
    mixed, sign = has_negative(w.a, w.ranges), 1.0
    if mixed and all_negative(w.a, w.ranges):
        mixed, sign = False, -1.0
    # A ReLU right behind this step removes every output z < 0.
    if not mixed and (gated or not has_negative(w.z, w.ranges)):
        return [_one_sided(w, more, half, sign)]
    size = kept("size", [w.weight], lambda: torch.abs(w.weight, out=blank(w.weight)))
    total = w.apply(size, w.a.abs(), None if w.bias is None else w.bias.abs())
    u = _ratio(w.z.abs(), more * w.z.abs() + half * total)
    sided = half * (u * gate_of(w.z) if gated else torch.where(w.z > 0, u, -u))
    if not mixed:
        return [Term(w.weight, after=more * u), Term(size, after=sign * sided)]
    signs = torch.where(w.a < 0, -1.0, 1.0).to(w.a.dtype)
    return [Term(w.weight, after=more * u), Term(size, signs, sided)]


def _one_sided(w: Weights, more: float, half: float, sign: float) -> Term:
    """diag(z / ρ(z)) ρ(W) for the outputs z > 0 of inputs of one sign, ρ(W) = (1 + γ/2) W ± γ/2 |W|."""
    shares = kept(("shared", more, half * sign), [w.weight], lambda: _shares(w.weight, more, half * sign))
    bias = None if w.bias is None else more * w.bias + half * w.bias.abs()
    return Term(shares, after=Ratio(w.operator, shares, w.a, bias, torch.relu(w.z), more))


def _shares(weight: Tensor, more: float, less: float) -> Tensor:
    return torch.abs(weight, out=blank(weight)).mul_(less).add_(weight, alpha=more)


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

    return by_terms(f"alphabeta({exact(alpha)}, {exact(beta)})", terms)


def _contributions(
    w: Weights, of_positive: Tensor, of_negative: Tensor, factor: float, low: int | None
) -> list[Term]:
    """Terms for the contributions of one sign: a⁺·of_positive + a⁻·of_negative (+ the bias of that sign)."""
    bias = None if w.bias is None else (w.bias.clamp(min=0) if low is None else w.bias.clamp(max=0))
    sides = [(of_positive, w.a > 0), (of_negative, w.a < 0)]
    known = None if w.ranges is None else w.ranges.of(w.a)
    some = [bool(side.any()) for _, side in sides] if known is None else [known[1] > 0, known[0] < 0]
    sides = [side for side, occurs in zip(sides, some, strict=True) if occurs] or sides[:1]
    total = sum_of(w.apply(weight, w.a * side) for weight, side in sides)
    after = factor * _ratio(w.z, total if bias is None else total + w.operator.bias(bias))
    return [Term(weight, side.to(w.a.dtype), after) for weight, side in sides]


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

    return by_terms(f"zbox({_show(low)}, {_show(high)})", terms, on_mask=True)


def flat() -> Rule:
    """Flat, for the first layer: every feature in the receptive field gets the same share, J = diag(z / n)·1."""

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        ones = torch.ones_like(w.weight)
        return [Term(ones, after=_ratio(w.z, w.apply(ones, torch.ones_like(w.a))))]

    return by_terms("flat", terms, on_mask=True)


def wsquare() -> Rule:
    """w², for the first layer: shares in proportion to the squared weights, J = diag(z / Σw²) W²."""

    def terms(w: Weights, gate: Tensor | None) -> list[Term]:
        square = w.weight**2
        return [Term(square, after=_ratio(w.z, w.apply(square, torch.ones_like(w.a))))]

    return by_terms("wsquare", terms, on_mask=True)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, 0 where there is nothing to divide by."""
    ratio = numerator / denominator
    plain = on_host(ratio) and all_finite(ratio)  # an accelerator divides sooner than it answers
    return ratio if plain else ratio.masked_fill_(denominator == 0, 0)


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
    """Bounds as they stand in a rule's name: numbers, or the hash of many."""
    if isinstance(bound, Real):
        return exact(float(bound))
    values = torch.as_tensor(bound, dtype=None if isinstance(bound, Tensor) else torch.float64)
    if values.numel() > 8:
        return f"tensor{tuple(values.shape)} {of_tensors([values])}"
    return "(" + ", ".join(exact(v) for v in values.flatten().tolist()) + ")"


def at_least_zero(name: str, value: float) -> None:
    if not isinstance(value, Real):
        raise RuleError(f"{name} needs a number, got {type(value).__name__}: call it, as in {name}(0.1)")
    if not 0 <= value < math.inf:
        raise RuleError(f"{name} needs a value of at least 0, got {value}")
