"""Sentences study: which composites explain a sentence encoder faithfully? Eight methods under six measures.

Exact Shapley values and random subsets of words measure what the model does; planted words, and an encoder trained to
match nouns, provide a known ground truth. The results of each pair are cached in OUT/cache, so an interrupted study
resumes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bilrp.encoder import Encoder
from bilrp.encoders.sentence_encoder import sentence
from bilrp.progress import Progress, progress_bar
from bilrp.render.report import Report
from bilrp_studies.common import sts_data
from bilrp_studies.common.cache import Cache, compute_key, hash_weights
from bilrp_studies.common.noun_matching import NounMatcher, load_or_train
from bilrp_studies.common.result_cache import load_or_compute_row
from bilrp_studies.common.word_subsets import StudySentence
from bilrp_studies.sentences import pair_scores, report
from bilrp_studies.sentences.methods import Method, all_methods
from bilrp_studies.sentences.pair_scores import Row, Scorer
from bilrp_studies.sentences.settings import SentencesSettings

MAX_SHAPLEY_WORDS = 9  # exact Shapley values take 2ⁿ forward passes for n words
NUM_EXAMPLES, PAIRS_PER_EXAMPLE = 8, 3
NUM_COST_SENTENCES = 2  # sentences on which FLOPs are counted
CACHE_VERSION = 2  # of the cached scores of a pair; changing it invalidates the cache


def run(settings: SentencesSettings) -> Report:
    """Run the whole study and return its report.

    >>> run(SentencesSettings(data=Path("stsb"), pairs=2, planted=2, steps=0)).results["encoder"]  # doctest: +SKIP
    'minilm'
    """
    encoders = sentence(settings.encoder), sentence(settings.encoder, features="sum")
    pairs = sts_data.read_pairs(settings.data, "dev")
    compared = all_methods(settings.integration_steps)
    with torch.no_grad(), progress_bar(settings.progress) as bar:
        bench = MethodComparison(encoders, compared, Cache(settings.out / "cache"), bar)
        short = sts_data.choose_pairs(
            pairs, settings.pairs, sts_data.SHORT_WORDS, seed=settings.seed, accepts=_word_limit(encoders[0])
        )
        rows = [
            *bench.score_pairs(
                "short sentences", pair_scores.score_short, [(pair.a, pair.b) for pair in short]
            )
        ]
        long = sts_data.choose_pairs(
            pairs, settings.long_pairs, sts_data.LONG_WORDS, seed=settings.seed, accepts=lambda text: True
        )
        rows += bench.score_pairs(
            "long sentences", pair_scores.score_long, [(pair.a, pair.b) for pair in long]
        )
        planting = (
            ("planted word", pair_scores.score_planted_word, False),
            ("planted synonym", pair_scores.score_planted_synonym, True),
        )
        for name, judge, synonyms in planting:
            rows += bench.score_pairs(name, judge, sts_data.plant_words(settings.planted, synonyms=synonyms))
        matcher = _train_matcher(settings, bench) if settings.steps else None
        if matcher is not None:
            matching = MethodComparison((matcher.encoder, matcher.with_positions), compared, bench.cache, bar)
            rows += matching.score_pairs(
                "matching nouns", pair_scores.score_nouns, _keep_matching(_draw_noun_pairs(settings))
            )
        sides = [bench.read_sentences(pair.a, pair.b) for pair in short[:NUM_EXAMPLES]]
        examples = [_example_row(compared[0], a, b) for a, b in sides]
        work = {
            method.name: _count_passes(method, sides) for method in compared if method.decompose is not None
        }
    return report.build_report(
        settings,
        compared,
        pair_scores.collect_values(rows),
        passes_per_token=work,
        explained_variance=None if matcher is None else matcher.explained_variance,
        examples=examples,
    )


@dataclass(frozen=True, eq=False)
class MethodComparison:
    """An encoder with the methods compared on it; scores of each pair are cached."""

    encoders: tuple[Encoder, Encoder]
    methods: Sequence[Method]
    cache: Cache
    bar: Progress

    def read_sentences(self, a: str, b: str) -> tuple[StudySentence, StudySentence]:
        return StudySentence(*self.encoders, a), StudySentence(*self.encoders, b)

    def score_pairs(self, label: str, scorer: Scorer, pairs: Sequence[tuple[str, str]]) -> Iterator[Row]:
        """Yield the scores of each pair; cached ones are loaded.

        Args:
            label: Name of the measure, for the progress bar and the cache.
            scorer: Computes the scores of one pair.
            pairs: Pairs of sentences.
        """
        module = self.encoders[0].module
        assert isinstance(module, nn.Module)
        names = [(method.name, method.description) for method in self.methods]
        origin = {"weights": hash_weights(module), "what": label, "methods": names, "version": CACHE_VERSION}
        self.bar.start(label, len(pairs))
        for number, (a, b) in enumerate(pairs):
            key = compute_key(json.dumps([a, b]), {**origin, "number": number})
            yield load_or_compute_row(self.cache, key, partial(self._score_pair, scorer, a, b, number))
            self.bar.advance()

    def _score_pair(self, scorer: Scorer, a: str, b: str, number: int) -> Row:
        return scorer(self.methods, *self.read_sentences(a, b), number)


def _word_limit(encoder: Encoder) -> Callable[[str], bool]:
    """Return a predicate: few enough words to enumerate all subsets."""
    return lambda text: 3 <= len(StudySentence(encoder, encoder, text).words) <= MAX_SHAPLEY_WORDS


def _train_matcher(settings: SentencesSettings, comparison: MethodComparison) -> NounMatcher:
    texts = sts_data.select_noun_sentences(sts_data.read_pairs(settings.data, "train"))
    test = _draw_noun_pairs(settings, 4)
    options = {"steps": settings.steps, "seed": settings.seed}
    return load_or_train(
        comparison.encoders, texts, test, **options, bar=comparison.bar, cache=comparison.cache
    )


def _draw_noun_pairs(settings: SentencesSettings, multiple: int = 1) -> list[tuple[str, str]]:
    texts = sts_data.select_noun_sentences(sts_data.read_pairs(settings.data, "dev"))
    return sts_data.draw_partners(texts, multiple * settings.nouns, random.Random(settings.seed + 1))


def _keep_matching(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keep the pairs with a noun in common: without a match the ground truth is zero and its cosine undefined."""
    return [(a, b) for a, b in pairs if sts_data.find_nouns(a) & sts_data.find_nouns(b)]


