"""`bilrp serve`: look at a collection in the browser: point at a part, see what shares it, ask why."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from bilrp.cli.options import Size, Weights
from bilrp.cli.console import say
from bilrp.errors import InputError, from_extra


def serve(
    things: Annotated[
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
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    add: Annotated[
        bool,
        typer.Option("--add", help="Let visitors add their queries to the collection; a token is needed."),
    ] = False,
) -> None:
    """Look at a collection, or at one pair, in the browser. bilrp serve photos.lance --open"""
    for module in ("starlette", "uvicorn"):
        from_extra(module, "app", "served views")
    from bilrp.app import server
    from bilrp.cli import terminal

    if add and len(things) != 1:
        raise InputError("--add adds to a collection: give the one that `bilrp index` made")
    if len(things) == 2:
        from bilrp.encoder import read_item

        reader = terminal.encoder(encoder or "vgg16:31", weights=weights, size=size)
        a, b = (read_item(reader, thing) for thing in things)
        said, make = f"{things[0]} and {things[1]} by {reader.name}", partial(server.paired, reader, a, b)
    elif len(things) == 1:
        from bilrp.collection import open, tables

        thing = things[0]
        if os.path.isdir(thing) and not os.path.isdir(tables.joined(thing, tables.ITEMS)):
            name = thing.rstrip("/\\")
            raise InputError(
                f"{thing} is a folder: first bilrp index {name} -o {name}.lance, then serve that"
            )
        found = open(things[0], encoder, weights=weights)
        found.encoder  # noqa: B018  what is missing is said before anybody is let in
        said, make = (
            f"{things[0]}: {len(found)} items by {found.about['encoder']}",
            partial(server.collected, found, add=add),
        )
    else:
        raise InputError("give one collection that `bilrp index` made, or two pictures or texts")
    server.run(make, host=host, port=port, started=partial(_started, said, show), writable=add)


def _started(said: str, show: bool, address: str) -> None:
    say(f"{said}\nOpen {address}\nCtrl-C ends it.")
    if show:
        import webbrowser

        webbrowser.open(address)
