"""Settings of the sentences study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class SentencesSettings(Settings):
    """Data, encoder, number of pairs for each measure, and training steps of noun matching."""

    data: Path = path_option(help="STS benchmark: stsb-en-dev.csv and stsb-en-train.csv.")
    out: Path = path_option(Path("out/sentences"), "Folder for the report.")
    encoder: str = option("minilm", "minilm, or a folder with a sentence encoder.", metavar="NAME")
    pairs: int = option(30, "Short pairs, judged by exact Shapley values.", minimum=2)
    long_pairs: int = option(8, "Pairs of long sentences, judged by subsets and deletion.", minimum=2)
    planted: int = option(20, "Words planted into unrelated sentences.", minimum=2, maximum=40)
    nouns: int = option(30, "Test pairs of noun matching, those with a noun in common.", minimum=2)
    steps: int = option(300, "Training steps for noun matching; 0 leaves it out.", minimum=0)
    integration_steps: int = option(8, "Points on the path of integrated Jacobians.", minimum=1)
    seed: int = option(0, "Same seed, same pairs and intervals.", minimum=0)
