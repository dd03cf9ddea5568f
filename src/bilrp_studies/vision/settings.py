"""Settings of the vision study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.photograph_settings import PhotographSettings
from bilrp_studies.common.study import option, path_option


@dataclass(frozen=True, kw_only=True)
class VisionSettings(PhotographSettings):
    """Photographs, number of pairs, image and region size."""

    out: Path = path_option(
        Path("out/vision"), "Folder for the report; an interrupted study goes on from there."
    )
    pairs: int = option(30, "Pairs of photographs.", minimum=2)
    size: int = option(224, "Pictures are cut and scaled to SIZE × SIZE pixels.", minimum=64)
    regions: int = option(32, "Side of a region in pixels.", minimum=8)
