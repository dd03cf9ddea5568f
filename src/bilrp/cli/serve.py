"""`bilrp serve`: browse a collection or one pair in the browser."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import Size, Weights
from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER
from bilrp.errors import InputError, import_optional


def serve(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="NAME.lance | A B", help="A collection, or two images or texts."),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "-e",
            metavar="NAME",
            help=f"For two inputs (default {DEFAULT_IMAGE_ENCODER}); for a collection only if it is your own "
            "(package.module:function).",
        ),
    ] = None,
    weights: Weights = None,
    size: Size = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 8765,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; a token is required if other machines can reach it.",
        ),
    ] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
    add: Annotated[
        bool,
        typer.Option(
            "--add", help="Allow clients to add their queries to the collection; a token is required."
        ),
    ] = False,
) -> None:
    """Browse a collection, or one pair, in the browser: bilrp serve photos.lance --open"""
    for module in ("starlette", "uvicorn"):
        import_optional(module, "app", "served views")
    from bilrp.app import server
    from bilrp.cli import terminal

    if add and len(inputs) != 1:
        raise InputError("--add is for collections: give one NAME.lance")
    if len(inputs) == 2:
        from bilrp.encoder import read_item

        reader = terminal.load_encoder(encoder or DEFAULT_IMAGE_ENCODER, weights=weights, size=size)
        a, b = (read_item(reader, content) for content in inputs)
        message = f"{inputs[0]} and {inputs[1]} by {reader.name}"
        make_app = partial(server.make_pair_app, reader, a, b)
    elif len(inputs) == 1:
        from bilrp.collection import open, tables

        path = inputs[0]
        if os.path.isdir(path) and not os.path.isdir(tables.table_path(path, tables.ITEMS_TABLE)):
            name = path.rstrip("/\\")
            raise InputError(f"{path} is a folder: first bilrp index {name} -o {name}.lance, then serve that")
        collection = open(path, encoder, weights=weights)
        collection.encoder  # noqa: B018  loaded here, so that a missing encoder is reported at the start
        message = f"{path}: {len(collection)} items by {collection.description['encoder']}"
        make_app = partial(server.make_collection_app, collection, add=add)
    else:
        raise InputError("give one collection (NAME.lance), or two images or texts")
    on_started = partial(_announce, message, open_browser)
    server.run(make_app, host=host, port=port, on_started=on_started, writable=add)


def _announce(message: str, open_browser: bool, url: str) -> None:
    print_safe(f"{message}\nOpen {url}\nPress Ctrl-C to stop.")
    if open_browser:
        import webbrowser

        webbrowser.open(url)
