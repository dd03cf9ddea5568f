"""Secant rule: freeze each step to its mean derivative along the straight line from a reference input to the input.

J = ∫₀¹ f'(a₀ + t Δa) dt, so that J Δa = Δf exactly: biases cancel, and only the embedding of the reference is
unattributed. An elementwise f becomes diag(Δf/Δa); a product becomes ū Δv + v̄ Δu, with the means ū and v̄ of both
ends; a maximum weights each candidate by the fraction of the line on which it is the largest. The secants of norms and
softmax are composed of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine.maps import Linear, Map, Scale, Term, Weighted
from bilrp.errors import RuleError
from bilrp.rules.affine import is_known_linear, linear
from bilrp.rules.norms import freeze_norm, last_axes, reshape_per_channel, uses_input_statistics
from bilrp.rules.rule import Rule, format_number
from bilrp.rules.selection import Candidates, freeze_selection
from bilrp.rules.verification import verify_substitute
from bilrp.rules.weighted_rules import check_nonnegative, gamma_terms
from bilrp.trace.devices import is_on_cpu
from bilrp.trace.layer_weights import extract_weights
from bilrp.trace.tape import ReferenceValues, Step


def secant(gamma: float = 0.0) -> Rule:
    """Freeze any step to its secant between reference and input, J Δa = Δf.

    Args:
        gamma: γ for weighted steps, applied to differences from the reference; with 0 they become WΔa.

    >>> secant().name, secant(0.25).name
    ('secant', 'secant(0.25)')
    """
    check_nonnegative("secant", gamma)
    return Rule(
        "secant" if gamma == 0 else f"secant({format_number(gamma)})",
        lambda step: _freeze_secant(step, gamma),
    )


def _freeze_secant(step: Step, gamma: float) -> Map:
    reference = step.reference
    if reference is None:
        raise RuleError(
            f"secant needs a reference input, and {step.describe()} was seen at one input only: use "
            "composite=bilrp.composites.secant('mean')"
        )
    if extract_weights(step) is not None:
        return _weighted(step, gamma)
    if is_known_linear(step):
        return linear()(step)
    special = (
        SECANTS.get(step.op) or SECANTS.get(step.operation.kind) or SECANTS.get(step.operation.rule or "")
    )
    secant_map = None if special is None else special(step)
    if secant_map is None and len(step.inputs) == 1 and step.operation.kind in ELEMENTWISE_KINDS:
        secant_map = _elementwise(step)
    if secant_map is None:
        raise RuleError(
            f"no secant is known for {step.describe()}: use rules without a reference, or leave a rest there with "
            f"bilrp.composites.first_match(('{step.name}', bilrp.rules.jacobian()), otherwise=bilrp.composites.secant(…))"
        )
    verify_substitute(step, lambda *live: _secant_value(secant_map, reference, live))
    return secant_map


def _secant_value(frozen_map: Map, reference: ReferenceValues, values: tuple[Tensor, ...]) -> Tensor:
    """Return f(a₀) + J Δa, where Δa = 0 for equal values (also infinite ones)."""
    ends = [(values[slot], reference.values[slot]) for slot in frozen_map.slots]
    return reference.result + frozen_map.push(*(torch.where(a == a0, 0, a - a0)[None] for a, a0 in ends))[0]


ELEMENTWISE_KINDS = {"activation", "elementwise_nonzero", "arithmetic"}


def value_pairs(step: Step) -> list[tuple[Tensor, Tensor]]:
    """Return the pair (value at the input, value at the reference) of every live operand."""
    assert step.reference is not None
    return list(zip(step.values, step.reference.values, strict=True))


def secant_slope(
    a: Tensor, a0: Tensor, f: Tensor, f0: Tensor, derivative: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return Δf/Δa, or f' at the midpoint where Δa would cancel; 0 where that is not finite.

    Args:
        a, a0: Values at the input and at the reference.
        f, f0: f(a) and f(a₀).
        derivative: f', evaluated where |Δa| ≤ √eps · max(|a|, |a₀|).
    """
    change = a - a0
    near = change.abs() <= torch.finfo(a.dtype).eps ** 0.5 * torch.maximum(a.abs(), a0.abs())
    slope = (f - f0) / torch.where(near, 1, change)
    if not is_on_cpu(near) or bool(near.any()):
        slope = torch.where(near, derivative((a + a0) / 2), slope)
    return torch.where(slope.isfinite(), slope, 0)


# ---------------------------------------------------------------- single steps


def _weighted(step: Step, gamma: float) -> Map:
    """Return the map of Δz = WΔa, where the bias cancels; γ uses signs and magnitudes of differences, not of values."""
    w = extract_weights(step)
    assert w is not None and step.reference is not None
    if gamma == 0:
        return Weighted(w.operator, (Term(w.weight),), at=w.a)
    moved = replace(w, a=w.a - step.reference.values[0], z=w.z - step.reference.result, bias=None)
    return Weighted(w.operator, tuple(gamma_terms(moved, gamma, gated=False)), at=w.a)


