"""Text layout in inches for matplotlib: widths, line breaks, missing glyphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

WORD_SPACE_EM = 0.32  # between words
LINE_SPACING_EM = 2.3  # between lines; ribbons run under each line


@dataclass(frozen=True)
class Word:
    """A word with its box in inches, y downwards; `is_special` marks a special token."""

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
    """Break words into lines.

    Args:
        texts: The words.
        joined: Whether each word follows the previous one without a space.
        is_special: Whether each word is a special token.
        left, top: Left and top edge in inches.
        width: Maximum length of a line in inches.
        font_size: In points.
    """
    inch = font_size / 72
    x, y = left, top
    words: list[Word] = []
    for text, is_joined, special in zip(texts, joined, is_special, strict=True):
        word_width = measure_width(text, font_size)
        x += 0.0 if is_joined or x == left else WORD_SPACE_EM * inch
        if x + word_width > left + width and x > left:
            x, y = left, y + LINE_SPACING_EM * inch
        words.append(Word(text, x, y, word_width, 1.35 * inch, y + 1.02 * inch, special))
        x += word_width
    return tuple(words)


@lru_cache(maxsize=4096)
def measure_width(text: str, font_size: float) -> float:
    """Return the width of a text in inches."""
    font = _font()
    font.set_size(font_size, 72)
    font.set_text(replace_missing_glyphs(text).replace(r"\$", "$"))
    return font.get_width_height()[0] / 64 / 72


def wrap(text: str, *, width: float, font_size: float) -> list[str]:
    """Break a text into lines of at most `width` inches; a number and its % stay together.

    Args:
        text: The text.
        width: Maximum length of a line in inches.
        font_size: In points.
    """
    lines: list[str] = []
    for word in text.replace(" %", "\u00a0%").split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure_width(longer, font_size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shorten(name: str, max_length: int = 44) -> str:
    """Shorten a name to `max_length` characters by omitting its middle."""
    return name if len(name) <= max_length else f"{name[: max_length // 2 - 1]}…{name[-max_length // 2 :]}"


def replace_missing_glyphs(text: str) -> str:
    """Replace characters that the font lacks by a box, and escape $ (matplotlib would start a formula)."""
    return "".join(c if _has_glyph(c) else "□" for c in text).replace("$", r"\$")


@lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    return _font().get_char_index(ord(character)) != 0


def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties()))
