"""Audit of texts: planted boilerplate is the first suspect, clean texts have none, and shares are those of the parts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from bilrp import collection, decompose
from bilrp.collection.phrases import classify_words, find_phrases, guess_language, split_words
from bilrp.collection.text_audit import TextAudit
from bilrp.encoders import sentence

pytest.importorskip("lance", reason="collections need bilrp[collection]")
pytest.importorskip("transformers", reason="sentence encoders need bilrp[text]")

BOILERPLATE = "This page is part of the official product handbook, version seven."
SUBJECTS = ("A cat", "The dog", "Two kittens", "One car", "Nobody")
ENDINGS = ("sat on the mat.", "run through the snow.", "rested on a rug.", "was parked.", "jumps in streets.")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    """Twenty-five sentences by a small BERT in float64; every third begins with the same words."""
    from text_folders import ARCHITECTURES

    folder = ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"), dtype=torch.float64)
    texts = [f"{subject} {ending}" for subject in SUBJECTS for ending in ENDINGS]
    texts = [f"Stay in! It rains. {text}" if n % 3 == 0 else text for n, text in enumerate(texts)]
    return collection.build(texts, sentence(str(folder)), tmp_path_factory.mktemp("small") / "t.lance")


@pytest.fixture(scope="module")
def audit(small: collection.Collection) -> TextAudit:
    result = small.audit(sample=25)
    assert isinstance(result, TextAudit)
    return result


def test_shares_are_those_of_the_parts(small: collection.Collection, audit: TextAudit) -> None:
    """⟨P_I, φ'⟩ / ‖φ‖‖φ'‖ of every word from its decomposition: pulls and parts give the same contributions."""
    phrase = next(each for each in audit.phrases if "rains" in each.phrase)
    shares, contributions, areas = [], [], []
    for pair in phrase.pairs:
        texts = [small.view(p).text for p in pair]  # type: ignore[union-attr]
        sides = [decompose(small.encoder, text, regions="joined_words") for text in texts]
        norm = float(sides[0].embedding.norm() * sides[1].embedding.norm())
        for side, other, text in zip(sides, sides[::-1], texts, strict=True):
            values = side.parts @ other.embedding / norm
            start = text.index(phrase.phrase)
            spans = side.view.spans  # type: ignore[union-attr]
            is_word = torch.tensor([s is not None for s in spans])
            inside = torch.tensor(
                [s is not None and start <= s[0] < start + len(phrase.phrase) for s in spans]
            )
            shares.append(float(values[inside].abs().sum() / values[is_word].abs().sum()))
            contributions.append(float(values[inside].sum()))
            areas.append(int(inside.sum()) / len(split_words(text).keys))
    assert phrase.share == pytest.approx(np.mean(shares), abs=1e-6)
    assert phrase.contribution == pytest.approx(np.mean(contributions), abs=1e-6)
    assert phrase.area == pytest.approx(np.mean(areas))


def test_the_ranking_is_by_excess_and_carriers_have_the_phrase(
    small: collection.Collection, audit: TextAudit
) -> None:
    excesses = [phrase.excess for phrase in audit.phrases]
    assert excesses == sorted(excesses, reverse=True) and min(excesses) > 0
    for phrase in audit.phrases:
        words = phrase.phrase.casefold()
        carriers = {p for p in range(len(small)) if words in small.view(p).text.casefold()}  # type: ignore[union-attr]
        assert set(phrase.carriers) <= carriers
        assert all(set(pair) <= carriers for pair in phrase.pairs)
        assert all(change.before != change.after for change in phrase.changes)
    assert set(audit.suspects) <= set(audit.phrases)
    assert sum(each.share for each in audit.kinds) == pytest.approx(1)
    assert sum(each.area for each in audit.kinds) == pytest.approx(1)


def test_phrases_are_the_longest_that_are_shared() -> None:
    texts = {
        0: "x all rights reserved y",
        1: "all rights reserved z",
        2: "all rights reserved",
        3: "all of it",
    }
    phrases = find_phrases({number: text.split() for number, text in texts.items()}, 3)
    assert phrases == {("all", "rights", "reserved"): [0, 1, 2], ("all",): [0, 1, 2, 3]}
    assert find_phrases({0: ["--", "--"], 1: ["--", "--"]}, 2) == {}


def test_words_are_cut_out_exactly() -> None:
    words = split_words("# Title\n\nSee `pip` – the tool, 2.0.")
    assert (
        words.remove(np.array([key in ("see", "pip") for key in words.keys])) == "# Title\n\n– the tool, 2.0."
    )
    assert classify_words(words)[:2] == ["heading", "heading"]
    assert words.collect([(2, 0.5), (3, 0.25), (9, 1.0)]).tolist() == [0, 0.75, 1, 0, 0, 0, 0, 0]


def test_languages_are_told_apart() -> None:
    assert guess_language("Le chat est sur la table et il dort dans le lit.") == "fr"
    assert guess_language("Кошка спит на столе.") == "ru" and guess_language("12 34") == ""


@pytest.mark.slow
def test_planted_boilerplate_is_the_first_suspect_and_clean_texts_have_none(
    data: Path, tmp_path: Path
) -> None:
    """Sentences of STS-B; a third of them with the same sentence before them."""
    encoder = sentence(str(data / "gte-small"))
    texts = read_sentences(data, 150)
    planted = [f"{BOILERPLATE} {text}" if n % 3 == 0 else text for n, text in enumerate(texts)]
    results = [
        collection.build(each, encoder, tmp_path / f"{n}.lance").audit(sample=40)
        for n, each in enumerate((planted, texts))
    ]
    first = results[0].suspects[0]
    assert first.kind == "boilerplate" and first.phrase.startswith(
        "This page is part of the official product"
    )  # type: ignore[union-attr]
    assert set(first.carriers) == set(range(0, 150, 3))
    assert first.attraction > 0.6 > 0.5 > first.attraction_without  # type: ignore[operator, union-attr]
    assert results[1].suspects == ()


def read_sentences(data: Path, count: int) -> list[str]:
    """Different sentences of STS-B, in the order of the file."""
    with (data / "stsb/stsb-en-dev.csv").open(encoding="utf-8", newline="") as lines:
        return list(dict.fromkeys(row[0] for row in csv.reader(lines)))[:count]
