"""Highlights: both one-sided attributions as characters of the original texts."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bilrp
from bilrp.encoders.text.reader import TextReader
from bilrp.encoders.text.segmentation import TokenizedText
from bilrp.errors import InputError
from bilrp.inputs import Item, Text
from bilrp.regions import words
from dual_encoder_folders import PAIRS
from text_folders import ARCHITECTURES

QUERY = "Where do the kittens sleep?"
PASSAGES = [
    "A cat sat on the mat.",
    'Call `model.encode(cats)` (two dogs) -- it\'s "fast"!\n\n| a | b |',
    "猫が好きです。 שלום, עולם! 👩‍🚀👍🏽 e\u0301 \u200f؟ x\u0000y",
    "Two dogs run through the snow; " * 400,
]


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-r"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bilrp.Encoder:
    architecture = next(each for each in ARCHITECTURES if each.name == request.param)
    folder = architecture.save(tmp_path_factory.mktemp(request.param))
    return bilrp.encoders.sentence(folder, dtype=torch.float64, max_seq_length=60)


def test_both_sides_are_attributions_and_add_up(encoder: bilrp.Encoder) -> None:
    hits = bilrp.highlight(encoder, QUERY, PASSAGES, regions="words")
    assert len(hits) == len(PASSAGES)
    for passage, hit in zip(PASSAGES, hits, strict=True):
        for (x, y), spans, rest in (
            ((QUERY, passage), hit.query, hit.query_unattributed),
            ((passage, QUERY), hit.passage, hit.unattributed),
        ):
            one = bilrp.attribute(encoder, x, y, regions="words")
            assert [s.weight for s in spans] == pytest.approx([s.weight for s in one.spans()], abs=1e-9)
            assert sum(s.weight for s in spans) + rest == pytest.approx(hit.score, abs=1e-9)
            assert hit.score == pytest.approx(one.score, abs=1e-12)


def test_spans_cut_the_original_text(encoder: bilrp.Encoder) -> None:
    for passage, hit in zip(PASSAGES, bilrp.highlight(encoder, QUERY, PASSAGES), strict=True):
        for text, spans in ((QUERY, hit.query), (passage, hit.passage)):
            assert spans and all(text[s.start : s.end] == s.text for s in spans)
            assert [s.start for s in spans] == sorted(s.start for s in spans)
            assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
    # All visible characters of what was not truncated are in a span.
    text, spans = PASSAGES[0], bilrp.highlight(encoder, QUERY, PASSAGES[:1])[0].passage
    assert {n for s in spans for n in range(s.start, s.end)} >= {
        n for n, c in enumerate(text) if not c.isspace()
    }


def test_the_matrix_is_that_of_the_two_sided_explanation(encoder: bilrp.Encoder) -> None:
    for passage, hit in zip(PASSAGES, bilrp.highlight(encoder, QUERY, PASSAGES, matrix=True), strict=True):
        both = bilrp.explain(encoder, QUERY, passage, regions=words(punctuation="join"))
        rows, columns = (
            [n for n, span in enumerate(side.view.spans) if span is not None]  # type: ignore[union-attr]
            for side in (both.a, both.b)
        )
        assert hit.matrix is not None and hit.matrix.shape == (len(hit.query), len(hit.passage))
        assert torch.allclose(hit.matrix, both.relevance[rows][:, columns], rtol=0, atol=1e-9)


def test_many_passages_give_what_each_alone_gives(encoder: bilrp.Encoder) -> None:
    """More passages than regions of the query: its parts are used in place of pulls."""
    passages = [f"{n} dogs run." for n in range(12)]
    together = bilrp.highlight(encoder, "cats", passages)
    for passage, hit in list(zip(passages, together, strict=True))[::5]:
        (alone,) = bilrp.highlight(encoder, "cats", [passage])
        for a, b in ((hit.query, alone.query), (hit.passage, alone.passage)):
            assert [s.weight for s in a] == pytest.approx([s.weight for s in b], abs=1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_passages_of_many_lengths_share_a_run_exactly(architecture: Any, tmp_path: Path) -> None:
    """Padded together, each passage has the values ⟨P_J, v⟩ of its own parts, in float64."""
    encoder = bilrp.encoders.sentence(architecture.save(tmp_path), dtype=torch.float64, max_seq_length=60)
    passages = [
        PASSAGES[0],
        "It rains.",
        "Two dogs run through the snow; one jumps. " * 3,
        "The kittens rested!",
    ]
    hits = bilrp.highlight(encoder, QUERY, passages, matrix=True)
    requested = bilrp.decompose(encoder, QUERY, regions=words(punctuation="join"))
    for passage, hit in zip(passages, hits, strict=True):
        full = bilrp.decompose(encoder, passage, regions=words(punctuation="join"))
        scale = float(full.embedding.norm() * requested.embedding.norm())
        expected = full.parts @ requested.embedding / scale
        assert torch.allclose(hit.values, expected, rtol=0, atol=1e-9)
        cosine = float(full.embedding @ requested.embedding) / scale
        assert hit.score == pytest.approx(cosine, abs=1e-9)
        rows, columns = hit.sides[0].span_regions, hit.sides[1].span_regions
        relevance = (requested.parts @ full.parts.T / scale)[rows][:, columns]
        assert hit.matrix is not None and torch.allclose(hit.matrix, relevance, rtol=0, atol=1e-9)


def test_several_passages_record_one_run(encoder: bilrp.Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost is counted: one run for the query, one for all passages."""
    runs: list[torch.Size] = []
    record = bilrp.Encoder.record

    def count(self: bilrp.Encoder, x: torch.Tensor, model_input: torch.Tensor | None = None) -> Any:
        runs.append(x.shape)
        return record(self, x, model_input)

    monkeypatch.setattr(bilrp.Encoder, "record", count)
    bilrp.highlight(encoder, QUERY, ["A cat sat.", "Two dogs run through the snow.", "It rains."])
    assert len(runs) == 2 and runs[1][:2] == (1, 3)
    runs.clear()
    bilrp.highlight(encoder, QUERY, ["A cat sat.", "It rains."], composite=bilrp.composites.transformer())
    assert len(runs) == 3  # other rules: one by one


