"""Settings of the illustrations study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER
from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class IllustrationsSettings(Settings):
    """Drawn diagrams, angles, and the networks that compare them."""

    out: Path = path_option(Path("out/illustrations"), "Folder for the report.")
    encoders: str = option(
        f"vgg16:17,vgg16:31,{DEFAULT_IMAGE_ENCODER}", "Encoders, as for `bilrp explain`.", metavar="NAMES"
    )
    diagrams: int = option(6, "Diagrams, each with a frame and a rotating part.", minimum=2)
    angles: tuple[int, ...] = option((20, 45, 90, 150), "Angles in degrees.", minimum=1, maximum=359)
    size: int = option(96, "Drawings are scaled to SIZE × SIZE pixels, as in the paper.", minimum=32)
    seed: int = option(0, "Seed of the drawings.", minimum=0)
    weights: Path | None = path_option(
        None, "VGG-16 weights (.safetensors, .pth, .tar.gz); else the cache.", metavar="FILE"
    )
