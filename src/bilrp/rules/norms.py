"""Norms: the scale is detached; the centring, which is linear, is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bilrp.engine.maps import CenterAndScale, Linear, Map, Scale
from bilrp.rules.verification import sample_rows, verify_substitute
from bilrp.trace.layer_weights import compute_batch_norm_affine
from bilrp.trace.tape import Step


def freeze_norm(step: Step) -> Map:
    """Freeze a norm with its scale detached, so that J a + f(0) = f(a)."""
    linear_map = NORM_FREEZERS[step.op](step)
    if (
        isinstance(linear_map, CenterAndScale) and step.result.dim() > 1
    ):  # it acts on each row of the last axis
        sample, a = replace(linear_map, factor=sample_rows(linear_map.factor)), sample_rows(step.values[0])
        verify_substitute(
            step, lambda _: sample.push(a[None])[0] + step.run(torch.zeros_like(a)), sample_rows(step.result)
        )
    else:
        verify_substitute(step, lambda a: linear_map.push(a[None])[0] + step.run(torch.zeros_like(a)))
    return linear_map


def _layer_norm(step: Step) -> Map:
    shape, weight = step.argument(1, "normalized_shape"), step.argument(2, "weight")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    axes, eps = tuple(range(-len(shape), 0)), step.argument(4, "eps", 1e-5)
    if axes != (-1,):
        return _centered_norm(step, lambda t: t, axes, eps, weight)
    a = step.values[0]
    rstd = torch.native_layer_norm(a, shape, None, None, eps)[2].to(a.dtype)  # seven times faster than `var`
    return CenterAndScale((rstd if weight is None else rstd * weight).expand_as(step.result))


def _group_norm(step: Step) -> Map:
    groups, weight = step.argument(1, "num_groups"), step.argument(2, "weight")
    value = step.values[0]

    def group_channels(t: Tensor) -> Tensor:
        return t.reshape(t.shape[0], groups, -1)

    return _centered_norm(
        step, group_channels, (-1,), step.argument(4, "eps", 1e-5), reshape_per_channel(weight, value)
    )


def _instance_norm(step: Step) -> Map:
    if not step.argument(5, "use_input_stats", True):
        return _batch_norm(step)
    value, weight = step.values[0], step.argument(3, "weight")
    eps = step.argument(7, "eps", 1e-5)
    return _centered_norm(step, lambda t: t.flatten(2), (-1,), eps, reshape_per_channel(weight, value))


def _rms_norm(step: Step) -> Map:
    a, weight = step.values[0], step.argument(2, "weight")
    shape, eps = step.argument(1, "normalized_shape"), step.argument(3, "eps")
    axes = last_axes(shape)
    eps = torch.finfo(a.dtype).eps if eps is None else eps
    factor = (a.square().mean(axes, keepdim=True) + eps).rsqrt().expand_as(a)
    return Scale(factor if weight is None else factor * weight)


def _normalize(step: Step) -> Map:
    a = step.values[0]
    p, dim, eps = step.argument(1, "p", 2.0), step.argument(2, "dim", 1), step.argument(3, "eps", 1e-12)
    return Scale((1 / a.norm(p, dim, keepdim=True).clamp(min=eps)).expand_as(a))


def _batch_norm(step: Step) -> Map:
    if uses_input_statistics(step):
        # Without running statistics: those of this input, as in an instance norm.
        a, weight = step.values[0], step.argument(3, "weight")
        axes = (0, *range(2, a.dim()))
        return _centered_norm(
            step, lambda t: t, axes, step.argument(7, "eps", 1e-5), reshape_per_channel(weight, a)
        )
    scale, _ = compute_batch_norm_affine(step)
    return Scale(scale.reshape(-1, *[1] * (step.result.dim() - 2)).expand_as(step.result))


def uses_input_statistics(step: Step) -> bool:
    """Return whether a batch norm uses statistics of its input instead of running ones."""
    return bool(step.argument(5, "training", False)) or step.argument(1, "running_mean") is None


def last_axes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return the axes that a layer norm of this shape averages over, counted from the end."""
    return tuple(range(-(1 if isinstance(normalized_shape, int) else len(normalized_shape)), 0))


def reshape_per_channel(weight: Tensor | None, value: Tensor) -> Tensor | None:
    """Return a weight for each channel in a shape that multiplies values [batch, channels, …]."""
    return None if weight is None else weight.reshape(-1, *[1] * (value.dim() - 2))


def _centered_norm(step: Step, view, axes: tuple[int, ...], eps: float, weight: Tensor | None) -> Map:
    """Return the map (s − mean s) / std · w with 1/std detached."""
    grouped = view(step.values[0])
    rstd = (grouped.var(axes, unbiased=False, keepdim=True) + eps).rsqrt()

    def function(s: Tensor) -> Tensor:
        g = view(s)
        out = ((g - g.mean(axes, keepdim=True)) * rstd).reshape(s.shape)
        return out if weight is None else out * weight

    return Linear(function, step.values)


# The function that freezes each norm.
NORM_FREEZERS: dict[str, Callable[[Step], Map]] = {
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "rms_norm": _rms_norm,
    "normalize": _normalize,
    "batch_norm": _batch_norm,
}