def test_sentences_have_the_weight_of_their_words(encoder: bilrp.Encoder) -> None:
    """Each word is in one sentence, and nothing is lost; the same as with sentences as regions, without another run."""
    text = "A cat sat on the mat. Two dogs run through the snow!\nIt rains."
    (hit,) = bilrp.highlight(encoder, QUERY, [text])
    grouped = hit.sentences()
    assert [s.text for s in grouped] == [
        "A cat sat on the mat.",
        "Two dogs run through the snow!",
        "It rains.",
    ]
    assert [word for s in grouped for word in s.words] == hit.passage
    assert all(s.start <= word.start < s.end for s in grouped for word in s.words)
    assert all(s.weight == pytest.approx(sum(word.weight for word in s.words)) for s in grouped)
    assert all(text[s.start : s.end] == s.text for s in grouped)
    if (
        "bert0" in encoder.name and "roberta" not in encoder.name
    ):  # others have tokens of white space between sentences
        (whole,) = bilrp.highlight(encoder, QUERY, [text], regions=(words(punctuation="join"), "sentences"))
        assert [s.weight for s in grouped] == pytest.approx([s.weight for s in whole.passage], abs=1e-9)


def test_why_this_passage_and_not_the_other(encoder: bilrp.Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's weights are ⟨P_I, v_got − v_wanted⟩ of its parts, all of them add up, and three inputs are run."""
    got, wanted = PASSAGES[0], "Two dogs run through the snow."
    record, runs = bilrp.Encoder.record, []

    def count(self: bilrp.Encoder, x: torch.Tensor, model_input: torch.Tensor | None = None) -> Any:
        runs.append(x.shape)
        return record(self, x, model_input)

    encoder = replace(encoder, typical_inputs=())  # whose mean embedding would be computed first
    with monkeypatch.context() as patched:
        patched.setattr(bilrp.Encoder, "record", count)
        why = bilrp.contrast(encoder, QUERY, got, wanted)
    assert len(runs) <= 3
    spec = words(punctuation="join")
    query, *others = (bilrp.decompose(encoder, text, regions=spec) for text in (QUERY, got, wanted))
    unit = [d.embedding / d.embedding.norm() for d in others]
    parts = query.parts / query.embedding.norm()
    expected = parts @ (unit[0] - unit[1])
    assert torch.allclose(why.sides[0].values, expected, rtol=0, atol=1e-9)
    for side, d, sign in zip(why.sides[1:], others, (1, -1), strict=True):
        values = sign * d.parts @ query.embedding / (d.embedding.norm() * query.embedding.norm())
        assert torch.allclose(side.values, values, rtol=0, atol=1e-9)
    cosines = [float(u @ query.embedding / query.embedding.norm()) for u in unit]
    assert why.score == pytest.approx(cosines[0] - cosines[1], abs=1e-9)
    passages = sum(s.weight for s in (*why.got, *why.wanted)) + why.unattributed
    assert passages == pytest.approx(why.score, abs=1e-9)
    assert sum(s.weight for s in why.query) + why.query_unattributed == pytest.approx(why.score, abs=1e-9)
    assert json.loads(json.dumps(why.to_dict()))["got"][0]["text"] == why.got[0].text
    assert ("the passage that was got" in why.summary()) == (why.score >= 0)
    assert why.plot().axes and "<span" in why._repr_html_()
    with pytest.raises(InputError, match=r"contrast\(encoder, query, got, wanted\)"):
        bilrp.contrast(QUERY, got, wanted)  # type: ignore[call-overload]


TEXT = st.text(
    st.characters(exclude_categories=("Cs",))
    | st.sampled_from("👩‍🚀👍🏽e\u0301\u200fשלוםعربي猫。`()_=->\n\t"),
    max_size=60,
)


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-r"])
def test_spans_of_any_text_cut_it(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every script, emoji, right to left, code, control characters, 2,000 words: spans are characters of the text."""
    architecture = next(each for each in ARCHITECTURES if each.name == name)
    own = bilrp.encoders.sentence(architecture.save(tmp_path_factory.mktemp(name))).read
    assert isinstance(own, TextReader)
    reader = replace(own, max_seq_length=None)  # nothing is truncated

    @given(TEXT)
    @example("def f(x): return x[1:]  # 👩‍🚀 " * 250)
    @example("שלום, עולם! " * 400)
    @settings(max_examples=100, deadline=None)
    def check(text: str) -> None:
        try:
            item = reader(text)
        except InputError:  # empty, or without a token
            return
        assert isinstance(item, Item) and item.segment is not None
        for spec in ("words", "sentences", words(punctuation="join")):
            view = item.segment(spec)[1]  # type: ignore[arg-type]
            assert isinstance(view, Text)
            spans = [span for span in view.spans if span is not None]
            assert view.text == text and all(0 <= a <= b <= len(text) for a, b in spans)
            assert all(b[0] >= a[1] for a, b in itertools.pairwise(spans))

    check()


def test_a_dictionary_is_ready_for_json(encoder: bilrp.Encoder) -> None:
    hit = bilrp.highlight(encoder, QUERY, PASSAGES[2:3], matrix=True)[0]
    row = json.loads(json.dumps(hit.to_dict(), allow_nan=False))
    assert row["score"] == hit.score and row["unattributed"] == hit.unattributed
    assert [bilrp.Span(**span) for span in row["passage"]] == hit.passage
    assert hit.matrix is not None and row["matrix"] == hit.matrix.tolist()
    assert "matrix" not in bilrp.highlight(encoder, QUERY, PASSAGES[:1])[0].to_dict()


def test_what_is_not_a_list_of_passages_is_refused(encoder: bilrp.Encoder) -> None:
    assert bilrp.highlight(encoder, QUERY, []) == []
    with pytest.raises(InputError, match="list"):
        bilrp.highlight(encoder, QUERY, PASSAGES[0])
    with pytest.raises(InputError, match="empty"):
        bilrp.highlight(encoder, QUERY, ["  "])
    with pytest.raises(InputError, match="not linear"):
        bilrp.highlight(encoder, QUERY, PASSAGES[:1], similarity="squared_distance")


def test_images_have_values(tmp_path: Path) -> None:
    dual = bilrp.encoders.clip(PAIRS[0].save(tmp_path), dtype=torch.float64)
    image = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    hits = bilrp.highlight(dual, "A cat sat on the mat.", [image, "The dogs run."], matrix=True)
    expected = bilrp.attribute(dual, image, "A cat sat on the mat.")
    assert torch.allclose(hits[0].values, expected.values, rtol=0, atol=1e-9) and hits[0].passage == []
    assert hits[0].unattributed == pytest.approx(expected.unattributed)
    assert hits[0].to_dict()["values"] == hits[0].values.tolist() and "values" not in hits[1].to_dict()
    assert hits[0].matrix is not None and hits[0].matrix.shape == (len(hits[0].query), len(hits[0].values))


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("Hello, world!", ["Hello", ",", "world", "!"], ["Hello,", "world!"]),
        ("a `b.c(d)` e", ["a", "`", "b", ".", "c", "(", "d", ")", "`", "e"], ["a", "`b.", "c", "(d)`", "e"]),
        ('("x") y', ["(", '"', "x", '"', ")", "y"], ['("x")', "y"]),
        ("a — b", ["a", "—", "b"], ["a —", "b"]),
        ("- a", ["-", "a"], ["- a"]),
        ("a -- (b", ["a", "-", "-", "(", "b"], ["a --", "(b"]),
        ("... !", [".", ".", ".", "!"], ["... !"]),
        ("x=[1]", ["x", "=", "[", "1", "]"], ["x=", "[1]"]),
        ("ok 👍!", ["ok", "👍", "!"], ["ok", "👍!"]),
        ("猫。犬", ["猫", "。", "犬"], ["猫。", "犬"]),
    ],
)
def test_punctuation_joins_the_word_that_it_touches(text: str, pieces: list, expected: list) -> None:
    position, spans = 0, []
    for piece in pieces:
        position = text.index(piece, position)
        spans.append((position, position + len(piece)))
        position += len(piece)
    for special in ([], [None]):
        tokens = TokenizedText.from_spans(
            text,
            [*special, *spans, *special],
            ["[X]"] * len(special) + [""] * len(spans) + ["[X]"] * len(special),
        )
        names = list(tokens.segment("joined_words", 2)[0].names or ())
        assert names[len(special) : len(names) - len(special)] == expected


@given(
    st.lists(st.sampled_from(["a", "bc", ".", "(", ")", "`", " ", "👍", "猫", "—"]), min_size=1, max_size=12)
)
def test_joined_words_are_unions_of_words_in_order(pieces: list[str]) -> None:
    text, spans = "".join(pieces), []
    for n, piece in enumerate(pieces):
        start = sum(map(len, pieces[:n]))
        if piece != " ":
            spans.append((start, start + len(piece)))
    if not spans:
        return
    tokens = TokenizedText.from_spans(text, [None, *spans, None], ["[CLS]", *[""] * len(spans), "[SEP]"])
    joined, single = tokens.assign_regions("joined_words"), tokens.assign_regions("words")
    assert all(b - a in (0, 1) for a, b in itertools.pairwise(joined)) and joined[0] == 0
    assert len({(a, b) for a, b in zip(single, joined, strict=True)}) == max(single) + 1
    assert joined.count(0) == 1 and joined.count(max(joined)) == 1  # special tokens stay alone
    names = tokens.segment("joined_words", 1)[0].names
    if any(c.isalnum() or c == "👍" for c in text):
        assert names and all(any(c.isalnum() or c == "👍" for c in name) for name in names[1:-1])
