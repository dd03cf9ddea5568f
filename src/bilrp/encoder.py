"""Encoder: φ, tensor → embedding, with how to read an input, its default composite, regions and similarity."""

from __future__ import annotations

import logging
import mimetypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from bilrp import regions as region_specs
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Image, Item, Text, View, display_name
from bilrp.regions import Regions, RegionSpec
from bilrp.rules.composites import CompositeFunction, CompositeLike, as_composite, centered, composite_name
from bilrp.rules.default_composites import choose_composite
from bilrp.rules.freezing import prepare_tape
from bilrp.rules.rule_table import tabulate_rules
from bilrp.similarity import Similarity, similarity_name
from bilrp.trace.fingerprint import hash_code, hash_tensors
from bilrp.trace.intermediate_input import compute_module_output, run_from_module
from bilrp.trace.introspection import find_modules, list_named_weights, list_submodules
from bilrp.trace.operation import Op, format_op
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.recorder import record_unchecked
from bilrp.trace.replay import verify_tape
from bilrp.trace.step_summary import StepSummary
from bilrp.trace.tape import Tape

InputLike: TypeAlias = Tensor | Item | str | os.PathLike[str] | Pillow.Image | np.ndarray | object
"""An input: a tensor with a batch axis of 1, a path, a picture or a text; or whatever the `read` of the encoder accepts."""

log = logging.getLogger("bilrp")
MODEL_RUN_LOCK = threading.RLock()  # models may write to their own buffers, so threads run them one at a time
PROJECTION_SEED = 0  # one random projection for all inputs, so that their parts can be paired