def _count_passes(method: Method, sentence_pairs: list[tuple[StudySentence, StudySentence]]) -> float:
    """Return the FLOPs of a decomposition, in forward passes of the same sentence per token."""
    assert method.decompose is not None
    ratios = []
    for subject, _ in sentence_pairs[:NUM_COST_SENTENCES]:
        x = subject.encoder_input.x
        with FlopCounterMode(display=False) as forward:
            subject.encoder.module(x)
        with FlopCounterMode(display=False) as all_of_it:
            method.decompose(subject)
        ratios.append(all_of_it.get_total_flops() / forward.get_total_flops() / x.shape[1])
    return sum(ratios) / len(ratios)


def _example_row(method: Method, a: StudySentence, b: StudySentence) -> list[str | float]:
    """Return two sentences, their score, and the strongest pairs of words with their share of it."""
    relevance, score = method.explain(a, b).relevance, float(a.embedding @ b.embedding)
    strongest, places = relevance.flatten().topk(min(PAIRS_PER_EXAMPLE, relevance.numel()))
    shown = [
        f"{a.names[i // len(b.names)]} ↔ {b.names[i % len(b.names)]} {100 * float(value) / score:.0f} %"
        for value, i in zip(strongest, places.tolist(), strict=True)
    ]
    return [a.text, b.text, score, ", ".join(shown)]
