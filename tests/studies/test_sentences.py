"""The sentences study: its measures by their definitions, its report, and that it can be interrupted."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bilrp.encoders import sentence
from bilrp.errors import InputError
from bilrp.progress import Progress
from bilrp.render.report import Report, Table
from bilrp_studies.common import noun_matching, sts_data
from bilrp_studies.common.bootstrap import bootstrap_mean
from bilrp_studies.common.cache import Cache
from bilrp_studies.common.word_subsets import StudySentence
from bilrp_studies.sentences import methods, pair_scores, report, study, word_metrics
from bilrp_studies.sentences.settings import SentencesSettings
from text_folders import ARCHITECTURES

# the third pair has equal words, so equal numbers of tokens: the vocabulary that is trained here is not always the same
SHORT = [
    ("The cat sat on the mat.", "A cat rested on a rug."),
    ("Two dogs run through the snow.", "One dog jumps through snow."),
    ("The man was in the street.", "In the street was the man."),
    ("The kittens run in the street.", "Two kittens sat in the snow."),
]
LONG = [
    ("the cat sat on the mat " * 3, "the dog sat on the rug " * 3),
    ("two dogs run in the snow " * 3, "a cat sat in the snow " * 3),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"), dtype=torch.float32)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    """Two files as those of the STS benchmark."""
    built = tmp_path_factory.mktemp("stsb")
    rows = "".join(f'"{a}","{b}",3.5\n' for a, b in SHORT + LONG)
    for name in ("dev", "train"):
        (built / f"stsb-en-{name}.csv").write_text(rows)
    return built


@pytest.fixture(scope="module")
def settings(folder: Path, benchmark: Path, tmp_path_factory) -> SentencesSettings:
    return SentencesSettings(
        data=benchmark, out=tmp_path_factory.mktemp("out"), encoder=str(folder), pairs=2, long_pairs=2, planted=2,
        nouns=4, steps=3, integration_steps=1,
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_methods() -> Iterator[list[methods.Method]]:
    """Runs of the study compare rules and one other method; what each method finds has a test of its own."""
    few = [
        each
        for each in methods.all_methods(1)
        if each.name in {methods.OUR_METHOD, f"{methods.OUR_METHOD}, sum", "occlusion"}
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "all_methods", lambda path: few)
        yield few


@pytest.fixture(scope="module")
def first(settings: SentencesSettings, few_methods: list[methods.Method]) -> Report:
    """One run of the whole study: the dearest thing here."""
    return study.run(settings)


@pytest.fixture(scope="module")
def subject(folder: Path) -> StudySentence:
    encoder = sentence(folder, dtype=torch.float64)
    return StudySentence(encoder, encoder, "The cat sat.")


def test_a_selection_is_the_sentence_without_the_other_words(subject: StudySentence) -> None:
    assert subject.names == ["The", "cat", "sat", "."]
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    result = subject.embed(mask)
    for row, text in enumerate(("The sat.", "cat")):
        # positions close up where words are deleted, as they do in the shorter text
        torch.testing.assert_close(
            result[row],
            subject.encoder.module(
                study.StudySentence(subject.encoder, subject.encoder, text).encoder_input.x
            )[0],
        )


def test_no_selection_is_embedded_twice(folder: Path) -> None:
    encoder = sentence(folder)
    runs: list[int] = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        runs.append(len(x))
        return encoder.module(x)

    counted = replace(encoder, module=counting)
    subject = StudySentence(counted, counted, "The cat sat.")
    mask, embedded = subject.all_subsets
    assert sum(runs) == len(mask) == 16
    second = subject.embed(mask[[3, 3, 0, 15]])
    assert sum(runs) == 16 and torch.equal(second.double(), embedded[[3, 3, 0, 15]])
    assert torch.equal(subject.embedding.double(), embedded[15]) and sum(runs) == 16


def test_shapley_values_by_all_orders(subject: StudySentence) -> None:
    """Mean gain of a word over all orders in which words can be put in."""
    count = len(subject.words)
    expected = torch.zeros(count, subject.embedding.numel(), dtype=torch.float64)
    for order in itertools.permutations(range(count)):
        mask = torch.zeros(count + 1, count, dtype=torch.bool)
        for position, word in enumerate(order):
            mask[position + 1 :, word] = True
        steps = subject.embed(mask).double()
        expected[list(order)] += (steps[1:] - steps[:-1]) / math.factorial(count)
    torch.testing.assert_close(subject.shapley_values(), expected, rtol=0, atol=1e-10)


def test_deletion_and_selections(subject: StudySentence) -> None:
    """Relevance that tells the score of every selection correlates at one; the area is that of the model's own scores."""
    trial = word_metrics.SubsetTest.draw(subject, subject, 50, seed=1)
    assert (
        trial.subsets_a.any(1).all()
        and trial.subsets_b.any(1).all()
        and not torch.equal(trial.subsets_a, trial.subsets_b)
    )
    kept_a, kept_b = subject.embed(trial.subsets_a), subject.embed(trial.subsets_b)
    torch.testing.assert_close(trial.scores, (kept_a * kept_b).sum(1))
    relevance = torch.zeros(4, 4, dtype=torch.float64)
    relevance[1], relevance[2], relevance[:, 3] = 2.0, 1.0, -1.0
    areas = []
    for order in (relevance.sum(1).argsort(descending=True), relevance.sum(0).argsort(descending=True)):
        heights = []
        for gone in range(4):
            mask = torch.ones(1, 4, dtype=torch.bool)
            mask[0, order[:gone]] = False
            heights.append(float(subject.embed(mask)[0] @ subject.embedding))
        areas.append(sum((x + y) / 2 for x, y in itertools.pairwise(heights)) / 3 / heights[0])
    assert word_metrics.deletion_area(relevance, subject, subject, points=4) == pytest.approx(sum(areas) / 2)