def _elementwise(step: Step) -> Map | None:
    """Return diag(Δf/Δa), for a ReLU with entries in [0, 1]; None if the step changes the shape."""
    ((a, a0),) = value_pairs(step)
    if a.shape != step.result.shape:
        return None
    assert step.reference is not None

    def derivative(at: Tensor) -> Tensor:
        return torch.func.vjp(step.run, at)[1](torch.ones_like(at))[0]

    return Scale(secant_slope(a, a0, step.result, step.reference.result, derivative))


def _product(step: Step) -> Map | None:
    """Return ū Δv + v̄ Δu = u v − u₀ v₀ with the means ū and v̄, for any call that is linear in each of two operands."""
    if len(step.inputs) != 2 or step.operation.linear_in != "separately":
        return None
    left, right = ((v + v0) / 2 for v, v0 in value_pairs(step))
    return Linear(lambda s, t: step.run(s, right) + step.run(left, t), step.values, (0, 1))


def _quotient(step: Step) -> Map | None:
    """Return the secant of u/v as a product of u and 1/v; the secant of 1/v is −Δv/(v v₀)."""
    if len(step.inputs) != 2 or step.kwargs.get("rounding_mode") is not None:
        return None
    (u, u0), (v, v0) = value_pairs(step)
    upper, lower, steep = (u + u0) / 2, (1 / v + 1 / v0) / 2, -1 / (v * v0)
    return Linear(lambda s, t: s * lower + upper * (t * steep), step.values, (0, 1))


def _selection(step: Step) -> Map | None:
    """Return the secant of max or min: candidates weighted by `path_shares`; None for sort and topk."""
    return None if step.operation.kind == "sort" else freeze_selection(step, path_shares)


def path_shares(step: Step, candidates: Candidates) -> Tensor:
    """Return the fraction of the line a₀ + t Δa, t ∈ [0, 1], on which each candidate is the largest; ties share.

    Σ_k share_k Δa_k = max a − max a₀. The loop follows the upper envelope of the candidates, which are linear in t, from
    crossing to crossing; its slope increases with t.
    """
    assert step.reference is not None
    start, end = candidates(step.reference.values), candidates(step.values)
    lowest = torch.minimum(*(t.masked_fill(t.isinf(), torch.inf).amin() for t in (start, end))) - 1
    start, end = (t.masked_fill(t == -torch.inf, lowest) for t in (start, end))  # padding, which never wins
    steep = end - start
    shares, time = torch.zeros_like(start), torch.zeros_like(start[0])
    leads = start == start.amax(0)
    while True:
        # the steepest of the current maxima
        first = steep.masked_fill(~leads, -torch.inf).argmax(0, keepdim=True)
        own, ahead = (t.gather(0, first) for t in (steep, start))
        # crossings with steeper candidates
        until = ((ahead - start) / (steep - own)).masked_fill(steep <= own, torch.inf)
        end_of = until.amin(0).clamp(max=1).maximum(time)
        same = ((steep == own) & (start == ahead)).to(shares.dtype)
        shares += same / same.sum(0) * (end_of - time)
        if bool((end_of >= 1).all()):
            return shares
        leads, time = until == until.amin(0), end_of


def _batch_norm(step: Step) -> Map | None:
    """Return the scale of a batch norm with running statistics; with statistics of the input, the secant of a norm."""
    if not uses_input_statistics(step):
        return freeze_norm(step)
    a, weight = step.values[0], step.argument(3, "weight")
    axes = (0, *range(2, a.dim()))
    return _norm(step, lambda t: t, axes, step.argument(7, "eps", 1e-5), reshape_per_channel(weight, a))


# ---------------------------------------------------------------- norms


def _norm(
    step: Step,
    view: Callable[[Tensor], Tensor],
    axes: tuple[int, ...],
    eps: float,
    weight: Tensor | None,
    *,
    centered: bool = True,
    mean: bool = True,
) -> Map | None:
    """Return the secant of a norm y = c r w with c = a − mean a and r = (mean c² + ε)^−½; None if r is infinite.

    Δy = (r̄ Δc + c̄ Δr) w, Δr = −(r r₀)²/(r + r₀) · mean 2 c̄ Δc.

    Args:
        step: The norm, with values at the reference.
        view: Reshapes a value so that `axes` are the normalized ones (the groups of a group norm).
        axes: Axes of the statistics.
        eps: ε.
        weight: w, or None for 1.
        centered: Whether the mean is subtracted.
        mean: Whether r uses the mean of squares, not their sum.
    """

    def centre(t: Tensor) -> Tensor:
        return t - t.mean(axes, keepdim=True) if centered else t

    def total(t: Tensor) -> Tensor:
        return t.mean(axes, keepdim=True) if mean else t.sum(axes, keepdim=True)

    ((a, a0),) = value_pairs(step)
    c, c0 = centre(view(a)), centre(view(a0))
    r, r0 = ((total(t.square()) + eps).rsqrt() for t in (c, c0))
    # ε > 0 makes r finite: skip the check where it would synchronise an accelerator
    sure = not is_on_cpu(a) and eps >= torch.finfo(a.dtype).tiny
    if not sure and not bool((r.isfinite() & r0.isfinite()).all()):
        return None  # r of a zero vector is infinite
    middle, scale = (c + c0) / 2, (r + r0) / 2
    steep = -((r * r0) ** 2) / (r + r0)

    def function(s: Tensor) -> Tensor:
        moved = centre(view(s))
        out = moved * scale + middle * (steep * total(2 * middle * moved))
        out = out.reshape(s.shape)
        return out if weight is None else out * weight

    return Linear(function, step.values)


