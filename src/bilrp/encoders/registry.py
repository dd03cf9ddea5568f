"""Encoders by name: one table of families, one parser. `vgg16:31`, `bigram`, or your own `package.module:function`.

Nothing heavy is imported before an encoder is made, so that help and completion read the table for nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from bilrp.errors import BilrpError, InputError, describe_error

if TYPE_CHECKING:
    from bilrp.encoder import DualEncoder, Encoder

DEFAULT_SIZE_PIXELS = 128
Size = int | tuple[int, int] | Literal["original"]


@dataclass(frozen=True)
class EncoderOptions:
    """What somebody asked of an encoder beside its name; None: nothing, the encoder decides.

    `size` is a side, (height, width) or "original"; `pretrained=False` will do with random weights.
    """

    size: Size | None = None
    resize: str | None = None
    weights: str | None = None
    pretrained: bool = True
    progress: bool = False

    @property
    def input_size(self) -> int | tuple[int, int] | None:
        """The size of inputs; None: as they are."""
        return DEFAULT_SIZE_PIXELS if self.size is None else None if self.size == "original" else self.size


@dataclass(frozen=True)
class EncoderFamily:
    """One row of the table: `name:rest` is made by make(argument, options); `options` are the options that it listens to.

    A module without a reader of its own is given photographs: say options=("size", "resize") then.

    >>> own = EncoderFamily("mine", lambda argument, options: __import__("torch").nn.Flatten(), "mine for vectors")
    >>> load("mine", families=(*FAMILIES, own)).name
    'mine'
    """

    name: str
    make: Callable[[str, EncoderOptions], Any]
    help: str
    completions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_generic: bool = (
        False  # listens only where what is made brings no reader: a function or module from anywhere
    )
    weights_in_name: bool = False  # the rest of its name is a file of weights


def _make_vgg(layer: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders import images, vgg

    number = layer or str(vgg.NUM_LAYERS)
    if not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"vgg16:{layer} is no layer: give a number from 1 to {vgg.NUM_LAYERS}, as in vgg16:31"
        )
    weights = options.weights if options.pretrained else vgg.VGG16(int(number)).state_dict()
    return vgg.vgg16(
        int(number),
        weights=weights,
        size=options.input_size,
        resize=options.resize or images.DEFAULT_RESIZE,
        progress=options.progress,
    )


def _make_bigram(weights: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders.bigram import bigram

    return bigram(weights or None)


def _make_minilm(argument: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders.sentence_encoder import sentence

    if argument:
        raise InputError(
            f"minilm:{argument}: minilm stands alone; a folder of your own is sentence:{argument}"
        )
    return sentence("minilm", progress=options.progress)


def _make_sentence(folder: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders.sentence_encoder import sentence

    if not folder:
        raise InputError("sentence needs a folder, as in sentence:FOLDER; minilm is the one that is fetched")
    return sentence(folder, progress=options.progress)


def _make_vision(folder: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders.hf_vision import vision

    if not folder:
        raise InputError("vision needs a folder, as in vision:FOLDER; mobilenet is one that is fetched")
    return vision(folder)


def _make_clip(folder: str, options: EncoderOptions) -> DualEncoder:
    from bilrp.encoders.hf_clip import clip

    if not folder:
        raise InputError("clip needs a folder, as in clip:FOLDER, with a model of pictures and texts")
    return clip(folder)


def _mobile_maker(function_name: str) -> Callable[[str, EncoderOptions], Encoder]:
    def make(argument: str, options: EncoderOptions) -> Encoder:
        from bilrp.encoders import images, mobile_cnns

        if argument:
            raise InputError(
                f"{function_name}:{argument}: {function_name} stands alone; a folder of your own is vision:{argument}"
            )
        made: Encoder = getattr(mobile_cnns, function_name)(
            weights=options.weights, size=options.input_size, resize=options.resize or images.DEFAULT_RESIZE,
            pretrained=options.pretrained, progress=options.progress,
        )  # fmt: skip
        return made

    return make


FAMILIES = (
    EncoderFamily(
        "vgg16", _make_vgg, "vgg16:LAYER (1 … 31) for photographs",
        completions=tuple(f"vgg16:{layer}" for layer in (5, 10, 17, 24, 31)), options=("size", "resize", "weights"),
    ),
    EncoderFamily(
        "bigram", _make_bigram, "bigram (or bigram:WEIGHTS) for scanned tables of digits", completions=("bigram",),
        weights_in_name=True,
    ),
    EncoderFamily("minilm", _make_minilm, "minilm for texts", completions=("minilm",)),
    EncoderFamily("sentence", _make_sentence, "sentence:FOLDER for texts by a model of your own",
    completions=("sentence:",)),
    EncoderFamily(
        "mobilenet", _mobile_maker("mobilenet"),
        "mobilenet (MobileNetV2) or efficientnet (EfficientNet-Lite0) for photographs",
        completions=("mobilenet",), options=("size", "resize", "weights"),
    ),
    EncoderFamily("efficientnet", _mobile_maker("efficientnet"), "", completions=("efficientnet",),
    options=("size", "resize", "weights")),
    EncoderFamily("vision", _make_vision, "vision:FOLDER for photographs by a model of your own", completions=("vision:",)),
    EncoderFamily("clip", _make_clip, "clip:FOLDER for a picture and a text", completions=("clip:",)),
)  # fmt: skip

CUSTOM_ENCODER_HELP = (
    "package.module:function (or :function:ARGUMENT) that returns a bilrp.Encoder or an nn.Module"
)
ENCODER_HELP = (
    f"{'; '.join(family.help for family in FAMILIES if family.help)}; or your own, {CUSTOM_ENCODER_HELP}"
)


def complete_name(incomplete: str, families: tuple[EncoderFamily, ...] = FAMILIES) -> list[str]:
    """Names of encoders that begin so.

    >>> complete_name("vgg16:1")
    ['vgg16:10', 'vgg16:17']
    """
    return [name for family in families for name in family.completions if name.startswith(incomplete)]


def is_known(name: str) -> bool:
    """Does a family of the table make it? Another name imports what it says: only its own user may ask for that.

    >>> is_known("vgg16:17"), is_known("os:system")
    (True, False)
    """
    return _find_family(name, FAMILIES) is not None


def load_stored(name: str, options: object, *, weights: str | None = None) -> Encoder:
    """The encoder whose name and options were read from a file that may come from anybody: nothing is imported for it.

    Args:
        name: of a family of the table; a folder in it is read as any model's folder, without running anything of it.
        options: `size` and `resize` as JSON holds them, see `parse_stored_options`.
        weights: a file of weights that the user gives; one that is stored is never followed.

    >>> load_stored("os:system", {})
    Traceback (most recent call last):
    bilrp.errors.InputError: os:system is no encoder of this program: give it yourself
    """
    family, (_, _, rest) = _find_family(name, FAMILIES), name.partition(":")
    if family is None or (family.weights_in_name and rest):
        raise InputError(f"{name} is no encoder of this program: give it yourself")
    return _require_single_encoder(
        _build(
            family, rest, name, EncoderOptions(weights=weights, **parse_stored_options(options)), FAMILIES
        ),
        name,
    )


def parse_stored_options(stored_options: object) -> dict[str, Any]:
    """The options of an encoder as JSON holds them, checked; a file of weights is left out, as none is followed.

    >>> parse_stored_options({"size": [64, 48], "resize": "crop", "weights": "vgg16.pth"})
    {'size': (64, 48), 'resize': 'crop'}
    """
    from bilrp.encoders import images

    if not isinstance(stored_options, dict) or not set(stored_options) <= {"size", "resize", "weights"}:
        raise InputError("stored options of an encoder are size, resize and weights, and these alone")
    size = stored_options.get("size", "original")
    sides = size if isinstance(size, list) else [size, size]
    whole = len(sides) == 2 and all(type(side) is int and side >= 1 for side in sides)
    if size != "original" and not (whole and sides[0] * sides[1] <= images.MAX_INPUT_PIXELS):
        raise InputError(
            "the stored size of an encoder's inputs is a side in pixels, two of them or original"
        )
    if stored_options.get("resize", images.DEFAULT_RESIZE) not in images.RESIZE_MODES:
        raise InputError(f"the stored resize of an encoder is one of {', '.join(images.RESIZE_MODES)}")
    if not isinstance(stored_options.get("weights", ""), str):
        raise InputError("the stored weights of an encoder are the name of a file")
    options = {name: stored_options[name] for name in ("size", "resize") if name in stored_options}
    return options | ({"size": tuple(size)} if isinstance(size, list) else {})


def load(
    name: str,
    *,
    size: Size | None = None,
    resize: str | None = None,
    weights: str | None = None,
    pretrained: bool = True,
    progress: bool = False,
    families: tuple[EncoderFamily, ...] = FAMILIES,
) -> Encoder:
    """The encoder of that name; an option that it would not listen to is an error. Two towers are none: see
    `load_encoder_or_pair`.

    A module without a reader of its own gets images as RGB with ImageNet's mean and standard deviation.

    >>> load("torch.nn:Identity").name
    'torch.nn:Identity'
    """
    made = load_encoder_or_pair(
        name,
        size=size,
        resize=resize,
        weights=weights,
        pretrained=pretrained,
        progress=progress,
        families=families,
    )
    return _require_single_encoder(made, name)


def _require_single_encoder(encoder: Encoder | DualEncoder, name: str) -> Encoder:
    if not hasattr(encoder, "module"):
        raise InputError(f"{name} reads pictures and texts by two encoders, and one is needed here")
    return cast("Encoder", encoder)


def load_encoder_or_pair(
    name: str,
    *,
    size: Size | None = None,
    resize: str | None = None,
    weights: str | None = None,
    pretrained: bool = True,
    progress: bool = False,
    families: tuple[EncoderFamily, ...] = FAMILIES,
) -> Encoder | DualEncoder:
    """What `load` gives, or the two towers of that name."""
    family, (_, _, rest) = _find_family(name, families), name.partition(":")
    if family is None:
        family, rest = _import_family(name, families)
    return _build(family, rest, name, EncoderOptions(size, resize, weights, pretrained, progress), families)


def _find_family(name: str, families: tuple[EncoderFamily, ...]) -> EncoderFamily | None:
    """The family of the table that makes this name."""
    return next((family for family in families if family.name == name.partition(":")[0]), None)


def _build(
    family: EncoderFamily,
    argument: str,
    name: str,
    options: EncoderOptions,
    families: tuple[EncoderFamily, ...],
) -> Encoder | DualEncoder:
    from bilrp.encoder import DualEncoder
    from bilrp.encoders import images

    images.check_resize_mode(options.resize or images.DEFAULT_RESIZE)
    _check_options(family, name, options, families)
    made = _make_encoder(family, argument, name, options)
    if isinstance(made, DualEncoder):
        return made
    if made.read is not None:
        if family.is_generic:
            _check_options(replace(family, options=()), name, options, families)
        return made
    reads = partial(
        images.read_with_view, size=options.input_size, resize=options.resize or images.DEFAULT_RESIZE
    )
    return replace(made, read=reads, to_image=made.to_image or images.to_image)


def _import_family(name: str, families: tuple[EncoderFamily, ...]) -> tuple[EncoderFamily, str]:
    """A function, class, encoder or Family in a module of one's own, as a family; what follows a second colon goes to it."""
    module, _, rest = name.partition(":")
    place, colon, argument = rest.partition(":")
    if not module or not place:
        known = "; ".join(family.help for family in families if family.help)
        like = complete_name(name, families)[-1:] if name else []  # the deepest layer, as by default
        meant = f"did you mean {like[0]}? Else " if like else ""
        raise InputError(f"unknown encoder {name!r}: {meant}give {known}; or your own, {CUSTOM_ENCODER_HELP}")
    found = _import_object(module, place, name)
    if isinstance(found, EncoderFamily):
        return found, argument
    given = (argument,) if colon else ()
    made = EncoderFamily(
        f"{module}:{place}",
        lambda argument, options: _call_factory(found, name, given),
        CUSTOM_ENCODER_HELP,
        options=("size", "resize"),
        is_generic=True,
    )
    return made, argument


