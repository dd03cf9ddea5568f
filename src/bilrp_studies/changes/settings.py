"""Settings of the changes study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class ChangesSettings(Settings):
    """Photographs with annotated objects, sentences, and the encoders that compare them."""

    data: Path = path_option(
        help="Folder with pascal_voc (images/*.jpg, annotations/*.xml) and stsb (the STS benchmark)."
    )
    out: Path = path_option(Path("out/changes"), "Folder for the report.")
    image_encoder: str = option(
        "mobilenet", "The encoder of photographs, as for `bilrp explain`.", metavar="NAME"
    )
    text_encoder: str = option("minilm", "The encoder of sentences.", metavar="NAME")
    cases: int = option(20, "Photographs and sentences for each kind of change.", minimum=1)
    seed: int = option(0, "Seed of the choice of photographs, sentences, places and words.", minimum=0)
