"""More than two inputs, or more than one encoder: each sentence of finding, and one page for all."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.cli.console import say
from bilrp.io import files
from bilrp.errors import InputError, printable

if TYPE_CHECKING:
    from bilrp.encoder import Encoder
    from bilrp.explanation import Explanation


@dataclass(frozen=True)
class Wanted:
    """What the options say for every pair alike."""

    similarity: str
    regions: str | None
    project: int | None
    style: str
    palette: str
    title: str | None
    marks: bool = False


def explain_all(
    encoders: Sequence[Encoder], things: Sequence[str], outputs: Sequence[Path], wanted: Wanted, *,
    first: bool, show: bool, as_json: bool,
) -> None:  # fmt: skip
    """All pairs of the things (or the first against each other one) by every encoder; told, and written as one page."""
    from bilrp.cli import texts
    from bilrp.explanation import pair
    from bilrp.render.gallery import MOST, Chapter

    pairs = list(itertools.combinations(range(len(things)), 2))
    pairs = [(a, b) for a, b in pairs if a == 0] if first else pairs
    if len(pairs) * len(encoders) > MOST and outputs:
        raise InputError(
            f"{len(pairs) * len(encoders)} explanations are too many for a page, {MOST} fit: give fewer inputs, or --first"
        )
    # standard input can be read once only, however many encoders ask
    spoken = [texts.text_of(thing) for thing in things] if any(map(texts.reads_text, encoders)) else things
    contents = {encoder: spoken if texts.reads_text(encoder) else things for encoder in encoders}
    taken = {
        encoder: [taken_apart(encoder, each, wanted) for each in contents[encoder]] for encoder in encoders
    }
    chapters: list[Chapter] = []
    for a, b in pairs:
        for encoder in encoders:
            found = pair(taken[encoder][a], taken[encoder][b], similarity=wanted.similarity)
            names = named(found, contents[encoder][a], contents[encoder][b])
            by = [encoder.name] if len(encoders) > 1 else []
            heading = ", ".join([f"{names[0]} and {names[1]}", *by] if len(pairs) > 1 else by or names)
            chapters.append(Chapter(found, heading, names))
    title = wanted.title or (
        "Why are these similar?" if len(things) > 2 else "The same pair, seen by several encoders"
    )
    tell(chapters, outputs, as_json=as_json)
    write(chapters, outputs, title=title, columns=len(encoders), wanted=wanted, show=show, quiet=as_json)


def taken_apart(encoder: Encoder, content: str, wanted: Wanted) -> Any:
    """The decomposition of a file or a text, as the options want it."""
    from bilrp import regions as region_specs
    from bilrp.cli import terminal, texts
    from bilrp.decomposition import decompose_item
    from bilrp.encoder import read_item

    reading = texts.reads_text(encoder)
    item = read_item(encoder, content)
    kind = texts.region_kind(wanted.regions, texts=reading)
    regions = region_specs.grid(kind) if isinstance(kind, int) else kind
    try:
        return decompose_item(
            encoder, item, regions=regions, project=wanted.project, progress=sys.stderr.isatty()
        )[None]
    except Exception as error:
        raise terminal.blamed(encoder, item.x, error) from error


def named(found: Explanation, a: str, b: str) -> tuple[str, str]:
    from bilrp.cli import texts

    return found.a.name or texts.called(a), found.b.name or texts.called(b)


def pages_only(outputs: Sequence[Path]) -> None:
    """Refuse, before the work, what holds one explanation only."""
    for path in outputs:
        if path.suffix.lower() != ".html":
            raise InputError(
                f"--output {path}: several explanations are written as one page, give a name with .html"
            )


def tell(
    chapters: Sequence[Any], outputs: Sequence[Path], *, as_json: bool, above: str | None = None
) -> None:
    """Print every sentence, before anything is written."""
    if as_json:
        rows = [
            {"heading": c.heading, "score": c.explanation.score, "summary": c.explanation.summary()}
            for c in chapters
        ]
        print(json.dumps({"said": above, "explanations": rows, "outputs": [str(p) for p in outputs]}))
        return
    if above is not None:
        say(printable(above))
    from bilrp.cli import terminal

    for chapter in chapters:
        say(f"{printable(chapter.heading)}\n{terminal.wrapped(chapter.explanation.summary())}")


def write(
    chapters: Sequence[Any], outputs: Sequence[Path], *, title: str, columns: int, wanted: Wanted, quiet: bool,
    lead: str = "", show: bool = False,
) -> None:  # fmt: skip
    """One page for all of them."""
    from bilrp.cli.outputs import try_each
    from bilrp.render import gallery

    style = None if wanted.style == "auto" else wanted.style
    page = (
        gallery.html(
            chapters,
            title=title,
            lead=lead,
            columns=columns,
            style=style,
            colours=wanted.palette,
            marks=wanted.marks,
        )
        if outputs
        else ""
    )
    try_each(lambda path: files.write_text(path, page), outputs, show=show, quiet=quiet)