def _layer_norm(step: Step) -> Map | None:
    axes, weight = last_axes(step.argument(1, "normalized_shape")), step.argument(2, "weight")
    return _norm(step, lambda t: t, axes, step.argument(4, "eps", 1e-5), weight)


def _group_norm(step: Step) -> Map | None:
    groups, weight = (
        step.argument(1, "num_groups"),
        reshape_per_channel(step.argument(2, "weight"), step.values[0]),
    )
    return _norm(
        step, lambda t: t.reshape(t.shape[0], groups, -1), (-1,), step.argument(4, "eps", 1e-5), weight
    )


def _instance_norm(step: Step) -> Map | None:
    if not step.argument(5, "use_input_stats", True):
        return None
    weight = reshape_per_channel(step.argument(3, "weight"), step.values[0])
    return _norm(step, lambda t: t.flatten(2), (-1,), step.argument(7, "eps", 1e-5), weight)


def _rms_norm(step: Step) -> Map | None:
    axes, eps = last_axes(step.argument(1, "normalized_shape")), step.argument(3, "eps")
    eps = torch.finfo(step.values[0].dtype).eps if eps is None else eps
    return _norm(step, lambda t: t, axes, eps, step.argument(2, "weight"), centered=False)


def _normalize(step: Step) -> Map | None:
    dim = step.argument(2, "dim", 1)
    if step.argument(1, "p", 2.0) != 2:
        return None
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    return _norm(step, lambda t: t, axes, 0.0, None, centered=False, mean=False)


# ---------------------------------------------------------------- softmax and attention


def _softmax_secant(a: Tensor, a0: Tensor, dim: int) -> Callable[[Tensor], Tensor]:
    """Return the secant of softmax as a function: diag(m) − m mᵀ/Σm, with the logarithmic means m = Δp / Δ log p.

    Δ log p = Δa − c for a scalar c, which follows from ΣΔp = 0: c = Σ mΔa / Σm.
    """
    log, log0 = a.log_softmax(dim), a0.log_softmax(dim)
    means = secant_slope(log, log0, log.exp(), log0.exp(), torch.exp)
    total = means.sum(dim, keepdim=True)
    return lambda s: means * (s - (means * s).sum(dim, keepdim=True) / total)


def _softmax(step: Step) -> Map | None:
    dim = step.argument(1, "dim")
    if step.op != "softmax" or dim is None:
        return None
    ((a, a0),) = value_pairs(step)
    return Linear(_softmax_secant(a, a0, dim), step.values)


def _attention(step: Step) -> Map | None:
    """Return the secant of y = softmax(Q Kᵀ · scale + mask) V, composed of those of both products and the softmax."""
    if len(step.inputs) != 3 or step.argument(7, "enable_gqa", False):
        return None
    (q, q0), (k, k0), (v, v0) = value_pairs(step)
    mask, causal = step.argument(3, "attn_mask"), step.argument(5, "is_causal", False)
    factor = step.argument(6, "scale")
    factor = q.shape[-1] ** -0.5 if factor is None else factor
    shut = torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype, device=q.device)
    if causal:
        shut = shut.masked_fill(torch.ones_like(shut, dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        shut = shut + (
            shut.new_zeros(mask.shape).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask
        )
    logits, logits0 = (x @ y.transpose(-1, -2) * factor + shut for x, y in ((q, k), (q0, k0)))
    mix = _softmax_secant(logits, logits0, -1)
    weights = (logits.softmax(-1) + logits0.softmax(-1)) / 2
    query, key, value = (q + q0) / 2, (k + k0) / 2, (v + v0) / 2

    def function(sq: Tensor, sk: Tensor, sv: Tensor) -> Tensor:
        """Apply the secant.

        Args:
            sq: Tangent of the queries.
            sk: Tangent of the keys.
            sv: Tangent of the values.
        """
        moved = (sq @ key.transpose(-1, -2) + query @ sk.transpose(-1, -2)) * factor
        return mix(moved) @ value + weights @ sv

    return Linear(function, step.values, (0, 1, 2))


# Secants of steps that are neither linear nor elementwise, by operation, else by kind, else by default rule.
SECANTS: dict[str, Callable[[Step], Map | None]] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "rms_norm": _rms_norm,
    "normalize": _normalize,
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
    "select": _selection,
    "product": _product,
    "quotient": _quotient,
}
