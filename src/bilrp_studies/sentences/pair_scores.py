"""What one pair of sentences says about every method: a row of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from bilrp_studies.sentences import sts_data, word_metrics
from bilrp_studies.sentences.word_metrics import Relevance, Trial
from bilrp_studies.sentences.methods import Method
from bilrp_studies.sentences.word_subsets import Subject

SELECTIONS = 200

Row = dict[str, dict[str, float]]
"""Measure → method → figure."""
Judge = Callable[[Sequence[Method], Subject, Subject, int], Row]
"""Methods, two sentences and the number of the pair, which is its seed."""


def gathered(rows: Iterable[Row]) -> dict[str, dict[str, list[float]]]:
    """Measure → method → one figure for each pair.

    >>> gathered([{"deletion": {"ours": 1.0}}, {"deletion": {"ours": 2.0}}])
    {'deletion': {'ours': [1.0, 2.0]}}
    """
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for measure, figures in row.items():
            for method, figure in figures.items():
                found.setdefault(measure, {}).setdefault(method, []).append(figure)
    return found


def short(compared: Sequence[Method], a: Subject, b: Subject, number: int) -> Row:
    """Few words: exact Shapley values, random selections, deletion, and what adds up to the score."""
    reference = a.shapley() @ b.shapley().T
    found = {method.name: method.found(a, b) for method in compared}
    relevance = {name: each.relevance for name, each in found.items()}
    judged = _by_the_model({**relevance, "Shapley": reference}, a, b, number, "")
    parts = ("words", "marks", "unattributed")
    return {
        "Shapley": {name: word_metrics.agreement(each, reference) for name, each in relevance.items()},
        **judged,
        **{
            part: {name: each.account[part] for name, each in found.items() if each.account} for part in parts
        },
    }


def long(compared: Sequence[Method], a: Subject, b: Subject, number: int) -> Row:
    """Too many words for all their selections: random ones, and deletion."""
    return _by_the_model(
        {method.name: method.found(a, b).relevance for method in compared}, a, b, number, ", long"
    )


def word(compared: Sequence[Method], a: Subject, b: Subject, number: int) -> Row:
    """The one word that two unrelated sentences share."""
    return _planted("planted word", compared, a, b, sts_data.SYNONYMS[number][0], sts_data.SYNONYMS[number][0])


def synonym(compared: Sequence[Method], a: Subject, b: Subject, number: int) -> Row:
    """A word of one sentence, and its synonym in another, unrelated one."""
    return _planted("planted synonym", compared, a, b, *sts_data.SYNONYMS[number])


def nouns(compared: Sequence[Method], a: Subject, b: Subject, number: int) -> Row:
    """The nouns that two sentences share, of an encoder that was trained to count them."""
    truth = torch.tensor(
        [[sts_data.matches([x.lower()], [y.lower()]) for y in b.names] for x in a.names], dtype=torch.float64
    )
    chance = _random(a, b, number)
    return {
        "noun matching": {
            **{method.name: word_metrics.cosine(method.found(a, b).relevance, truth) for method in compared},
            "chance": word_metrics.cosine(chance, truth),
        }
    }


def _by_the_model(relevance: dict[str, Relevance], a: Subject, b: Subject, number: int, suffix: str) -> Row:
    trial = Trial.of(a, b, SELECTIONS, seed=number)
    random = {"random order": _random(a, b, number)}
    return {
        f"selections{suffix}": {name: trial.told(each) for name, each in relevance.items()},
        f"deletion{suffix}": {
            name: word_metrics.deletion(each, a, b) for name, each in (relevance | random).items()
        },
    }


def _planted(name: str, compared: Sequence[Method], a: Subject, b: Subject, first: str, second: str) -> Row:
    place = a.names.index(first), b.names.index(second)
    shares = {method.name: word_metrics.share(method.found(a, b).relevance, *place) for method in compared}
    return {name: {**shares, "chance": 1 / (len(a.words) * len(b.words))}}


def _random(a: Subject, b: Subject, seed: int) -> Relevance:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(a.words), len(b.words), generator=generator, dtype=torch.float64)
