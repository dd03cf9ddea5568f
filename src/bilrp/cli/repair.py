"""`bilrp repair`: a similarity without a part that should not count, and what that costs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import AsJson, CollectionEncoder, CollectionWeights
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.collection import Collection


def repair(
    collection: Annotated[
        str, typer.Argument(metavar="NAME.lance", help="A collection, written by `bilrp index`.")
    ],
    suspect: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="A suspect, numbered as `bilrp audit` prints them.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(metavar="X,Y,W,H", help="A box of the item --of, in pixels of its file.")
    ] = None,
    of: Annotated[
        str | None, typer.Option(metavar="ITEM", help="An item that shows the part: its name, number or id.")
    ] = None,
    words: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Words of texts, e.g. 'All rights reserved'.")
    ] = None,
    carriers: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The items that have it, a name, number or id in each line. Default: found by its pixels or words; a "
            "watermark that shines through is not.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="projection, filling or removal. Default: the first that reaches the goals."
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The repair: .safetensors or .npz.")
    ] = "repair.safetensors",
    encoder: CollectionEncoder = None,
    weights: CollectionWeights = None,
    as_json: AsJson = False,
) -> None:
    """Find similar items without the effect of a stamp: bilrp repair photos.lance --suspect 1 -o stamp.safetensors"""
    from bilrp.cli.outputs import check_outputs
    from bilrp.collection import open
    from bilrp.io import files

    if sum(each is not None for each in (suspect, part, words)) != 1 or (part is None) != (of is None):
        raise InputError(
            "say which part should not count: --suspect N, or --part X,Y,W,H --of ITEM, or --words TEXT"
        )
    check_outputs([output], formats=files.NUMBER_SUFFIXES)  # before minutes of work
    opened = open(collection, encoder, weights=weights)
    options: dict[str, Any] = {"suspect": suspect, "words": words, "method": method}
    if part is not None:
        options |= _find_part(opened, part, of or "")
    if carriers is not None:
        options["carriers"] = _read_items(opened, carriers)
    result = opened.repair(**options, progress=sys.stderr.isatty())
    path = result.save(output)
    if as_json:
        print(
            json.dumps(
                {"repair": str(path), "report": result.report.to_dict(), "missed": result.report.missed}
            )
        )
        return
    print_safe(str(result.report))
    print_safe(f"  wrote {path}; search with it: bilrp search {collection} QUERY --repair {path}")


def _find_part(collection: Collection, part: str, of: str) -> dict[str, Any]:
    """Return the item and its regions in a box of its file."""
    from bilrp.cli.search import find_regions_in_box
    from bilrp.decomposition import Decomposition
    from bilrp.encoder import choose_regions, read_item

    position = _find_item(collection, "--of", of)
    item = read_item(collection.encoder, collection.original_input(position))
    regions = choose_regions(collection.encoder, item)
    # the boxes of regions need no parts, so none are computed
    empty = item.x.new_zeros(regions.count, 1)
    frame = Decomposition(empty, item.x.new_zeros(1), regions, {}, item.view)
    return {"part": find_regions_in_box(frame, part), "of": position}


def _find_item(collection: Collection, option: str, name: str) -> int:
    """Return the position of an item that an option names."""
    from bilrp.cli.search import resolve_query

    position = collection.position(resolve_query(collection, name))
    if position is None:
        raise InputError(f"{option} {name}: no item of {collection.path}: give its name, number or id")
    return position


def _read_items(collection: Collection, path: str) -> list[int]:
    """Return the positions of the items that a file names, one in each line."""
    from bilrp.cli.texts import MAX_TEXT_BYTES
    from bilrp.io import files

    lines = files.read_text(path, kind="text", max_bytes=MAX_TEXT_BYTES).splitlines()
    return [_find_item(collection, "--carriers", line.strip()) for line in lines if line.strip()]
