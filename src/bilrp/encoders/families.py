"""An encoder by its name on the command line: `vgg16:31`, or `package.module:function` that returns one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from bilrp.encoder import Encoder, as_encoder
from bilrp.errors import BilrpError, InputError, reason

HELP = (
    "vgg16:LAYER, bigram, bigram:WEIGHTS, minilm, sentence:FOLDER, or package.module:function that returns an "
    "encoder or an nn.Module"
)


def load(name: str, *, size: int | None = 128, pretrained: bool = True, progress: bool = False) -> Encoder:
    """The encoder of that name; `size` is the side of the images that VGG-16 reads.

    `pretrained=False` gives VGG-16 random weights, for questions that don't depend on them.

    >>> load("torch.nn:Identity").name
    'torch.nn:Identity'
    """
    family, _, rest = name.partition(":")
    if family == "vgg16":
        return _vgg(rest, size, pretrained, progress)
    if family == "bigram":
        from bilrp.encoders.bigram import bigram

        return bigram(rest or None)
    if family == "minilm" or (family == "sentence" and rest):
        from bilrp.encoders.sentences import sentence

        return sentence(rest or "minilm")
    if not family or not rest:
        raise InputError(f"unknown encoder {name!r}: give {HELP}")
    made: Any = _call(_find(family, rest, name), name)
    if not callable(getattr(made, "module", made)):
        raise InputError(f"{name} returned {type(made).__name__}, not an encoder: give {HELP}")
    encoder = as_encoder(made)
    return encoder if encoder is made and encoder.name else replace(encoder, name=name)


def _vgg(layer: str, size: int | None, pretrained: bool, progress: bool) -> Encoder:
    from bilrp.encoders import vgg

    number = layer or str(vgg.LAYERS)
    if not number.isdecimal():
        raise InputError(f"vgg16:{layer} is no layer: give a number from 1 to {vgg.LAYERS}, e.g. vgg16:31")
    random = None if pretrained else vgg.VGG16(int(number)).state_dict()
    return vgg.vgg16(int(number), weights=random, size=size, progress=progress)


def _find(module: str, function: str, name: str) -> Any:
    with _current_folder_first():
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"cannot import {module!r} for the encoder {name}: {error}") from error
    for part in function.split("."):
        if not hasattr(found, part):
            raise InputError(f"{module!r} has no {function!r}: give {HELP}")
        found = getattr(found, part)
    return found


def _call(found: Any, name: str) -> Any:
    """Functions and classes are called for their encoder; a ready-made one is taken as it is."""
    if isinstance(found, Encoder | nn.Module):
        return found
    if not callable(found):
        raise InputError(f"{name} is {type(found).__name__}, not a function: give {HELP}")
    try:
        return found()
    except BilrpError:
        raise
    except TypeError as error:
        raise InputError(f"{name}() failed: {error}; it is called without arguments") from error
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
