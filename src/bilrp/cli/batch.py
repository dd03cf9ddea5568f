"""More than two inputs, or more than one encoder: a summary of each pair, and one page for all."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bilrp.cli.console import print_safe
from bilrp.errors import InputError, to_printable
from bilrp.io import files

if TYPE_CHECKING:
    from bilrp.answers.shapes import Finding
    from bilrp.cli.outputs import DrawOptions
    from bilrp.decomposition import Decomposition
    from bilrp.encoder import Encoder
    from bilrp.explanation import Explanation
    from bilrp.render.gallery import GalleryEntry


def explain_all(
    encoders: Sequence[Encoder], inputs: Sequence[str], outputs: Sequence[Path], draw: DrawOptions, *,
    similarity: str | None, regions: str | None, project: int | None, first: bool, open_output: bool, as_json: bool,
) -> None:  # fmt: skip
    """Explain every pair of inputs by every encoder, print the summaries and write one page.

    Args:
        encoders: the encoders to compare.
        inputs: files or texts.
        outputs, draw: the pages to write, and how to draw them.
        similarity, regions, project: the options of these names.
        first: only compare the first input with each of the others.
        open_output: open the page.
        as_json: print JSON.
    """
    from bilrp.cli import texts
    from bilrp.explanation import pair
    from bilrp.render.gallery import GalleryEntry, serialize_matrix

    pairs = _list_pairs(len(inputs), encoders=len(encoders), first=first, has_page=bool(outputs))
    # standard input can be read only once, for all encoders
    as_texts = [texts.read_text(path) for path in inputs] if any(map(texts.reads_text, encoders)) else inputs
    contents = {encoder: as_texts if texts.reads_text(encoder) else inputs for encoder in encoders}
    sides = {
        encoder: [
            decompose_input(encoder, content, regions=regions, project=project)
            for content in contents[encoder]
        ]
        for encoder in encoders
    }
    entries: list[GalleryEntry] = []
    scores: list[dict[tuple[int, int], float]] = [{} for _ in encoders]
    for a, b in pairs:
        for number, encoder in enumerate(encoders):
            explanation = pair(sides[encoder][a], sides[encoder][b], similarity=similarity)
            names = display_names(explanation, contents[encoder][a], contents[encoder][b])
            scores[number][a, b] = explanation.score
            by = [encoder.name] if len(encoders) > 1 else []
            heading = ", ".join([f"{names[0]} and {names[1]}", *by] if len(pairs) > 1 else by or names)
            entries.append(GalleryEntry(explanation, heading, names))
    title = "Why are these similar?" if len(inputs) > 2 else "The same pair by several encoders"
    matrix = None
    if len(inputs) > 2 and len(encoders) == 1:
        labels = [
            side.name or texts.shorten(content)
            for side, content in zip(sides[encoders[0]], contents[encoders[0]], strict=True)
        ]
        caption = entries[0].explanation.similarity.replace("_", " ")
        matrix = serialize_matrix(labels, scores[0], caption=f"{caption} of every pair")
        if not as_json:
            print_safe(format_matrix(matrix))
    print_summaries(entries, outputs, as_json=as_json)
    write_page(
        entries, outputs, draw, title=title, columns=len(encoders), open_output=open_output, quiet=as_json,
        matrix=matrix,
    )  # fmt: skip


def _list_pairs(inputs: int, *, encoders: int, first: bool, has_page: bool) -> list[tuple[int, int]]:
    """Return the pairs to explain; raise if they are too many for a page."""
    from bilrp.render.gallery import MAX_EXPLANATIONS

    pairs = [(a, b) for a, b in itertools.combinations(range(inputs), 2) if a == 0 or not first]
    if len(pairs) * encoders > MAX_EXPLANATIONS and has_page:
        raise InputError(
            f"{len(pairs) * encoders} explanations are too many for one page (at most {MAX_EXPLANATIONS}): "
            "give fewer inputs, or --first"
        )
    return pairs


def format_matrix(matrix: Mapping[str, Any]) -> str:
    """Format the scores of all pairs as a table of text, inputs numbered and their names below it."""
    count = len(matrix["names"])
    cells = [["" if cell is None else cell["text"] for cell in row] for row in matrix["cells"]]
    width = max(5, *(len(text) for row in cells for text in row)) + 2
    lines = [matrix["caption"], "      " + "".join(f"{n:>{width}}" for n in range(1, count + 1))]
    for n, (row, name) in enumerate(zip(cells, matrix["names"], strict=True), 1):
        lines.append(f"  {n:>3} " + "".join(f"{text:>{width}}" for text in row) + f"   {to_printable(name)}")
    return "\n".join(lines) + "\n"


def decompose_input(
    encoder: Encoder, content: str, *, regions: str | None, project: int | None = None
) -> Decomposition:
    """Decompose a file or a text.

    Args:
        encoder: the encoder.
        content: the file's path, or the text.
        regions, project: the options of these names.
    """
    from bilrp import regions as region_specs
    from bilrp.cli import terminal, texts
    from bilrp.encoder import read_item
    from bilrp.pipeline import decompose_item

    item = read_item(encoder, content)
    kind = texts.parse_regions(regions, is_text=texts.reads_text(encoder))
    spec = region_specs.grid(kind) if isinstance(kind, int) else kind
    try:
        return decompose_item(encoder, item, regions=spec, project=project, progress=sys.stderr.isatty())[
            None
        ]
    except Exception as error:
        raise terminal.wrap_encoder_error(encoder, item.x, error) from error


def display_names(explanation: Explanation, a: str, b: str) -> tuple[str, str]:
    """Return the names of both inputs; a text is named by its beginning.

    Args:
        explanation: the explanation; names stored in it take precedence.
        a, b: the command-line arguments, paths or texts.
    """
    from bilrp.cli import texts

    return explanation.a.name or texts.shorten(a), explanation.b.name or texts.shorten(b)


def print_summaries(
    entries: Sequence[GalleryEntry], outputs: Sequence[Path], *, as_json: bool, header: str | None = None
) -> None:
    """Print the summary of every explanation.

    Args:
        entries: the explanations with their headings.
        outputs, as_json: as for `terminal.print_summary`.
        header: a sentence about all of them.
    """
    from bilrp.cli import terminal

    if as_json:
        from bilrp.answers.explanations import build_explain_many

        answer = build_explain_many(entries, summary=header, outputs=[str(path) for path in outputs])
        terminal.print_json(answer)
        return
    if header is not None:
        print_safe(to_printable(header))
    for entry in entries:
        print_safe(f"{to_printable(entry.heading)}\n{terminal.wrap(entry.explanation.summary())}")
        print_named_findings(entry.explanation)


def print_named_findings(explanation: Explanation) -> None:
    """Print where the matches are that a summary names by number: those of images; words are in the summary itself."""
    from bilrp.cli import terminal
    from bilrp.findings.summary import name_whole
    from bilrp.inputs import Image
    from bilrp.render.findings_figure import serialize_findings

    if isinstance(explanation.a.view, Image) and isinstance(explanation.b.view, Image):
        lines = terminal.format_findings(
            cast("list[Finding]", serialize_findings(explanation)),
            terminal.terminal_width(),
            name_whole(explanation),
            max_findings=0,
        )
        if lines:
            print_safe("\n".join(lines))


def write_page(
    entries: Sequence[GalleryEntry], outputs: Sequence[Path], draw: DrawOptions, *, title: str, columns: int,
    lead: str = "", open_output: bool = False, quiet: bool = False, matrix: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    """Write all explanations as one page.

    Args:
        entries: the explanations with their headings.
        outputs, draw: the files to write, and how to draw them.
        title, lead: the title if `draw` has none, and a sentence below it.
        columns: explanations side by side.
        open_output, quiet: as for `write_each`.
        matrix: scores of all pairs, shown first.
    """
    if not outputs:
        return
    from bilrp.cli.outputs import write_each
    from bilrp.render import gallery
    from bilrp.render.styles import check_show

    page = gallery.render_html(
        entries,
        title=draw.title or title,
        lead=lead,
        columns=columns,
        style=None if draw.link_preset == "auto" else draw.link_preset,
        palette=draw.palette,
        special_tokens=draw.special_tokens,
        show=check_show(draw.show),
        matrix=matrix,
    )
    write_each(lambda path: files.write_text(path, page), outputs, open_output=open_output, quiet=quiet)
