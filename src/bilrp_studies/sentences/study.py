"""Which rules tell the truth about a sentence encoder? Eight methods under six measures, on real sentences.

Exact Shapley values and random selections of words say what the model does; planted words, and an encoder trained to
match nouns, say what an explanation should be. What one pair gave is kept in OUT/cache, so that an interrupted study
goes on where it stopped.
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

from bilrp.io.cache import Cache, key_of, weights_of
from bilrp.encoder import Encoder
from bilrp.encoders.sentence_encoder import sentence
from bilrp.progress import Progress, tracking
from bilrp_studies.common.result_cache import kept_row
from bilrp.render.report import Report
from bilrp_studies.sentences import sts_data, pair_scores, report
from bilrp_studies.sentences.pair_scores import Judge, Row
from bilrp_studies.sentences.noun_matching import Matcher, trained
from bilrp_studies.sentences.methods import Method, methods
from bilrp_studies.sentences.settings import SentencesSettings
from bilrp_studies.sentences.word_subsets import Subject

MOST_WORDS = 9  # exact Shapley values take 2ⁿ runs
EXAMPLES, STRONGEST = 8, 3
COUNTED = 2  # sentences on which work is counted
VERSION = 2  # of what one pair gives: another number, and nothing kept before is read


def run(settings: SentencesSettings) -> Report:
    """The whole study, from sentences to report.

    >>> run(SentencesSettings(data=Path("stsb"), pairs=2, planted=2, steps=0)).results["encoder"]  # doctest: +SKIP
    'minilm'
    """
    encoders = sentence(settings.encoder), sentence(settings.encoder, features="sum")
    pairs = sts_data.read_pairs(settings.data, "dev")
    compared = methods(settings.path)
    with torch.no_grad(), tracking(settings.progress) as bar:
        bench = Bench(encoders, compared, Cache(settings.out / "cache"), bar)
        short = sts_data.chosen(pairs, settings.pairs, sts_data.SHORT, seed=settings.seed, fits=_fits(encoders[0]))
        rows = [*bench.rows("short sentences", pair_scores.short, [(pair.a, pair.b) for pair in short])]
        long = sts_data.chosen(pairs, settings.long_pairs, sts_data.LONG, seed=settings.seed, fits=lambda text: True)
        rows += bench.rows("long sentences", pair_scores.long, [(pair.a, pair.b) for pair in long])
        planting = (("planted word", pair_scores.word, False), ("planted synonym", pair_scores.synonym, True))
        for name, judge, synonyms in planting:
            rows += bench.rows(name, judge, sts_data.planted(settings.planted, synonyms=synonyms))
        matcher = _matcher(settings, bench) if settings.steps else None
        if matcher is not None:
            matching = Bench((matcher.encoder, matcher.with_positions), compared, bench.cache, bar)
            rows += matching.rows("matching nouns", pair_scores.nouns, _matched(_noun_pairs(settings)))
        sides = [bench.subjects(pair.a, pair.b) for pair in short[:EXAMPLES]]
        examples = [_example(compared[0], a, b) for a, b in sides]
        work = {method.name: _passes(method, sides) for method in compared if method.whole is not None}
    return report.write(
        settings,
        compared,
        pair_scores.gathered(rows),
        work=work,
        fit=None if matcher is None else matcher.fit,
        examples=examples,
    )


@dataclass(frozen=True, eq=False)
class Bench:
    """An encoder with the methods compared on it; what one pair gave is kept."""

    encoders: tuple[Encoder, Encoder]
    compared: Sequence[Method]
    cache: Cache
    bar: Progress

    def subjects(self, a: str, b: str) -> tuple[Subject, Subject]:
        return Subject(*self.encoders, a), Subject(*self.encoders, b)

    def rows(self, what: str, judge: Judge, pairs: Sequence[tuple[str, str]]) -> Iterator[Row]:
        """What a judge says about each pair; pairs already judged are read."""
        module = self.encoders[0].module
        assert isinstance(module, nn.Module)
        names = [(method.name, method.about) for method in self.compared]
        origin = {"weights": weights_of(module), "what": what, "methods": names, "version": VERSION}
        self.bar.start(what, len(pairs))
        for number, (a, b) in enumerate(pairs):
            key = key_of(json.dumps([a, b]), {**origin, "number": number})
            yield kept_row(self.cache, key, partial(self._judged, judge, a, b, number))
            self.bar.advance()

    def _judged(self, judge: Judge, a: str, b: str, number: int) -> Row:
        return judge(self.compared, *self.subjects(a, b), number)


def _fits(encoder: Encoder) -> Callable[[str], bool]:
    """Few enough words for all their selections."""
    return lambda text: 3 <= len(Subject(encoder, encoder, text).words) <= MOST_WORDS


def _matcher(settings: SentencesSettings, bench: Bench) -> Matcher:
    texts = sts_data.noun_sentences(sts_data.read_pairs(settings.data, "train"))
    test = _noun_pairs(settings, 4)
    options = {"steps": settings.steps, "seed": settings.seed}
    return trained(bench.encoders, texts, test, **options, bar=bench.bar, cache=bench.cache)


def _noun_pairs(settings: SentencesSettings, times: int = 1) -> list[tuple[str, str]]:
    texts = sts_data.noun_sentences(sts_data.read_pairs(settings.data, "dev"))
    return sts_data.partners(texts, times * settings.nouns, random.Random(settings.seed + 1))


def _matched(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs with a noun in common: without a match there is no direction to agree with."""
    return [(a, b) for a, b in pairs if sts_data.nouns(a) & sts_data.nouns(b)]


def _passes(method: Method, sides: list[tuple[Subject, Subject]]) -> float:
    """Multiplications of a decomposition, in passes of the same sentence for each of its tokens."""
    assert method.whole is not None
    ratios = []
    for subject, _ in sides[:COUNTED]:
        x = subject.item.x
        with FlopCounterMode(display=False) as forward:
            subject.encoder.module(x)
        with FlopCounterMode(display=False) as all_of_it:
            method.whole(subject)
        ratios.append(all_of_it.get_total_flops() / forward.get_total_flops() / x.shape[1])
    return sum(ratios) / len(ratios)


def _example(method: Method, a: Subject, b: Subject) -> list[str | float]:
    """Two sentences, their score, and the strongest pairs of words with their share of it."""
    relevance, score = method.found(a, b).relevance, float(a.whole @ b.whole)
    strongest, places = relevance.flatten().topk(min(STRONGEST, relevance.numel()))
    shown = [
        f"{a.names[int(place) // len(b.names)]} ↔ {b.names[int(place) % len(b.names)]} {100 * float(value) / score:.0f} %"
        for value, place in zip(strongest, places, strict=True)
    ]
    return [a.text, b.text, score, ", ".join(shown)]
