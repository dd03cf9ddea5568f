"""`bilrp study NAME`: run one study; its command-line options are the fields of its settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from bilrp.cli.console import print_safe
from bilrp.errors import InputError
from bilrp.render.report import Report
from bilrp_studies.catalog import STUDIES, find_study
from bilrp_studies.common.study import Settings, Study, flag_name


class StudyGroup(TyperGroup):
    """Command group of the built-in studies; any other study is found by `package.module:STUDY`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or ":" not in cmd_name:
            return known
        own = typer.Typer(add_completion=False)
        own.command()(make_command(find_study(cmd_name)))
        return typer.main.get_command(own)


study = typer.Typer(
    cls=StudyGroup,
    help="Run one experiment of the paper, from data to table and figure; or your own: package.module:STUDY.",
    no_args_is_help=True,
)


def make_command(definition: Study) -> Callable[..., None]:
    """Return a study as a command function with one option per field of its settings."""

    def run(**given: Any) -> None:
        settings = parse_settings(definition.settings, given)
        report = definition.run(settings)
        report.write(settings.out)
        print_report(report, settings.out)

    parameters = [_make_parameter(*each) for each in _option_fields(definition.settings)]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = definition.question
    return run


def parse_settings(settings: type[Settings], arguments: Mapping[str, Any]) -> Settings:
    """Build the settings from the command line's values; comma-separated numbers become tuples."""
    values: dict[str, Any] = {
        each.name: parse_integers(each.name, arguments[each.name])
        if _is_sequence(kind)
        else arguments[each.name]
        for each, kind in _option_fields(settings)
    }
    return settings(**values, progress=sys.stderr.isatty())


def parse_integers(name: str, text: str) -> tuple[int, ...]:
    """Parse comma-separated integers, or the word "none".

    >>> parse_integers("layers", "17, 31"), parse_integers("curve", "none")
    ((17, 31), ())
    """
    if text == "none":
        return ()
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(piece.isascii() and piece.isdigit() for piece in pieces):
        raise InputError(f"{flag_name(name)} {text}: give whole numbers with commas between, as in 17,31")
    return tuple(int(piece) for piece in pieces)


def print_report(report: Report, out: Path) -> None:
    """Print a study's summary, the skipped files, and the path of the report."""
    print_safe(report.summary)
    skipped = report.results.get("skipped", ())
    for item in list(skipped)[:10]:
        print_safe(f"skipped {item['file']}: {item['reason']}", file=sys.stderr)
    if len(skipped) > 10:
        print(f"… and {len(skipped) - 10} more skipped, all listed in the report", file=sys.stderr)
    print_safe(out / "report.html")


def _option_fields(settings: type[Settings]) -> list[tuple[Field[Any], Any]]:
    """Return the fields that are command-line options (those with a help text), with their types."""
    hints = get_type_hints(settings)
    options = [(each, hints[each.name]) for each in fields(settings) if each.metadata.get("help")]
    return sorted(options, key=lambda each: each[0].default is not MISSING)  # required options first


def _make_parameter(field: Field[Any], kind: Any) -> Parameter:
    about, default, shown = field.metadata, field.default, kind
    least, most, metavar = about.get("minimum"), about.get("maximum"), about.get("metavar")
    if _is_sequence(kind):  # passed as one string; the settings check each number
        default = MISSING if default is MISSING else ",".join(map(str, default))
        shown, least, most, metavar = str, None, None, metavar or "N,N"
    spec = typer.Option(flag_name(field.name), help=about["help"], metavar=metavar, min=least, max=most)
    return Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is MISSING else default,
        annotation=Annotated[shown, spec],
    )


def _is_sequence(kind: Any) -> bool:
    return get_args(kind)[1:] == (Ellipsis,)  # tuple[int, ...]


for each in STUDIES:
    study.command(each.name)(make_command(each))
