"""Settings of the invariance study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class InvarianceSettings(Settings):
    """Clips or still images, layers, and number of pairs to explain."""

    data: Path = path_option(
        help="Folder of clips: DIR/<action>/<clip>/*.jpg, or videos; stills with --transform."
    )
    out: Path = path_option(Path("out/invariance"), "Folder for the report.")
    layers: tuple[int, ...] = option((5, 10, 17, 24, 31), "Layers of VGG-16.", minimum=1, maximum=31)
    size: int = option(128, "Frames are cut and scaled to SIZE × SIZE pixels.", minimum=32)
    crop: float = option(1.0, "Middle square to keep: a share of the short side (0.6), or pixels (80).")
    lag: int = option(5, "Local pairs are at most this many frames apart.", minimum=1)
    pairs: int = option(1, "Pairs of each clip to explain; 0 for INV alone.", minimum=0)
    regions: int = option(8, "Side of a region in pixels.", minimum=1)
    max_frames: int = option(100, "At most this many frames of a clip.", minimum=2)
    transform: str | None = option(None, "For still pictures: rotate:90, shift:8,0 (right, down) or flip.")
    resamples: int = option(2000, "Draws behind each interval.", minimum=1)
    seed: int = option(0, "Same seed, same intervals.", minimum=0)
    project: int | None = option(
        None, "Random projection to this many coordinates; without it, exact.", minimum=1
    )
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )
    cache: Path | None = path_option(None, "Where to keep features and decompositions; else OUT/cache.")
