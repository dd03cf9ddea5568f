"""Settings of the faithfulness study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.photograph_settings import PhotographSettings
from bilrp_studies.common.study import option, path_option


@dataclass(frozen=True, kw_only=True)
class FaithfulnessSettings(PhotographSettings):
    """Photographs, layers, methods and metrics."""

    out: Path = path_option(
        Path("out/faithfulness"), "Folder for the report; an interrupted study goes on from there."
    )
    layers: tuple[int, ...] = option((17, 31), "Layers of VGG-16.", minimum=1, maximum=31)
    pairs: int = option(40, "Pairs of similar photographs.", minimum=1)
    project: int | None = option(
        None, "Random projection to this many coordinates; without it, exact.", minimum=1
    )
    gamma: float = option(0.25, "γ of the method with one γ for all layers.", minimum=0)
    steps: int = option(8, "Steps of deletion and insertion.", minimum=2)
    noise: float = option(0.05, "Spread of the added noise, as a share of the picture's.", minimum=0)
    cascade: int = option(
        5, "Weights are also randomised block by block at every n-th pair; 0: never.", minimum=0
    )
