"""The description stored in a collection: encoder, width, origin and regions; validated whenever it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

from bilrp.collection import tables
from bilrp.encoder import Encoder, compute_origin, describe_regions, diff_origins
from bilrp.encoders import registry
from bilrp.errors import InputError, MismatchError, wrap_errors
from bilrp.inputs import Item

if TYPE_CHECKING:
    from lance import LanceDataset

MAX_DESCRIPTION_BYTES = 2**20
MAX_TEXT_CHARACTERS = 2**16  # of one string in it


class Description(TypedDict):
    """What a collection says of itself; the keys of `origin` are those of `Decomposition.origin`."""

    version: int
    encoder: str
    width: int
    options: NotRequired[Mapping[str, object]]
    origin: dict[str, str | None]
    regions: NotRequired[str | None]
    columns: NotRequired[dict[str, str] | None]


def describe(
    encoder: Encoder,
    item: Item,
    *,
    width: int,
    options: Mapping[str, object],
    columns: Mapping[str, str] | None = None,
) -> Description:
    """Describe a new collection, from one run of its encoder.

    Args:
        encoder, item: The encoder of the collection, and any input of it.
        width: Number of coordinates of an embedding.
        options: Options that load the encoder by its name (size, resize, weights; the path of weights is never followed).
        columns: {column: type} of the metadata.
    """
    description: Description = {
        "version": tables.FORMAT_VERSION,
        "encoder": encoder.name,
        "width": width,
        "options": dict(options),
        "origin": compute_origin(encoder, item),
        "regions": describe_regions(encoder, item),
    }
    if columns:
        description["columns"] = dict(columns)
    return description


def read_description(path: str, dataset: LanceDataset) -> Description:
    """Read and validate the description stored in an items table."""
    raw = (dataset.schema.metadata or {}).get(tables.METADATA_KEY)
    if raw is None or len(raw) > MAX_DESCRIPTION_BYTES:
        raise InputError(f"{path}: the collection has no readable description: {tables.REINDEX_HINT}")
    with wrap_errors(f"{path}: its description is damaged: it is not valid JSON"):
        description = json.loads(raw, parse_constant=_refuse_constant)
    if not isinstance(description, dict):
        raise InputError(
            f"{path}: its description is damaged: it is not a JSON object: {tables.REINDEX_HINT}"
        )
    version = description.get("version")
    if type(version) is not int or version != tables.FORMAT_VERSION:
        raise InputError(
            f"{path}: the collection has format version {_shorten(version)}, this program reads {tables.FORMAT_VERSION}"
        )
    for key, is_valid, expected in FIELDS:
        parent, _, name = key.rpartition(".")
        value = (description[parent] if parent else description).get(name)
        if not is_valid(value):
            raise InputError(
                f"{path}: its description is damaged: {key} is {_shorten(value)}, not {expected}: {tables.REINDEX_HINT}"
            )
    if description["origin"]["encoder"] != description["encoder"]:
        raise InputError(f"{path}: its description is damaged: it names two encoders: {tables.REINDEX_HINT}")
    try:
        registry.parse_stored_options(description.get("options", {}))
        tables.check_columns(dataset, tables.items_schema(description["width"], description))
    except InputError as error:
        raise InputError(f"{path}: its description is damaged: {error}: {tables.REINDEX_HINT}") from None
    return cast(Description, description)


def load_encoder(
    path: str, description: Description, encoder: Encoder | str | None, weights: str | Path | None
) -> Encoder:
    """Return the encoder of a collection: the one passed by the user, or the built-in one with the stored name.

    Args:
        path, description: The collection, and its description.
        encoder: An encoder or its name; unlike the stored name, it may name a module to import.
        weights: The weight file passed by the user.
    """
    if isinstance(encoder, Encoder):
        return encoder
    stored, options = description["encoder"], description.get("options", {})
    file = None if weights is None else str(weights)
    if "weights" in options and file is None and encoder in (None, stored):
        raise InputError(
            f"{path} needs the weight file of its encoder, and a path in a collection is not followed: "
            f"give it, --weights {options['weights']}"
        )
    if encoder is not None:
        own_options = registry.parse_stored_options(options if encoder == stored else {})
        return registry.load(encoder, weights=file, **own_options)
    if not registry.is_known(stored):
        raise InputError(f"{path} was made by a custom encoder: pass it, encoder=… or -e {stored}")
    return registry.load_stored(stored, options, weights=file)


def check_encoder(
    path: str,
    description: Description,
    encoder: Encoder,
    item: Item,
    origin: Mapping[str, object] | None = None,
) -> None:
    """Raise `MismatchError` if the encoder has other weights, rules or regions than the collection's.

    Args:
        path, description: The collection, and its description.
        encoder, item: The encoder to check, and any input.
        origin: Origin of a decomposition of that input; by default computed with one run.
    """
    check_origin(path, description, compute_origin(encoder, item) if origin is None else origin)
    stored, actual = description.get("regions"), describe_regions(encoder, item)
    if stored is not None and stored != actual:
        raise MismatchError(
            f"{path} has parts of other regions: they differ in regions ({stored} and {actual}): use an encoder "
            "with its regions, or index under another name"
        )


def check_origin(path: str, description: Description, origin: Mapping[str, object]) -> None:
    """Raise `MismatchError` if an origin differs from the collection's, naming the difference.

    Args:
        path, description: The collection, and its description.
        origin: Origin of a decomposition.
    """
    difference = diff_origins(description["origin"], origin)
    if difference:
        raise MismatchError(f"{path} was made by another encoder: they differ in {difference}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS


def _is_width(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_origin(value: object) -> bool:
    return isinstance(value, dict) and all(each is None or _is_text(each) for each in value.values())


def _are_columns(value: object) -> bool:
    """Return whether these are names that can be columns, with types that a collection stores."""
    return isinstance(value, dict) and all(
        re.fullmatch(r"[^\W\d]\w{0,64}", name) and name.lower() not in tables.RESERVED_COLUMNS
        and kind in tables.COLUMN_TYPES
        for name, kind in value.items()
    )  # fmt: skip


FIELDS: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("encoder", _is_text, "the name of an encoder"),
    ("width", _is_width, "a number of coordinates"),
    ("columns", lambda value: value is None or _are_columns(value), "an object of column types"),
    ("regions", lambda value: value is None or _is_text(value), "a string"),
    ("origin", _is_origin, "an object of strings"),
    ("origin.encoder", _is_text, "the name of an encoder"),
    ("origin.weights", _is_text, "a hash"),
    ("origin.composite", _is_text, "the name of a composite"),
    ("origin.dtype", _is_text, "a data type"),
)


def _shorten(value: object) -> str:
    """Return a short text for a value of any size: containers by their type."""
    return type(value).__name__ if isinstance(value, dict | list) else repr(value)[:40]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a valid number")
