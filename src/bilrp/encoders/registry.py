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

from bilrp.errors import BilrpError, InputError, reason

if TYPE_CHECKING:
    from bilrp.encoder import Encoder, Towers

SIZE = 128
Size = int | tuple[int, int] | Literal["original"]


@dataclass(frozen=True)
class Asked:
    """What somebody asked of an encoder beside its name; None: nothing, the encoder decides.

    `size` is a side, (height, width) or "original"; `pretrained=False` will do with random weights.
    """

    size: Size | None = None
    fit: str | None = None
    weights: str | None = None
    pretrained: bool = True
    progress: bool = False

    @property
    def pixels(self) -> int | tuple[int, int] | None:
        """The size of inputs; None: as they are."""
        return SIZE if self.size is None else None if self.size == "original" else self.size


@dataclass(frozen=True)
class Family:
    """One row of the table: `name:rest` is made by make(rest, asked); `takes` are the options that it listens to.

    A module without a reader of its own is given photographs: say takes=("size", "fit") then.

    >>> own = Family("mine", lambda rest, asked: __import__("torch").nn.Flatten(), "mine for vectors")
    >>> load("mine", families=(*FAMILIES, own)).name
    'mine'
    """

    name: str
    make: Callable[[str, Asked], Any]
    help: str
    complete: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    plain: bool = (
        False  # listens only where what is made brings no reader: a function or module from anywhere
    )
    weights_in_name: bool = False  # the rest of its name is a file of weights


def _vgg(layer: str, asked: Asked) -> Encoder:
    from bilrp.encoders import images, vgg

    number = layer or str(vgg.LAYERS)
    if not (number.isascii() and number.isdecimal()):
        raise InputError(f"vgg16:{layer} is no layer: give a number from 1 to {vgg.LAYERS}, as in vgg16:31")
    weights = asked.weights if asked.pretrained else vgg.VGG16(int(number)).state_dict()
    return vgg.vgg16(
        int(number), weights=weights, size=asked.pixels, fit=asked.fit or images.FIT, progress=asked.progress
    )


def _bigram(weights: str, asked: Asked) -> Encoder:
    from bilrp.encoders.bigram import bigram

    return bigram(weights or None)


def _minilm(rest: str, asked: Asked) -> Encoder:
    from bilrp.encoders.sentence_encoder import sentence

    if rest:
        raise InputError(f"minilm:{rest}: minilm stands alone; a folder of your own is sentence:{rest}")
    return sentence("minilm", progress=asked.progress)


def _sentence(folder: str, asked: Asked) -> Encoder:
    from bilrp.encoders.sentence_encoder import sentence

    if not folder:
        raise InputError("sentence needs a folder, as in sentence:FOLDER; minilm is the one that is fetched")
    return sentence(folder, progress=asked.progress)


def _vision(folder: str, asked: Asked) -> Encoder:
    from bilrp.encoders.hf_vision import vision

    if not folder:
        raise InputError("vision needs a folder, as in vision:FOLDER; mobilenet is one that is fetched")
    return vision(folder)


def _clip(folder: str, asked: Asked) -> Towers:
    from bilrp.encoders.hf_clip import clip

    if not folder:
        raise InputError("clip needs a folder, as in clip:FOLDER, with a model of pictures and texts")
    return clip(folder)


def _mobile(maker: str) -> Callable[[str, Asked], Encoder]:
    def make(rest: str, asked: Asked) -> Encoder:
        from bilrp.encoders import images, mobile_cnns

        if rest:
            raise InputError(f"{maker}:{rest}: {maker} stands alone; a folder of your own is vision:{rest}")
        made: Encoder = getattr(mobile_cnns, maker)(
            weights=asked.weights, size=asked.pixels, fit=asked.fit or images.FIT, pretrained=asked.pretrained,
            progress=asked.progress,
        )  # fmt: skip
        return made

    return make


