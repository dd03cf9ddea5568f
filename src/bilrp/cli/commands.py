"""The commands, by what people want to do; each stands in a file of its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bilrp.cli.audit import audit
from bilrp.cli.bench import bench
from bilrp.cli.contrast import contrast
from bilrp.cli.explain import explain
from bilrp.cli.index import index
from bilrp.cli.ops import ops
from bilrp.cli.search import search
from bilrp.cli.serve import serve
from bilrp.cli.sets import sets
from bilrp.cli.show import show
from bilrp.cli.study import study

# What people want to do: the headings of `bilrp --help`, in this order.
EXPLAIN, COLLECTIONS, STUDIES = "Explain", "Collections", "Studies"
UNDER = "Look under the hood"


class ByPurpose(TyperGroup):
    """Commands in the order of their headings: typer would put `study`, which has commands of its own, last."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = {panel: place for place, panel in enumerate((EXPLAIN, COLLECTIONS, STUDIES, UNDER))}
        panels = {name: getattr(command, "rich_help_panel", None) for name, command in self.commands.items()}
        return sorted(panels, key=lambda name: order.get(str(panels[name]), len(order)))


app = typer.Typer(cls=ByPurpose, no_args_is_help=True, pretty_exceptions_enable=False)
app.command(rich_help_panel=EXPLAIN)(explain)
app.command(rich_help_panel=EXPLAIN)(contrast)
app.command(rich_help_panel=EXPLAIN)(sets)
app.command(rich_help_panel=EXPLAIN)(show)
app.command(rich_help_panel=COLLECTIONS)(index)
app.command(rich_help_panel=COLLECTIONS)(search)
app.command(rich_help_panel=COLLECTIONS)(audit)
app.command(rich_help_panel=COLLECTIONS)(serve)
app.add_typer(study, name="study", rich_help_panel=STUDIES)
app.command(rich_help_panel=UNDER)(ops)
app.command(rich_help_panel=UNDER)(bench)


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
