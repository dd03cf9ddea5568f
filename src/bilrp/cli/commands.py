"""The commands, by what people want to do; each stands in a file of its own, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# The headings of `bilrp --help`, in this order, and what stands under them.
PANELS = {
    "Explain": ("explain", "contrast", "sets", "show"),
    "Collections": ("index", "search", "audit", "serve", "check"),
    "Studies": ("study",),
    "Look under the hood": ("ops", "bench"),
}


class Commands(Mapping[str, Any]):
    """Commands by name, each made on first use: most of the time of `bilrp --version` would be the others' options."""

    def __init__(self) -> None:
        self.panels = {name: panel for panel, names in PANELS.items() for name in names}
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = _made(name, self.panels[name])
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.panels)

    def __len__(self) -> int:
        return len(self.panels)


def _made(name: str, panel: str) -> Any:
    found = getattr(import_module(f"bilrp.cli.{name}"), name)
    if isinstance(found, typer.Typer):  # it has commands of its own
        made: Any = typer.main.get_group(found)
        made.name, made.rich_help_panel = name, panel
        return made
    alone = typer.Typer(add_completion=False)
    alone.command(name, rich_help_panel=panel)(found)
    return typer.main.get_command(alone)


class Root(TyperGroup):
    """`bilrp` itself: its commands are looked up in the table, and imported when they are asked for.

    >>> "explain" in Root(name="bilrp").commands
    True
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = Commands()


app = typer.Typer(cls=Root, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> bool:
    if wanted:
        from bilrp import __version__

        print(f"bilrp {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which parts of these two inputs make the model call them similar?

    Start with: bilrp explain A.jpg B.jpg -o why.html
    """
