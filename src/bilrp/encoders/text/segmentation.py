"""Assign tokens to words, sentences and spans by the tokenizer's character offsets.

An assignment is one region number per token, in the order of the text; −1 means that the token is in no region. Special
tokens, which have no characters ([CLS], </s>, a prompt), are always separate regions.
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from bilrp.errors import InputError
from bilrp.inputs import Text, split_sentences, trim_span
from bilrp.regions import JOINED_WORDS, Regions

CharSpan = tuple[int, int]
if TYPE_CHECKING:
    TextRegionSpec: TypeAlias = str | Sequence[CharSpan]
else:  # checked by `_check_spans`, with a clearer message than beartype's
    TextRegionSpec = Any

TEXT_REGION_KINDS = ("words", JOINED_WORDS, "tokens", "sentences")
PUNCTUATION_CATEGORIES = ("P", "Sk", "Sm", "Sc", "Z", "C")  # with code ticks and operators; emoji are So
OPENING_CATEGORIES = ("Ps", "Pi")
# Scripts written without spaces: adjacent letters do not form words there, so each token is a word.
UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "BOPOMOFO")
ZERO_WIDTH_JOINER = "\u200d"
SKIN_TONES = tuple(map(chr, range(0x1F3FB, 0x1F400)))


@dataclass(frozen=True)
class TokenizedText:
    """A text and its tokens.

    Args:
        text: the text.
        spans: characters [start, stop) of each token; None for special tokens.
        special_tokens: name of each special token, else "". Adjacent ones of the same name (the tokens of a prompt) are one.
    """

    text: str
    spans: tuple[CharSpan | None, ...]
    special_tokens: tuple[str, ...]

    @staticmethod
    def from_spans(
        text: str, spans: Sequence[CharSpan | None], special_tokens: Sequence[str]
    ) -> TokenizedText:
        """Create a TokenizedText whose spans do not include surrounding white space.

        Args:
            text: the text.
            spans: characters [start, stop) of each token; None for special tokens.
            special_tokens: name of each special token, else "".

        >>> TokenizedText.from_spans("A cat", [None, (0, 1), (1, 5)], ["[CLS]", "", ""]).spans
        (None, (0, 1), (2, 5))
        """
        return TokenizedText(
            text, tuple(span and trim_span(text, span) for span in spans), tuple(special_tokens)
        )

    def segment(self, spec: TextRegionSpec | Regions, width: int) -> tuple[Regions, Text | None]:
        """Return the regions of an input of shape (1, tokens, width), and their spans in the text.

        >>> TokenizedText.from_spans("unhappy cat", [(0, 2), (2, 7), (8, 11)], ["", "", ""]).segment("words", 4)[0].names
        ('unhappy', 'cat')
        """
        if isinstance(spec, Regions):
            owners = spec.labels[:, 0]
            whole_tokens = bool((spec.labels == owners[:, None]).all())
            return spec, self._build_view(owners.tolist(), spec.count)[0] if whole_tokens else None
        owners = self.assign_regions(spec)
        view, names = self._build_view(owners, max(owners) + 1)
        labels = torch.tensor(owners)[:, None].expand(-1, width)
        kind = (
            spec
            if isinstance(spec, str)
            else f"spans {hashlib.sha256(repr(list(spec)).encode()).hexdigest()[:16]}"
        )
        return Regions(labels, len(names), kind=kind, names=names), view

    def _build_view(self, region_ids: list[int], count: int) -> tuple[Text, tuple[str, ...]]:
        """Return the spans of regions, from their first character to their last, and their names."""
        spans: list[CharSpan | None] = [None] * count
        names = [""] * count
        for owner, span, mark in zip(region_ids, self.spans, self.special_tokens, strict=True):
            if owner < 0:
                continue
            if span is None:
                names[owner] = names[owner] or mark
            else:
                first, last = spans[owner] or span
                spans[owner] = (min(first, span[0]), max(last, span[1]))
                names[owner] = show_whitespace(self.text[slice(*(spans[owner] or span))])
        return Text(self.text, tuple(spans)), tuple(names)

    def assign_regions(self, spec: TextRegionSpec) -> list[int]:
        """Return the region of each token, for "words", "tokens", "sentences", or (start, stop) spans of characters."""
        if isinstance(spec, str) and spec not in TEXT_REGION_KINDS:
            raise InputError(
                f"unknown regions {spec!r} of a text: use {', '.join(TEXT_REGION_KINDS)}, or (start, stop) "
                f"spans of characters"
            )
        if spec == JOINED_WORDS:
            return self._join_punctuation(self._merge_adjacent(_is_one_word))
        if spec in ("words", "tokens"):
            return self._merge_adjacent(_is_one_word if spec == "words" else None)
        return self._assign_to_spans(
            split_sentences(self.text) if isinstance(spec, str) else _check_spans(spec, len(self.text))
        )

    def _merge_adjacent(self, belong_together: Callable[[str, CharSpan, CharSpan], bool] | None) -> list[int]:
        """Number the regions; adjacent tokens share one where `belong_together`."""
        numbers: list[int] = []
        for index, span in enumerate(self.spans):
            before = self.spans[index - 1] if index else None
            same = self._is_same_special_token(index)
            if span is not None and before is not None and belong_together is not None:
                same = belong_together(self.text, before, span)
            numbers.append((numbers[-1] if numbers else -1) + (not same))
        return numbers

    def _join_punctuation(self, words: list[int]) -> list[int]:
        """Return the regions with each word of punctuation only joined to a neighbouring word.

        It joins the word that it touches: between two, an opening bracket and what follows it the next one, anything else
        the previous one. Punctuation between spaces joins the previous word.
        """
        spans = self._build_view(words, words[-1] + 1)[0].spans
        kinds = ["special" if s is None else "mark" if self._is_mark(s) else "word" for s in spans]
        owners = list(range(len(spans)))
        for kind, run in itertools.groupby(range(len(spans)), key=kinds.__getitem__):
            marks = list(run)
            if kind != "mark":
                continue
            before, after = marks[0] - 1, marks[-1] + 1
            has_before, has_after = (0 <= n < len(spans) and kinds[n] == "word" for n in (before, after))
            own = len(marks)  # how many join the word before them
            if has_before and has_after:
                own = self._count_trailing_marks([s for s in spans[before : after + 1] if s is not None])
            for n, mark in enumerate(marks):
                to_next = has_after and (n >= own or not has_before)
                owners[mark] = after if to_next else before if has_before else marks[0]
        numbers = {owner: n for n, owner in enumerate(sorted(set(owners)))}
        return [numbers[owners[word]] for word in words]

    def _count_trailing_marks(self, spans: Sequence[CharSpan]) -> int:
        """Return how many of the marks between two words, spans[0] and spans[-1], join the first."""
        gaps = [n for n, (a, b) in enumerate(itertools.pairwise(spans)) if b[0] > a[1]]
        if gaps:  # the marks after the last space touch the second word
            return gaps[-1]
        marks = spans[1:-1]
        opening = (n for n, (start, _) in enumerate(marks) if _is_opening(self.text[start]))
        return next(opening, len(marks))

    def _is_mark(self, span: CharSpan) -> bool:
        """Return whether a span has punctuation only."""
        return all(
            unicodedata.category(c).startswith(PUNCTUATION_CATEGORIES) for c in self.text[slice(*span)]
        )

    def _assign_to_spans(self, spans: Sequence[CharSpan]) -> list[int]:
        """Number the regions in the order of the text; a token belongs to the span it starts in."""
        regions: dict[object, int] = {}
        owners: list[int] = []
        special = 0
        for index, span in enumerate(self.spans):
            special += span is None and not self._is_same_special_token(index)
            key = ("special", special) if span is None else _span_index(spans, span)
            owners.append(-1 if key is None else regions.setdefault(key, len(regions)))
        return owners

    def _is_same_special_token(self, index: int) -> bool:
        """Return whether this token and the previous one are the same special token."""
        here, before = self.spans[index], self.spans[index - 1]
        return (
            index > 0
            and here is before is None
            and self.special_tokens[index] == self.special_tokens[index - 1]
        )


def show_whitespace(text: str) -> str:
    """Replace text of white space only by visible symbols; return other text unchanged."""
    return text if text.strip() else text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "·"


def _is_one_word(text: str, before: CharSpan, after: CharSpan) -> bool:
    """Return whether two adjacent tokens belong to one word: they touch or overlap, with letters on both sides."""
    if after[0] < before[1] or after[0] == after[1] == before[1]:
        return True  # the bytes of one character
    if after[0] > before[1] or after[0] == after[1] or before[0] == before[1]:
        return before[0] == before[1] == after[0]  # an empty first token (▁ of SentencePiece)
    left, right = text[before[1] - 1], text[after[0]]
    if left == ZERO_WIDTH_JOINER or _is_combining(right):
        return True
    return (
        _is_word_character(text, before[1] - 1)
        and _is_word_character(text, after[0])
        and not (_is_unspaced(left) or _is_unspaced(right))
    )


def _is_combining(character: str) -> bool:
    """Return whether a character modifies the previous one: accents, vowel signs, skin tones, emoji joiners."""
    return (
        unicodedata.category(character)[0] == "M" or character == ZERO_WIDTH_JOINER or character in SKIN_TONES
    )


def _is_opening(character: str) -> bool:
    """Return whether a character opens a bracket or a quotation."""
    return unicodedata.category(character) in OPENING_CATEGORIES


def _is_word_character(text: str, index: int) -> bool:
    """Return True for letters and digits, an apostrophe between letters, and a point or comma between digits."""
    character = text[index]
    if character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M":
        return True
    around = text[max(index - 1, 0) : index + 2].replace(character, "", 1)
    return len(around) == 2 and (
        (character in "'’" and around.isalpha()) or (character in ".," and around.isdigit())
    )


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(UNSPACED_SCRIPTS)


def _span_index(spans: Sequence[CharSpan], token: CharSpan) -> int | None:
    """Return the index of the span that a token starts in, or None."""
    return next(
        (i for i, (start, stop) in enumerate(spans) if start <= token[0] < max(stop, start + 1)), None
    )


def _check_spans(spans: TextRegionSpec, length: int) -> list[CharSpan]:
    try:
        checked = [(int(start), int(stop)) for start, stop in spans]
    except (TypeError, ValueError):
        raise InputError(
            f"regions of a text must be {', '.join(TEXT_REGION_KINDS)}, or spans of characters such as [(0, 5), (6, 11)]"
        ) from None
    if any(not 0 <= start < stop <= length for start, stop in checked):
        raise InputError(
            f"spans must be (start, stop) with 0 ≤ start < stop ≤ {length}, the length of the text"
        )
    for (_, stop), (start, _) in zip(sorted(checked), sorted(checked)[1:], strict=False):
        if start < stop:
            raise InputError("the spans overlap, but a token can only be in one region")
    return checked
