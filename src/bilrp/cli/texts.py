"""Texts on the command line: read from arguments, files or standard input; printed with coloured words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bilrp.errors import InputError, to_printable
from bilrp.inputs import Text
from bilrp.io import files

if TYPE_CHECKING:
    from rich.text import Text as Line
    from torch import Tensor

    from bilrp.attribution import Attribution
    from bilrp.decomposition import Decomposition
    from bilrp.encoder import Encoder
    from bilrp.explanation import Explanation
    from bilrp.regions import RegionSpec

MAX_TEXT_BYTES = 4_000_000  # more than any encoder reads
MAX_NAME_CHARACTERS = 60


def reads_text(encoder: Encoder) -> bool:
    """Return whether the encoder reads texts, so that arguments are texts and not files."""
    from bilrp.encoders.text.reader import TextReader

    return isinstance(encoder.read, TextReader)


def read_text(argument: str) -> str:
    """Return the text of an argument: the argument itself, @FILE for a file's text, - for standard input."""
    if argument == "-":
        return _decode(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "standard input")
    if not argument.startswith("@"):
        return argument
    return files.read_text(argument[1:], kind="text", max_bytes=MAX_TEXT_BYTES).strip()


def shorten(text: str) -> str:
    """Return the beginning of a text in one line, as its name.

    >>> shorten("A cat   sat" + chr(10) + "down.")
    'A cat sat down.'
    """
    line = " ".join(text.split())
    return line if len(line) <= MAX_NAME_CHARACTERS else line[: MAX_NAME_CHARACTERS - 1].rstrip() + "…"


def parse_regions(value: str | None, *, is_text: bool) -> int | str | None:
    """Parse --regions for one kind of input: pixels for images, a word for texts."""
    if value is None:
        return None
    if value.isdigit() == is_text:
        choices = (
            "texts give words, tokens or sentences" if is_text else "images give a side in pixels, e.g. 8"
        )
        raise InputError(f"--regions {value}: for {choices}")
    return value if is_text else int(value)


def parse_regions_pair(
    value: str | None, are_texts: Sequence[bool]
) -> tuple[RegionSpec | None, RegionSpec | None]:
    """Parse --regions for each of two inputs: pixels apply to images, words to texts.

    >>> parse_regions_pair("words", [False, True])
    (None, 'words')
    """
    if are_texts[0] == are_texts[1]:
        kind = parse_regions(value, is_text=are_texts[0])
        return kind, kind
    first, second = (
        parse_regions(value, is_text=text) if value is not None and value.isdigit() != text else None
        for text in are_texts
    )
    return first, second


def highlight_words(explanation: Explanation, *, special_tokens: bool = False) -> str | None:
    """Return the texts with each word in red if it raises the score and in blue if it lowers it; None without texts.

    Colours are used only if the output is a terminal.
    """
    if not any(isinstance(side.view, Text) for side in (explanation.a, explanation.b)):
        return None
    from rich.console import Console

    from bilrp.render.visibility import select_visible

    explanation = select_visible(explanation, special_tokens=special_tokens)
    sides, shares = (explanation.a, explanation.b), explanation.marginals()
    largest = max(float(share.abs().max()) for share in shares) or 1.0
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    with console.capture() as lines:
        for side, share in zip(sides, shares, strict=True):
            if not isinstance(side.view, Text):
                continue
            console.print("  ", _highlight_side(side, share / largest), sep="", soft_wrap=True)
    return lines.get().rstrip("\n")


def shade_texts(sides: Sequence[Attribution]) -> str:
    """Return the texts among these attributions, each word shaded by its value relative to the largest of its text."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    with console.capture() as lines:
        for side in sides:
            if isinstance(side.view, Text):
                values = side.values[side.span_regions].detach().cpu().double()
                view = Text(side.view.text, tuple(side.view.spans[region] for region in side.span_regions))
                line = _shade_view(view, view.region_texts, values / (float(values.abs().max()) or 1.0))
                console.print("  ", line, sep="", soft_wrap=True)
    return lines.get().rstrip("\n")


def _highlight_side(side: Decomposition, strength: Tensor) -> Line:
    """Return the text of a side with a background for each word."""
    assert isinstance(side.view, Text)
    return _shade_view(side.view, side.regions.names or side.view.region_texts, strength)


def _shade_view(view: Text, names: Sequence[str], strength: Tensor) -> Line:
    """Return a text with a background for each word: white to red for positive, white to blue for negative values."""
    from rich.text import Text as Line

    line, position = Line(), 0
    for region in _reading_order(view.spans):
        span, value = view.spans[region], float(strength[region])
        if span is None:
            space = "" if not len(line) or line.plain.endswith(" ") else " "
            line.append(space).append(to_printable(names[region]), style=_shade(value)).append(" ")
            continue
        start, stop = max(span[0], position), span[1]
        line.append(to_printable(" ".join(view.text[position:start].split("\n"))), style="dim")
        line.append(to_printable(view.text[start:stop]), style=_shade(value))
        position = max(position, stop)
    return line.append(to_printable(view.text[position:]), style="dim")  # beyond the encoder's limit


def _reading_order(spans: Sequence[tuple[int, int] | None]) -> list[int]:
    """Return the regions in reading order; a special token follows the region before it.

    >>> _reading_order([None, (4, 7), None, (0, 3)])
    [0, 3, 1, 2]
    """
    keys, previous = [], (-1, -1)
    for span in spans:
        previous = span or previous
        keys.append((previous, span is None))
    return sorted(range(len(spans)), key=lambda region: keys[region])


def _shade(value: float) -> str:
    pale = round(255 * (1 - min(abs(value), 1.0)))
    if pale > 240:
        return ""
    red, green, blue = (255, pale, pale) if value > 0 else (pale, pale, 255)
    return f"{'black' if pale > 90 else 'bold white'} on rgb({red},{green},{blue})"


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(f"{name} is longer than {MAX_TEXT_BYTES // 1_000_000} MB: give a shorter text")
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text") from None
