"""What a study is: a question, settings, and a run from settings to report. Without torch, so that help costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.render.report import Report

Number = int | float
STUDY_PACKAGES = ("scipy", "skimage", "sklearn")  # what the extra brings


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    minimum: Number | None = None,
    maximum: Number | None = None,
    metavar: str | None = None,
    allow_empty: bool = False,
) -> Any:
    """A field of some settings, and with that an option of the command line; bounds hold for each of several numbers.

    Several numbers are kept in order, each once; they may be none at all only if `allow_empty` says so.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mine(Settings):
    ...     pairs: int = option(4, "Pairs to explain.", minimum=1)
    >>> Mine(pairs=0)
    Traceback (most recent call last):
    bilrp.errors.InputError: --pairs 0: give at least 1
    """
    about = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "metavar": metavar,
        "allow_empty": allow_empty,
        "affects_results": True,
    }
    return field(default=default, metadata=about)


def path_option(default: Any = MISSING, help: str = "", *, metavar: str = "DIR") -> Any:
    """A field that names a file or folder: where things are, which decides no figure."""
    return field(default=default, metadata={"help": help, "metavar": metavar, "affects_results": False})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be chosen: every figure of a study follows from its settings and its data.

    `out` is where the report goes, and where a study keeps what it may need again. `progress` shows bars.
    """

    out: Path = path_option(Path("out"), "Folder for the report.")
    progress: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, tuple):
                object.__setattr__(self, each.name, tuple(sorted(set(value))))
                if not value and not each.metadata.get("allow_empty", False):
                    raise InputError(f"{flag_name(each.name)}: give at least one number")
            for number in value if isinstance(value, tuple) else (value,):
                _check_bounds(each.name, number, each.metadata)

    def result_options(self) -> dict[str, Any]:
        """The settings that figures follow from, as plain values: all but places and progress."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.metadata.get("affects_results", False)
        }


def flag_name(name: str) -> str:
    """A field's name on the command line.

    >>> flag_name("first_seed")
    '--first-seed'
    """
    return f"--{name.replace('_', '-')}"


def _check_bounds(name: str, number: Any, bounds: Mapping[str, Any]) -> None:
    least, most = bounds.get("minimum"), bounds.get("maximum")
    if not isinstance(number, int | float) or (
        (least is None or number >= least) and (most is None or number <= most)
    ):
        return
    if least is not None and most is not None:
        wanted = f"numbers from {least:g} to {most:g}"
    else:
        wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
    raise InputError(f"{flag_name(name)} {number}: give {wanted}")


@dataclass(frozen=True)
class Study:
    """One experiment: its name, the question it answers, its settings, and how it is run.

    `target` is the function settings → report, or where it is, as "package.module:function", so that a table of studies
    loads none of them.

    >>> Study("mine", "Is it so?", Settings, "bilrp_studies.toy.study:run").name
    'mine'
    """

    name: str
    question: str
    settings: type[Settings]
    target: str | Callable[[Any], Report]

    def run(self, settings: Settings) -> Report:
        """The whole study, from data to report; nothing is written but what it keeps to go on from."""
        if not isinstance(self.target, str):
            return self.target(settings)
        module, _, function = self.target.partition(":")
        try:
            return getattr(importlib.import_module(module), function)(settings)
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name not in STUDY_PACKAGES:
                raise
            raise InputError(f"study {self.name} needs {name}: pip install 'bilrp[studies]'") from error
