"""Scores of every method on one pair of sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from bilrp_studies.common import sts_data
from bilrp_studies.common.word_subsets import StudySentence
from bilrp_studies.sentences import word_metrics
from bilrp_studies.sentences.methods import Method
from bilrp_studies.sentences.word_metrics import Relevance, SubsetTest

NUM_SUBSETS = 200

Row = dict[str, dict[str, float]]
"""Measure → method → figure."""
Scorer = Callable[[Sequence[Method], StudySentence, StudySentence, int], Row]
"""Methods, two sentences and the number of the pair, which is its seed."""


def collect_values(rows: Iterable[Row]) -> dict[str, dict[str, list[float]]]:
    """Return {measure: {method: one value per pair}}.

    >>> collect_values([{"deletion": {"ours": 1.0}}, {"deletion": {"ours": 2.0}}])
    {'deletion': {'ours': [1.0, 2.0]}}
    """
    result: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for measure, figures in row.items():
            for method, figure in figures.items():
                result.setdefault(measure, {}).setdefault(method, []).append(figure)
    return result


def score_short(methods: Sequence[Method], a: StudySentence, b: StudySentence, number: int) -> Row:
    """Score a pair of short sentences: exact Shapley values, random subsets, deletion, and shares of the score.

    Args:
        methods: The methods to score.
        a: The first sentence.
        b: The second sentence.
        number: Index of the pair, used as seed.
    """
    reference = a.shapley_values() @ b.shapley_values().T
    explanation = {method.name: method.explain(a, b) for method in methods}
    relevance = {name: each.relevance for name, each in explanation.items()}
    judged = _score_by_model({**relevance, "Shapley": reference}, a, b, number, "")
    parts = ("words", "special tokens", "unattributed")
    return {
        "Shapley": {
            name: word_metrics.relevance_correlation(each, reference) for name, each in relevance.items()
        },
        **judged,
        **{
            part: {name: each.score_shares[part] for name, each in explanation.items() if each.score_shares}
            for part in parts
        },
    }


def score_long(methods: Sequence[Method], a: StudySentence, b: StudySentence, number: int) -> Row:
    """Score a pair with too many words for all subsets: random subsets, and deletion.

    Args:
        methods, a, b, number: As for `score_short`.
    """
    return _score_by_model(
        {method.name: method.explain(a, b).relevance for method in methods}, a, b, number, ", long"
    )


def score_planted_word(methods: Sequence[Method], a: StudySentence, b: StudySentence, number: int) -> Row:
    """Share of relevance on the one word that two unrelated sentences have in common.

    Args:
        methods, a, b: As for `score_short`.
        number: Index of the pair, which selects the planted word.
    """
    return _score_planted(
        "planted word", methods, a, b, sts_data.SYNONYMS[number][0], sts_data.SYNONYMS[number][0]
    )


def score_planted_synonym(methods: Sequence[Method], a: StudySentence, b: StudySentence, number: int) -> Row:
    """Share of relevance between a word of one sentence and its synonym in another, unrelated sentence.

    Args:
        methods, a, b: As for `score_short`.
        number: Index of the pair, which selects the planted word.
    """
    return _score_planted("planted synonym", methods, a, b, *sts_data.SYNONYMS[number])


def score_nouns(methods: Sequence[Method], a: StudySentence, b: StudySentence, number: int) -> Row:
    """Cosine between relevance and the shared nouns of two sentences, for an encoder trained to count them.

    Args:
        methods, a, b, number: As for `score_short`.
    """
    truth = torch.tensor(
        [[sts_data.count_matches([x.lower()], [y.lower()]) for y in b.names] for x in a.names],
        dtype=torch.float64,
    )
    chance = _random_relevance(a, b, number)
    return {
        "noun matching": {
            **{method.name: word_metrics.cosine(method.explain(a, b).relevance, truth) for method in methods},
            "chance": word_metrics.cosine(chance, truth),
        }
    }


def _score_by_model(
    relevance: dict[str, Relevance], a: StudySentence, b: StudySentence, number: int, suffix: str
) -> Row:
    trial = SubsetTest.draw(a, b, NUM_SUBSETS, seed=number)
    random = {"random order": _random_relevance(a, b, number)}
    return {
        f"selections{suffix}": {name: trial.correlation(each) for name, each in relevance.items()},
        f"deletion{suffix}": {
            name: word_metrics.deletion_area(each, a, b) for name, each in (relevance | random).items()
        },
    }


def _score_planted(
    name: str, methods: Sequence[Method], a: StudySentence, b: StudySentence, first: str, second: str
) -> Row:
    position = a.names.index(first), b.names.index(second)
    shares = {
        method.name: word_metrics.pair_share(method.explain(a, b).relevance, *position) for method in methods
    }
    return {name: {**shares, "chance": 1 / (len(a.words) * len(b.words))}}


def _random_relevance(a: StudySentence, b: StudySentence, seed: int) -> Relevance:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(a.words), len(b.words), generator=generator, dtype=torch.float64)
