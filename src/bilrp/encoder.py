"""Encoder: φ, a callable tensor → embedding, with how to read an item, its default rules and regions."""

from __future__ import annotations

import logging
import mimetypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from bilrp import regions as region_specs
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Image, Item, Text, View, name_of
from bilrp.regions import Regions, RegionSpec
from bilrp.rules.composites import Rule, RuleBook, as_book, book_name
from bilrp.rules.default_composites import default_book
from bilrp.rules.freezing import readied
from bilrp.rules.rule_table import rows
from bilrp.trace.fingerprint import of_code, of_tensors
from bilrp.trace.step_summary import Row
from bilrp.trace.introspection import modules_of, named_weights, parts_of
from bilrp.trace.operation import Op, written_row
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.recorder import recorded
from bilrp.trace.replay import replay
from bilrp.trace.intermediate_input import running_from, value_at
from bilrp.trace.tape import Tape

if TYPE_CHECKING:
    Readable: TypeAlias = Any
    """Anything an encoder reads: a tensor with a batch axis of 1, an Item, a path, a picture, a text; its `read` decides."""

    Model: TypeAlias = "Encoder | Callable[[Tensor], Tensor]"
    """An Encoder, an nn.Module, or any callable tensor -> embedding."""

    Pairing: TypeAlias = "Model | Towers | tuple[Model, Model]"
    """What reads two things: one model for both, two towers, or a model each that share a space."""

    Rules: TypeAlias = RuleBook | Rule
    """A rule book (a function step -> rule), or one rule for every step with weights."""

    Operations: TypeAlias = tuple[Op, ...]
    """Rows for torch calls that the table of operations does not know, or treats otherwise."""
else:  # what is given is checked by those who take it, in words that say what to do
    Readable = Model = Pairing = Rules = Operations = Any

log = logging.getLogger("bilrp")
ONE_RUN = threading.RLock()  # a model may keep something on itself while it runs: threads run one at a time
SEED = 0  # of the random projection: the same for every input, or parts could not be paired


