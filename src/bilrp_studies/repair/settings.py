"""Settings of the repair study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp.errors import InputError
from bilrp_studies.common.study import Settings, option, path_option

IMAGE_SHORTCUTS = ("bar", "logo", "moving-logo", "border", "watermark", "tint")
TEXT_SHORTCUTS = ("boilerplate", "heading", "product")


@dataclass(frozen=True, kw_only=True)
class RepairSettings(Settings):
    """Inputs, encoders, and the shortcuts that are planted."""

    data: Path = path_option(help="A folder of photographs, or of .csv files with two sentences in each row.")
    out: Path = path_option(Path("out/repair"), "Folder for the report.")
    encoder: str = option(
        "efficientnet", "Encoders as for `bilrp explain`, separated by commas.", metavar="NAME,…"
    )
    shortcut: str = option(
        "bar",
        f"Of photographs: {', '.join(IMAGE_SHORTCUTS)}; of texts: {', '.join(TEXT_SHORTCUTS)}; or none: what an audit "
        "finds, with folders as labels.",
        metavar="NAME,…",
    )
    items: int = option(512, "Number of items: crops of the photographs, or sentences.", minimum=40)
    percent: int = option(30, "Percentage of the items that get the shortcut.", minimum=5, maximum=60)
    seed: int = option(0, "Seed of the crops and of the choice of items.", minimum=0)
    methods: bool = option(False, "Also measure each method that was not chosen, on all items.")
    edits: bool = option(False, "Also measure grey and blurred pixels in place of the shortcut.")
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (*IMAGE_SHORTCUTS, *TEXT_SHORTCUTS, "none")
        for name in self.shortcuts:
            if name not in known:
                raise InputError(f"--shortcut {name}: give one of {', '.join(known)}")
        kinds = {name in TEXT_SHORTCUTS for name in self.shortcuts}
        if len(kinds) != 1 or ("none" in self.shortcuts and len(self.shortcuts) > 1):
            raise InputError(
                f"--shortcut {self.shortcut}: give those of photographs, those of texts, or none"
            )
        if not self.encoders:
            raise InputError("--encoder: give at least one")

    @property
    def shortcuts(self) -> list[str]:
        return [name.strip() for name in self.shortcut.split(",") if name.strip()]

    @property
    def encoders(self) -> list[str]:
        return [name.strip() for name in self.encoder.split(",") if name.strip()]
