"""What a collection says of itself: made once, and checked whenever it is read, as it may come from anybody."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bilrp.collection import tables
from bilrp.encoder import Encoder, compute_origin, describe_regions, diff_origins
from bilrp.encoders import registry
from bilrp.errors import InputError, MismatchError, wrap_errors
from bilrp.inputs import Item

MAX_DESCRIPTION_BYTES = 2**20  # of a description
MAX_TEXT_CHARACTERS = 2**16  # of a text in it
REINDEX_HINT = "index it again under another name"


def describe(encoder: Encoder, item: Item, *, width: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a new collection says of itself, from one run of its encoder.

    Args:
        width: coordinates of an embedding.
        options: what else the encoder's name needs to make it again (size, resize; weights are named, never followed).
    """
    made = {"version": tables.FORMAT_VERSION, "encoder": encoder.name, "width": width, "asked": dict(options)}
    return made | {"origin": compute_origin(encoder, item), "regions": describe_regions(encoder, item)}


def read_description(path: str, dataset: Any) -> dict[str, Any]:
    """What the collection with this table of items says of itself, every value of the type that it must have."""
    raw = (dataset.schema.metadata or {}).get(tables.METADATA_KEY)
    if raw is None or len(raw) > MAX_DESCRIPTION_BYTES:
        raise InputError(f"{path}: the collection does not say what made it: {REINDEX_HINT}")
    with wrap_errors(f"{path}: its description is damaged: it is no JSON"):
        found = json.loads(raw, parse_constant=_refuse_constant)
    if not isinstance(found, dict):
        raise InputError(f"{path}: its description is damaged: it is no object: {REINDEX_HINT}")
    version = found.get("version")
    if type(version) is not int or version != tables.FORMAT_VERSION:
        raise InputError(
            f"{path}: the collection has version {_shorten(version)}, this program reads {tables.FORMAT_VERSION}"
        )
    for key, is_right, wanted in FIELDS:
        place, _, inner = key.rpartition(".")
        value = (found[place] if place else found).get(inner)
        if not is_right(value):
            raise InputError(
                f"{path}: its description is damaged: {key} is {_shorten(value)}, not {wanted}: {REINDEX_HINT}"
            )
    if found["origin"]["encoder"] != found["encoder"]:
        raise InputError(f"{path}: its description is damaged: it names two encoders: {REINDEX_HINT}")
    try:
        registry.parse_stored_options(found.get("asked", {}))
        tables.check_columns(dataset, tables.items_schema(found["width"], {}))
    except InputError as error:
        raise InputError(f"{path}: its description is damaged: {error}: {REINDEX_HINT}") from None
    return found


def load_encoder(
    path: str, description: Mapping[str, Any], encoder: Encoder | str | None, weights: str | Path | None
) -> Encoder:
    """The encoder that made a collection: the one given, or by its stored name, which imports nothing.

    Args:
        encoder: an encoder, or its name; only then may the name be that of a module to import.
        weights: the file of weights that the user gives.
    """
    if isinstance(encoder, Encoder):
        return encoder
    stored, options = description["encoder"], description.get("asked", {})
    file = None if weights is None else str(weights)
    if "weights" in options and file is None and encoder in (None, stored):
        raise InputError(
            f"{path} was made with weights from a file, and a path in a collection is not followed: "
            f"give it, --weights {options['weights']}"
        )
    if encoder is not None:
        return registry.load(
            encoder, weights=file, **(registry.parse_stored_options(options) if encoder == stored else {})
        )
    if not registry.is_known(stored):
        raise InputError(f"{path} was made by an encoder of its author's own: give it, -e {stored}")
    return registry.load_stored(stored, options, weights=file)


def check_encoder(
    path: str,
    description: Mapping[str, Any],
    encoder: Encoder,
    item: Item,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Refuse an encoder with other weights, rules or regions than the collection's, and say what differs.

    Args:
        item: any input; what the encoder says of one holds for all.
        origin: of a decomposition of that item, where there is one; else one run tells.
    """
    check_origin(path, description, compute_origin(encoder, item) if origin is None else origin)
    stored, given = description.get("regions"), describe_regions(encoder, item)
    if stored is not None and stored != given:  # collections of earlier versions do not say
        raise MismatchError(
            f"{path} keeps parts of other regions: they differ in regions ({stored} and {given}): give an encoder "
            "with its regions, or index under another name"
        )


def check_origin(path: str, description: Mapping[str, Any], origin: Mapping[str, Any]) -> None:
    """Refuse what an encoder with other weights or rules than the collection's made, and say what differs."""
    difference = diff_origins(description["origin"], origin)
    if difference:
        raise MismatchError(f"{path} was made by another encoder: they differ in {difference}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS


def _is_width(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_origin(value: object) -> bool:
    return isinstance(value, dict) and all(each is None or _is_text(each) for each in value.values())


FIELDS: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("encoder", _is_text, "the name of an encoder"),
    ("width", _is_width, "a number of coordinates"),
    ("regions", lambda value: value is None or _is_text(value), "a text"),  # None: of an earlier version
    ("origin", _is_origin, "an object of texts"),
    ("origin.encoder", _is_text, "the name of an encoder"),
    ("origin.weights", _is_text, "a hash"),
    ("origin.composite", _is_text, "the name of a composite"),
    ("origin.dtype", _is_text, "a type of numbers"),
)


def _shorten(value: object) -> str:
    """A value in a few letters; what holds others by its type, as it may hold them without end."""
    return type(value).__name__ if isinstance(value, dict | list) else repr(value)[:40]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
