"""`bilrp check`: are the files of a collection the ones that were written?"""

from __future__ import annotations

from typing import Annotated

import typer

from bilrp.cli.console import print_safe


def check(
    collection: Annotated[str, typer.Argument(metavar="NAME.lance", help="What `bilrp index` wrote.")],
    drop: Annotated[
        bool, typer.Option("--drop", help="Take damaged items out, to be indexed again; damaged parts too.")
    ] = False,
) -> None:
    """Compare every file of a collection with its checksum: bilrp check photos.lance

    One line for each damaged file, and exit code 2; nothing is changed without --drop.
    """
    from bilrp.collection import integrity
    from bilrp.errors import to_printable

    name, damages = to_printable(collection), integrity.check(collection)
    for each in damages:
        print_safe(f"damaged: {each}")
    if not damages:
        print_safe(f"{name}: every file is the one that was written")
        return
    if not drop:
        if any(each.fragment is not None for each in damages):
            print_safe(
                f"Repair: bilrp check {name} --drop, then bilrp index SOURCE -o {name}: what was dropped is indexed again"
            )
        raise typer.Exit(2)
    dropped = integrity.drop_damaged(collection, damages)
    for each in dropped:
        print_safe(f"dropped: {each.file}, {each.rows} rows")
    if any(each.table == integrity.tables.ITEMS_TABLE for each in dropped):
        print_safe(f"Index the sources again, it adds what was dropped: bilrp index SOURCE -o {name}")
    if integrity.check(collection):
        raise typer.Exit(2)
