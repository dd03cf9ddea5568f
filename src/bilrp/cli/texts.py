"""Texts on the command line: arguments, files and standard input as text, and sentences printed with coloured words."""

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

    from bilrp.decomposition import Decomposition
    from bilrp.encoder import Encoder
    from bilrp.explanation import Explanation
    from bilrp.regions import RegionSpec

MAX_TEXT_BYTES = 4_000_000  # bytes of a text: more than any encoder reads
MAX_NAME_CHARACTERS = 60  # characters of a text that stands for its name


def reads_text(encoder: Encoder) -> bool:
    """Does the encoder read texts? Then arguments are the texts themselves."""
    from bilrp.encoders.text.reader import TextReader

    return isinstance(encoder.read, TextReader)


def read_text(argument: str) -> str:
    """A text from the command line: itself, @FILE for a file's text, - for standard input.

    >>> read_text("A cat sat.")
    'A cat sat.'
    """
    if argument == "-":
        return _decode(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "standard input")
    if not argument.startswith("@"):
        return argument
    return files.read_text(argument[1:], kind="text", max_bytes=MAX_TEXT_BYTES).strip()


def shorten(text: str) -> str:
    """A text as a name: its beginning, in one line.

    >>> shorten("A cat   sat" + chr(10) + "down.")
    'A cat sat down.'
    """
    line = " ".join(text.split())
    return line if len(line) <= MAX_NAME_CHARACTERS else line[: MAX_NAME_CHARACTERS - 1].rstrip() + "…"


def parse_regions(value: str | None, *, is_text: bool) -> int | str | None:
    """What --regions says, if it fits what is read: pixels for pictures, a word for texts."""
    if value is None:
        return None
    if value.isdigit() == is_text:
        fitting = "words, tokens or sentences" if is_text else "a side in pixels, e.g. 8"
        raise InputError(f"--regions {value}: of a {'text' if is_text else 'picture'}, give {fitting}")
    return value if is_text else int(value)


def parse_regions_pair(
    value: str | None, are_texts: Sequence[bool]
) -> tuple[RegionSpec | None, RegionSpec | None]:
    """What --regions says for each input: pixels for pictures, a word for texts; a kind that fits neither is a slip.

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
    """The texts, each word in red for what it adds to the score and in blue for what it takes; None where there is none.

    With `special_tokens`, what the tokenizer adds stands where it adds it, [CLS] and the like. Colours come where the
    output is a
    terminal; elsewhere the texts stand alone.
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


def _highlight_side(side: Decomposition, strength: Tensor) -> Line:
    """The text with a background for each word: white to red above nought, white to blue below."""
    from rich.text import Text as Line

    assert isinstance(side.view, Text)
    line, place = Line(), 0
    marks = side.regions.names or side.view.region_texts
    for region in _reading_order(side.view.spans):
        span, value = side.view.spans[region], float(strength[region])
        if span is None:
            space = "" if not len(line) or line.plain.endswith(" ") else " "
            line.append(space).append(to_printable(marks[region]), style=_shade(value)).append(" ")
            continue
        start, stop = max(span[0], place), span[1]
        line.append(to_printable(" ".join(side.view.text[place:start].split("\n"))), style="dim")
        line.append(to_printable(side.view.text[start:stop]), style=_shade(value))
        place = max(place, stop)
    return line.append(to_printable(side.view.text[place:]), style="dim")  # what the encoder did not read


def _reading_order(spans: Sequence[tuple[int, int] | None]) -> list[int]:
    """Regions as the text runs; a mark stands behind the region before it.

    >>> _reading_order([None, (4, 7), None, (0, 3)])
    [0, 3, 1, 2]
    """
    places, before = [], (-1, -1)
    for span in spans:
        before = span or before
        places.append((before, span is None))
    return sorted(range(len(spans)), key=lambda region: places[region])


def _shade(value: float) -> str:
    weak = round(255 * (1 - min(abs(value), 1.0)))
    if weak > 240:
        return ""
    red, green, blue = (255, weak, weak) if value > 0 else (weak, weak, 255)
    return f"black on rgb({red},{green},{blue})" if weak > 90 else f"bold white on rgb({red},{green},{blue})"


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise InputError(
            f"{name} is longer than {MAX_TEXT_BYTES // 1_000_000} MB: give the part to be compared"
        )
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{name} is no text in UTF-8") from None
