"""Words on a sheet of paper: widths, lines, and letters that the font has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

WORD_SPACE_EM = 0.32  # of the letters' size, between words
LINE_SPACING_EM = 2.3  # of the letters' size, from line to line: room for what runs under a line


@dataclass(frozen=True)
class Word:
    """A word with its box in inches, y downwards; `baseline` is where its letters stand, `is_special` a tokenizer's own."""

    text: str
    left: float
    top: float
    width: float
    height: float
    baseline: float
    is_special: bool = False


def layout_words(
    texts: Sequence[str],
    joined: Sequence[bool],
    is_special: Sequence[bool],
    *,
    left: float,
    top: float,
    width: float,
    font_size: float,
) -> tuple[Word, ...]:
    """Words in lines no longer than `width`, `joined` ones without a space before them.

    >>> [word.top for word in layout_words(["a", "b"], [False] * 2, [False] * 2, left=0, top=0, width=0.15, font_size=12)]
    [0, 0.3833333333333333]
    """
    inch = font_size / 72
    x, y = left, top
    words: list[Word] = []
    for one, together, mark in zip(texts, joined, is_special, strict=True):
        size = measure_width(one, font_size)
        x += 0.0 if together or x == left else WORD_SPACE_EM * inch
        if x + size > left + width and x > left:
            x, y = left, y + LINE_SPACING_EM * inch
        words.append(Word(one, x, y, size, 1.35 * inch, y + 1.02 * inch, mark))
        x += size
    return tuple(words)


@lru_cache(maxsize=4096)
def measure_width(text: str, font_size: float) -> float:
    """How many inches a text takes."""
    font = _font()
    font.set_size(font_size, 72)
    font.set_text(replace_missing_glyphs(text).replace(r"\$", "$"))
    return font.get_width_height()[0] / 64 / 72


def wrap(text: str, *, width: float, font_size: float) -> list[str]:
    """The text in lines of at most `width` inches; a number and its % stay together."""
    lines: list[str] = []
    for word in text.replace(" %", "\u00a0%").split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure_width(longer, font_size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shorten(name: str, max_length: int = 44) -> str:
    """A name in at most so many characters, its beginning and its end."""
    return name if len(name) <= max_length else f"{name[: max_length // 2 - 1]}…{name[-max_length // 2 :]}"


def replace_missing_glyphs(text: str) -> str:
    """Characters the font lacks as a box, $ not as the start of a formula."""
    return "".join(c if _has_glyph(c) else "□" for c in text).replace("$", r"\$")


@lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    return _font().get_char_index(ord(character)) != 0


def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties()))
