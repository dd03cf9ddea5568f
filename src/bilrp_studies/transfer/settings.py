"""Settings of the transfer study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class TransferSettings(Settings):
    """Images, layers, number of splits, and number of pairs to explain."""

    data: Path = path_option(help="Folder of pictures: DIR/<class>/*.jpg")
    out: Path = path_option(Path("out/transfer"), "Folder for the report.")
    layers: tuple[int, ...] = option((5, 10, 17, 24, 31), "Layers of VGG-16.", minimum=1, maximum=31)
    size: int = option(64, "Pictures are cut and scaled to SIZE × SIZE pixels.", minimum=32)
    crop: float = option(1.0, "Middle square to keep: a share of the short side (0.6), or pixels (80).")
    splits: int = option(5, "Random halves to try.", minimum=1)
    seed: int = option(0, "Same seed, same splits and pairs.", minimum=0)
    pairs: int = option(6, "Pairs to explain; 0 for the accuracy table alone.", minimum=0)
    regions: int = option(4, "Side of a region in pixels.", minimum=1)
    project: int | None = option(
        None, "Random projection to this many coordinates; without it, exact.", minimum=1
    )
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )
    cache: Path | None = path_option(None, "Where to keep features and decompositions; else OUT/cache.")
