"""Settings of the corpus study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilrp_studies.common.study import Settings, option, path_option


@dataclass(frozen=True, kw_only=True)
class CorpusSettings(Settings):
    """Size of the corpus, and how it was copied."""

    out: Path = path_option(Path("out/corpus"), "Folder for the pages, the collection and the report.")
    pages: int = option(2000, "Number of pages, in five editions.", minimum=20)
    copied_percent: int = option(
        70, "Percentage of later pages that copy from earlier ones.", minimum=1, maximum=100
    )
    changed_percent: int = option(
        5, "Percentage of copied numbers with one digit changed.", minimum=0, maximum=50
    )
    steps: int = option(1500, "Steps of training for the network that reads the typefaces.", minimum=10)
    seed: int = option(0, "Seed of the pages.", minimum=0)
