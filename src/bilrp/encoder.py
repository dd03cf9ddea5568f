"""Encoder: φ, a callable tensor → embedding, with how to read an item, its default rules and regions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilrp.errors import InputError
from bilrp.rules.books import as_book
from bilrp.rules.choose import default_book
from bilrp.rules.listing import rows
from bilrp.trace.listing import Row
from bilrp.trace.names import modules_of
from bilrp.trace.operation import Op
from bilrp.trace.ops import OPERATIONS
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Tape


@dataclass(frozen=True, eq=False)
class Encoder:
    """What `explain` needs to know about a model; anything but `module` may be left out.

    `layers(tape, n)`, where given, finds the value of layer n on a tape, for `decompose(..., layers=[...])`;
    `operations` are rows for torch calls that `bilrp.trace.ops` doesn't know.

    >>> encoder = Encoder(module=torch.nn.Linear(4, 2), name="toy")
    >>> encoder.name
    'toy'
    """

    module: Callable[[Tensor], Tensor]
    read: Callable[[Any], Tensor] | None = None
    rules: Any = None
    regions: Any = None
    name: str = ""
    picture: Callable[[Tensor], Any] | None = None
    layers: Callable[[Tape, int], int] | None = None
    operations: tuple[Op, ...] = ()

    def record(self, x: Tensor) -> Tape:
        """What the module does for x: `operations` come on top of the table of operations."""
        return record(self.module, x, operations=OPERATIONS.extended(*self.operations))


def as_encoder(given: Any) -> Encoder:
    """Wrap a module or callable; an Encoder stays as it is."""
    if isinstance(given, Encoder):
        return given
    if not callable(given):
        raise InputError(f"an encoder is a callable tensor -> tensor, got {type(given).__name__}")
    name = getattr(given, "__qualname__", None) or type(given).__qualname__
    module: Any = given
    return Encoder(module=module, name=name)


def read_input(encoder: Encoder, item: Any) -> Tensor:
    """The item as a checked input tensor: floating point, finite, a batch of one, on the model's device."""
    x = item
    if not isinstance(item, Tensor):
        if encoder.read is None:
            raise InputError(
                f"this encoder cannot read {type(item).__name__}: pass a tensor with a leading batch axis of 1, "
                "or an Encoder with read="
            )
        x = encoder.read(item)
    return check_input(x, encoder.module)


def check_input(x: Tensor, module: Any = None) -> Tensor:
    """Refuse inputs that would give a wrong number instead of an error."""
    if not x.dtype.is_floating_point:
        raise InputError(
            f"the input has dtype {x.dtype}; relevance needs numbers to share: pass floats (for token ids, embed them "
            "first and explain the model from inputs_embeds)"
        )
    if x.dim() < 2 or x.shape[0] != 1:
        raise InputError(
            f"the input has shape {tuple(x.shape)}; a leading batch axis of 1 is needed: explain one item at a time, "
            "x[None] or x[i:i+1]"
        )
    if x.numel() == 0:
        raise InputError(f"the input of shape {tuple(x.shape)} is empty")
    if x.layout != torch.strided:
        raise InputError("the input is sparse, and its zeros are features like any other: pass x.to_dense()")
    _same_device_and_dtype(x, module)
    _holds_numbers(x, module)
    if not bool(torch.isfinite(x).all()):
        raise InputError(
            f"the input has {int((~torch.isfinite(x)).sum())} NaN or infinite values: clean it first"
        )
    return x.detach()


def _holds_numbers(x: Tensor, module: Any) -> None:
    held = itertools.chain.from_iterable((*m.parameters(), *m.buffers()) for m in modules_of(module))
    if x.is_meta or any(t.is_meta for t in held):
        raise InputError(
            "the meta device holds no numbers, and the input or some weights are on it: load both for real"
        )


def _same_device_and_dtype(x: Tensor, module: Any) -> None:
    for parameter in itertools.chain.from_iterable(m.parameters() for m in modules_of(module)):
        if parameter.device != x.device:
            raise InputError(
                f"the model is on {parameter.device} and the input on {x.device}: move one, "
                f"e.g. x.to('{parameter.device.type}')"
            )
        if parameter.dtype.is_floating_point and parameter.dtype != x.dtype:
            raise InputError(
                f"the model's parameters are {parameter.dtype} and the input {x.dtype}: convert one, e.g. model.to(x.dtype)"
            )
        return


def ops(encoder: Any, x: Any, *, rules: Any = None) -> list[Row]:
    """Every step of the encoder's run at x, in order, as `decompose` would treat it: the rule, or what has none.

    Batch norm is folded and ReLUs are fused by then. A step that is only reached through frozen factors (the queries
    of an attention) is 'not needed'. Unlike `decompose`, this doesn't stop at the first step without a rule.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Softmax(dim=1))
    >>> [(row.op, row.rule) for row in ops(net, torch.ones(1, 4))]
    [('linear+relu', 'gamma(0.25)'), ('softmax', 'none')]
    """
    encoder = as_encoder(encoder)
    inputs = read_input(encoder, x)
    chosen = encoder.rules if rules is None else rules
    with torch.no_grad():
        tape = simplify(encoder.record(inputs))
        return rows(tape, default_book(tape) if chosen is None else as_book(chosen))