@dataclass(frozen=True, eq=False)
class Encoder:
    """A model with how to read its inputs and its defaults; only `module` is required.

    Args:
        module: the model, tensor -> embedding.
        read: raw input -> tensor, or `Item` with an image or text to show.
        composite: the default rules; None chooses by the operations on the tape.
        regions: the default regions.
        name: stored in `origin`.
        to_image: input tensor -> image to show, bytes (height, width, 3).
        layers: (tape, n) -> number of the value of layer n, for `decompose(..., layers=[...])`.
        operations: rows for torch calls that `bilrp.trace.operation_table` does not list.
        embedding_space: encoders with the same name here can be compared (the two of an image-text model).
        input_layer: the module inside `module` whose output is explained, where the model's own input is token ids.
        similarity: the default similarity; None is "cosine".
        typical_inputs: unrelated inputs. With them the default rules are `composites.centered`: what all inputs share is
            told apart from what is specific to a pair.
        mean_embedding: the mean of the normalized embeddings of unrelated inputs, where it is known: as `typical_inputs`,
            without running them.
        reliability: returns the model's own confidence in each feature of an input, in [0, 1], shaped like the input
            without its batch axis; used where `reliability="own"` is asked for.

    >>> encoder = Encoder(module=torch.nn.Linear(4, 2), name="toy")
    >>> encoder.name
    'toy'
    """

    module: Callable[[Tensor], Tensor]
    read: Callable[[Any], Item | Tensor] | None = None
    composite: CompositeLike | None = None
    regions: RegionSpec | None = None
    name: str = ""
    to_image: Callable[[Tensor], np.ndarray] | None = None
    layers: Callable[[Tape, int], int] | None = None
    operations: tuple[Op, ...] = ()
    embedding_space: str | None = None
    input_layer: str | None = None
    similarity: str | Similarity | None = None
    typical_inputs: tuple[Any, ...] = ()
    mean_embedding: Tensor | None = None
    reliability: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.operations, Op | str):
            raise InputError("operations must be a tuple of rows: operations=(activation('erfinv'),)")

    def record(self, x: Tensor, model_input: Tensor | None = None) -> Tape:
        """Run the module at x and return the verified tape; `operations` extend the table of operations."""
        with MODEL_RUN_LOCK:
            tape = record_unchecked(self.forward_fn(model_input), x, OPERATIONS.with_ops(*self.operations))
            _ = tape.fingerprint  # under the lock: no other run may write to the model's buffers meanwhile
        verify_tape(tape)
        return tape

    def forward_fn(self, model_input: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """Return the function x -> embedding: the module, or the part of it after `input_layer`."""
        return (
            self.module
            if self.input_layer is None or model_input is None
            else run_from_module(self.module, self.input_layer, model_input)
        )


@dataclass(frozen=True, eq=False)
class DualEncoder:
    """Two encoders in one embedding space: `image` reads images, `text` reads texts.

    >>> pictures, texts = (Encoder(torch.nn.Linear(4, 2), name=n, embedding_space="toy") for n in ("pictures", "texts"))
    >>> DualEncoder(pictures, texts).encoder_for("a cat on a sofa").name
    'texts'
    """

    image: Encoder
    text: Encoder
    name: str = ""

    def __post_init__(self) -> None:
        check_embedding_space(self.image, self.text)

    def encoder_for(self, raw_input: InputLike) -> Encoder:
        """Return the encoder for an input: strings are texts unless they name an image file."""
        if isinstance(raw_input, Item):
            return self.text if isinstance(raw_input.view, Text) else self.image
        if isinstance(raw_input, Tensor):
            return self.image if raw_input.dim() == 4 else self.text
        return self.text if isinstance(raw_input, str) and not is_image_path(raw_input) else self.image


LiveObjects: TypeAlias = tuple[Any, Any] | tuple[Any, Any, Any]
"""A live model with what reads its inputs: (transformers model, tokenizer | image processor), (function, tokenizer),
(timm model, transform), or (open_clip model, preprocess, tokenizer)."""

EncoderLike: TypeAlias = Encoder | nn.Module | Callable[[Tensor], Tensor] | str | LiveObjects
"""An Encoder, a name as on the command line ("vgg16:31", "minilm"), an nn.Module, a callable tensor -> embedding, a live
SentenceTransformer or timm model, or live objects."""

EncoderOrPair: TypeAlias = EncoderLike | DualEncoder | tuple[EncoderLike, EncoderLike]
"""One encoder for both inputs, a DualEncoder, or one encoder for each input in one embedding space."""

LoadedEncoder: TypeAlias = Encoder | DualEncoder | nn.Module | Callable[[Tensor], Tensor]
"""What `load_named` returns: names are loaded, live objects are encoders."""


def is_image_path(text: str) -> bool:
    """Return whether a string names an image file; a name of a missing image file is an error."""
    kind = mimetypes.guess_type(text)[0] if len(text.split()) == 1 or os.path.isfile(text) else None
    if kind is None or not kind.startswith("image/"):
        return False
    if not os.path.isfile(text):
        raise InputError(f"{text}: no such image file")
    return True


def check_embedding_space(a: Encoder, b: Encoder) -> None:
    """Raise unless two encoders share an embedding space."""
    if a is not b and (a.embedding_space is None or a.embedding_space != b.embedding_space):
        raise MismatchError(
            f"{a.name or 'the first encoder'} and {b.name or 'the second'} do not share a space "
            f"({a.embedding_space} and {b.embedding_space}): only encoders trained together can be compared; "
            "give both the same embedding_space="
        )


def encoder_specific_keys(a: Mapping[str, object], b: Mapping[str, object]) -> set[str]:
    """Return the keys of `origin` that may differ between two encoders of one embedding space."""
    same_encoder = all(a.get(key) == b.get(key) for key in ("encoder", "weights"))
    same_space = a.get("space") is not None and a.get("space") == b.get("space")
    return (
        {"code", "composite", "encoder", "operations", "weights"}
        if same_space and not same_encoder
        else set()
    )


def resolve_encoders(encoder_or_pair: EncoderOrPair, a: InputLike, b: InputLike) -> tuple[Encoder, Encoder]:
    """Return the encoder that reads a and the encoder that reads b.

    Args:
        encoder_or_pair: one encoder for both, a DualEncoder, or a tuple of two encoders in one embedding space.
        a, b: the inputs.
    """
    loaded = load_named(encoder_or_pair)
    if not isinstance(loaded, tuple):
        return encoder_for(loaded, a), encoder_for(loaded, b)
    first, second = map(as_encoder, loaded)
    check_embedding_space(first, second)
    return first, second


def encoder_for(encoder: EncoderLike | DualEncoder, x: InputLike) -> Encoder:
    """Return the encoder that reads x: of a DualEncoder, the one for images or the one for texts."""
    loaded = load_named(encoder)
    return loaded.encoder_for(x) if isinstance(loaded, DualEncoder) else as_encoder(loaded)  # type: ignore[arg-type]


def load_named(encoder: EncoderOrPair) -> LoadedEncoder | tuple[Any, Any]:
    """Load an encoder that is given by its name or as a live object; return anything else unchanged.

    Args:
        encoder: of a tuple of two encoders, each is loaded.
    """
    if isinstance(encoder, Encoder | DualEncoder):
        return encoder
    if isinstance(encoder, str):
        from bilrp.encoders.registry import load_for_call

        return load_for_call(encoder)
    from bilrp.encoders.live.recognition import adapt

    adapted = adapt(encoder)
    if adapted is not None:
        return adapted
    if not isinstance(encoder, tuple):
        return encoder
    if len(encoder) != 2:
        raise InputError(
            f"a tuple of encoders needs two, got {len(encoder)}: use explain((first, second), a, b); live objects are "
            "(model, tokenizer), (model, image processor) or (open_clip model, preprocess, tokenizer)"
        )
    first, second = (load_named(each) for each in encoder)
    return first, second


def as_encoder(model: EncoderLike) -> Encoder:
    """Load an encoder by name, or wrap a live object, module or callable; an Encoder is returned unchanged."""
    loaded = load_named(model)
    if isinstance(loaded, Encoder):
        return loaded
    if isinstance(loaded, DualEncoder):
        raise InputError(
            f"{loaded.name or 'this model'} is a pair of encoders for images and texts, but a single encoder is needed "
            "here: pass its .image or .text"
        )
    if not callable(loaded):
        raise InputError(
            f"an encoder is a name, a bilrp.Encoder or a callable tensor -> tensor, got {type(model).__name__}"
        )
    name = getattr(loaded, "__qualname__", None) or type(loaded).__qualname__
    return Encoder(module=loaded, name=name)


def read_item(encoder: Encoder, raw_input: InputLike, *, quiet: bool = False) -> Item:
    """Read and validate an input: float, finite, a batch of one, on the model's device.

    Args:
        encoder: its `read` converts anything but a tensor or an Item.
        raw_input: the input as the user passes it.
        quiet: leave the reader's notes in the item instead of logging them.
    """
    item = raw_input
    if not isinstance(item, Tensor | Item):
        if encoder.read is None:
            raise InputError(
                f"this encoder cannot read {type(item).__name__}: pass a tensor with a leading batch axis of 1, "
                "or an Encoder with read="
            )
        item = encoder.read(raw_input)
    item = Item(item) if isinstance(item, Tensor) else item
    if item.notes and not quiet:
        for note in item.notes.values():
            log.warning(note)
        item = replace(item, notes={})  # logged once
    if encoder.input_layer is not None and item.model_input is None:
        with MODEL_RUN_LOCK:
            item = replace(
                item, x=compute_module_output(encoder.module, encoder.input_layer, item.x), model_input=item.x
            )
    x = check_input(item.x, encoder.module)
    view = make_view(encoder, x) if item.view is None else item.view
    return replace(item, x=x, view=view, name=item.name or _display_name(raw_input))


def read_tensor(encoder: Encoder, raw_input: InputLike) -> Tensor:
    """Read and validate an input; return its tensor."""
    return read_item(encoder, raw_input).x


def choose_regions(encoder: Encoder, item: Item, spec: RegionSpec | None = None) -> Regions:
    """Return the regions by `spec`, else the item's own, else the encoder's, else the default of its shape.

    Args:
        encoder, item: the encoder, with default regions, and the input.
        spec: regions that the user asks for; None for the defaults.
    """
    chosen = next((each for each in (spec, item.regions, encoder.regions) if each is not None), None)
    return region_specs.resolve(chosen, item.x)


def describe_regions(encoder: Encoder, item: Item) -> str:
    """Return a text that identifies the encoder's regions: their kind, and for masks a hash."""
    kind, spec = choose_regions(encoder, item).kind, encoder.regions
    if item.regions is not None or kind != "labels" or spec is None:
        return kind
    if callable(spec):
        return f"{kind} {hash_code(spec)}"
    return f"{kind} {hash_tensors([choose_regions(encoder, item).labels])}"


def resolve_regions(encoder: Encoder, item: Item, spec: RegionSpec | None = None) -> tuple[Regions, Item]:
    """Return the regions, and the item with a view that has the same regions.

    Args:
        encoder, item: the encoder, with default regions, and the input.
        spec: regions as for `choose_regions`; for texts also a name ("words") or spans of characters.
    """
    if item.segment is None or spec is None:
        return choose_regions(encoder, item, spec), item
    regions, view = item.segment(
        spec if isinstance(spec, str | list) else choose_regions(encoder, item, spec)
    )
    return regions, replace(item, view=view)


def resolve_composite(
    encoder: Encoder, tape: Tape, composite: CompositeLike | None = None
) -> CompositeFunction:
    """Return the given composite, else the encoder's own, else the default for the operations on the tape.

    Args:
        encoder, tape: the encoder, with its default composite, and the recorded run.
        composite: the composite that the user asks for, or a rule for all weighted steps.
    """
    chosen = encoder.composite if composite is None else composite
    if chosen is not None:
        return as_composite(chosen)
    default = choose_composite(tape)
    return centered(default) if encoder.typical_inputs or encoder.mean_embedding is not None else default


def make_view(encoder: Encoder, x: Tensor) -> View | None:
    """Return the input as an image, by `Encoder.to_image` or scaled to 0 … 255; None if it is not an image."""
    if encoder.to_image is not None:
        return Image.from_image(np.asarray(encoder.to_image(x)))
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        return None
    image = x[0].float().expand(3, -1, -1).permute(1, 2, 0)
    low, high = image.min(), image.max()
    return Image.from_image(
        ((image - low) / (high - low).clamp(min=1e-12) * 255).round().byte().cpu().numpy()
    )


def _display_name(raw_input: InputLike) -> str:
    """Return a file's name; '' for texts and tensors."""
    if isinstance(raw_input, Path):
        return display_name(raw_input)
    try:
        return display_name(raw_input) if isinstance(raw_input, str) and os.path.isfile(raw_input) else ""
    except ValueError:  # a text with a NUL byte cannot be a path
        return ""


def check_input(x: Tensor, module: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return the input, detached; raise `InputError` unless it is a dense, finite batch of one that fits the model."""
    if not x.dtype.is_floating_point:
        raise InputError(
            f"the input has dtype {x.dtype}: pass floats (for token ids, embed them first and explain the model from "
            "inputs_embeds)"
        )
    if x.dim() < 2 or x.shape[0] != 1:
        raise InputError(
            f"the input has shape {tuple(x.shape)}; a leading batch axis of 1 is needed: explain one item at a time, "
            "x[None] or x[i:i+1]"
        )
    if x.numel() == 0:
        raise InputError(f"the input of shape {tuple(x.shape)} is empty")
    if x.layout != torch.strided:
        raise InputError("the input is a sparse tensor: pass x.to_dense()")
    weights = [weight for _, weight in list_named_weights(map(list_submodules, find_modules(module)))]
    _check_device_and_dtype(x, weights)
    if x.is_meta or any(t.is_meta for t in weights):
        raise InputError("the input or some weights are on the meta device, which has no values: load them")
    if not bool(torch.isfinite(x).all()):
        raise InputError(
            f"the input has {int((~torch.isfinite(x)).sum())} NaN or infinite values: clean it first"
        )
    return x.detach()


def _check_device_and_dtype(x: Tensor, weights: Iterable[Tensor]) -> None:
    """Raise unless x has the device and dtype of the first parameter."""
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


def ops(encoder: EncoderLike, x: InputLike, *, composite: CompositeLike | None = None) -> list[StepSummary]:
    """List the steps of the encoder's run at x with the rule that `decompose` would use, or 'none'.

    Batch norm is folded and ReLUs are fused. A step that is only reached through detached factors (the queries of an
    attention) is 'not needed'. Unlike `decompose`, this does not stop at the first step without a rule.

    Args:
        encoder: an encoder, a module, a callable, or a name.
        x: an input of the encoder.
        composite: the rules; None is the encoder's default.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Softmax(dim=1))
    >>> [(row.op, row.rule) for row in ops(net, torch.ones(1, 4))]
    [('linear+relu', 'gamma(0.25)'), ('softmax', 'none')]
    """
    encoder = as_encoder(encoder)
    item = read_item(encoder, x)
    with torch.no_grad():
        tape = encoder.record(item.x, item.model_input)
        chosen = resolve_composite(encoder, tape, composite)
        return tabulate_rules(prepare_tape(tape, chosen), chosen)


def diff_origins(ours: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """Return which keys of two origins differ and must not, as text; '' if they match.

    >>> diff_origins({"encoder": "a", "composite": "x"}, {"encoder": "b", "composite": "x"})
    'encoder (a and b)'
    """
    # Parts do not depend on the similarity (`resolve_similarity` refuses two defaults) nor on what scores are compared with.
    keys = sorted({*ours, *theirs} - encoder_specific_keys(ours, theirs) - {"similarity", "random_cosines"})
    return ", ".join(
        f"{key} ({ours.get(key)} and {theirs.get(key)})" for key in keys if ours.get(key) != theirs.get(key)
    )


def compute_origin(encoder: Encoder, item: Item) -> dict[str, str | None]:
    """Run the encoder once and return the origin of the item's decomposition."""
    with torch.no_grad():
        tape = encoder.record(item.x, item.model_input)
        return make_origin(encoder, tape, resolve_composite(encoder, tape), None)


def make_origin(
    encoder: Encoder, tape: Tape, composite: CompositeFunction, project: int | None
) -> dict[str, str | None]:
    """Return what identifies the parts of a run: encoder, weights, composite, projection, similarity, dtype.

    Args:
        encoder: the encoder.
        tape: the recorded run, whose fingerprint identifies the weights.
        composite: the rules.
        project: dimensions of the random projection; None without one.
    """
    return {
        "encoder": encoder.name,
        "weights": tape.fingerprint,
        # The code of a plain function; tensors that it closes over count as weights.
        "code": None if isinstance(encoder.module, nn.Module) else hash_code(encoder.module, tensors=False),
        "composite": composite_name(composite),
        "projection": None if project is None else f"{project} (seed {PROJECTION_SEED})",
        "similarity": similarity_name(encoder.similarity),
        "dtype": str(tape.result.dtype).removeprefix("torch."),
        **({} if encoder.embedding_space is None else {"space": encoder.embedding_space}),
        **({"operations": ", ".join(map(format_op, encoder.operations))} if encoder.operations else {}),
    }
