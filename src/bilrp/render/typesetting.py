"""Words on a sheet of paper: widths, lines, and letters that the font has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SPACE = 0.32  # of the letters' size, between words
LEADING = 2.3  # of the letters' size, from line to line: room for what runs under a line


@dataclass(frozen=True)
class Word:
    """A word with its box in inches, y downwards; `base` is where its letters stand, `mark` a tokenizer's own."""

    text: str
    left: float
    top: float
    wide: float
    high: float
    base: float
    mark: bool = False


def set_in_lines(
    text: Sequence[str],
    joined: Sequence[bool],
    marks: Sequence[bool],
    *,
    left: float,
    top: float,
    wide: float,
    point: float,
) -> tuple[Word, ...]:
    """Words in lines no longer than `wide`, `joined` ones without a space before them.

    >>> [word.top for word in set_in_lines(["a", "b"], [False] * 2, [False] * 2, left=0, top=0, wide=0.15, point=12)]
    [0, 0.3833333333333333]
    """
    inch = point / 72
    x, y = left, top
    words: list[Word] = []
    for one, together, mark in zip(text, joined, marks, strict=True):
        size = width(one, point)
        x += 0.0 if together or x == left else SPACE * inch
        if x + size > left + wide and x > left:
            x, y = left, y + LEADING * inch
        words.append(Word(one, x, y, size, 1.35 * inch, y + 1.02 * inch, mark))
        x += size
    return tuple(words)


@lru_cache(maxsize=4096)
def width(text: str, point: float) -> float:
    """How many inches a text takes."""
    font = _font()
    font.set_size(point, 72)
    font.set_text(glyphs(text).replace(r"\$", "$"))
    return font.get_width_height()[0] / 64 / 72


def wrapped(text: str, *, wide: float, point: float) -> list[str]:
    """The text in lines of at most `wide` inches; a number and its % stay together."""
    lines: list[str] = []
    for word in text.replace(" %", "\u00a0%").split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width(longer, point) <= wide:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def short(name: str, most: int = 44) -> str:
    """A name in at most so many characters, its beginning and its end."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def glyphs(text: str) -> str:
    """Characters the font lacks as a box, $ not as the start of a formula."""
    return "".join(c if _has_glyph(c) else "□" for c in text).replace("$", r"\$")


@lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    return _font().get_char_index(ord(character)) != 0


def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties()))
