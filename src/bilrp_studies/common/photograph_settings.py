"""Settings shared by the studies of photograph pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp.errors import InputError
from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class PhotographSettings(Settings):
    """Photographs, number of pairs, image and region size, and bootstrap."""

    data: Path = path_option(help="A folder of photographs.")
    pairs: int = option(30, "Pairs of photographs.", minimum=1)
    size: int = option(96, "Pictures are cut and scaled to SIZE × SIZE pixels.", minimum=32)
    regions: int = option(8, "Side of a region in pixels.", minimum=1)
    resamples: int = option(2000, "Draws behind each interval.", minimum=1)
    seed: int = option(0, "Same seed, same numbers.", minimum=0)
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 4 * self.regions:
            raise InputError(
                f"pictures of {self.size} pixels are too small for regions of {self.regions}: use --size 96"
            )
