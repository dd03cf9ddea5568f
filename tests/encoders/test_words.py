"""Words, sentences and spans from tokens: offsets as real tokenizers give them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bilrp.encoders.text.segmentation import TokenizedText
from bilrp.errors import InputError
from bilrp.inputs import split_sentences
from type_asserts import assert_not_none


def cut(text: str, pieces: list[str | None], by="words") -> list[str]:
    """Names of the regions of a text that falls into these pieces, in order; None is a mark."""
    spans, path = [], 0
    for piece in pieces:
        if piece is None:
            spans.append(None)
            continue
        start = text.index(piece, path)
        spans.append((start, start + len(piece)))
        path = start + len(piece)
    special_tokens = ["" if piece is not None else "[CLS]" for piece in pieces]
    return list(
        assert_not_none(TokenizedText.from_spans(text, spans, special_tokens).segment(by, 2)[0].names)
    )


@pytest.mark.parametrize(
    ("text", "pieces", "words"),
    [
        ("The kittens sat.", ["The", "kitten", "s", "sat", "."], ["The", "kittens", "sat", "."]),
        ("Don't", ["Don", "'", "t"], ["Don't"]),
        ("the dogs' bone", ["the", "dogs", "'", "bone"], ["the", "dogs", "'", "bone"]),
        ("1,000.5 m", ["1", ",", "000", ".", "5", "m"], ["1,000.5", "m"]),
        ("well-known", ["well", "-", "known"], ["well", "-", "known"]),
        ("a, b", ["a", ",", "b"], ["a", ",", "b"]),
        ("?!...", ["?", "!", "...", ], ["?", "!", "..."]),
        ("猫が好き", ["猫", "が", "好", "き"], ["猫", "が", "好", "き"]),
        ("कमल है", ["कम", "ल", "ह", "ै"], ["कमल", "है"]),
        ("שלום עולם", ["שלו", "ם", "עולם"], ["שלום", "עולם"]),
        ("ok 👍🏽!", ["ok", "👍", "🏽", "!"], ["ok", "👍🏽", "!"]),
        ("👩‍👧", ["👩", "‍", "👧"], ["👩‍👧"]),
        ("snake_case", ["snake", "_", "case"], ["snake_case"]),
    ],
)  # fmt: skip
def test_words(text: str, pieces: list[str | None], words: list[str]) -> None:
    assert cut(text, pieces) == words


def test_bytes_of_one_character_and_spaces_before_words() -> None:
    # a byte-level tokenizer: three tokens for one emoji, white space as a part of the next token
    tokens = TokenizedText.from_spans("hi 🦜 there", [(0, 2), (2, 4), (3, 4), (3, 4), (4, 10)], [""] * 5)
    regions, view = tokens.segment("words", 1)
    assert regions.names == ("hi", "🦜", "there")
    assert assert_not_none(view).spans == ((0, 2), (3, 4), (5, 10))


def test_an_empty_piece_begins_the_next_word() -> None:
    assert TokenizedText.from_spans("猫", [(0, 0), (0, 1)], ["", ""]).segment("words", 1)[0].names == ("猫",)
    assert TokenizedText.from_spans("a 猫", [(0, 1), (1, 2), (2, 3)], [""] * 3).segment("words", 1)[
        0
    ].names == ("a", "␣", "猫")


def test_special_tokens_are_regions_of_their_own() -> None:
    tokens = TokenizedText.from_spans(
        "A cat.", [None, (0, 1), (2, 5), (5, 6), None], ["[CLS]", "", "", "", "[SEP]"]
    )
    for by in ("words", "tokens", "sentences"):
        regions, view = tokens.segment(by, 3)
        assert regions.names is not None
        assert regions.names[0] == "[CLS]" and regions.names[-1] == "[SEP]"
        spans = assert_not_none(view).spans
        assert spans[0] is None and spans[-1] is None
        assert tuple(regions.labels.shape) == (5, 3)


def test_a_prompt_is_one_region_of_special_tokens() -> None:
    tokens = TokenizedText.from_spans(
        "A cat", [None, None, None, (0, 1), (2, 5), None], ["<s>", "query:", "query:", "", "", "</s>"]
    )
    for by in ("words", "tokens", "sentences", [(0, 5)]):
        names = tokens.segment(by, 1)[0].names
        assert names is not None and names[:2] == ("<s>", "query:") and names[-1] == "</s>"


def test_spans_and_what_is_outside_them() -> None:
    tokens = TokenizedText.from_spans(
        "one two three", [None, (0, 3), (4, 7), (8, 11), (11, 13)], ["[CLS]", "", "", "", ""]
    )
    regions, view = tokens.segment([(8, 13), (0, 3)], 1)
    assert regions.names == ("[CLS]", "one", "three")
    assert regions.labels[:, 0].tolist() == [0, 1, -1, 2, 2]
    assert assert_not_none(view).spans == (None, (0, 3), (8, 13))


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("letters", "unknown regions 'letters'"),
        ([(0, 3), (2, 5)], "overlap"),
        ([(3, 99)], "the length of the text"),
        ([1, 2], "spans of characters"),
    ],
)
def test_bad_segments_raise_errors(by, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TokenizedText.from_spans("one two three", [(0, 3), (4, 7), (8, 13)], [""] * 3).segment(by, 1)


def test_sentences() -> None:
    text = 'He said "Stop!" Then he left... Is that 3.5 km?  猫です。犬です。\nLast'
    result = [text[a:b] for a, b in split_sentences(text)]
    assert result == ['He said "Stop!"', "Then he left...", "Is that 3.5 km?", "猫です。", "犬です。", "Last"]


@given(st.text(max_size=40), st.lists(st.integers(1, 5), max_size=40))
def test_every_token_has_exactly_one_region(text: str, sizes: list[int]) -> None:
    spans, position = [], 0
    for size in sizes:
        if position >= len(text):
            break
        spans.append((position, min(len(text), position + size)))
        position += size
    assume(spans)
    tokens = TokenizedText.from_spans(text, spans, [""] * len(spans))
    words, pieces = tokens.assign_regions("words"), tokens.assign_regions("tokens")
    assert pieces == list(range(len(spans)))
    assert words[0] == 0 and all(b - a in (0, 1) for a, b in itertools.pairwise(words))
    assert all(owner >= 0 for owner in tokens.assign_regions("sentences") if text.strip() == text and text)
