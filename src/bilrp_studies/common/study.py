"""Definition of a study: a question, settings, and a function from settings to report. Does not import torch."""

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
STUDY_PACKAGES = ("scipy", "skimage", "sklearn")  # installed by the extra bilrp[studies]


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    minimum: Number | None = None,
    maximum: Number | None = None,
    metavar: str | None = None,
    allow_empty: bool = False,
) -> Any:
    """Return a dataclass field for a setting that is also a command-line option.

    Tuples of numbers are sorted and deduplicated.

    Args:
        default: The default value; without it the option is required.
        help: Help text; fields without one are not command-line options.
        minimum, maximum: Inclusive bounds, of each element if the value is a tuple.
        metavar: Placeholder of the value in the help.
        allow_empty: Whether a tuple may be empty.

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
    """Return a dataclass field for a file or folder, which is not among the settings that determine results.

    Args:
        default: The default path; without it the option is required.
        help: Help text; fields without one are not command-line options.
        metavar: Placeholder of the value in the help.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, "affects_results": False})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of a study's settings; its results are determined by settings and data.

    `out` is the folder of the report and of cached intermediate results. `progress` shows progress bars.
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
        """Return the settings that determine results: all except paths and `progress`."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.metadata.get("affects_results", False)
        }


def flag_name(name: str) -> str:
    """Return the command-line flag of a field.

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
        expected = f"numbers from {least:g} to {most:g}"
    else:
        expected = f"at least {least:g}" if least is not None else f"at most {most:g}"
    raise InputError(f"{flag_name(name)} {number}: give {expected}")


@dataclass(frozen=True)
class Study:
    """One experiment: its name, the question it answers, its settings class, and the function that runs it.

    `target` is the function settings → report, or its location "package.module:function", which is imported only when the
    study runs.

    >>> Study("mine", "Is it so?", Settings, "bilrp_studies.toy.study:run").name
    'mine'
    """

    name: str
    question: str
    settings: type[Settings]
    target: str | Callable[[Any], Report]

    def run(self, settings: Settings) -> Report:
        """Run the whole study and return its report; only cached intermediate results are written to disk."""
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
