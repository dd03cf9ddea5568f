"""Originals of the items of a collection: the stored text, or the file that an image was read from."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bilrp.collection.items_table import ItemsTable
from bilrp.collection.sources import SourceItem, decode_path, parse_content_hash
from bilrp.encoder import Encoder, read_item
from bilrp.errors import BilrpError, InputError
from bilrp.inputs import Item


def find_original(path: str, items: ItemsTable, position: int) -> str | Path:
    """Return what the encoder reads: the stored text, or the path of the original file, if it is unchanged.

    Args:
        path: The folder of the collection; files added in the app are inside it.
        items: The table of its items.
        position: Position of the item.
    """
    row = items.take([position], ["text", "stamp"])
    if row["text"][0] is not None:
        return row["text"][0]
    content_hash = parse_content_hash(items.ids[position], row["stamp"][0])
    source = items.sources[position]
    for name in (source, decode_path(source)):
        file = os.path.join(path, name)
        if name and os.path.isfile(file):
            if SourceItem(Path(file), "", "", file).content_id() != content_hash:
                raise InputError(f"{items.names[position]}: its file has changed since: index it again")
            return Path(file)
    raise InputError(
        f"{items.names[position]}: its file is missing and its parts are not stored: restore the file, or index "
        "with parts=True (--parts)"
    )


def read_first_original(path: str, items: ItemsTable, encoder: Encoder) -> Item | None:
    """Read the first item whose original can be read; None if there is none.

    Args:
        path: The folder of the collection.
        items: The table of its items.
        encoder: The encoder that reads them.
    """
    for position, source in enumerate(items.sources):
        file = os.path.join(path, decode_path(source)) if source else ""
        if position == 0 or os.path.isfile(file):  # if items are texts, the first is readable
            with suppress(BilrpError, OSError):
                return read_item(encoder, find_original(path, items, position))
    return None
