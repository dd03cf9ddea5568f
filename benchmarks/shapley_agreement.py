"""Which method agrees with exact Shapley values of word pairs? python benchmarks/shapley_agreement.py DATA [COUNT]

For MiniLM and gte-small (DATA/gte-small), on COUNT pairs of sentences of the STS benchmark (DATA/stsb) with three to seven
words: the correlation over pairs of words of a method's relevance with exact Shapley values under deletion, its mean with a
95 % bootstrap interval, and on which share of the pairs the default is closer. Methods are those of `bilrp study arena`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

from bilrp.encoder import Encoder
from bilrp_studies.arena.methods import OUR_METHOD, run_method, text_methods
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.study import load_encoder
from bilrp_studies.arena.truth import Case
from bilrp_studies.common import sts_data
from bilrp_studies.common.bootstrap import block_bootstrap_mean
from bilrp_studies.common.word_subsets import StudySentence
from bilrp_studies.sentences.word_metrics import relevance_correlation

ENCODERS = ("minilm", "gte-small")
WORDS = range(3, 8)  # of each sentence: 2⁷ forward passes
INTEGRATION_STEPS = 4


def measure_agreement(encoder: Encoder, pairs: list[sts_data.SentencePair]) -> dict[str, list[float]]:
    """Return, by method, the correlation of each pair.

    Args:
        encoder: the encoder.
        pairs: the sentences.
    """
    methods = text_methods(INTEGRATION_STEPS)
    del methods["Shapley pairs"]
    result: dict[str, list[float]] = {name: [] for name in methods}
    for pair in pairs:
        a, b = (StudySentence(encoder, encoder, text) for text in (pair.a, pair.b))
        exact = a.shapley_values() @ b.shapley_values().T
        case = Case("Shapley", pair.a, pair.b, exact, exact, group=0)
        for name, method in methods.items():
            explanation = run_method(method, methods[OUR_METHOD], [], encoder, case, None)
            relevance = explanation.relevance.double()[a.words][:, b.words]
            result[name].append(relevance_correlation(relevance, exact))
    return result


def main(data: str, count: str = "60") -> None:
    """Print a row of a table for each method and encoder."""
    settings = ArenaSettings(data=Path(data))
    every = sts_data.read_pairs(Path(data) / "stsb", "dev")
    random.Random(0).shuffle(every)
    for name in ENCODERS:
        encoder = load_encoder(name, settings)
        short = [
            pair
            for pair in every[: 20 * int(count)]
            if pair.a != pair.b
            and all(len(StudySentence(encoder, encoder, text).words) in WORDS for text in (pair.a, pair.b))
        ]
        values = measure_agreement(encoder, short[: int(count)])
        ours = values[OUR_METHOD]
        for method, each in sorted(values.items(), key=lambda item: -sum(item[1])):
            interval = block_bootstrap_mean(each, resamples=settings.resamples, seed=0)
            closer = sum(x > y for x, y in zip(ours, each, strict=True)) / len(ours)
            cells = (
                f"{name} ({len(each)} pairs)", method,
                f"{interval['mean']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})",
                "" if method == OUR_METHOD else f"{closer:.0%}",
            )  # fmt: skip
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
