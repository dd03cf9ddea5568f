"""Attention with its softmax weights detached: y = P V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bilrp.engine.maps import ConstantMatmul, Map
from bilrp.errors import RuleError
from bilrp.rules.verification import verify_substitute
from bilrp.trace.devices import is_on_cpu
from bilrp.trace.tape import Slot, Step

PLAIN_DTYPES = {torch.float32, torch.float64}  # narrower ones are computed in float32 by the kernel


def freeze_attention(step: Step) -> Map:
    """Freeze y = P V with P = softmax(Q Kᵀ · scale + mask) detached, and compare P V with the recorded result."""
    value = step.argument(2, "value")
    slot = _live_slot(step, 2, "value")
    weights = replace(step, call=_attention_weights).run(*step.values)
    shared = weights.shape[-3] // value.shape[-3] if weights.dim() > 2 else 1  # of grouped-query attention
    mix = ConstantMatmul(weights, shared, (slot,))
    # All rows: a mask may change some of them only.
    verify_substitute(step, lambda *live: mix.push(live[slot][None])[0])
    return mix


def make_unfused_attention(step: Step) -> Callable[..., Tensor]:
    """Return the attention computed by torch's math kernel: the fused kernels have no forward-mode derivative.

    The kernel is called directly, because torch's own kernel selection (`sdpa_kernel`) is process-wide.
    """
    return verify_substitute(step, replace(step, call=_math_attention).run)


def _math_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(Q Kᵀ · scale + mask) V."""
    mask = _as_added_mask(attn_mask, query)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    return _math_kernel(query, key, value, mask, dropout_p, is_causal, None, **options)[0]


def _attention_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(Q Kᵀ · scale + mask), in place where nothing is special: most of the time is memory."""
    mask = _as_added_mask(attn_mask, query)
    if not (is_causal or enable_gqa) and query.dtype in PLAIN_DTYPES and is_on_cpu(query):
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
        scores = scores if mask is None else scores.add_(mask)
        largest = scores.amax(-1, keepdim=True)
        if bool(torch.isfinite(largest).all()):  # every query attends to something
            weights = scores.sub_(largest).exp_()
            return weights.div_(weights.sum(-1, keepdim=True))
    options = {"scale": scale, "enable_gqa": enable_gqa}
    # With values of width 0 the kernel spends nothing on their product.
    return _math_kernel(query, key, value[..., :0], mask, dropout_p, is_causal, None, **options)[1]


def _math_kernel(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return P V and P."""
    return torch.ops.aten._scaled_dot_product_attention_math(*args, **options)


def _as_added_mask(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return 0 and −∞ for a boolean mask (True: keep), because the kernel adds it; other masks unchanged."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, -torch.inf)


def _live_slot(step: Step, position: int, name: str) -> int:
    place = step.args[position] if position < len(step.args) else step.kwargs.get(name)
    if not isinstance(place, Slot):
        raise RuleError(
            f"{step.describe()} attends to constant values: nothing of the input passes through it"
        )
    return place.index
