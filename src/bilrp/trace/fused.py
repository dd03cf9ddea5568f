"""Expand fused calls into plain calls, so that each becomes a step with its own rule.

Otherwise rules could not reach the weights inside: γ would act on a network written with `F.linear` but not on the same
network written with `nn.MultiheadAttention`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from bilrp.errors import TapeError
from bilrp.trace.numerics import require_close
from bilrp.trace.tape import collect_tensors


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute `F.multi_head_attention_forward` without dropout by `F.linear` and `F.scaled_dot_product_attention`.

    Queries, keys and values are projected separately, because rules that detach attention weights need the values alone.

    Args:
        query, key, value: (tokens, batch, width), or (tokens, width).
        embed_dim_to_check: not used.
        num_heads: number of heads.
        in_proj_weight: projections of queries, keys and values, stacked; None with `use_separate_proj_weight`.
        in_proj_bias: their biases, stacked.
        bias_k, bias_v: key and value of an additional position.
        add_zero_attn: add a position with zero key and value.
        dropout_p, training: not used; active dropout was rejected before.
        out_proj_weight, out_proj_bias: projection of the result.
        key_padding_mask: positions to ignore, (batch, tokens).
        need_weights: also return the attention weights.
        attn_mask: mask of scores, (tokens, tokens) or (batch · heads, tokens, tokens).
        use_separate_proj_weight: use the next three weights instead of `in_proj_weight`.
        q_proj_weight, k_proj_weight, v_proj_weight: separate projections.
        static_k, static_v: keys and values to use instead of the projected ones.
        average_attn_weights: average the returned weights over heads.
        is_causal: `attn_mask` is causal.
    """
    batched = query.dim() == 3
    if not batched:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    batch = query.shape[1]

    packed = None if use_separate_proj_weight or in_proj_weight is None else in_proj_weight.chunk(3)
    weights = packed or (q_proj_weight, k_proj_weight, v_proj_weight)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    operands = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (F.linear(t, weight, bias) for t, weight, bias in operands if weight is not None)
    if bias_k is not None and bias_v is not None:
        k, v = (torch.cat([t, bias.repeat(1, batch, 1)]) for t, bias in ((k, bias_k), (v, bias_v)))

    # (tokens, batch, width) -> (batch, heads, tokens, head width)
    q, k, v = (t.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for t in (q, k, v))
    k = k if static_k is None else static_k.unflatten(0, (batch, num_heads))
    v = v if static_v is None else static_v.unflatten(0, (batch, num_heads))
    if add_zero_attn:
        k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))

    causal_only = is_causal and key_padding_mask is None and not need_weights  # torch then ignores attn_mask
    mask = _combine_masks(None if causal_only else attn_mask, key_padding_mask, q)
    added = int(bias_k is not None) + int(add_zero_attn)  # positions that are never masked
    if mask is not None and added:
        mask = F.pad(mask, (0, added))
    mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal_only)
    out = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    out = out if batched else out.squeeze(1)
    if not need_weights:
        return out, None
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    attention = torch.softmax(scores if mask is None else scores + mask, -1)
    attention = attention.mean(1) if average_attn_weights else attention
    return out, attention if batched else attention.squeeze(0)


def _combine_masks(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return both masks as one to add to the scores of queries q (batch, heads, tokens, width)."""
    mask = None if attn_mask is None else _to_additive_mask(attn_mask, q.dtype)
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, q.shape[:2])
    if key_padding_mask is None:
        return mask
    padding = _to_additive_mask(key_padding_mask, q.dtype)[:, None, None]
    return padding if mask is None else mask + padding


def _to_additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores; True in a boolean mask hides, unlike in SDPA."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Compute `F.glu` as a product of a value and a gate, which rules detach."""
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


# by name of an operation of kind "fused"
FUSED_EXPANSIONS: dict[str, Callable[..., Any]] = {
    "multi_head_attention_forward": multi_head_attention,
    "glu": glu,
}


def expand_fused_call(
    name: str,
    func: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    recorder: AbstractContextManager[object],
) -> Any:
    """Record the plain calls of a fused call, and check that they give the same result.

    Args:
        name: name of the operation.
        func, args, kwargs: the fused call.
        recorder: the recording mode, which is off inside its own `__torch_function__`.
    """
    with torch.no_grad():
        expected = collect_tensors(func(*args, **kwargs))
    with recorder:
        result = FUSED_EXPANSIONS[name](*args, **kwargs)
    shape = tuple(args[0].shape)
    for a, b in zip(collect_tensors(result), expected, strict=True):
        require_close(a.detach(), b, lambda: _raise_mismatch(name, shape))
    return result


def _raise_mismatch(name: str, shape: tuple[int, ...]) -> NoReturn:
    raise TapeError(
        f"'{name}' on a tensor of shape {shape} gives other numbers than the plain calls it consists of: "
        "use those calls in the model"
    )