def test_what_rules_account_for_adds_up(subject: StudySentence) -> None:
    for method in methods.all_methods(1):
        explanation = method.explain(subject, subject)
        assert explanation.relevance.shape == (4, 4) and explanation.relevance.isfinite().all()
        assert (method.decompose is None) == (not explanation.score_shares)
        if explanation.score_shares:
            assert sum(explanation.score_shares.values()) == pytest.approx(1)


def test_the_whole_study_and_its_report(
    settings: SentencesSettings, first: Report, few_methods: list[methods.Method]
) -> None:
    first.write(settings.out)
    results = json.loads((settings.out / "results.json").read_text())
    assert set(results["means"]) == set(report.MEASURES)
    compared = {method.name for method in few_methods}
    for measure, means in results["means"].items():
        assert compared <= means.keys(), measure
        assert all(low <= mean <= high for mean, low, high in means.values())
    assert {len(result) for result in results["values"]["Shapley"].values()} == {2}
    assert results["passes_per_token"][methods.OUR_METHOD] > 0 and results["noun_matching_fit"] is not None
    page = (settings.out / "report.html").read_text()
    assert "measures.png" in page and "Ours against each other method" in page
    tables = [block for section in first.sections for block in section.blocks if isinstance(block, Table)]
    assert len(tables) == 7 and any(
        "cat" in str(row) for row in tables[-2].rows
    )  # the last one has the settings


def test_an_interrupted_study_goes_on(
    settings: SentencesSettings, first: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("made twice")

    with monkeypatch.context() as patch:
        for name in (
            "score_short",
            "score_long",
            "score_planted_word",
            "score_planted_synonym",
            "score_nouns",
        ):
            patch.setattr(pair_scores, name, never)
        patch.setattr(torch.optim, "Adam", never)
        second = study.run(settings)
    assert second.results["values"] == first.results["values"]


def test_training_is_the_same_each_time_and_happens_to_a_copy(folder: Path) -> None:
    """A random model of two layers learns nothing worth a test; what MiniLM learns is in the study's report."""
    encoders = sentence(folder), sentence(folder, features="sum")
    texts = sts_data.select_noun_sentences([sts_data.SentencePair(a, b) for a, b in SHORT])
    test = list(itertools.permutations(texts, 2))
    before, once, second = (
        noun_matching.load_or_train(
            encoders, texts, test, steps=steps, seed=0, bar=Progress(), cache=Cache(None)
        )
        for steps in (0, 20, 20)
    )
    assert once.explained_variance == pytest.approx(
        second.explained_variance, rel=1e-4
    ) and once.explained_variance != pytest.approx(before.explained_variance, rel=1e-4)
    untouched = sentence(folder).module.state_dict()  # type: ignore[union-attr]
    now = encoders[0].module.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(value, now[name]) for name, value in untouched.items())


def test_losses_are_said() -> None:
    """A method that is better on every pair loses us the measure, in the first sentence a reader sees."""
    ours = [0.5, 0.6, 0.7, 0.5, 0.6, 0.7]
    better = [x + 0.2 for x in ours]
    values = {
        "Shapley": {methods.OUR_METHOD: ours, "other": better, "close": [0.5, 0.9, 0.5, 0.5, 0.9, 0.5]},
        "deletion": {methods.OUR_METHOD: ours, "other": better, "Shapley": [0.1] * 6},
        "selections, long": {methods.OUR_METHOD: ours[:2], "other": better[:2]},
    }
    against = {
        name: report.compare_with_others(result, report.MEASURES[name][1], 0)
        for name, result in values.items()
    }
    means = {
        name: {method: bootstrap_mean(each) for method, each in result.items()}
        for name, result in values.items()
    }
    message = report.describe_results(means, against, {methods.OUR_METHOD: 0.94})
    assert "loses clearly to other on Shapley by 0.200." in message
    assert "within chance: close on Shapley by 0.033; other on selections, long by 0.200." in message
    assert against["deletion"]["other"]["wins"] == 6, "less is better there"


def test_data_that_is_none_is_one_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="give the folder of the STS benchmark"):
        study.run(SentencesSettings(data=tmp_path, encoder=str(folder)))
    for name in ("dev", "train"):
        (tmp_path / f"stsb-en-{name}.csv").write_text("one,two,3\n")
    with pytest.raises(InputError, match="fewer than two pairs"):
        study.run(SentencesSettings(data=tmp_path, encoder=str(folder)))
