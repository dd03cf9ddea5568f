"""Attention with its softmax weights frozen: y = P V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bilrp.engine.maps import FrozenMatmul, Map
from bilrp.errors import RuleError
from bilrp.rules.verification import verify_substitute
from bilrp.trace.tape import Slot, Step, fill_slots


def freeze_attention(step: Step) -> Map:
    """Freeze P in y = P V. P is the result of the same call with identity matrices as values."""
    value = step.argument(2, "value")
    slot = _live_slot(step, 2, "value")
    basis = torch.eye(value.shape[-2], dtype=value.dtype, device=value.device)
    stand_in = basis.expand(*value.shape[:-1], value.shape[-2])
    args = [*step.args[:2], stand_in, *step.args[3:]] if len(step.args) > 2 else list(step.args)
    kwargs = {**step.kwargs, "value": stand_in} if "value" in step.kwargs else step.kwargs
    weights = _call_with(step, args, kwargs)

    shared = weights.shape[-3] // value.shape[-3] if weights.dim() > 2 else 1  # of grouped-query attention
    mix = FrozenMatmul(weights, shared, (slot,))
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
    """Return softmax(Q Kᵀ · scale + mask) V. The kernel adds its mask, so a boolean one (True: keep) becomes 0 and −∞."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        blank = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        attn_mask = blank.masked_fill(~attn_mask, -torch.inf)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    kernel: Any = torch.ops.aten._scaled_dot_product_attention_math
    return kernel(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]


def _call_with(step: Step, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return step.call(*fill_slots(tuple(args), step.values), **fill_slots(kwargs, step.values))


def _live_slot(step: Step, position: int, name: str) -> int:
    place = step.args[position] if position < len(step.args) else step.kwargs.get(name)
    if not isinstance(place, Slot):
        raise RuleError(
            f"{step.describe()} attends to constant values: nothing of the input passes through it"
        )
    return place.index
