"""What a row of the table of operations says, and short ways to write one.

A row says what kind of call it is, how a region's mask passes it, whether it can be a gate or a scale in a product, and
which rule comes with it naturally, as a plain word: what the word means is the rules' business.

>>> activation("silu", factor="gate").rule
'frozen'
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from bilrp.errors import InputError

OpKind = Literal[
    "structural",  # only moves numbers about
    "identity",  # passes them on unchanged, but perhaps for type, device or memory
    "random",  # an identity once the model is in evaluation
    "arithmetic",  # elementwise, with a constant or another live tensor
    "reduction",  # sums and means
    "linear",  # linear in other ways
    "write",  # puts numbers into a tensor
    "product",  # products of matrices
    "weighted",  # linear layers and convolutions
    "activation",  # elementwise, sends 0 to 0
    "elementwise_nonzero",  # elementwise, doesn't send 0 to 0
    "softmax",  # numbers that sum to one
    "norm",  # centres and scales by what its input is
    "statistics",  # centres and scales by what other inputs were
    "attention",  # one call with queries, keys and values
    "fused",  # recorded as the calls that it is made of
    "select",  # passes a winner on
    "sort",  # passes on what comes first, second …
    "pool",  # passes a window's winner on
    "adaptive",  # the same, with windows by the size of the output
    "distance",  # quadratic in its input: lengths and distances
    "nonlinear",  # nonlinear in all its input at once
    "recurrent",  # a whole recurrent network in one call
    "like",  # a tensor of the input's shape or type, not of its values: a constant of the run
    "host_read",  # reads numbers out of torch: what happens to them next cannot be seen
    "overwrite",  # x[...] = y
    "iteration",  # for row in x
    "grad_mode",  # a setting of torch, not a call on tensors
    "unknown",  # not in the table
]
Mask = Literal[
    "moves", "keeps", "stops"
]  # what becomes of a region's 0/1 mask: moved along, passed on, ended
Factor = Literal["scale", "gate", "attention"]  # what a factor of a product is, if this made it
DefaultRule = Literal["linear", "gate", "frozen", "clamp", "select", "product", "quotient"]
ELEMENTWISE = {
    "identity",
    "random",
    "arithmetic",
    "activation",
    "elementwise_nonzero",
}  # kinds: each output from one place


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its position, the names it goes by, and what it is where it isn't given."""

    position: int
    names: tuple[str, ...]
    default: Any = None

    def get(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the call was given for it.

        >>> Argument(1, ("p",), 0.5).of(("x",), {"p": 0.1})
        0.1
        """
        if self.position < len(args):
            return args[self.position]
        return next((kwargs[name] for name in self.names if name in kwargs), self.default)


@dataclass(frozen=True)
class ArgPositions:
    """Where a weighted call keeps what: its input, its weights (as columns, for x @ W), its bias."""

    input: Argument
    weight: Argument
    bias: Argument | None = None
    columns: bool = False
    conv_type: Literal["", "convolution", "transposed"] = ""


@dataclass(frozen=True)
class Op:
    """One row of the table.

    `also` are other names for it, `inplace` Python's operators that write. `live` says in which of its operands it is
    linear: in "all" of them together (`sums`, where it is their plain sum) or in any "one" (a product); `fixed` are
    arguments it is not linear in.
    `active` are arguments that make it random or dependent on the batch when all of them are on. `adds` is the argument
    that makes a write add to what is there. `again` is the Tensor method a step is run again by, `axis` the argument an
    order goes along, `axes` the number of a window's axes. `lends`: its second tensor lends a shape or a type, no numbers.
    `checked` asks for torch's derivatives to be tried against each other before they are trusted.
    """

    name: str
    kind: OpKind
    aliases: tuple[str, ...] = ()
    inplace_aliases: tuple[str, ...] = ()
    rule: DefaultRule | None = None
    mask: Mask = "stops"
    factor: Factor | None = None
    linear_in: Literal["all", "one"] = "all"
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


@dataclass(frozen=True)
class OperationTable:
    """Rows, found by any of their names; of two rows with one name the later counts."""

    ops: tuple[Op, ...]

    @cached_property
    def _by_name(self) -> dict[str, Op]:
        return {name: row for row in self.ops for name in (row.name, *row.aliases, *row.inplace_aliases)}

    def find(self, name: str) -> Op:
        """The row of that name; a name that isn't in the table is a row of its own."""
        return self._by_name.get(name) or Op(name, "unknown", verify_derivative=True)

    def with_ops(self, *ops: Op) -> OperationTable:
        """The table with more rows, or with others in the place of some; names are those that `bilrp.ops` shows.

        Nobody vouches for torch's derivatives of these, so they are tried.

        >>> OperationTable((activation("elu"),)).extended(activation("erfcx")).find("erfcx").rule
        'frozen'
        """
        for row in ops:
            if not isinstance(row, Op):
                raise InputError(
                    f"operations are rows, as in operations=(activation('erfinv'),), got {row!r}"
                )
        return (
            OperationTable((*self.ops, *(replace(row, verify_derivative=True) for row in ops)))
            if ops
            else self
        )


def format_op(op: Op) -> str:
    """All that a row says, for the origin of what was made with it.

    >>> format_op(activation("erfinv", factor="scale"))
    "erfinv (kind='activation', rule='frozen', factor='scale')"
    """
    said = [(field.name, getattr(op, field.name)) for field in fields(op) if field.name != "name"]
    blank = Op(op.name, "unknown")
    return f"{op.name} ({', '.join(f'{name}={value!r}' for name, value in said if value != getattr(blank, name))})"


def structural(name: str, *aliases: str, **options: Any) -> Op:
    return Op(name, "structural", aliases, rule="linear", mask="moves", **options)


def identity(name: str, *aliases: str, **options: Any) -> Op:
    return Op(name, "identity", aliases, rule="linear", mask="moves", **options)


def dropout(name: str, training: bool = True) -> Op:
    chance = Argument(1, ("p",), 0.5), Argument(2, ("training", "train"), training)
    return Op(name, "random", rule="linear", mask="moves", training_args=chance)


def arithmetic(name: str, *aliases: str, **options: Any) -> Op:
    return Op(name, "arithmetic", aliases, mask="keeps", **{"rule": "linear", **options})


def reduction(name: str, *aliases: str) -> Op:
    return Op(name, "reduction", aliases, rule="linear")


def linear(name: str, *aliases: str, **options: Any) -> Op:
    return Op(name, "linear", aliases, rule="linear", **options)


def write(name: str, *aliases: str, accumulate_arg: Argument | None = None) -> Op:
    """With `adds`, two numbers may be put in one place: then one of them is lost, unless that argument adds them."""
    return Op(name, "write", aliases, rule="linear", accumulate_arg=accumulate_arg)


def product(name: str, *aliases: str, **options: Any) -> Op:
    """A product with one evident gate or scale freezes that; a sum with a product in it has to be told."""
    return Op(name, "product", aliases, linear_in="one", **{"rule": "product", **options})


def weighted(name: str, arg_positions: ArgPositions) -> Op:
    return Op(name, "weighted", rule="linear", linear_in="one", arg_positions=arg_positions)


def activation(name: str, *aliases: str, **options: Any) -> Op:
    """An elementwise function that sends 0 to 0.

    >>> activation("silu", factor="gate").rule
    'frozen'
    """
    return Op(name, "activation", aliases, **{"rule": "frozen", **options})


def elementwise_nonzero(name: str, *aliases: str, factor: Factor | None = None) -> Op:
    """An elementwise function that doesn't send 0 to 0: it has no rule of its own."""
    return Op(name, "elementwise_nonzero", aliases, factor=factor)


def norm(name: str) -> Op:
    return Op(name, "norm", rule="frozen")


def select(name: str, *aliases: str) -> Op:
    return Op(name, "select", aliases, rule="select")


def pool(name: str, window_dims: int, kind: Literal["pool", "adaptive"] = "pool") -> Op:
    return Op(name, kind, (f"{name}_with_indices",), rule="select", window_dims=window_dims)
