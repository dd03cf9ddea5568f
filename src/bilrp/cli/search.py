"""`bilrp search`: what is like this one, which of them share this part, and why."""

from __future__ import annotations

import json as numbers
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import AsJson, CollectionEncoder, CollectionWeights, PageOutput, Palette
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.collection import Collection
    from bilrp.collection.approximate_index import ApproximateIndex
    from bilrp.collection.core import Neighbour
    from bilrp.decomposition import Decomposition
    from bilrp.render.gallery import GalleryEntry


def search(
    collection: Annotated[str, typer.Argument(metavar="NAME.lance", help="What `bilrp index` made.")],
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A file, a text, an item's name, number or id.")
    ],
    part: Annotated[
        str | None,
        typer.Option(metavar="X,Y,W,H", help="Only by this box of the query, in pixels of the photograph."),
    ] = None,
    words: Annotated[
        str | None, typer.Option(metavar="I-J", help="Only by these words of the query.")
    ] = None,
    without: Annotated[bool, typer.Option(help="All but that box or those words.")] = False,
    count: Annotated[int, typer.Option("-k", min=1, help="How many neighbours.")] = 10,
    similarity: Annotated[
        str | None, typer.Option(metavar="NAME", help="dot or cosine. Default: the encoder's own.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which parts match, for each that is shown.")
    ] = False,
    approximate: Annotated[
        bool, typer.Option(help="Where there are too many for memory: by an index, whose recall is said.")
    ] = False,
    encoder: CollectionEncoder = None,
    weights: CollectionWeights = None,
    output: PageOutput = None,
    palette: Palette = "paper",
    as_json: AsJson = False,
) -> None:
    """What is like QUERY, and why? bilrp search photos.lance cat.jpg --part 120,40,200,160"""
    from bilrp.cli import batch as several
    from bilrp.cli import terminal
    from bilrp.collection import open
    from bilrp.collection.subquery import restrict_query
    from bilrp.render.gallery import MAX_EXPLANATIONS

    outputs = terminal.check_outputs(output or [], inputs=(query,))
    several.require_html_outputs(outputs)
    if outputs and count > MAX_EXPLANATIONS:
        raise InputError(
            f"-k {count}: a page holds the explanations of {MAX_EXPLANATIONS} neighbours at most"
        )
    found = open(collection, encoder, weights=weights)
    thing = _resolve_query(found, query)
    at, regions = found.position(thing), None
    apart = part is not None or words is not None
    asked = thing if at is None else at
    if at is None and (apart or explain or outputs):
        asked = found.decomposition(thing)  # worked out once
    if apart:
        taken = found.decomposition(asked)
        regions = (
            find_regions_in_box(taken, part) if part is not None else find_word_regions(taken, words or "")
        )
        asked = restrict_query(taken, without=regions) if without else restrict_query(taken, part=regions)
    asked_for = _describe_part(part, words, len(regions or ()))
    way = found.items.index_or_reason(found.resolve_similarity(similarity)) if approximate else None
    near = found.nearest(asked, count + (at is not None), similarity=similarity, approximate=approximate)
    near = [n for n in near if n.position != at][:count]
    partly, recall = _describe_recall(way, is_whole_item=not apart, count=count)
    by = "" if regions is None else f" {'without' if without else 'by'} {asked_for}"
    head = f"Searched exactly, without an index: {way}.\n" if isinstance(way, str) else ""
    head += f"Nearest to {query}{by}, of {len(found)}{partly}:"
    if not (as_json or explain):
        _print_neighbours(head, near, thing)  # at once: to explain them may take long
    chapters = _build_chapters(found, near, asked, at, query, similarity) if explain or outputs else []
    sentences = [chapter.explanation.summary() for chapter in chapters]
    if as_json:
        rows = [{"id": n.id, "name": n.name, "score": n.score} for n in near]
        if sentences:
            rows = [row | {"summary": said} for row, said in zip(rows, sentences, strict=True)]
        answer = {"collection": collection, "query": query, "regions": regions} | recall
        print(numbers.dumps(answer | {"neighbours": rows}))
    elif explain:
        _print_neighbours(head, near, thing, sentences)
    wish = several.BatchOptions(similarity, None, None, "auto", palette, None)
    title = f"What is like {query}?" if regions is None else f"What shares this part of {query}?"
    title = f"What is like {query} without this part?" if regions is not None and without else title
    lead = f"The nearest {len(near)} of {len(found)} items in {collection}{partly}"
    lead += "." if regions is None else f", by {'all but ' if without else ''}{asked_for} alone."
    several.write_page(chapters, outputs, title=title, columns=1, options=wish, quiet=as_json, lead=lead)


def _build_chapters(
    collection: Collection,
    neighbours: Sequence[Neighbour],
    source: Any,
    position: int | None,
    query: str,
    similarity: str | None,
) -> list[GalleryEntry]:
    """The explanation of each neighbour; those whose parts are not kept yet are taken apart."""
    from bilrp.cli import batch as several
    from bilrp.progress import progress_bar
    from bilrp.render.gallery import GalleryEntry

    left = with_full_view(
        collection, collection.decomposition(source), source if position is None else position
    )
    chapters = []
    with progress_bar(sys.stderr.isatty()) as bar:
        bar.start("explaining", len(neighbours))
        for each in neighbours:
            right = with_full_view(collection, collection.decomposition(each.position), each.position)
            pair = collection.explain(left, right, similarity=similarity)
            named = several.display_names(pair, query, each.name)
            chapters.append(GalleryEntry(pair, f"{each.score:.3f}  {each.name}", named))
            bar.advance()
    return chapters