FAMILIES = (
    Family(
        "vgg16", _vgg, "vgg16:LAYER (1 … 31) for photographs",
        complete=tuple(f"vgg16:{layer}" for layer in (5, 10, 17, 24, 31)), takes=("size", "fit", "weights"),
    ),
    Family(
        "bigram", _bigram, "bigram (or bigram:WEIGHTS) for scanned tables of digits", complete=("bigram",),
        weights_in_name=True,
    ),
    Family("minilm", _minilm, "minilm for texts", complete=("minilm",)),
    Family("sentence", _sentence, "sentence:FOLDER for texts by a model of your own", complete=("sentence:",)),
    Family(
        "mobilenet", _mobile("mobilenet"), "mobilenet (MobileNetV2) or efficientnet (EfficientNet-Lite0) for photographs",
        complete=("mobilenet",), takes=("size", "fit", "weights"),
    ),
    Family("efficientnet", _mobile("efficientnet"), "", complete=("efficientnet",), takes=("size", "fit", "weights")),
    Family("vision", _vision, "vision:FOLDER for photographs by a model of your own", complete=("vision:",)),
    Family("clip", _clip, "clip:FOLDER for a picture and a text", complete=("clip:",)),
)  # fmt: skip

OWN = "package.module:function (or :function:ARGUMENT) that returns a bilrp.Encoder or an nn.Module"
HELP = f"{'; '.join(family.help for family in FAMILIES if family.help)}; or your own, {OWN}"


def completions(incomplete: str, families: tuple[Family, ...] = FAMILIES) -> list[str]:
    """Names of encoders that begin so.

    >>> completions("vgg16:1")
    ['vgg16:10', 'vgg16:17']
    """
    return [name for family in families for name in family.complete if name.startswith(incomplete)]


def is_known(name: str) -> bool:
    """Does a family of the table make it? Another name imports what it says: only its own user may ask for that.

    >>> is_known("vgg16:17"), is_known("os:system")
    (True, False)
    """
    return _family(name, FAMILIES) is not None


def load_stored(name: str, options: object, *, weights: str | None = None) -> Encoder:
    """The encoder whose name and options were read from a file that may come from anybody: nothing is imported for it.

    Args:
        name: of a family of the table; a folder in it is read as any model's folder, without running anything of it.
        options: `size` and `fit` as JSON holds them, see `read_options`.
        weights: a file of weights that the user gives; one that is stored is never followed.

    >>> load_stored("os:system", {})
    Traceback (most recent call last):
    bilrp.errors.InputError: os:system is no encoder of this program: give it yourself
    """
    family, (_, _, rest) = _family(name, FAMILIES), name.partition(":")
    if family is None or (family.weights_in_name and rest):
        raise InputError(f"{name} is no encoder of this program: give it yourself")
    return _one(_build(family, rest, name, Asked(weights=weights, **read_options(options)), FAMILIES), name)


def read_options(stored: object) -> dict[str, Any]:
    """The options of an encoder as JSON holds them, checked; a file of weights is left out, as none is followed.

    >>> read_options({"size": [64, 48], "fit": "crop", "weights": "vgg16.pth"})
    {'size': (64, 48), 'fit': 'crop'}
    """
    from bilrp.encoders import images

    if not isinstance(stored, dict) or not set(stored) <= {"size", "fit", "weights"}:
        raise InputError("stored options of an encoder are size, fit and weights, and these alone")
    size = stored.get("size", "original")
    sides = size if isinstance(size, list) else [size, size]
    whole = len(sides) == 2 and all(type(side) is int and side >= 1 for side in sides)
    if size != "original" and not (whole and sides[0] * sides[1] <= images.MOST_OF_AN_INPUT):
        raise InputError(
            "the stored size of an encoder's inputs is a side in pixels, two of them or original"
        )
    if stored.get("fit", images.FIT) not in images.FITS:
        raise InputError(f"the stored fit of an encoder is one of {', '.join(images.FITS)}")
    if not isinstance(stored.get("weights", ""), str):
        raise InputError("the stored weights of an encoder are the name of a file")
    options = {name: stored[name] for name in ("size", "fit") if name in stored}
    return options | ({"size": tuple(size)} if isinstance(size, list) else {})


def load(
    name: str,
    *,
    size: Size | None = None,
    fit: str | None = None,
    weights: str | None = None,
    pretrained: bool = True,
    progress: bool = False,
    families: tuple[Family, ...] = FAMILIES,
) -> Encoder:
    """The encoder of that name; an option that it would not listen to is an error. Two towers are none: see `named`.

    A module without a reader of its own gets images as RGB with ImageNet's mean and standard deviation.

    >>> load("torch.nn:Identity").name
    'torch.nn:Identity'
    """
    made = named(
        name, size=size, fit=fit, weights=weights, pretrained=pretrained, progress=progress, families=families
    )
    return _one(made, name)


def _one(made: Encoder | Towers, name: str) -> Encoder:
    if not hasattr(made, "module"):
        raise InputError(f"{name} reads pictures and texts by two encoders, and one is needed here")
    return cast("Encoder", made)


