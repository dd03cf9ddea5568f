"""What can be chosen in the study of scanned tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, place


@dataclass(frozen=True, kw_only=True)
class TablesSettings(Settings):
    """Which pages, how the network is trained, and how many pairs to explain."""

    data: Path = place(help="Scans and transcriptions: images/NAME.jpg and data/NAME.csv.")
    out: Path = place(Path("out/tables"), "Folder for the report and the trained weights.")
    weights: Path | None = place(None, "Bigram weights; trained if not given.", metavar="FILE")
    vgg: Path | None = place(None, "VGG-16 weights to compare with; else the cache.", metavar="FILE")
    seed: int = option(0, "Decides pages, patches and weights.", least=0)
    labels: int = option(1000, "Labelled digits to train on.", least=10)
    steps: int = option(2500, "Training steps.", least=1)
    curve: tuple[int, ...] = option(
        (100, 200, 500), "Smaller numbers of labels to train from as well, or none.", least=10, empty=True
    )
    pairs: int = option(8, "Pairs of blocks to explain.", least=1)
