"""Settings of the toy study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class ToySettings(Settings):
    """Number of networks, training length, and number of pairs to explain."""

    out: Path = path_option(Path("out/toy"), "Folder for the report.")
    seeds: int = option(5, "Networks to train and explain.", minimum=1)
    seed: int = option(0, "The first seed; same seed, same numbers.", minimum=0)
    pairs: int = option(1000, "Test pairs for each network.", minimum=2)
    iterations: int = option(10_000, "Training iterations.", minimum=100)
