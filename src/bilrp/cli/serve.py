"""`bilrp serve`: look at a collection in the browser: point at a part, see what shares it, ask why."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from bilrp.cli.options import OwnEncoder
from bilrp.cli.say import say
from bilrp.errors import InputError, from_extra


def serve(
    things: Annotated[list[str], typer.Argument(metavar="NAME.lance", help="What `bilrp index` made.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8765,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine a token is asked for."),
    ] = "127.0.0.1",
    encoder: OwnEncoder = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Wander through a collection in the browser. bilrp serve photos.lance --open"""
    for module in ("starlette", "uvicorn"):
        from_extra(module, "app", "served views")
    from bilrp.app import server
    from bilrp.collection import open

    if len(things) != 1:
        raise InputError("give one collection that `bilrp index` made")
    found = open(things[0], encoder)
    found.encoder  # noqa: B018  what is missing is said before anybody is let in
    said = f"{things[0]}: {len(found)} items by {found.about['encoder']}"
    server.run(partial(server.collected, found), host=host, port=port, started=partial(_started, said, show))


def _started(said: str, show: bool, address: str) -> None:
    say(f"{said}\nOpen {address}\nCtrl-C ends it.")
    if show:
        import webbrowser

        webbrowser.open(address)
