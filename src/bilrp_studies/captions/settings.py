"""Settings of the captions study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class CaptionsSettings(Settings):
    """Training length of the two towers and number of scenes to explain."""

    out: Path = path_option(Path("out/captions"), "Folder for the report.")
    steps: int = option(1200, "Training steps of 64 scenes each.", minimum=1)
    scenes: int = option(25, "Scenes to explain for each number of objects, in each of two games.", minimum=2)
    retrieval: int = option(200, "New scenes among which captions are looked up.", minimum=2)
    integration_steps: int = option(8, "Points on the path of integrated Jacobians.", minimum=1)
    seed: int = option(0, "Same seed, same scenes, same model, same figures.", minimum=0)
