"""Settings of the repair study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp.errors import InputError
from bilrp_studies.common.study import Settings, option, path_option

SHORTCUTS = ("bar", "logo", "border", "boilerplate")


@dataclass(frozen=True, kw_only=True)
class RepairSettings(Settings):
    """Inputs, encoder, and the shortcut that is planted."""

    data: Path = path_option(help="A folder of photographs, or of .csv files with two sentences in each row.")
    out: Path = path_option(Path("out/repair"), "Folder for the report.")
    encoder: str = option("mobilenet", "The encoder, as for `bilrp explain`.", metavar="NAME")
    shortcut: str = option(
        "bar", "bar, logo or border for photographs, boilerplate for texts.", metavar="NAME"
    )
    items: int = option(512, "Number of items: crops of the photographs, or sentences.", minimum=40)
    percent: int = option(30, "Percentage of the items that get the shortcut.", minimum=5, maximum=60)
    seed: int = option(0, "Seed of the crops and of the choice of items.", minimum=0)
    methods: bool = option(False, "Also measure each method that was not chosen, on all items.")
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortcut not in SHORTCUTS:
            raise InputError(f"--shortcut {self.shortcut}: give one of {', '.join(SHORTCUTS)}")