def _check_options(
    family: EncoderFamily, name: str, options: EncoderOptions, families: tuple[EncoderFamily, ...]
) -> None:
    for option in ("size", "resize", "weights"):
        if getattr(options, option) is not None and option not in family.options:
            takers = ", ".join(other.name for other in families if option in other.options)
            raise InputError(
                f"--{option} is for {takers or 'encoders that take it'}; {name} does not take it"
            )


def _make_encoder(
    family: EncoderFamily, argument: str, name: str, options: EncoderOptions
) -> Encoder | DualEncoder:
    from bilrp.encoder import DualEncoder, as_encoder

    try:
        made = family.make(argument, options)
    except BilrpError:
        raise
    except Exception as error:
        raise InputError(f"{name} raised {type(error).__name__}: {describe_error(error)}") from error
    if isinstance(made, DualEncoder):
        return made if made.name else replace(made, name=name)
    if not callable(getattr(made, "module", made)):
        raise InputError(f"{name} returned {type(made).__name__}, not an encoder: give {CUSTOM_ENCODER_HELP}")
    encoder = as_encoder(made)
    return encoder if encoder is made and encoder.name else replace(encoder, name=name)


def _import_object(module: str, attribute_path: str, name: str) -> Any:
    with _working_folder_on_path():
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"cannot import {module!r} for the encoder {name}: {error}") from error
    for part in attribute_path.split("."):
        if not hasattr(found, part):
            raise InputError(f"{module!r} has no {attribute_path!r}: give {CUSTOM_ENCODER_HELP}")
        found = getattr(found, part)
    return found


def _call_factory(factory: Any, name: str, arguments: tuple[str, ...]) -> Any:
    """Functions and classes are called for their encoder; a ready-made one is taken as it is."""
    from torch import nn

    from bilrp.encoder import Encoder

    if isinstance(factory, Encoder | nn.Module):
        return factory
    if not callable(factory):
        raise InputError(f"{name} is {type(factory).__name__}, not a function: give {CUSTOM_ENCODER_HELP}")
    try:
        return factory(*arguments)
    except BilrpError:
        raise
    except TypeError as error:
        how = "called without arguments" if not arguments else f"called with {arguments[0]!r}"
        raise InputError(f"{name} failed: {describe_error(error)}; it is {how}") from error
    except Exception as error:
        raise InputError(f"{name}() raised {type(error).__name__}: {describe_error(error)}") from error


@contextmanager
def _working_folder_on_path() -> Iterator[None]:
    """Let a script's neighbour be imported, as `python -m` does; the path is put back."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
