"""The commands; each has its own module, imported on first use.

Other installed packages add commands by entry points of the group `bilrp.commands`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bilrp.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "bilrp.commands"
PLUGIN_PANEL = "Studies"  # the heading of commands that other packages add

# The headings of `bilrp --help`, in this order, with their commands.
PANELS = {
    "Explain": ("explain", "highlight", "contrast", "sets", "show", "samples"),
    "Collections": ("index", "search", "graph", "audit", "repair", "serve", "check"),
    PLUGIN_PANEL: (),
    "Look under the hood": ("ops",),
}


class LazyCommands(Mapping[str, Any]):
    """Commands by name, each created on first use, which keeps `bilrp --version` and completion fast."""

    def __init__(self) -> None:
        self.panels = {name: panel for panel, names in PANELS.items() for name in names}
        self.loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.loaded:
            if name in self.panels:
                command = getattr(import_module(f"bilrp.cli.{name}"), name)
                self.loaded[name] = _make_command(name, command, self.panels[name])
            else:
                self.loaded[name] = _load_plugin(self.plugins[name])
        return self.loaded[name]

    def __iter__(self) -> Iterator[str]:
        for panel, names in PANELS.items():
            yield from self.plugins if panel == PLUGIN_PANEL else names

    def __len__(self) -> int:
        return len(self.panels) + len(self.plugins)

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """Commands of other packages by name, read from the installed metadata only when they are needed."""
        from importlib.metadata import entry_points

        entries = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)
        return {entry.name: entry for entry in entries if entry.name not in self.panels}


def _make_command(name: str, command: Any, panel: str, **options: Any) -> Any:
    if isinstance(command, typer.Typer):  # it has subcommands
        group: Any = typer.main.get_group(command)
        group.name, group.rich_help_panel = name, panel
        return group
    single = typer.Typer(add_completion=False)
    single.command(name, rich_help_panel=panel, **options)(command)
    return typer.main.get_command(single)


def _load_plugin(entry: EntryPoint) -> Any:
    """Return the command of an entry point, or one that fails with the reason if it cannot be loaded."""
    try:
        return _make_command(entry.name, entry.load(), PLUGIN_PANEL)
    except Exception as error:
        reason = f"the command {entry.name} does not load from {entry.value}: {type(error).__name__}: {error}"

    def fail() -> None:
        raise InputError(reason)

    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}
    return _make_command(
        entry.name, fail, PLUGIN_PANEL, help="Does not load.", add_help_option=False, context_settings=lenient
    )


class RootGroup(TyperGroup):
    """The command `bilrp`, whose subcommands are imported on first use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = LazyCommands()


app = typer.Typer(cls=RootGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(value: bool) -> bool:
    if value:
        from bilrp import __version__

        print(f"bilrp {__version__}")
        raise typer.Exit
    return value


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which parts of these two inputs make the model call them similar?

    Start with: bilrp explain A.jpg B.jpg -o why.html
    """
