"""Settings of the arena."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option

ENCODERS = "vgg16:31,resnet50,mobilenet,efficientnet,minilm,gte-small"


@dataclass(frozen=True, kw_only=True)
class ArenaSettings(Settings):
    """Data, encoders, and the number of photographs and texts for each ground truth."""

    data: Path = path_option(
        help="Folder with pascal_voc (images, annotations), ists (*.wa), stsb, and encoders' folders."
    )
    out: Path = path_option(
        Path("out/arena"), "Folder for the report; an interrupted study goes on from there."
    )
    encoders: str = option(ENCODERS, "Names, or folders inside DATA, with commas between.", metavar="NAMES")
    photographs: int = option(6, "Photographs for warps and planted objects, each.", minimum=1)
    warps: int = option(5, "Warps of each photograph; fewer take turns.", minimum=1, maximum=5)
    pairs: int = option(100, "Pairs of photographs with an object of one class.", minimum=1)
    sentences: int = option(100, "Pairs of sentences of iSTS and with shared nouns, each.", minimum=2)
    planted: int = option(10, "Words planted into unrelated sentences.", minimum=2, maximum=40)
    steps: int = option(300, "Training steps for noun matching; 0 leaves it out.", minimum=0)
    integration_steps: int = option(4, "Points on the path of integrated Jacobians.", minimum=1)
    methods: str = option("", "Only these methods, by their names, with commas between.", metavar="NAMES")
    entry: str = option(
        "", "Methods of your own, package.module:function, with commas between.", metavar="NAMES"
    )
    size: int = option(
        0, "Pictures are scaled to SIZE × SIZE pixels, except for folders; 0: bilrp's default.", minimum=0
    )
    regions: int = option(
        0, "Side of a region in pixels; 0: the largest power of two of which seven fit.", minimum=0
    )
    resamples: int = option(2000, "Draws behind each interval.", minimum=1)
    seed: int = option(0, "Same seed, same numbers.", minimum=0)
