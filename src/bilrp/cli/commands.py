"""The commands, by what people want to do; each stands in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

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

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(explain)
app.command()(contrast)
app.command()(sets)
app.command()(show)
app.command()(index)
app.command()(search)
app.command()(serve)
app.command()(audit)
app.command()(ops)
app.add_typer(study, name="study")
app.command()(bench)


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
