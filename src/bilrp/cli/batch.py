"""More than two inputs, or more than one encoder: each sentence of finding, and one page for all."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.cli.console import print_safe
from bilrp.errors import InputError, to_printable
from bilrp.io import files

if TYPE_CHECKING:
    from bilrp.encoder import Encoder
    from bilrp.explanation import Explanation


@dataclass(frozen=True)
class BatchOptions:
    """What the options say for every pair alike."""

    similarity: str | None
    regions: str | None
    project: int | None
    link_preset: str
    palette: str
    title: str | None
    special_tokens: bool = False


def explain_all(
    encoders: Sequence[Encoder], inputs: Sequence[str], outputs: Sequence[Path], options: BatchOptions, *,
    first: bool, open_output: bool, as_json: bool,
) -> None:  # fmt: skip
    """All pairs of the things (or the first against each other one) by every encoder; told, and written as one page."""
    from bilrp.cli import texts
    from bilrp.explanation import pair
    from bilrp.render.gallery import MAX_EXPLANATIONS, GalleryEntry

    pairs = list(itertools.combinations(range(len(inputs)), 2))
    pairs = [(a, b) for a, b in pairs if a == 0] if first else pairs
    if len(pairs) * len(encoders) > MAX_EXPLANATIONS and outputs:
        raise InputError(
            f"{len(pairs) * len(encoders)} explanations are too many for a page, {MAX_EXPLANATIONS} fit: "
            f"give fewer inputs, or --first"
        )
    # standard input can be read once only, however many encoders ask
    spoken = [texts.read_text(thing) for thing in inputs] if any(map(texts.reads_text, encoders)) else inputs
    contents = {encoder: spoken if texts.reads_text(encoder) else inputs for encoder in encoders}
    taken = {
        encoder: [decompose_input(encoder, each, options) for each in contents[encoder]]
        for encoder in encoders
    }
    chapters: list[GalleryEntry] = []
    for a, b in pairs:
        for encoder in encoders:
            found = pair(taken[encoder][a], taken[encoder][b], similarity=options.similarity)
            names = display_names(found, contents[encoder][a], contents[encoder][b])
            by = [encoder.name] if len(encoders) > 1 else []
            heading = ", ".join([f"{names[0]} and {names[1]}", *by] if len(pairs) > 1 else by or names)
            chapters.append(GalleryEntry(found, heading, names))
    title = options.title or (
        "Why are these similar?" if len(inputs) > 2 else "The same pair, seen by several encoders"
    )
    print_summaries(chapters, outputs, as_json=as_json)
    write_page(
        chapters,
        outputs,
        title=title,
        columns=len(encoders),
        options=options,
        open_output=open_output,
        quiet=as_json,
    )


def decompose_input(encoder: Encoder, content: str, options: BatchOptions) -> Any:
    """The decomposition of a file or a text, as the options want it."""
    from bilrp import regions as region_specs
    from bilrp.cli import terminal, texts
    from bilrp.decomposition import decompose_item
    from bilrp.encoder import read_item

    reading = texts.reads_text(encoder)
    item = read_item(encoder, content)
    kind = texts.parse_regions(options.regions, is_text=reading)
    regions = region_specs.grid(kind) if isinstance(kind, int) else kind
    try:
        return decompose_item(
            encoder, item, regions=regions, project=options.project, progress=sys.stderr.isatty()
        )[None]
    except Exception as error:
        raise terminal.wrap_encoder_error(encoder, item.x, error) from error


def display_names(explanation: Explanation, a: str, b: str) -> tuple[str, str]:
    from bilrp.cli import texts

    return explanation.a.name or texts.shorten(a), explanation.b.name or texts.shorten(b)


def require_html_outputs(outputs: Sequence[Path]) -> None:
    """Refuse, before the work, what holds one explanation only."""
    for path in outputs:
        if path.suffix.lower() != ".html":
            raise InputError(
                f"--output {path}: several explanations are written as one page, give a name with .html"
            )


def print_summaries(
    chapters: Sequence[Any], outputs: Sequence[Path], *, as_json: bool, header: str | None = None
) -> None:
    """Print every sentence, before anything is written."""
    if as_json:
        rows = [
            {"heading": c.heading, "score": c.explanation.score, "summary": c.explanation.summary()}
            for c in chapters
        ]
        print(json.dumps({"said": header, "explanations": rows, "outputs": [str(p) for p in outputs]}))
        return
    if header is not None:
        print_safe(to_printable(header))
    from bilrp.cli import terminal

    for chapter in chapters:
        print_safe(f"{to_printable(chapter.heading)}\n{terminal.wrap(chapter.explanation.summary())}")


def write_page(
    chapters: Sequence[Any], outputs: Sequence[Path], *, title: str, columns: int, options: BatchOptions, quiet: bool,
    lead: str = "", open_output: bool = False,
) -> None:  # fmt: skip
    """One page for all of them."""
    from bilrp.cli.outputs import write_each
    from bilrp.render import gallery

    style = None if options.link_preset == "auto" else options.link_preset
    page = (
        gallery.render_html(
            chapters,
            title=title,
            lead=lead,
            columns=columns,
            style=style,
            palette=options.palette,
            special_tokens=options.special_tokens,
        )
        if outputs
        else ""
    )
    write_each(lambda path: files.write_text(path, page), outputs, open_output=open_output, quiet=quiet)
