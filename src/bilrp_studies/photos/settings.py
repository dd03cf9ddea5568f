"""What can be chosen in the study of photographs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, place


@dataclass(frozen=True, kw_only=True)
class PhotosSettings(Settings):
    """Which photographs, at which layers, and how many pairs."""

    data: Path = place(help="A folder of photographs.")
    out: Path = place(Path("out/photos"), "Folder for the report.")
    layers: tuple[int, ...] = option((17, 31), "Layers of VGG-16 to compare.", least=1, most=31)
    pairs: int = option(4, "Nearest pairs to explain.", least=1)
    size: int = option(128, "Pictures are cut and scaled to SIZE × SIZE pixels.", least=8)
    weights: Path | None = place(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )
