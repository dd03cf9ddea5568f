"""Encoders by name: `vgg16:31`, `bigram`, or your own `package.module:function`.

torch is imported only when an encoder is built, so that help and shell completion are fast.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from bilrp.errors import BilrpError, InputError, describe_error

if TYPE_CHECKING:
    from bilrp.encoder import DualEncoder, Encoder

DEFAULT_SIZE_PIXELS = 128
Size = int | tuple[int, int] | Literal["original"]


@dataclass(frozen=True)
class EncoderOptions:
    """Options of an encoder, as for `load`; None means the encoder's default."""

    size: Size | None = None
    resize: str | None = None
    weights: str | None = None
    pretrained: bool = True
    progress: bool = False

    @property
    def input_size(self) -> int | tuple[int, int] | None:
        """Return the input size for the image reader; None keeps the image's size."""
        return DEFAULT_SIZE_PIXELS if self.size is None else None if self.size == "original" else self.size


@dataclass(frozen=True)
class EncoderFamily:
    """A family of encoders: `name:argument` is built by make(argument, options).

    Args:
        name: the part of an encoder's name before the colon.
        make: builds the encoder; a module without a reader gets the image reader.
        help: one line for the command line's help.
        completions: names for shell completion.
        options: options it supports, such as ("size", "resize").
        is_generic: options apply only if the encoder has no reader.
        weights_in_name: the argument is a file of weights.
        reads: "images" or "texts", to check arguments before the encoder is loaded; None: both, or unknown.

    >>> own = EncoderFamily("mine", lambda argument, options: __import__("torch").nn.Flatten(), "mine for vectors")
    >>> load("mine", families=(*FAMILIES, own)).name
    'mine'
    """

    name: str
    make: Callable[[str, EncoderOptions], Any]
    help: str
    completions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_generic: bool = False
    weights_in_name: bool = False
    reads: Literal["images", "texts"] | None = None


