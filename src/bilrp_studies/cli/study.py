"""`bilrp study NAME`: one experiment, end to end. Its options are the fields of its settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from bilrp.cli.console import say
from bilrp.errors import InputError
from bilrp.render.report import Report
from bilrp_studies.common.study import Settings, Study, flag
from bilrp_studies.catalog import STUDIES, named


class Studies(TyperGroup):
    """The studies of the table, and any other by `package.module:STUDY`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or ":" not in cmd_name:
            return known
        own = typer.Typer(add_completion=False)
        own.command()(command(named(cmd_name)))
        return typer.main.get_command(own)


study = typer.Typer(
    cls=Studies,
    help="Run one experiment of the paper, from data to table and figure; or your own: package.module:STUDY.",
    no_args_is_help=True,
)


def command(chosen: Study) -> Callable[..., None]:
    """A study as a command: an option for each field of its settings."""

    def run(**given: Any) -> None:
        settings = settled(chosen.settings, given)
        report = chosen.run(settings)
        report.write(settings.out)
        show(report, settings.out)

    parameters = [_parameter(*each) for each in _options(chosen.settings)]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = chosen.question
    return run


def settled(settings: type[Settings], given: Mapping[str, Any]) -> Settings:
    """Settings from what the command line gave: numbers with commas between become several."""
    values: dict[str, Any] = {
        each.name: numbers(each.name, given[each.name]) if _several(kind) else given[each.name]
        for each, kind in _options(settings)
    }
    return settings(**values, progress=sys.stderr.isatty())


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between, or the word none.

    >>> numbers("layers", "17, 31"), numbers("curve", "none")
    ((17, 31), ())
    """
    if text == "none":
        return ()
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(piece.isascii() and piece.isdigit() for piece in pieces):
        raise InputError(f"{flag(name)} {text}: give whole numbers with commas between, as in 17,31")
    return tuple(int(piece) for piece in pieces)


def show(report: Report, out: Path) -> None:
    """What a study ends with on the screen: its answer, what was skipped, where to read on."""
    say(report.summary)
    skipped = report.results.get("skipped", ())
    for item in list(skipped)[:10]:
        say(f"skipped {item['file']}: {item['reason']}", file=sys.stderr)
    if len(skipped) > 10:
        print(f"… and {len(skipped) - 10} more skipped, all listed in the report", file=sys.stderr)
    say(out / "report.html")


def _options(settings: type[Settings]) -> list[tuple[Field[Any], Any]]:
    """The fields that are options, with their types; those without help are not for the command line."""
    hints = get_type_hints(settings)
    found = [(each, hints[each.name]) for each in fields(settings) if each.metadata.get("help")]
    return sorted(found, key=lambda each: each[0].default is not MISSING)  # what must be given comes first


def _parameter(each: Field[Any], kind: Any) -> Parameter:
    about, default, shown = each.metadata, each.default, kind
    least, most, metavar = about.get("least"), about.get("most"), about.get("metavar")
    if _several(kind):  # shown as one text; the settings check each number
        default = MISSING if default is MISSING else ",".join(map(str, default))
        shown, least, most, metavar = str, None, None, metavar or "N,N"
    spec = typer.Option(flag(each.name), help=about["help"], metavar=metavar, min=least, max=most)
    return Parameter(
        each.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is MISSING else default,
        annotation=Annotated[shown, spec],
    )


def _several(kind: Any) -> bool:
    return get_args(kind)[1:] == (Ellipsis,)  # tuple[int, ...]


for each in STUDIES:
    study.command(each.name)(command(each))
