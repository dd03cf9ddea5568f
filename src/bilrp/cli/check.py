"""`bilrp check`: compare the files of a collection with their checksums."""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.console import print_safe


def check(
    collection: Annotated[
        str, typer.Argument(metavar="NAME.lance", help="A collection, written by `bilrp index`.")
    ],
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Remove damaged items and parts, so that they can be indexed again."),
    ] = False,
) -> None:
    """Compare every file of a collection with its checksum: bilrp check photos.lance

    Prints one line for each damaged file and exits with code 2. Changes nothing without --drop.
    """
    from bilrp.collection import integrity
    from bilrp.errors import to_printable

    name, damages = to_printable(collection), integrity.check(collection)
    for damage in damages:
        print_safe(f"damaged: {damage}")
    if not damages:
        print_safe(f"{name}: every file is the one that was written")
        return
    if not drop:
        if any(damage.fragment is not None for damage in damages):
            print_safe(
                f"Repair: bilrp check {name} --drop, then bilrp index SOURCE -o {name} to index the dropped items again"
            )
        raise typer.Exit(2)
    dropped = integrity.drop_damaged(collection, damages)
    for table_file in dropped:
        print_safe(f"dropped: {table_file.file}, {table_file.rows} rows")
    if any(table_file.table == integrity.tables.ITEMS_TABLE for table_file in dropped):
        print_safe(f"Index the sources again to restore the dropped items: bilrp index SOURCE -o {name}")
    if integrity.check(collection):
        raise typer.Exit(2)
