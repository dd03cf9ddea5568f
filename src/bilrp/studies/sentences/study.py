"""Which rules tell the truth about a sentence encoder? Eight methods under six measures, on real sentences.

Exact Shapley values and random selections of words say what the model does; planted words, and an encoder trained to
match nouns, say what an explanation should be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from bilrp.encoder import Encoder
from bilrp.encoders.sentences import sentence
from bilrp.engine.progress import Progress, tracking
from bilrp.studies.common.report import Report
from bilrp.studies.sentences import data, measures, report
from bilrp.studies.sentences.matching import Matcher, trained, truth
from bilrp.studies.sentences.measures import Relevance, Trial
from bilrp.studies.sentences.methods import Method, methods
from bilrp.studies.sentences.settings import SentencesSettings
from bilrp.studies.sentences.subject import Subject

SELECTIONS = 200
EXAMPLES, STRONGEST = 8, 3
COUNTED = 4  # sentences on which work is counted

Values = dict[str, dict[str, list[float]]]
"""Measure → method → one value for each pair."""


def run(settings: SentencesSettings) -> Report:
    """The whole study, from sentences to report.

    >>> run(SentencesSettings(data=Path("stsb"), pairs=2, planted=2, steps=0)).results["encoder"]
    """
    encoders = sentence(settings.encoder), sentence(settings.encoder, features="sum")
    pairs = data.read_pairs(settings.data, "dev")
    compared = methods(settings.path)
    values: Values = {}
    with torch.no_grad(), tracking(settings.progress) as bar:
        short = data.chosen(pairs, settings.pairs, data.SHORT, seed=settings.seed, fits=_fits(encoders[0]))
        sides = [_subjects(encoders, pair.a, pair.b) for pair in short]
        _judge_short(values, compared, sides, bar)
        long = data.chosen(pairs, settings.long_pairs, data.LONG, seed=settings.seed, fits=lambda text: True)
        _judge_long(values, compared, [_subjects(encoders, pair.a, pair.b) for pair in long], bar)
        for name, synonyms in (("planted word", False), ("planted synonym", True)):
            _judge_planted(
                values, name, compared, encoders, data.planted(settings.planted, synonyms=synonyms), bar
            )
        matcher = _matcher(settings, encoders, bar) if settings.steps else None
        if matcher is not None:
            _judge_nouns(values, compared, matcher, settings, bar)
        left = _left_over(compared, sides)
        examples = [_example(compared[0], a, b) for a, b in sides[:EXAMPLES]]
        work = {method.name: _passes(method, sides) for method in compared if method.whole is not None}
    return report.write(
        settings,
        compared,
        values,
        left=left,
        work=work,
        fit=None if matcher is None else matcher.fit,
        examples=examples,
    )


def _subjects(encoders: tuple[Encoder, Encoder], a: str, b: str) -> tuple[Subject, Subject]:
    return Subject(*encoders, a), Subject(*encoders, b)


def _fits(encoder: Encoder) -> Callable[[str], bool]:
    """Few enough words for all their selections."""
    return lambda text: 3 <= len(Subject(encoder, encoder, text).words) <= data.SHORT[1] + 2


def _judge_short(
    values: Values, compared: Sequence[Method], sides: list[tuple[Subject, Subject]], bar: Progress
) -> None:
    bar.start("short sentences", len(sides))
    for number, (a, b) in enumerate(sides):
        reference = a.shapley() @ b.shapley().T
        trial = Trial.of(a, b, SELECTIONS, seed=number)
        _note(values, "Shapley", "selections", trial.told(reference))
        _note(values, "Shapley", "deletion", measures.deletion(reference, a, b))
        for method in compared:
            relevance = _relevance(method, a, b)
            _note(values, method.name, "Shapley", measures.agreement(relevance, reference))
            _note(values, method.name, "selections", trial.told(relevance))
            _note(values, method.name, "deletion", measures.deletion(relevance, a, b))
        _note(values, "random order", "deletion", measures.deletion(_random(a, b, number), a, b))
        bar.advance()


def _judge_long(
    values: Values, compared: Sequence[Method], sides: list[tuple[Subject, Subject]], bar: Progress
) -> None:
    bar.start("long sentences", len(sides))
    for number, (a, b) in enumerate(sides):
        trial = Trial.of(a, b, SELECTIONS, seed=number)
        for method in compared:
            relevance = _relevance(method, a, b)
            _note(values, method.name, "selections, long", trial.told(relevance))
            _note(values, method.name, "deletion, long", measures.deletion(relevance, a, b))
        _note(values, "random order", "deletion, long", measures.deletion(_random(a, b, number), a, b))
        bar.advance()


def _judge_planted(
    values: Values,
    name: str,
    compared: Sequence[Method],
    encoders: tuple[Encoder, Encoder],
    planted: list[data.Planted],
    bar: Progress,
) -> None:
    bar.start(name, len(planted))
    for pair in planted:
        a, b = _subjects(encoders, pair.a, pair.b)
        place = a.names.index(pair.first), b.names.index(pair.second)
        for method in compared:
            _note(values, method.name, name, measures.share(_relevance(method, a, b), *place))
        _note(values, "chance", name, 1 / (len(a.words) * len(b.words)))
        bar.advance()


def _matcher(settings: SentencesSettings, encoders: tuple[Encoder, Encoder], bar: Progress) -> Matcher:
    texts = data.noun_sentences(data.read_pairs(settings.data, "train"))
    return trained(
        encoders, texts, _noun_pairs(settings, 4), steps=settings.steps, seed=settings.seed, bar=bar
    )


def _noun_pairs(settings: SentencesSettings, times: int = 1) -> list[tuple[str, str]]:
    texts = data.noun_sentences(data.read_pairs(settings.data, "dev"))
    return data.partners(texts, times * settings.nouns, random.Random(settings.seed + 1))


def _judge_nouns(
    values: Values, compared: Sequence[Method], matcher: Matcher, settings: SentencesSettings, bar: Progress
) -> None:
    sides = [
        _subjects((matcher.encoder, matcher.with_positions), a, b)
        for a, b in _noun_pairs(settings)
        if data.nouns(a) & data.nouns(b)  # without a match there is no direction to agree with
    ]
    bar.start("matching nouns", len(sides))
    for a, b in sides:
        wanted = truth(a, b)
        for method in compared:
            _note(values, method.name, "noun matching", measures.cosine(_relevance(method, a, b), wanted))
        bar.advance()


def _left_over(
    compared: Sequence[Method], sides: list[tuple[Subject, Subject]]
) -> dict[str, dict[str, float]]:
    """Of a score: the part on pairs of words, the part that marks take part in, and the unattributed rest."""
    found = {}
    for method in compared:
        if method.whole is None:
            continue
        rows = []
        for a, b in sides:
            left, right = method.whole(a), method.whole(b)
            score = float(left.embedding @ right.embedding)
            every = left.parts @ right.parts.T
            on_words = float(every[a.words][:, b.words].sum())
            rows.append(
                [on_words / score, (float(every.sum()) - on_words) / score, 1 - float(every.sum()) / score]
            )
        means = torch.tensor(rows).mean(0).tolist()
        found[method.name] = dict(zip(("words", "marks", "unattributed"), means, strict=True))
    return found


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
    relevance, score = _relevance(method, a, b), float(a.whole @ b.whole)
    strongest, places = relevance.flatten().topk(min(STRONGEST, relevance.numel()))
    shown = [
        f"{a.names[int(place) // len(b.names)]} ↔ {b.names[int(place) % len(b.names)]} {100 * float(value) / score:.0f} %"
        for value, place in zip(strongest, places, strict=True)
    ]
    return [a.text, b.text, score, ", ".join(shown)]


def _relevance(method: Method, a: Subject, b: Subject) -> Relevance:
    left, right = method.parts(a, b)
    return left @ right.T


def _random(a: Subject, b: Subject, seed: int) -> Relevance:
    return torch.rand(
        len(a.words), len(b.words), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def _note(values: Values, method: str, measure: str, value: float) -> None:
    values.setdefault(measure, {}).setdefault(method, []).append(value)
