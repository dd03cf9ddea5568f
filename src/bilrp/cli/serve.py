"""`bilrp serve`: browse a collection or one pair in the browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import Size, Weights
from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER
from bilrp.errors import InputError, import_optional

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from bilrp.app.security import AccessPolicy


def serve(
    inputs: Annotated[
        list[str], typer.Argument(metavar="NAME.lance | A B", help="A collection, or two images or texts.")
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
    mcp: Annotated[
        bool,
        typer.Option(
            "--mcp",
            help="Offer a collection as tools of the Model Context Protocol over standard input and output, in place of "
            "a web server.",
        ),
    ] = False,
) -> None:
    """Browse a collection, or one pair, in the browser: bilrp serve photos.lance --open"""
    if mcp:
        _serve_tools(inputs, encoder, weights)
        return
    for module in ("starlette", "uvicorn"):
        import_optional(module, "app", "served views")
    from bilrp.app import server

    if add and len(inputs) != 1:
        raise InputError("--add is for collections: give one NAME.lance")
    if len(inputs) == 2:
        message, make_app = _prepare_pair(inputs, encoder, weights=weights, size=size)
    elif len(inputs) == 1:
        message, make_app = _prepare_collection(inputs[0], encoder, weights=weights, add=add)
    else:
        raise InputError("give one collection (NAME.lance), or two images or texts")
    on_started = partial(_announce, message, open_browser)
    server.run(make_app, host=host, port=port, on_started=on_started, writable=add)


def _prepare_pair(
    inputs: Sequence[str], name: str | None, *, weights: str | None, size: str | None
) -> tuple[str, Callable[[AccessPolicy], ASGIApp]]:
    """Return what is served, and the function that makes the app on two inputs."""
    from bilrp.app import server
    from bilrp.cli import terminal
    from bilrp.encoder import read_item

    encoder = terminal.load_encoder(name or DEFAULT_IMAGE_ENCODER, weights=weights, size=size)
    a, b = (read_item(encoder, content) for content in inputs)
    return f"{inputs[0]} and {inputs[1]} by {encoder.name}", partial(server.make_pair_app, encoder, a, b)


def _prepare_collection(
    path: str, encoder: str | None, *, weights: str | None, add: bool
) -> tuple[str, Callable[[AccessPolicy], ASGIApp]]:
    """Return what is served, and the function that makes the app on a collection."""
    from bilrp.app import server
    from bilrp.collection import open, tables

    if os.path.isdir(path) and not os.path.isdir(tables.table_path(path, tables.ITEMS_TABLE)):
        name = path.rstrip("/\\")
        raise InputError(f"{path} is a folder: first bilrp index {name} -o {name}.lance, then serve that")
    collection = open(path, encoder, weights=weights)
    collection.encoder  # noqa: B018  loaded here, so that a missing encoder is reported at the start
    message = f"{path}: {len(collection)} items by {collection.description['encoder']}"
    return message, partial(server.make_collection_app, collection, add=add)


def _serve_tools(inputs: list[str], encoder: str | None, weights: str | None) -> None:
    """Serve a collection to an MCP client; standard output belongs to the protocol."""
    import_optional("mcp", "mcp", "tools of the Model Context Protocol")
    from bilrp.app import mcp_server
    from bilrp.cli.input_hints import check_collection
    from bilrp.collection import open

    if len(inputs) != 1:
        raise InputError("--mcp serves one collection: give one NAME.lance")
    check_collection(inputs[0])
    collection = open(inputs[0], encoder, weights=weights)
    collection.encoder  # noqa: B018  loaded here, so that a missing encoder is reported at the start
    mcp_server.make_server(collection).run("stdio")


def _announce(message: str, open_browser: bool, url: str) -> None:
    print_safe(f"{message}\nOpen {url}\nPress Ctrl-C to stop.")
    if open_browser:
        import webbrowser

        webbrowser.open(url)
