"""Entries of the table of operations, and functions that build them.

An entry says what kind of call an operation is, how a region's mask passes through it, whether it can be a gate or a
scale in a product, and the name of its default rule. `bilrp.rules` gives that name its meaning.

>>> activation("silu", factor="gate").rule
'frozen'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

from bilrp.errors import InputError

OpKind = Literal[
    "structural",  # only moves elements
    "identity",  # returns its input, possibly with another dtype, device or memory
    "random",  # an identity in eval mode
    "arithmetic",  # elementwise, with a constant or another live tensor
    "reduction",  # sums and means
    "linear",  # other linear functions
    "write",  # writes values into a tensor
    "product",  # matrix products
    "weighted",  # linear layers and convolutions
    "activation",  # elementwise, f(0) = 0
    "elementwise_nonzero",  # elementwise, f(0) ≠ 0
    "softmax",  # softmax and its variants
    "norm",  # normalizes by statistics of its input
    "statistics",  # normalizes by stored statistics
    "attention",  # one call on queries, keys and values
    "fused",  # recorded as the plain calls it consists of
    "select",  # maximum or minimum
    "sort",  # the k-th largest values
    "pool",  # maximum of each window
    "adaptive",  # the same, windows determined by the output size
    "distance",  # norms, variances and distances
    "nonlinear",  # other nonlinear functions of the whole input
    "recurrent",  # a whole recurrent network in one call
    "like",  # has the input's shape or dtype but not its values: a constant of the run
    "host_read",  # copies values out of torch, where they cannot be recorded
    "overwrite",  # x[...] = y
    "iteration",  # for row in x
    "grad_mode",  # a torch setting, not a call on tensors
    "unknown",  # not in the table
]
# A region's 0/1 mask is moved like the values, stays as it is, or cannot be followed further.
Mask = Literal["moves", "keeps", "stops"]
Factor = Literal["scale", "gate", "attention"]  # role of the result as a factor of a product
DefaultRule = Literal["linear", "gate", "frozen", "clamp", "select", "product", "quotient"]
ELEMENTWISE = {"identity", "random", "arithmetic", "activation", "elementwise_nonzero"}

# Kinds that draw no random numbers. Detecting them in a small call takes as long as the call.
DETERMINISTIC_KINDS = {
    "arithmetic",
    "reduction",
    "product",
    "weighted",
    "softmax",
    "norm",
    "structural",
    "identity",
}


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its position, its keyword names, and its default."""

    position: int
    names: tuple[str, ...]
    default: Any = None

    def get(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        """Return the value of the argument in a call."""
        if self.position < len(args):
            return args[self.position]
        return next((kwargs[name] for name in self.names if name in kwargs), self.default)


@dataclass(frozen=True)
class ArgPositions:
    """Where a weighted call takes its input, weights and bias; `columns`: x @ W instead of x @ W.T."""

    input: Argument
    weight: Argument
    bias: Argument | None = None
    columns: bool = False
    conv_type: Literal["", "convolution", "transposed"] = ""


@dataclass(frozen=True)
class Op:
    """One operation of the table.

    Args:
        name: torch's name, which composites match.
        kind: what the operation does.
        aliases: other names of the same operation.
        inplace_aliases: Python operators that compute it in place.
        rule: default rule.
        mask: how a region's mask passes through it.
        factor: role of its result as a factor of a product.
        linear_in: linear in all operands "jointly" (a sum), or in each of them "separately" (a product).
        is_sum: it is the plain sum of its operands.
        nonlinear_args: arguments it is not linear in.
        training_args: arguments that make it random or batch-dependent if all of them are true.
        arg_positions: where a weighted operation takes input, weights and bias.
        accumulate_arg: the argument that makes a write add to the existing values.
        replay_as: Tensor method that replays a step of this operation.
        dim_arg: the argument with the dimension to sort along.
        window_dims: number of dimensions of a pooling window.
        is_like_op: its second tensor provides only a shape or dtype.
        verify_derivative: compare torch's forward and backward derivatives before using them.
    """

    name: str
    kind: OpKind
    aliases: tuple[str, ...] = ()
    inplace_aliases: tuple[str, ...] = ()
    rule: DefaultRule | None = None
    mask: Mask = "stops"
    factor: Factor | None = None
    linear_in: Literal["jointly", "separately"] = "jointly"
    is_sum: bool = False
    nonlinear_args: tuple[Argument, ...] = ()
    training_args: tuple[Argument, ...] = ()
    arg_positions: ArgPositions | None = None
    accumulate_arg: Argument | None = None
    replay_as: str = ""
    dim_arg: Argument | None = None
    window_dims: int = 0
    is_like_op: bool = False
    verify_derivative: bool = False


class OpOptions(TypedDict, total=False):
    """Fields of `Op` that the functions below accept."""

    inplace_aliases: tuple[str, ...]
    factor: Factor | None
    linear_in: Literal["jointly", "separately"]
    arg_positions: ArgPositions | None
    is_sum: bool
    nonlinear_args: tuple[Argument, ...]
    training_args: tuple[Argument, ...]
    replay_as: str
    dim_arg: Argument | None
    is_like_op: bool


@dataclass(frozen=True)
class OperationTable:
    """Operations, looked up by any of their names; a later entry replaces an earlier one of the same name."""

    ops: tuple[Op, ...]

    @cached_property
    def _by_name(self) -> dict[str, Op]:
        return {name: op for op in self.ops for name in (op.name, *op.aliases, *op.inplace_aliases)}

    def find(self, name: str) -> Op:
        """Return the operation of that name, or a new one of kind "unknown"."""
        return self._by_name.get(name) or Op(name, "unknown", verify_derivative=True)

    def with_ops(self, *ops: Op) -> OperationTable:
        """Return the table with operations added or replaced; `bilrp.ops` shows their names.

        Torch's derivatives of these are verified when they are used.

        >>> OperationTable((activation("elu"),)).with_ops(activation("erfcx")).find("erfcx").rule
        'frozen'
        """
        for op in ops:
            if not isinstance(op, Op):
                raise InputError(
                    f"operations must be a tuple of Op, e.g. operations=(activation('erfinv'),), got {op!r}"
                )
        return (
            OperationTable((*self.ops, *(replace(op, verify_derivative=True) for op in ops))) if ops else self
        )


def format_op(op: Op) -> str:
    """Format an operation with its non-default fields, for the origin of a decomposition."""
    default = Op(op.name, "unknown")
    values = [(field.name, getattr(op, field.name)) for field in fields(op)]
    return f"{op.name} ({', '.join(f'{name}={value!r}' for name, value in values if value != getattr(default, name))})"


def structural(name: str, *aliases: str, **options: Unpack[OpOptions]) -> Op:
    """Describe an operation that only moves elements."""
    return Op(name, "structural", aliases, rule="linear", mask="moves", **options)


def identity(name: str, *aliases: str, **options: Unpack[OpOptions]) -> Op:
    """Describe an operation that returns its input, possibly with another dtype, device or memory."""
    return Op(name, "identity", aliases, rule="linear", mask="moves", **options)


def dropout(name: str, training: bool = True) -> Op:
    """Describe dropout, an identity in eval mode; `training` is the default of its `training` argument."""
    training_args = Argument(1, ("p",), 0.5), Argument(2, ("training", "train"), training)
    return Op(name, "random", rule="linear", mask="moves", training_args=training_args)


def arithmetic(
    name: str, *aliases: str, rule: DefaultRule | None = "linear", **options: Unpack[OpOptions]
) -> Op:
    """Describe elementwise arithmetic with a constant or another live tensor."""
    return Op(name, "arithmetic", aliases, mask="keeps", rule=rule, **options)


def reduction(name: str, *aliases: str) -> Op:
    """Describe a sum or mean."""
    return Op(name, "reduction", aliases, rule="linear")


def linear(name: str, *aliases: str, **options: Unpack[OpOptions]) -> Op:
    """Describe another linear function."""
    return Op(name, "linear", aliases, rule="linear", **options)


def write(name: str, *aliases: str, accumulate_arg: Argument | None = None) -> Op:
    """Describe a write; with `accumulate_arg` an index may repeat, and values are lost unless that argument adds them."""
    return Op(name, "write", aliases, rule="linear", accumulate_arg=accumulate_arg)


def product(
    name: str, *aliases: str, rule: DefaultRule | None = "product", arg_positions: ArgPositions | None = None
) -> Op:
    """Describe a product; its default rule detaches the gate or scale factor if there is exactly one.

    Args:
        name: Name of the torch call.
        aliases: Other names of it.
        rule: Name of its default rule.
        arg_positions: Where its operands are, if not first.
    """
    return Op(name, "product", aliases, linear_in="separately", rule=rule, arg_positions=arg_positions)


def weighted(name: str, arg_positions: ArgPositions) -> Op:
    """Describe a linear layer or convolution."""
    return Op(name, "weighted", rule="linear", linear_in="separately", arg_positions=arg_positions)


def activation(
    name: str,
    *aliases: str,
    rule: DefaultRule | None = "frozen",
    factor: Factor | None = None,
    inplace_aliases: tuple[str, ...] = (),
) -> Op:
    """Describe an elementwise function with f(0) = 0.

    Args:
        name, aliases, rule, factor, inplace_aliases: as for `Op`.

    >>> activation("silu", factor="gate").rule
    'frozen'
    """
    return Op(name, "activation", aliases, inplace_aliases, rule=rule, factor=factor)


def elementwise_nonzero(name: str, *aliases: str, factor: Factor | None = None) -> Op:
    """Describe an elementwise function with f(0) ≠ 0, which has no default rule."""
    return Op(name, "elementwise_nonzero", aliases, factor=factor)


def norm(name: str) -> Op:
    """Describe a normalization by statistics of the input."""
    return Op(name, "norm", rule="frozen")


def select(name: str, *aliases: str) -> Op:
    """Describe a maximum or minimum."""
    return Op(name, "select", aliases, rule="select")


def pool(name: str, window_dims: int, kind: Literal["pool", "adaptive"] = "pool") -> Op:
    """Describe a max-pooling.

    Args:
        name: torch's name.
        window_dims: number of dimensions of a window.
        kind: "adaptive" if the output size determines the windows.
    """
    return Op(name, kind, (f"{name}_with_indices",), rule="select", window_dims=window_dims)