def _make_vgg(layer: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders import images, vgg

    number = layer or str(vgg.NUM_LAYERS)
    if not (number.isascii() and number.isdecimal()):
        raise InputError(
            f"vgg16:{layer}: the layer must be a number from 1 to {vgg.NUM_LAYERS}, as in vgg16:31"
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
            f"minilm:{argument}: minilm takes no argument; for a model folder use sentence:{argument}"
        )
    return sentence("minilm", progress=options.progress)


def _make_sentence(folder: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders.sentence_encoder import sentence

    if not folder:
        raise InputError("sentence needs a folder, as in sentence:FOLDER; minilm is downloaded by its name")
    return sentence(folder, progress=options.progress)


def _make_vision(folder: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoders.hf_vision import vision

    if not folder:
        raise InputError("vision needs a folder, as in vision:FOLDER; mobilenet is downloaded by its name")
    return vision(folder)


def _make_clip(folder: str, options: EncoderOptions) -> DualEncoder:
    from bilrp.encoders.hf_clip import clip

    if not folder:
        raise InputError("clip needs a folder with an image-text model, as in clip:FOLDER")
    return clip(folder)


def _make_onnx(path: str, options: EncoderOptions) -> Encoder:
    from bilrp.encoder import Encoder
    from bilrp.encoders import images
    from bilrp.encoders.onnx_file import choose_size, load_onnx

    module, shape = load_onnx(path)
    options = choose_size(options, shape, f"onnx:{path}")
    read = partial(
        images.read_with_view, size=options.input_size, resize=options.resize or images.DEFAULT_RESIZE
    )
    return Encoder(module=module, read=read, to_image=images.to_image, name=f"onnx:{path}")


def _mobile_maker(function_name: str) -> Callable[[str, EncoderOptions], Encoder]:
    def make(argument: str, options: EncoderOptions) -> Encoder:
        from bilrp.encoders import images, mobile_cnns

        if argument:
            raise InputError(
                f"{function_name}:{argument}: {function_name} takes no argument; for a model folder use vision:{argument}"
            )
        size = mobile_cnns.TRAINED_SIDE_PIXELS if options.size is None else options.input_size
        return getattr(mobile_cnns, function_name)(
            weights=options.weights, size=size, resize=options.resize or images.DEFAULT_RESIZE,
            pretrained=options.pretrained, progress=options.progress,
        )  # fmt: skip

    return make


# Chosen by evidence: docs/vision.md compares the encoders for photographs.
DEFAULT_IMAGE_ENCODER = "efficientnet"
DEFAULT_TEXT_ENCODER = "minilm"
KEPT_NAMES = {"minilm", "mobilenet", "efficientnet", "bigram"}  # see `load_for_call`

FAMILIES = (
    EncoderFamily(
        "vgg16", _make_vgg, "vgg16:LAYER (1 … 31) for photographs, the paper's model; compares features at equal positions",
        completions=tuple(f"vgg16:{layer}" for layer in (5, 10, 17, 24, 31)), options=("size", "resize", "weights"),
        reads="images",
    ),
    EncoderFamily(
        "bigram", _make_bigram, "bigram (or bigram:WEIGHTS) for scanned tables of digits", completions=("bigram",),
        weights_in_name=True, reads="images",
    ),
    EncoderFamily("minilm", _make_minilm, "minilm for texts", completions=("minilm",), reads="texts"),
    EncoderFamily("sentence", _make_sentence, "sentence:FOLDER (a saved text model) for texts",
    completions=("sentence:",), reads="texts"),
    EncoderFamily(
        "mobilenet", _mobile_maker("mobilenet"),
        "efficientnet (EfficientNet-Lite0) or mobilenet (MobileNetV2) for photographs",
        completions=("mobilenet",), options=("size", "resize", "weights"), reads="images",
    ),
    EncoderFamily("efficientnet", _mobile_maker("efficientnet"), "", completions=("efficientnet",),
    options=("size", "resize", "weights"), reads="images"),
    EncoderFamily("vision", _make_vision, "vision:FOLDER (a saved image model) for photographs", completions=("vision:",),
    reads="images"),
    EncoderFamily("clip", _make_clip, "clip:FOLDER (an image-text model) for an image and a text", completions=("clip:",)),
    EncoderFamily("onnx", _make_onnx, "onnx:FILE (an image model, through onnx2torch)", completions=("onnx:",),
    options=("size", "resize"), reads="images"),
)  # fmt: skip

CUSTOM_ENCODER_HELP = (
    "package.module:function (or :function:ARGUMENT) that returns a bilrp.Encoder or an nn.Module"
)
ENCODER_HELP = (
    f"{'; '.join(family.help for family in FAMILIES if family.help)}; or your own, {CUSTOM_ENCODER_HELP}"
)


def complete_name(incomplete: str, families: tuple[EncoderFamily, ...] = FAMILIES) -> list[str]:
    """Return the names of encoders that begin with `incomplete`.

    >>> complete_name("vgg16:1")
    ['vgg16:10', 'vgg16:17']
    """
    return [name for family in families for name in family.completions if name.startswith(incomplete)]


def input_kind(name: str) -> Literal["images", "texts"] | None:
    """Return what the encoder of this name reads; None for both, or an encoder of the user's own.

    >>> input_kind("vgg16:17"), input_kind("minilm"), input_kind("mine:encoder")
    ('images', 'texts', None)
    """
    family = _find_family(name, FAMILIES)
    return None if family is None else family.reads


def is_known(name: str) -> bool:
    """Return whether a family of the table builds this encoder. Other names import user code.

    >>> is_known("vgg16:17"), is_known("os:system")
    (True, False)
    """
    return _find_family(name, FAMILIES) is not None


def load_stored(name: str, options: object, *, weights: str | None = None) -> Encoder:
    """Return the encoder with this stored name and options, which may be untrusted: no user code is imported.

    Args:
        name: must be of a family of the table; model folders are read without running their code.
        options: `size` and `resize` from JSON, see `parse_stored_options`.
        weights: file of weights from the user; a stored one is ignored.
    """
    family, (_, _, rest) = _find_family(name, FAMILIES), name.partition(":")
    if family is None or (family.weights_in_name and rest):
        raise InputError(f"{name} is not a built-in encoder: pass the encoder explicitly")
    return _require_single_encoder(
        _build(
            family, rest, name, EncoderOptions(weights=weights, **parse_stored_options(options)), FAMILIES
        ),
        name,
    )


class StoredOptions(TypedDict, total=False):
    """Options of an encoder that a collection stores and that are used again."""

    size: Size
    resize: str


def parse_stored_options(stored_options: object) -> StoredOptions:
    """Validate an encoder's options from JSON, and return them without `weights`, which is ignored.

    >>> parse_stored_options({"size": [64, 48], "resize": "crop", "weights": "vgg16.pth"})
    {'size': (64, 48), 'resize': 'crop'}
    """
    from bilrp.encoders import images

    if not isinstance(stored_options, dict) or not set(stored_options) <= {"size", "resize", "weights"}:
        raise InputError("the stored options of an encoder can only be size, resize and weights")
    size = stored_options.get("size", "original")
    sides = size if isinstance(size, list) else [size, size]
    is_valid = len(sides) == 2 and all(type(side) is int and side >= 1 for side in sides)
    if size != "original" and not (is_valid and sides[0] * sides[1] <= images.MAX_INPUT_PIXELS):
        raise InputError(
            "the stored size of an encoder must be a side in pixels, [height, width] or 'original'"
        )
    if stored_options.get("resize", images.DEFAULT_RESIZE) not in images.RESIZE_MODES:
        raise InputError(f"the stored resize of an encoder must be one of {', '.join(images.RESIZE_MODES)}")
    if not isinstance(stored_options.get("weights", ""), str):
        raise InputError("the stored weights of an encoder must be a file name")
    options: StoredOptions = {}
    if "size" in stored_options:
        options["size"] = (sides[0], sides[1]) if isinstance(size, list) else size
    if "resize" in stored_options:
        options["resize"] = stored_options["resize"]
    return options


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
    """Return the encoder with this name, as on the command line; for image-text models see `load_encoder_or_pair`.

    A module without a reader gets RGB images, normalised by ImageNet's mean and standard deviation.

    Args:
        name: such as "vgg16:31", "minilm", "vision:FOLDER" or "package.module:function".
        size: side of the input in pixels, (height, width) or "original".
        resize: "crop", "pad" or "stretch".
        weights: file of weights.
        pretrained: False for random weights.
        progress: show a progress bar while downloading.
        families: table of known encoders.

    >>> load("torch.nn:Identity").name
    'torch.nn:Identity'
    """
    encoder = load_encoder_or_pair(
        name,
        size=size,
        resize=resize,
        weights=weights,
        pretrained=pretrained,
        progress=progress,
        families=families,
    )
    return _require_single_encoder(encoder, name)


def _require_single_encoder(encoder: Encoder | DualEncoder, name: str) -> Encoder:
    if not hasattr(encoder, "module"):
        raise InputError(
            f"{name} is a pair of encoders for images and texts, but a single encoder is needed here"
        )
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
    """Return the encoder with this name, or the pair of encoders of an image-text model.

    Args:
        name, size, resize, weights, pretrained, progress, families: as for `load`.
    """
    family, (_, _, rest) = _find_family(name, families), name.partition(":")
    if family is None:
        family, rest = _import_family(name, families)
    return _build(family, rest, name, EncoderOptions(size, resize, weights, pretrained, progress), families)


def load_for_call(name: str) -> Encoder | DualEncoder:
    """Return the encoder that a call names; the last downloaded ones are kept, so that the next call need not load them.

    Folders and functions of the user's own are loaded each time: they may have changed.
    """
    if name in KEPT_NAMES or name.startswith("vgg16:"):
        from bilrp.encoders.downloads import cache_folder

        return _load_kept(name, cache_folder())
    return load_encoder_or_pair(name)


@lru_cache(maxsize=2)
def _load_kept(name: str, _folder: Path) -> Encoder | DualEncoder:
    return load_encoder_or_pair(name)


def _find_family(name: str, families: tuple[EncoderFamily, ...]) -> EncoderFamily | None:
    """Return the family that builds this encoder, or None."""
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
    encoder = _make_encoder(family, argument, name, options)
    if isinstance(encoder, DualEncoder):
        return encoder
    if encoder.read is not None:
        if family.is_generic:
            _check_options(replace(family, options=()), name, options, families)
        return encoder
    read = partial(
        images.read_with_view, size=options.input_size, resize=options.resize or images.DEFAULT_RESIZE
    )
    return replace(encoder, read=read, to_image=encoder.to_image or images.to_image)


def _import_family(name: str, families: tuple[EncoderFamily, ...]) -> tuple[EncoderFamily, str]:
    """Import a user's function, class, encoder or EncoderFamily; return it as a family, with its argument."""
    module, _, rest = name.partition(":")
    attribute_path, colon, argument = rest.partition(":")
    if name and Path(name).is_dir():
        raise InputError(
            f"{name} is a folder: name what reads it, as in {_suggest_family(Path(name))}:{name}"
        )
    if not module or not attribute_path:
        known = "; ".join(family.help for family in families if family.help)
        similar = complete_name(name, families)[-1:] if name else []  # the last layer, as by default
        hint = f"did you mean {similar[0]}? Else " if similar else ""
        raise InputError(f"unknown encoder {name!r}: {hint}give {known}; or your own, {CUSTOM_ENCODER_HELP}")
    factory = _import_object(module, attribute_path, name)
    if isinstance(factory, EncoderFamily):
        return factory, argument
    arguments = (argument,) if colon else ()
    family = EncoderFamily(
        f"{module}:{attribute_path}",
        lambda argument, options: _call_factory(factory, name, arguments),
        CUSTOM_ENCODER_HELP,
        options=("size", "resize"),
        is_generic=True,
    )
    return family, argument


def _suggest_family(folder: Path) -> str:
    """Return the family that reads a folder of a saved model, judged by the files of its tokenizer and image processor."""
    has_images = (folder / "preprocessor_config.json").is_file()
    has_texts = any(
        (folder / file).is_file() for file in ("tokenizer_config.json", "tokenizer.json", "vocab.txt")
    )
    return "clip" if has_images and has_texts else "vision" if has_images else "sentence"


def _check_options(
    family: EncoderFamily, name: str, options: EncoderOptions, families: tuple[EncoderFamily, ...]
) -> None:
    for option in ("size", "resize", "weights"):
        if getattr(options, option) is not None and option not in family.options:
            supported_by = ", ".join(other.name for other in families if option in other.options)
            raise InputError(
                f"--{option} is for {supported_by or 'encoders that take it'}; {name} does not take it"
            )


def _make_encoder(
    family: EncoderFamily, argument: str, name: str, options: EncoderOptions
) -> Encoder | DualEncoder:
    from bilrp.encoder import DualEncoder, as_encoder, load_named

    try:
        result = family.make(argument, options)
    except BilrpError:
        raise
    except Exception as error:
        raise InputError(f"{name} raised {type(error).__name__}: {describe_error(error)}") from error
    if isinstance(result, tuple):  # live objects, such as (model, tokenizer)
        result = load_named(result)
    if isinstance(result, DualEncoder):
        return result if result.name else replace(result, name=name)
    if not callable(getattr(result, "module", result)):
        raise InputError(
            f"{name} returned {type(result).__name__}, not an encoder: give {CUSTOM_ENCODER_HELP}"
        )
    encoder = as_encoder(result)
    return encoder if encoder is result and encoder.name else replace(encoder, name=name)


def _import_object(module: str, attribute_path: str, name: str) -> Any:
    with _working_folder_on_path():
        try:
            value: Any = importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"cannot import {module!r} for the encoder {name}: {error}") from error
    for part in attribute_path.split("."):
        if not hasattr(value, part):
            raise InputError(f"{module!r} has no {attribute_path!r}: give {CUSTOM_ENCODER_HELP}")
        value = getattr(value, part)
    return value


def _call_factory(factory: Any, name: str, arguments: tuple[str, ...]) -> Any:
    """Call a function or class for its encoder; return an encoder or module unchanged."""
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
    """Make modules of the current folder importable, as `python -m` does, and restore sys.path."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
