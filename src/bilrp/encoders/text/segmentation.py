"""From tokens to words, sentences and spans, by the tokenizer's own offsets: which token belongs to which region.

A cut is one region number for each token, in the order of the text; −1 is no region. Marks, tokens that stand for no
characters ([CLS], </s>, a prompt), are regions of their own in every cut.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from bilrp.errors import InputError
from bilrp.inputs import Text
from bilrp.regions import Regions

Span = tuple[int, int]
if TYPE_CHECKING:
    Cut: TypeAlias = str | Sequence[Span]
else:  # what is given is checked here, in words that say what to do
    Cut = Any

KINDS = ("words", "tokens", "sentences")
# Scripts written without spaces: a run of letters is no word there, so tokens stay as the tokenizer cut them.
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "BOPOMOFO")
GLUE = "\u200d"  # zero width joiner
SKIN = tuple(map(chr, range(0x1F3FB, 0x1F400)))
SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n\s*\n|\n")


@dataclass(frozen=True)
class Tokens:
    """A text as its tokenizer cut it: the characters [start, stop) of each token, and the names of marks.

    A mark has no characters (its span is None); neighbouring marks of one name (the tokens of a prompt) are one mark.
    """

    text: str
    spans: tuple[Span | None, ...]
    marks: tuple[str, ...]

    @staticmethod
    def of(text: str, spans: Sequence[Span | None], marks: Sequence[str]) -> Tokens:
        """Tokens without the white space around their characters.

        >>> Tokens.of("A cat", [None, (0, 1), (1, 5)], ["[CLS]", "", ""]).spans
        (None, (0, 1), (2, 5))
        """
        return Tokens(text, tuple(span and _trimmed(text, span) for span in spans), tuple(marks))

    def cut(self, by: Cut | Regions, width: int) -> tuple[Regions, Text | None]:
        """Regions of an input of shape (1, tokens, width), and where they lie in the text.

        >>> Tokens.of("unhappy cat", [(0, 2), (2, 7), (8, 11)], ["", "", ""]).cut("words", 4)[0].names
        ('unhappy', 'cat')
        """
        if isinstance(by, Regions):
            owners = by.labels[:, 0]
            whole = bool((by.labels == owners[:, None]).all())  # else tokens are cut through, and lie nowhere
            return by, self._view(owners.tolist(), by.count)[0] if whole else None
        owners = self.owners(by)
        view, names = self._view(owners, max(owners) + 1)
        labels = torch.tensor(owners)[:, None].expand(-1, width)
        kind = (
            by if isinstance(by, str) else f"spans {hashlib.sha256(repr(list(by)).encode()).hexdigest()[:16]}"
        )
        return Regions(labels, len(names), kind=kind, names=names), view

    def _view(self, owners: list[int], count: int) -> tuple[Text, tuple[str, ...]]:
        """Where regions lie in the text, from their first character to their last, and what they are called."""
        spans: list[Span | None] = [None] * count
        names = [""] * count
        for owner, span, mark in zip(owners, self.spans, self.marks, strict=True):
            if owner < 0:
                continue
            if span is None:
                names[owner] = names[owner] or mark
            else:
                first, last = spans[owner] or span
                spans[owner] = (min(first, span[0]), max(last, span[1]))
                names[owner] = visible(self.text[slice(*(spans[owner] or span))])
        return Text(self.text, tuple(spans)), tuple(names)

    def owners(self, by: Cut) -> list[int]:
        """The region of each token: by 'words', 'tokens' or 'sentences', or by (start, stop) spans of characters."""
        if isinstance(by, str) and by not in KINDS:
            raise InputError(
                f"unknown regions {by!r} of a text: use {', '.join(KINDS)}, or (start, stop) spans of characters"
            )
        if by in ("words", "tokens"):
            return self._joined(_one_word if by == "words" else None)
        return self._within(sentences(self.text) if isinstance(by, str) else _checked(by, len(self.text)))

    def _joined(self, one: Callable[[str, Span, Span], bool] | None) -> list[int]:
        """Neighbours become one region where `one` says so."""
        numbers: list[int] = []
        for place, span in enumerate(self.spans):
            before = self.spans[place - 1] if place else None
            same = self._one_mark(place)
            if span is not None and before is not None and one is not None:
                same = one(self.text, before, span)
            numbers.append((numbers[-1] if numbers else -1) + (not same))
        return numbers

    def _within(self, spans: Sequence[Span]) -> list[int]:
        """Numbers in the order of the text; a token belongs to the span it starts in, a mark to itself."""
        seen: dict[object, int] = {}
        found: list[int] = []
        mark = 0
        for place, span in enumerate(self.spans):
            mark += span is None and not self._one_mark(place)
            key = ("mark", mark) if span is None else _holding(spans, span)
            found.append(-1 if key is None else seen.setdefault(key, len(seen)))
        return found

    def _one_mark(self, place: int) -> bool:
        """The token and the one before it are one mark."""
        here, before = self.spans[place], self.spans[place - 1]
        return place > 0 and here is before is None and self.marks[place] == self.marks[place - 1]


def sentences(text: str) -> list[Span]:
    """The sentences of a text: cut after . ! ? … and their kin where white space follows, and at line breaks.

    >>> [("It rains. Stay in!")[a:b] for a, b in sentences("It rains. Stay in!")]
    ['It rains.', 'Stay in!']
    """
    found, start = [], 0
    for end in SENTENCE_END.finditer(text):
        found.append((start, end.end()))
        start = end.end()
    found.append((start, len(text)))
    trimmed = (_trimmed(text, span) for span in found)
    return [span for span in trimmed if span[0] < span[1] and text[slice(*span)].strip()]


def visible(text: str) -> str:
    """White space as a sign people can see; other text as it is."""
    return text if text.strip() else text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "·"


def _trimmed(text: str, span: Span) -> Span:
    start, stop = span
    inner = text[start:stop]
    if not inner.strip():
        return span
    return start + len(inner) - len(inner.lstrip()), stop - len(inner) + len(inner.rstrip())


def _one_word(text: str, before: Span, after: Span) -> bool:
    """Do two neighbouring tokens belong to one word? They touch (or share characters), and letters meet where they do."""
    if after[0] < before[1] or after[0] == after[1] == before[1]:
        return True  # the bytes of one character
    if after[0] > before[1] or after[0] == after[1] or before[0] == before[1]:
        return before[0] == before[1] == after[0]  # a word's empty beginning (▁ of a piece)
    left, right = text[before[1] - 1], text[after[0]]
    if left == GLUE or _leans(right):
        return True
    return (
        _inside_word(text, before[1] - 1)
        and _inside_word(text, after[0])
        and not (_unspaced(left) or _unspaced(right))
    )


def _leans(character: str) -> bool:
    """It belongs to what stands before it: accents, vowel signs, skin tones, what glues emoji together."""
    return unicodedata.category(character)[0] == "M" or character == GLUE or character in SKIN


def _inside_word(text: str, place: int) -> bool:
    """Letters and digits, an apostrophe between letters, a point or comma between digits."""
    character = text[place]
    if character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M":
        return True
    around = text[max(place - 1, 0) : place + 2].replace(character, "", 1)
    return len(around) == 2 and (
        (character in "'’" and around.isalpha()) or (character in ".," and around.isdigit())
    )


def _unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(UNSPACED)


def _holding(spans: Sequence[Span], token: Span) -> int | None:
    """The number of the span that a token starts in."""
    return next(
        (i for i, (start, stop) in enumerate(spans) if start <= token[0] < max(stop, start + 1)), None
    )


def _checked(spans: Cut, size: int) -> list[Span]:
    try:
        found = [(int(start), int(stop)) for start, stop in spans]
    except (TypeError, ValueError):
        raise InputError(
            f"regions of a text are {', '.join(KINDS)}, or spans of characters such as [(0, 5), (6, 11)]"
        ) from None
    if any(not 0 <= start < stop <= size for start, stop in found):
        raise InputError(f"spans are (start, stop) with 0 ≤ start < stop ≤ {size}, the length of the text")
    for (_, stop), (start, _) in zip(sorted(found), sorted(found)[1:], strict=False):
        if start < stop:
            raise InputError("these spans overlap: every token belongs to one region at most")
    return found
