"""What can be chosen in the toy study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, place


@dataclass(frozen=True, kw_only=True)
class ToySettings(Settings):
    """How many networks to train, how long, and how many pairs to explain."""

    out: Path = place(Path("out/toy"), "Folder for the report.")
    seeds: int = option(5, "Networks to train and explain.", least=1)
    seed: int = option(0, "The first seed; same seed, same numbers.", least=0)
    pairs: int = option(1000, "Test pairs for each network.", least=2)
    iterations: int = option(10_000, "Training iterations.", least=100)
