"""`bilrp highlight`: which words of a query and of each passage make them similar."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import AsJson, Encoder, RegionOption, Similarity

if TYPE_CHECKING:
    from bilrp.attribution import Span
    from bilrp.highlights import Highlight

TOP_WORDS = 5  # listed below each text


def highlight(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A text; @FILE with a text, - for standard input.")
    ],
    passages: Annotated[
        list[str],
        typer.Argument(
            metavar="PASSAGE…", help="Texts or text files; images for an encoder that reads them."
        ),
    ],
    encoder: Encoder = "minilm",
    regions: RegionOption = None,
    similarity: Similarity = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="With --json: also the relevance of every pair of words.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Which words of a query and of each passage make them similar? bilrp highlight "a question" "a text" b.txt"""
    from bilrp.cli.input_hints import check_inputs

    check_inputs((query, *passages), [encoder])  # before torch is imported

    from bilrp import highlights
    from bilrp.cli import terminal, texts
    from bilrp.encoder import resolve_encoders
    from bilrp.similarity import resolve_similarity

    resolve_similarity(similarity)  # rejects an unknown name before the work
    loaded = terminal.load_encoder_or_dual(encoder)
    readers = [resolve_encoders(loaded, query, argument)[1] for argument in (query, *passages)]
    are_texts = [texts.reads_text(reader) for reader in readers]
    query_text, *contents = (
        _read_text(argument) if is_text else argument
        for argument, is_text in zip((query, *passages), are_texts, strict=True)
    )
    specs = texts.parse_regions_pair(regions, (are_texts[0], are_texts[1]))
    hits = highlights.highlight(
        loaded, query_text, contents, similarity=similarity, regions=specs, matrix=matrix and as_json
    )
    if as_json:
        from bilrp.answers.collections import build_highlight

        terminal.print_json(build_highlight(loaded.name, query_text, passages, hits))
        return
    for source, hit in zip(passages, hits, strict=True):
        _print_hit(texts.shorten(source), hit)


def _read_text(argument: str) -> str:
    """Return the text of an argument as `explain` reads it, or that of a file of this name; offsets count from its start."""
    from bilrp.cli import texts
    from bilrp.io import files

    path = argument.removeprefix("@")
    if argument.startswith("@") or (len(path) < 4096 and "\0" not in path and os.path.isfile(path)):
        return files.read_text(path, kind="text", max_bytes=texts.MAX_TEXT_BYTES)
    return texts.read_text(argument)


def _print_hit(name: str, hit: Highlight) -> None:
    from bilrp.cli import texts

    print_safe(f"{hit.score:.4f}  {name}")
    lines = texts.shade_texts(hit.sides)
    if lines:
        print(lines)  # has colour codes, and is escaped already
    for side, spans, rest in (
        ("query", hit.query, hit.query_unattributed),
        ("passage", hit.passage, hit.unattributed),
    ):
        print_safe(f"  {side}: {_list_words(spans)}unattributed {rest:+.3f}")
    print()


def _list_words(spans: list[Span]) -> str:
    best = sorted(spans, key=lambda span: -abs(span.weight))[:TOP_WORDS]
    return "".join(f"{' '.join(span.text.split())} {span.weight:+.3f}, " for span in best)
