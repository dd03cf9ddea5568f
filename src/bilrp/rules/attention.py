"""Attention with its softmax weights frozen: y = P V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bilrp.engine.maps import Chain, Map, Mix, Move, Shapes, Term, Weighted
from bilrp.errors import RuleError
from bilrp.trace.operators import Dense
from bilrp.trace.tape import Slot, Step, fill


def _attention(step: Step) -> Map:
    """y = P V with P frozen. P comes out of the same call when the values are the identity matrix."""
    value = step.argument(2, "value")
    slot = _slot_of(step, 2, "value")
    basis = torch.eye(value.shape[-2], dtype=value.dtype, device=value.device)
    stand_in = basis.expand(*value.shape[:-1], value.shape[-2])
    args = [*step.args[:2], stand_in, *step.args[3:]] if len(step.args) > 2 else list(step.args)
    kwargs = {**step.kwargs, "value": stand_in} if "value" in step.kwargs else step.kwargs
    weights = _call_with(step, args, kwargs)

    shared = weights.shape[-3] // value.shape[-3] if weights.dim() > 2 else 1  # grouped queries share values
    return Mix(weights, shared, (slot,))


def _multi_head_attention(step: Step) -> Map:
    """y = out(P · values(V)), one frozen P for each head."""
    if step.item == 1:
        raise RuleError(
            f"{step.describe()} returns its attention weights, which are frozen: use its first output"
        )
    value, slot = step.argument(2, "value"), _slot_of(step, 2, "value")
    heads = step.argument(4, "num_heads")
    width = step.argument(3, "embed_dim_to_check")
    joint = step.argument(5, "in_proj_weight")
    into = joint[-width:] if joint is not None else step.kwargs["v_proj_weight"]
    out = step.argument(11, "out_proj_weight")
    kwargs = {**step.kwargs, "need_weights": True, "average_attn_weights": False}
    weights = _call_with(step, list(step.args), kwargs)[1][..., : value.shape[0]]

    into, out = (Weighted(Dense(), (Term(weight),), at=value) for weight in (into, out))

    def split(v: Tensor) -> Tensor:
        """(tokens, batch, width) → (batch, heads, tokens, width of a head)"""
        return v.reshape(v.shape[0], -1, heads, width // heads).permute(1, 2, 0, 3)

    def joined(v: Tensor) -> Tensor:
        return v.permute(2, 0, 1, 3).reshape(-1, *value.shape[1:-1], width)

    mixing = Mix(weights.reshape(-1, heads, *weights.shape[-2:]))
    projected = value.new_zeros(*value.shape[:-1], width)
    by_head, mixed = split(projected), mixing.push(split(projected)[None])[0]
    values = [value, projected, by_head, mixed, joined(mixed), joined(mixed)]
    maps = (into, Move(split, (projected,)), mixing, Move(joined, (mixed,)), out)
    between = tuple(Shapes((a.shape,), b.shape) for a, b in pairwise(values))
    return Chain(maps, between, (slot,))


def unfused(step: Step) -> Step:
    """The same attention in plain products: the fused kernels have no forward derivative.

    Chosen here, for this step; torch's own choice of kernels belongs to the whole process.
    """
    if step.op == "scaled_dot_product_attention":
        return replace(step, call=_plain_attention)
    if step.op == "multi_head_attention_forward":
        place = 15  # of need_weights, with which torch multiplies by the weights that it returns
        args = (*step.args[:place], True, *step.args[place + 1 :]) if len(step.args) > place else step.args
        kwargs = step.kwargs if len(step.args) > place else {**step.kwargs, "need_weights": True}
        return replace(step, args=args, kwargs=kwargs)
    return step


def _plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(Q Kᵀ · scale + mask) V, as torch's own mathematical kernel has it."""
    options = {"scale": scale, "enable_gqa": enable_gqa}
    plain: Any = torch.ops.aten._scaled_dot_product_attention_math
    return plain(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]


def _call_with(step: Step, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return step.call(*fill(tuple(args), step.values), **fill(kwargs, step.values))


def _slot_of(step: Step, position: int, name: str) -> int:
    place = step.args[position] if position < len(step.args) else step.kwargs.get(name)
    if not isinstance(place, Slot):
        raise RuleError(
            f"{step.describe()} attends to constant values: nothing of the input passes through it"
        )
    return place.index


# What each kind of attention is frozen by.
ATTENTIONS: dict[str, Callable[[Step], Map]] = {
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head_attention,
}
