"""The command line: explain, ops, study, bench. Thin: parse, call the library, print; errors are one line."""

from __future__ import annotations

import sys

import typer

from bilrp.errors import BilrpError

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
study = typer.Typer(
    help="Run one experiment of the paper, from data to table and figure.", no_args_is_help=True
)
app.add_typer(study, name="study")


@app.callback()
def root() -> None:
    """Which parts of these two inputs make the model call them similar?"""


def main() -> None:
    """Entry point: every expected failure becomes one line on stderr and exit code 2."""
    try:
        app()
    except BilrpError as error:
        print(f"bilrp: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("bilrp: interrupted", file=sys.stderr)
        sys.exit(130)