def named(
    name: str,
    *,
    size: Size | None = None,
    fit: str | None = None,
    weights: str | None = None,
    pretrained: bool = True,
    progress: bool = False,
    families: tuple[Family, ...] = FAMILIES,
) -> Encoder | Towers:
    """What `load` gives, or the two towers of that name."""
    family, (_, _, rest) = _family(name, families), name.partition(":")
    if family is None:
        family, rest = _own(name, families)
    return _build(family, rest, name, Asked(size, fit, weights, pretrained, progress), families)


def _family(name: str, families: tuple[Family, ...]) -> Family | None:
    """The family of the table that makes this name."""
    return next((family for family in families if family.name == name.partition(":")[0]), None)


def _build(
    family: Family, rest: str, name: str, asked: Asked, families: tuple[Family, ...]
) -> Encoder | Towers:
    from bilrp.encoder import Towers
    from bilrp.encoders import images

    images.check_fit(asked.fit or images.FIT)
    _listens(family, name, asked, families)
    made = _made(family, rest, name, asked)
    if isinstance(made, Towers):
        return made
    if made.read is not None:
        if family.plain:
            _listens(replace(family, takes=()), name, asked, families)
        return made
    reads = partial(images.item, size=asked.pixels, fit=asked.fit or images.FIT)
    return replace(made, read=reads, picture=made.picture or images.picture)


def _own(name: str, families: tuple[Family, ...]) -> tuple[Family, str]:
    """A function, class, encoder or Family in a module of one's own, as a family; what follows a second colon goes to it."""
    module, _, rest = name.partition(":")
    place, colon, argument = rest.partition(":")
    if not module or not place:
        known = "; ".join(family.help for family in families if family.help)
        like = completions(name, families)[-1:] if name else []  # the deepest layer, as by default
        meant = f"did you mean {like[0]}? Else " if like else ""
        raise InputError(f"unknown encoder {name!r}: {meant}give {known}; or your own, {OWN}")
    found = _find(module, place, name)
    if isinstance(found, Family):
        return found, argument
    given = (argument,) if colon else ()
    made = Family(
        f"{module}:{place}",
        lambda rest, asked: _call(found, name, given),
        OWN,
        takes=("size", "fit"),
        plain=True,
    )
    return made, argument


def _listens(family: Family, name: str, asked: Asked, families: tuple[Family, ...]) -> None:
    for option in ("size", "fit", "weights"):
        if getattr(asked, option) is not None and option not in family.takes:
            takers = ", ".join(other.name for other in families if option in other.takes)
            raise InputError(
                f"--{option} is for {takers or 'encoders that take it'}; {name} does not take it"
            )


def _made(family: Family, rest: str, name: str, asked: Asked) -> Encoder | Towers:
    from bilrp.encoder import Towers, as_encoder

    try:
        made = family.make(rest, asked)
    except BilrpError:
        raise
    except Exception as error:
        raise InputError(f"{name} raised {type(error).__name__}: {reason(error)}") from error
    if isinstance(made, Towers):
        return made if made.name else replace(made, name=name)
    if not callable(getattr(made, "module", made)):
        raise InputError(f"{name} returned {type(made).__name__}, not an encoder: give {OWN}")
    encoder = as_encoder(made)
    return encoder if encoder is made and encoder.name else replace(encoder, name=name)


def _find(module: str, place: str, name: str) -> Any:
    with _current_folder_first():
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"cannot import {module!r} for the encoder {name}: {error}") from error
    for part in place.split("."):
        if not hasattr(found, part):
            raise InputError(f"{module!r} has no {place!r}: give {OWN}")
        found = getattr(found, part)
    return found


def _call(found: Any, name: str, given: tuple[str, ...]) -> Any:
    """Functions and classes are called for their encoder; a ready-made one is taken as it is."""
    from torch import nn

    from bilrp.encoder import Encoder

    if isinstance(found, Encoder | nn.Module):
        return found
    if not callable(found):
        raise InputError(f"{name} is {type(found).__name__}, not a function: give {OWN}")
    try:
        return found(*given)
    except BilrpError:
        raise
    except TypeError as error:
        how = "called without arguments" if not given else f"called with {given[0]!r}"
        raise InputError(f"{name} failed: {reason(error)}; it is {how}") from error
    except Exception as error:
        raise InputError(f"{name}() raised {type(error).__name__}: {reason(error)}") from error


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """Let a script's neighbour be imported, as `python -m` does; the path is put back."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
