"""`bilrp serve`: look at a collection in the browser: point at a part, see what shares it, ask why."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import Size, Weights
from bilrp.errors import InputError, import_optional


def serve(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="NAME.lance | A B", help="What `bilrp index` made, or two pictures or texts."),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "-e",
            metavar="NAME",
            help="Of two files or texts (else vgg16:31); of a collection, where it is your own (package.module:function).",
        ),
    ] = None,
    weights: Weights = None,
    size: Size = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8765,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine, a token is needed."),
    ] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    add: Annotated[
        bool,
        typer.Option("--add", help="Let visitors add their queries to the collection; a token is needed."),
    ] = False,
) -> None:
    """Look at a collection, or at one pair, in the browser. bilrp serve photos.lance --open"""
    for module in ("starlette", "uvicorn"):
        import_optional(module, "app", "served views")
    from bilrp.app import server
    from bilrp.cli import terminal

    if add and len(inputs) != 1:
        raise InputError("--add adds to a collection: give the one that `bilrp index` made")
    if len(inputs) == 2:
        from bilrp.encoder import read_item

        reader = terminal.load_encoder(encoder or "vgg16:31", weights=weights, size=size)
        a, b = (read_item(reader, thing) for thing in inputs)
        said, make = (
            f"{inputs[0]} and {inputs[1]} by {reader.name}",
            partial(server.make_pair_app, reader, a, b),
        )
    elif len(inputs) == 1:
        from bilrp.collection import open, tables

        thing = inputs[0]
        if os.path.isdir(thing) and not os.path.isdir(tables.table_path(thing, tables.ITEMS_TABLE)):
            name = thing.rstrip("/\\")
            raise InputError(
                f"{thing} is a folder: first bilrp index {name} -o {name}.lance, then serve that"
            )
        found = open(inputs[0], encoder, weights=weights)
        found.encoder  # noqa: B018  what is missing is said before anybody is let in
        said, make = (
            f"{inputs[0]}: {len(found)} items by {found.description['encoder']}",
            partial(server.make_collection_app, found, add=add),
        )
    else:
        raise InputError("give one collection that `bilrp index` made, or two pictures or texts")
    server.run(make, host=host, port=port, on_started=partial(_announce, said, open_browser), writable=add)


def _announce(message: str, open_browser: bool, url: str) -> None:
    print_safe(f"{message}\nOpen {url}\nCtrl-C ends it.")
    if open_browser:
        import webbrowser

        webbrowser.open(url)