@dataclass(frozen=True, eq=False)
class Encoder:
    """What `explain` needs to know about a model; anything but `module` may be left out.

    `read(thing)` gives the input as a tensor, or as an `Item` with what people see. `layers(tape, n)`, where given, finds
    the value of layer n on a tape, for `decompose(..., layers=[...])`. Encoders of one `space` can be compared with each
    other (the two towers of an image-text model). `operations` are rows for torch calls that `bilrp.trace.operation_table` doesn't know.
    `start`, where given, names the module inside whose output is the input that is explained: what is read is then what
    the whole is called with (token numbers).

    >>> encoder = Encoder(module=torch.nn.Linear(4, 2), name="toy")
    >>> encoder.name
    'toy'
    """

    module: Callable[[Tensor], Tensor]
    read: Callable[[Readable], Item | Tensor] | None = None
    rules: Rules | None = None
    regions: RegionSpec | None = None
    name: str = ""
    picture: Callable[[Tensor], np.ndarray] | None = None
    layers: Callable[[Tape, int], int] | None = None
    operations: Operations = ()
    space: str | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.operations, Op | str):
            raise InputError(
                "operations are rows in a tuple, with its comma: operations=(activation('erfinv'),)"
            )

    def record(self, x: Tensor, given: Tensor | None = None) -> Tape:
        """What the module does for x: `operations` come on top of the table of operations."""
        with ONE_RUN:
            tape = recorded(self.running(given), x, OPERATIONS.extended(*self.operations))
            _ = tape.fingerprint  # while nobody else's run writes into the model's buffers
        replay(tape)
        return tape

    def running(self, given: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x ↦ embedding: the module itself, or from `start` on where it is called with something else."""
        return (
            self.module
            if self.start is None or given is None
            else running_from(self.module, self.start, given)
        )


@dataclass(frozen=True, eq=False)
class Towers:
    """Two encoders of one space: `image` reads pictures, `text` texts, and anything compares with anything.

    >>> pictures, texts = (Encoder(torch.nn.Linear(4, 2), name=n, space="toy") for n in ("pictures", "texts"))
    >>> Towers(pictures, texts).of("a cat on a sofa").name
    'texts'
    """

    image: Encoder
    text: Encoder
    name: str = ""

    def __post_init__(self) -> None:
        check_space(self.image, self.text)

    def of(self, thing: Readable) -> Encoder:
        """Who reads a thing: a path, a picture or the name of an existing image file is an image, any other string text."""
        if isinstance(thing, Item):
            return self.text if isinstance(thing.view, Text) else self.image
        if isinstance(thing, Tensor):
            return self.image if thing.dim() == 4 else self.text
        return self.text if isinstance(thing, str) and not names_image(thing) else self.image


def names_image(text: str) -> bool:
    """Does a string name an image file? One that looks as if it did, but names none, is an error and no text.

    >>> names_image("a cat on a sofa")
    False
    """
    kind = mimetypes.guess_type(text)[0] if len(text.split()) == 1 or os.path.isfile(text) else None
    if kind is None or not kind.startswith("image/"):
        return False
    if not os.path.isfile(text):
        raise InputError(f"{text}: no such image file")
    return True


def check_space(a: Encoder, b: Encoder) -> None:
    """Refuse two encoders that do not say that they share a space."""
    if a is not b and (a.space is None or a.space != b.space):
        raise MismatchError(
            f"{a.name or 'the first encoder'} and {b.name or 'the second'} do not share a space "
            f"({a.space} and {b.space}): only encoders trained together can be compared; say so with space=…"
        )


def own_to_towers(a: Mapping[str, Any], b: Mapping[str, Any]) -> set[str]:
    """What may differ between the origins of two encoders that share a space; nothing where they are one, or share none.

    >>> own_to_towers({"encoder": "a"}, {"encoder": "b"})
    set()
    """
    one = all(a.get(key) == b.get(key) for key in ("encoder", "weights"))
    apart = one or a.get("space") is None or a.get("space") != b.get("space")
    return set() if apart else {"code", "encoder", "operations", "rules", "weights"}


def sides_of(given: Pairing, a: Readable, b: Readable) -> tuple[Encoder, Encoder]:
    """Which encoder reads which of two things: one for both, a tower each, or one of a pair each."""
    if isinstance(given, Towers):
        return given.of(a), given.of(b)
    if not isinstance(given, tuple):
        encoder = as_encoder(given)
        return encoder, encoder
    if len(given) != 2:
        raise InputError(f"a pair of encoders has two, got {len(given)}: give explain((first, second), a, b)")
    first, second = map(as_encoder, given)
    check_space(first, second)
    return first, second


def as_encoder(given: Model) -> Encoder:
    """Wrap a module or callable; an Encoder stays as it is."""
    if isinstance(given, Encoder):
        return given
    if not callable(given):
        raise InputError(f"an encoder is a callable tensor -> tensor, got {type(given).__name__}")
    name = getattr(given, "__qualname__", None) or type(given).__qualname__
    return Encoder(module=given, name=name)


def read_item(encoder: Encoder, thing: Readable, *, quiet: bool = False) -> Item:
    """The one door for inputs: read, checked (floating point, finite, a batch of one, on the model's device), with a view.

    What the reader notes of it is logged; `quiet` leaves it in the item, for those who read many.

    >>> read_item(Encoder(torch.nn.Flatten()), torch.zeros(1, 3, 8, 8)).view.size
    (8, 8)
    """
    item = thing
    if not isinstance(item, Tensor | Item):
        if encoder.read is None:
            raise InputError(
                f"this encoder cannot read {type(item).__name__}: pass a tensor with a leading batch axis of 1, "
                "or an Encoder with read="
            )
        item = encoder.read(thing)
    item = Item(item) if isinstance(item, Tensor) else item
    if item.notes and not quiet:
        for note in item.notes.values():
            log.warning(note)
        item = replace(item, notes={})  # said once
    if encoder.start is not None and item.given is None:
        with ONE_RUN:
            item = replace(item, x=value_at(encoder.module, encoder.start, item.x), given=item.x)
    x = check_input(item.x, encoder.module)
    view = view_of(encoder, x) if item.view is None else item.view
    return replace(item, x=x, view=view, name=item.name or _name_of(thing))


def read_input(encoder: Encoder, thing: Readable) -> Tensor:
    """The thing as a checked input tensor, for those who need nothing else of it."""
    return read_item(encoder, thing).x


def regions_of(encoder: Encoder, item: Item, spec: RegionSpec | None = None) -> Regions:
    """The regions of an item: those asked for, else its own, else the encoder's, else the default of its shape."""
    chosen = next((given for given in (spec, item.regions, encoder.regions) if given is not None), None)
    return region_specs.resolve(chosen, item.x)


def name_regions(encoder: Encoder, item: Item) -> str:
    """The regions that an encoder gives its inputs, as a short text: other regions have another one.

    Their kind says everything of grids, words and the like; a mask is told from another by its numbers.

    >>> name_regions(Encoder(torch.nn.Flatten()), Item(torch.zeros(1, 3, 16, 16)))
    'grid(8)'
    """
    kind, spec = regions_of(encoder, item).kind, encoder.regions
    if item.regions is not None or kind != "labels" or spec is None:
        return kind
    if callable(spec):
        return f"{kind} {of_code(spec)}"
    return f"{kind} {of_tensors([regions_of(encoder, item).labels])}"


def placed(encoder: Encoder, item: Item, spec: RegionSpec | None = None) -> tuple[Regions, Item]:
    """The regions asked for, and the item with the view that goes with them: of a text, also 'words' or spans by name."""
    if item.cut is None or spec is None:
        return regions_of(encoder, item, spec), item
    regions, view = item.cut(spec if isinstance(spec, str | list) else regions_of(encoder, item, spec))
    return regions, replace(item, view=view)


def book_of(encoder: Encoder, tape: Tape, rules: Rules | None = None) -> RuleBook:
    """The rule book for a run of an encoder: the rules asked for, else its own, else the default for what is on the tape."""
    wanted = encoder.rules if rules is None else rules
    return default_book(tape) if wanted is None else as_book(wanted)


def view_of(encoder: Encoder, x: Tensor) -> View | None:
    """The input itself as a picture, as the encoder shows it; images without that are stretched to 0 … 255."""
    if encoder.picture is not None:
        return Image.of(np.asarray(encoder.picture(x)))
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        return None
    image = x[0].float().expand(3, -1, -1).permute(1, 2, 0)
    low, high = image.min(), image.max()
    return Image.of(((image - low) / (high - low).clamp(min=1e-12) * 255).round().byte().cpu().numpy())


def _name_of(thing: Readable) -> str:
    """A file's own name; texts and tensors have none."""
    try:
        is_file = isinstance(thing, Path) or (isinstance(thing, str) and os.path.isfile(thing))
    except ValueError:  # a text with a zero byte is no path
        return ""
    return name_of(thing) if is_file else ""


def check_input(x: Tensor, module: Callable[[Tensor], Tensor] | None = None) -> Tensor:
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
    weights = [weight for _, weight in named_weights(map(parts_of, modules_of(module)))]
    _same_device_and_dtype(x, weights)
    if x.is_meta or any(t.is_meta for t in weights):
        raise InputError(
            "the meta device holds no numbers, and the input or some weights are on it: load both for real"
        )
    if not bool(torch.isfinite(x).all()):
        raise InputError(
            f"the input has {int((~torch.isfinite(x)).sum())} NaN or infinite values: clean it first"
        )
    return x.detach()


def _same_device_and_dtype(x: Tensor, weights: Iterable[Tensor]) -> None:
    """As the first parameter."""
    for parameter in (weight for weight in weights if isinstance(weight, nn.Parameter)):
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


def ops(encoder: Model, x: Readable, *, rules: Rules | None = None) -> list[Row]:
    """Every step of the encoder's run at x, in order, as `decompose` would treat it: the rule, or what has none.

    Batch norm is folded and ReLUs are fused by then. A step that is only reached through frozen factors (the queries
    of an attention) is 'not needed'. Unlike `decompose`, this doesn't stop at the first step without a rule.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Softmax(dim=1))
    >>> [(row.op, row.rule) for row in ops(net, torch.ones(1, 4))]
    [('linear+relu', 'gamma(0.25)'), ('softmax', 'none')]
    """
    encoder = as_encoder(encoder)
    item = read_item(encoder, x)
    with torch.no_grad():
        tape = encoder.record(item.x, item.given)
        book = book_of(encoder, tape, rules)
        return rows(readied(tape, book), book)


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What differs between two origins and may not, in words; nothing where they are equal, or of one space.

    >>> differing({"encoder": "a", "rules": "x"}, {"encoder": "b", "rules": "x"})
    'encoder (a and b)'
    """
    keys = sorted({*ours, *theirs} - own_to_towers(ours, theirs))
    return ", ".join(
        f"{key} ({ours.get(key)} and {theirs.get(key)})" for key in keys if ours.get(key) != theirs.get(key)
    )


def origin_at(encoder: Encoder, item: Item) -> dict[str, Any]:
    """The origin that a decomposition of this item would have, from one run."""
    with torch.no_grad():
        tape = encoder.record(item.x, item.given)
        return origin_of(encoder, tape, book_of(encoder, tape), None)


def origin_of(encoder: Encoder, tape: Tape, book: RuleBook, project: int | None) -> dict[str, Any]:
    return {
        "encoder": encoder.name,
        "weights": tape.fingerprint,
        # What a plain function does besides using weights; tensors it holds are seen as weights where it uses them.
        "code": None if isinstance(encoder.module, nn.Module) else of_code(encoder.module, tensors=False),
        "rules": book_name(book),
        "projection": None if project is None else f"{project} (seed {SEED})",
        "dtype": str(tape.result.dtype).removeprefix("torch."),
        **({} if encoder.space is None else {"space": encoder.space}),
        **({"operations": ", ".join(map(written_row, encoder.operations))} if encoder.operations else {}),
    }