def _print_neighbours(
    header: str, neighbours: Sequence[Neighbour], query: Any, sentences: Sequence[str] = ()
) -> None:
    from bilrp.cli import terminal

    print_safe(header)
    own = _content_id(query)
    for number, each in enumerate(neighbours):
        same = f"  (the same {'picture' if os.path.isfile(query) else 'text'})" if each.id == own else ""
        print_safe(f"{number + 1:3}  {each.score:8.3f}  {each.name}{same}")
        if sentences:
            print_safe(terminal.wrap(sentences[number], indent=" " * 6))


def _content_id(query: Any) -> str | None:
    """The id that a file or a text would have in a collection; None of an item, which has its own."""
    from bilrp.collection.sources import SourceItem

    if not isinstance(query, str):
        return None
    return SourceItem(Path(query) if os.path.isfile(query) else query, query, "", "").content_id()


def _describe_part(part: str | None, words: str | None, count: int) -> str:
    """The part of the query that was asked for, as it was given."""
    given = f"its words {words}" if part is None else f"its box {part}"
    return f"{given} ({count} region{'s' * (count != 1)})"


def _describe_recall(
    index_or_reason: ApproximateIndex | str | None, *, is_whole_item: bool, count: int
) -> tuple[str, dict[str, Any]]:
    """How much an index finds: in words, and as values; a recall is said of nothing else than it was measured for."""
    from bilrp.collection.approximate_index import RECALL_NEIGHBOURS

    if index_or_reason is None or isinstance(index_or_reason, str):
        return "", {"recall": 1.0, "measured": None, "exact": index_or_reason}
    values = {
        "measured": {"recall": index_or_reason.recall, "of": "whole items", "k": RECALL_NEIGHBOURS},
        "exact": None,
    }
    if is_whole_item and count <= RECALL_NEIGHBOURS:
        words = (
            f" (approximately: finds {index_or_reason.recall:.0%} of an item's {RECALL_NEIGHBOURS} nearest)"
        )
        return words, {"recall": index_or_reason.recall} | values
    words = (
        f" (approximately: recall is {index_or_reason.recall:.0%} measured for whole items, k = "
        f"{RECALL_NEIGHBOURS}, and may be less here)"
    )
    return words, {"recall": None} | values


def with_full_view(collection: Collection, decomposition: Decomposition, query: Any) -> Decomposition:
    """With what people see of it from its file, where that is still there: small print can be read then."""
    from bilrp.inputs import Image

    return (
        replace(decomposition, view=collection.view(query, full=True))
        if isinstance(decomposition.view, Image)
        else decomposition
    )


def _resolve_query(collection: Collection, query: str) -> Any:
    """An item by number, id or name, else what the encoder reads."""
    if query.isascii() and query.isdigit() and int(query) < len(collection):
        return int(query)
    called = (
        [n for n, name in enumerate(collection.names) if name == query]
        if collection.position(query) is None
        else []
    )
    if len(called) > 1:
        several = ", ".join(collection.items.sources[n] or collection.ids[n] for n in called[:3])
        raise InputError(
            f"{len(called)} items are called {query}: give the file or id of one of them, {several}"
        )
    if called:
        return called[0]
    if collection.position(query) is None and not os.path.exists(query) and _holds_images(collection):
        raise InputError(
            f"{query}: no such file; {collection.path} holds pictures: give a picture's file, or an item's "
            f"name, number or id"
        )
    return query


def _holds_images(collection: Collection) -> bool:
    from bilrp.inputs import Image

    return len(collection) > 0 and isinstance(collection.view(0), Image)


def find_regions_in_box(decomposition: Decomposition, part: str) -> list[int]:
    """The regions whose middle lies in a box X,Y,W,H of the photograph."""
    numbers = [float(n) for n in part.split(",")] if re.fullmatch(r"[\d.]+(,[\d.]+){3}", part) else []
    from bilrp.inputs import Image

    places = decomposition.region_boxes
    if len(numbers) != 4 or places is None or not isinstance(decomposition.view, Image):
        raise InputError(f"--part {part}: give X,Y,W,H in pixels of the photograph, as in 120,40,200,160")
    left, top, wide, high = numbers
    chosen = []
    for region, place in enumerate(places):
        x0, y0, x1, y1 = decomposition.view.map_to_original(tuple(place))
        if left <= (x0 + x1) / 2 <= left + wide and top <= (y0 + y1) / 2 <= top + high:
            chosen.append(region)
    if not chosen:
        size = decomposition.view.original_size or decomposition.view.size
        raise InputError(
            f"--part {part}: no region has its middle there; the photograph is {size[0]}×{size[1]}"
        )
    return chosen


def find_word_regions(decomposition: Decomposition, words: str) -> list[int]:
    """Words I to J of a text, counted from 1 as people do; marks of the tokenizer's own don't count."""
    from bilrp.inputs import Text

    range_ = re.fullmatch(r"(\d+)(?:-(\d+))?", words)
    if range_ is None or not isinstance(decomposition.view, Text):
        raise InputError(f"--words {words}: give I-J, words of a text counted from 1, as in 3-5")
    regions: Sequence[int] = [i for i, span in enumerate(decomposition.view.spans) if span is not None]
    first, last = int(range_[1]), int(range_[2] or range_[1])
    if not 1 <= first <= last <= len(regions):
        raise InputError(f"--words {words}: the text has words 1 … {len(regions)}")
    return list(regions[first - 1 : last])
