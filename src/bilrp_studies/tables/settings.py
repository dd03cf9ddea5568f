"""Settings of the tables study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class TablesSettings(Settings):
    """Pages, training of the network, and number of pairs to explain."""

    data: Path = path_option(help="Scans and transcriptions: images/NAME.jpg and data/NAME.csv.")
    out: Path = path_option(Path("out/tables"), "Folder for the report and the trained weights.")
    weights: Path | None = path_option(None, "Bigram weights; trained if not given.", metavar="FILE")
    vgg_weights: Path | None = path_option(
        None, "VGG-16 weights to compare with; else the cache.", metavar="FILE"
    )
    seed: int = option(0, "Decides pages, patches and weights.", minimum=0)
    labels: int = option(1000, "Labelled digits to train on.", minimum=10)
    steps: int = option(2500, "Training steps.", minimum=1)
    curve: tuple[int, ...] = option(
        (100, 200, 500),
        "Smaller numbers of labels to train from as well, or none.",
        minimum=10,
        allow_empty=True,
    )
    pairs: int = option(8, "Pairs of blocks to explain.", minimum=1)
