"""What can be chosen in the faithfulness study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.photograph_settings import PhotographSettings
from bilrp_studies.common.study import option, place


@dataclass(frozen=True, kw_only=True)
class FaithfulnessSettings(PhotographSettings):
    """Which photographs, at which layers, and how hard to try."""

    out: Path = place(
        Path("out/faithfulness"), "Folder for the report; an interrupted study goes on from there."
    )
    layers: tuple[int, ...] = option((17, 31), "Layers of VGG-16.", least=1, most=31)
    pairs: int = option(40, "Pairs of similar photographs.", least=1)
    project: int | None = option(
        None, "Random projection to this many coordinates; without it, exact.", least=1
    )
    gamma: float = option(0.25, "γ of the method with one γ for all layers.", least=0)
    steps: int = option(8, "Steps of deletion and insertion.", least=2)
    noise: float = option(0.05, "Spread of the added noise, as a share of the picture's.", least=0)
    cascade: int = option(
        5, "At every so many pairs weights are randomised block by block too; 0: never.", least=0
    )
