"""Settings of the photographs study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class PhotosSettings(Settings):
    """Photographs, layers, and number of pairs."""

    data: Path = path_option(help="A folder of photographs.")
    out: Path = path_option(Path("out/photos"), "Folder for the report.")
    layers: tuple[int, ...] = option((17, 31), "Layers of VGG-16 to compare.", minimum=1, maximum=31)
    pairs: int = option(4, "Nearest pairs to explain.", minimum=1)
    size: int = option(128, "Pictures are cut and scaled to SIZE × SIZE pixels.", minimum=8)
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )
