"""`bilrp search`: find the items nearest to a query, or to a part of it, and explain why."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import AsJson, CollectionEncoder, CollectionWeights, Palette, SearchOutput
from bilrp.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from bilrp.collection import Collection
    from bilrp.collection.approximate_index import ApproximateIndex
    from bilrp.collection.core import Neighbour
    from bilrp.collection.neighbours import Query
    from bilrp.collection.repair import Repair
    from bilrp.decomposition import Decomposition
    from bilrp.render.gallery import GalleryEntry


def search(
    collection: Annotated[
        str, typer.Argument(metavar="NAME.lance", help="A collection, written by `bilrp index`.")
    ],
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="A file, a text, or an item's name, number or id.")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Many queries in place of QUERY: one in each line, or - for standard input."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="X,Y,W,H", help="Use only this box of the query, in pixels of the image file."),
    ] = None,
    words: Annotated[
        str | None, typer.Option(metavar="I-J", help="Use only these words of the query, counted from 1.")
    ] = None,
    without: Annotated[bool, typer.Option(help="Use everything except that box or those words.")] = False,
    count: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours.")] = 10,
    similarity: Annotated[
        str | None, typer.Option(metavar="NAME", help="dot or cosine. Default: the encoder's own.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print which parts match, for each neighbour.")
    ] = False,
    approximate: Annotated[
        bool,
        typer.Option(
            help="Use an approximate index for collections larger than memory; prints its measured recall."
        ),
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Only items whose metadata match, in SQL: \"lang = 'en' AND year > 2019\".",
        ),
    ] = None,
    repair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Search without a part that should not count: see `bilrp repair`. Several are applied together.",
        ),
    ] = None,
    encoder: CollectionEncoder = None,
    weights: CollectionWeights = None,
    output: SearchOutput = None,
    palette: Palette = "paper",
    as_json: AsJson = False,
) -> None:
    """Which items are similar to QUERY, and why? bilrp search photos.lance cat.jpg --part 120,40,200,160"""
    from bilrp.cli.input_hints import check_collection, check_query

    check_collection(collection)
    if queries is not None:
        if query or part or words or explain or approximate or repair or output:
            raise InputError(
                "--queries has -k, --similarity, --where, --encoder and --json only: leave out the rest"
            )
        options = {"count": count, "similarity": similarity, "where": where, "as_json": as_json}
        _search_many(collection, queries, encoder=encoder, weights=weights, **options)
        return
    if query is None:
        raise InputError("give a QUERY, or --queries FILE with one in each line")
    check_query(query)  # before torch is imported

    if repair and (part or words or approximate or similarity or where):
        raise InputError(
            "--repair has its own similarity and searches by whole items: leave out the other options"
        )

    from bilrp.cli.outputs import check_outputs
    from bilrp.collection import open
    from bilrp.io.files import ANNOTATION_SUFFIXES, PAGE_SUFFIX
    from bilrp.render.gallery import MAX_EXPLANATIONS

    outputs = check_outputs(output or [], formats=(PAGE_SUFFIX, *ANNOTATION_SUFFIXES), inputs=(query,))
    if outputs and count > MAX_EXPLANATIONS:
        raise InputError(f"-k {count}: a page has at most {MAX_EXPLANATIONS} explanations")
    opened = open(collection, encoder, weights=weights)
    resolved = _Query(query, opened, _combine_repairs(repair or (), opened))
    if part is not None or words is not None:
        resolved = resolved.restrict(part, words, without=without)
    elif explain or outputs:
        resolved = resolved.decompose()
    index_or_reason = resolved.choose_index(similarity) if approximate and where is None else None
    neighbours = resolved.find(count, similarity=similarity, approximate=approximate, where=where)
    recall_note, recall = _describe_recall(
        index_or_reason, is_whole_item=resolved.regions is None, count=count
    )
    header = resolved.describe_search(index_or_reason, where, recall_note)
    if not (as_json or explain):
        _print_neighbours(header, neighbours, resolved.key)  # before the explanations, which may take long
    entries = resolved.explain(neighbours, similarity) if explain or outputs else []
    if as_json:
        _print_json(resolved, neighbours, entries, similarity, recall)
    elif explain:
        _print_neighbours(header, neighbours, resolved.key, [each.explanation.summary() for each in entries])
    lead = f"The nearest {len(neighbours)} of {len(opened)} items in {collection}{resolved.by}{recall_note}."
    _write_files(
        entries, outputs, palette, title=f"Nearest to {resolved.description}", lead=lead, quiet=as_json
    )


def _combine_repairs(paths: Sequence[str], collection: Collection) -> Repair | None:
    """Load repairs and return them as one; None without any."""
    from bilrp.collection.repair import Repair

    repairs = [Repair.load(path) for path in paths]
    return reduce(lambda first, second: first.then(second, collection), repairs) if repairs else None


def _print_json(
    resolved: _Query,
    neighbours: Sequence[Neighbour],
    entries: Sequence[GalleryEntry],
    similarity: str | None,
    recall: Mapping[str, Any],
) -> None:
    from bilrp.answers.collections import build_search
    from bilrp.cli import terminal

    by = "repaired" if resolved.repair else resolved.collection.resolve_similarity(similarity)
    explanations = [entry.explanation for entry in entries]
    answer = build_search(
        resolved.collection, resolved.text, neighbours, similarity=by, regions=resolved.regions, explanations=explanations,
        **recall,
    )  # fmt: skip
    terminal.print_json(answer)


def _write_files(
    entries: Sequence[GalleryEntry],
    outputs: Sequence[Path],
    palette: str,
    *,
    title: str,
    lead: str,
    quiet: bool,
) -> None:
    """Write the explanations as pages, and their matches for image viewers."""
    from bilrp.cli import batch
    from bilrp.cli.outputs import DrawOptions, write_each
    from bilrp.io.files import PAGE_SUFFIX, match_suffix
    from bilrp.render.annotations import WRITERS

    pages = [path for path in outputs if path.suffix.lower() == PAGE_SUFFIX]
    draw = DrawOptions(palette=palette)
    batch.write_page(entries, pages, draw, title=title, lead=lead, columns=1, quiet=quiet)
    explanations = [entry.explanation for entry in entries]
    others = [path for path in outputs if path not in pages]
    write_each(
        lambda path: WRITERS[match_suffix(path, WRITERS) or ""](explanations, path), others, quiet=quiet
    )


def _search_many(
    path: str,
    queries: str,
    *,
    encoder: str | None,
    weights: str | None,
    count: int,
    similarity: str | None,
    where: str | None,
    as_json: bool,
) -> None:
    """Search for each line of a file; inputs are encoded in batches, and the items are read once."""
    from bilrp.cli.input_hints import check_query
    from bilrp.cli.texts import MAX_TEXT_BYTES, read_text
    from bilrp.io import files

    lines = (
        read_text(queries)
        if queries == "-"
        else files.read_text(queries, kind="text", max_bytes=MAX_TEXT_BYTES)
    )
    texts = [line.strip() for line in lines.splitlines() if line.strip()]
    for line in texts:
        check_query(line)
    if not texts:
        raise InputError(f"{queries} has no query: write one in each line")

    from bilrp.collection import open

    collection = open(path, encoder, weights=weights)
    keys = [resolve_query(collection, line) for line in texts]
    results = collection.nearest_many(keys, count, similarity=similarity, where=where)
    if as_json:
        from bilrp.answers.collections import build_search
        from bilrp.cli import terminal

        by = collection.resolve_similarity(similarity)
        rows = [
            build_search(collection, line, neighbours, similarity=by)
            for line, neighbours in zip(texts, results, strict=True)
        ]
        terminal.print_json({"collection": path, "queries": rows})
        return
    condition = "" if where is None else f" where {where}"
    for line, key, neighbours in zip(texts, keys, results, strict=True):
        _print_neighbours(f"Nearest to {line}, of {len(collection)}{condition}:", neighbours, key)


@dataclass(frozen=True)
class _Query:
    """A query of a collection: what was typed, what is searched for, and how to say so.

    `source` replaces the item or input where it was decomposed or restricted to `regions`; `by` says to which.
    """

    text: str
    collection: Collection
    repair: Repair | None
    source: Decomposition | None = None
    regions: list[int] | None = None
    part: str = ""

    @cached_property
    def key(self) -> Any:
        """An item's number or id, else the file or text itself."""
        return resolve_query(self.collection, self.text)

    @cached_property
    def position(self) -> int | None:
        """The position of the item; None for an input that is not in the collection."""
        return self.collection.position(self.key)

    @property
    def by(self) -> str:
        return self.part + ("" if self.repair is None else ", repaired")

    @property
    def description(self) -> str:
        return f"{self.text}{self.by}"

    @property
    def target(self) -> Any:
        """What is searched for: the restricted or decomposed query, else the item, else the input."""
        if self.source is not None:
            return self.source
        return self.key if self.position is None else self.position

    def decompose(self) -> _Query:
        """Decompose an input that is not in the collection once, for the search and the explanations."""
        if self.position is not None:
            return self
        if self.repair is not None:
            return replace(self, source=self.repair.decompose(self.collection.encoder, self.key))
        return replace(self, source=self.collection.decomposition(self.key))

    def restrict(self, part: str | None, words: str | None, *, without: bool) -> _Query:
        """Return the query by a box or some words, or without them."""
        from bilrp.collection.subquery import restrict_query

        whole = self.collection.decomposition(self.decompose().target)
        regions = find_word_regions(whole, words or "") if part is None else find_regions_in_box(whole, part)
        chosen = restrict_query(whole, without=regions) if without else restrict_query(whole, part=regions)
        suffix = f" {'without' if without else 'by'} {_describe_part(part, words, len(regions))}"
        return replace(self, source=chosen, regions=regions, part=suffix)

    def choose_index(self, similarity: str | None) -> ApproximateIndex | str:
        """Return the approximate index, or the reason why there is none."""
        return self.collection.items.index_or_reason(self.collection.resolve_similarity(similarity))

    def describe_search(
        self, index_or_reason: ApproximateIndex | str | None, where: str | None, recall_note: str
    ) -> str:
        """Return the lines above the neighbours."""
        reason = index_or_reason if isinstance(index_or_reason, str) else None
        exact = "" if reason is None else f"Searched exactly, without an index: {reason}.\n"
        condition = "" if where is None else f" where {where}"
        return f"{exact}Nearest to {self.description}, of {len(self.collection)}{condition}{recall_note}:"

    def find(
        self, count: int, *, similarity: str | None, approximate: bool, where: str | None
    ) -> list[Neighbour]:
        """Return the nearest items, without the query itself."""
        wanted = count + (self.position is not None)
        if self.repair is not None:
            neighbours = _find_repaired(self.collection, self.repair, self.key, wanted)
        else:
            neighbours = self.collection.nearest(
                self.target, wanted, similarity=similarity, approximate=approximate, where=where
            )
        return [n for n in neighbours if n.position != self.position][:count]

    def explain(self, neighbours: Sequence[Neighbour], similarity: str | None) -> list[GalleryEntry]:
        """Explain each neighbour; parts that are not stored are computed."""
        from bilrp.cli import batch
        from bilrp.progress import progress_bar
        from bilrp.render.gallery import GalleryEntry

        chosen = similarity if self.repair is None else self.repair.similarity
        left = self.collection.decomposition(self.target)
        left = with_full_view(self.collection, left, self.target if self.position is None else self.position)
        entries = []
        with progress_bar(sys.stderr.isatty()) as bar:
            bar.start("explaining", len(neighbours))
            for neighbour in neighbours:
                right = self.collection.decomposition(neighbour.position)
                right = with_full_view(self.collection, right, neighbour.position)
                explanation = self.collection.explain(left, right, similarity=chosen)
                names = batch.display_names(explanation, self.text, neighbour.name)
                entries.append(GalleryEntry(explanation, f"{neighbour.score:.3f}  {neighbour.name}", names))
                bar.advance()
        return entries


def _find_repaired(collection: Collection, repair: Repair, query: Any, count: int) -> list[Neighbour]:
    """Return the neighbours under a repaired similarity."""
    from bilrp.collection.core import Neighbour

    def share(position: int) -> Tensor:
        return collection.explain(query, position, similarity=repair.similarity).marginals()[0]

    ranked = repair.rank(collection, query, count)
    rows = collection.read_rows([i for i, _ in ranked])
    return [
        Neighbour(collection.ids[i], collection.names[i], score, i, partial(share, i), lambda row=row: row)
        for (i, score), row in zip(ranked, rows, strict=True)
    ]


def _print_neighbours(
    header: str, neighbours: Sequence[Neighbour], query: Any, summaries: Sequence[str] = ()
) -> None:
    from bilrp.cli import terminal

    print_safe(header)
    own_id = _content_id(query)
    for number, neighbour in enumerate(neighbours):
        is_same = neighbour.id == own_id
        same = f"  (the same {'image' if os.path.isfile(query) else 'text'})" if is_same else ""
        print_safe(f"{number + 1:3}  {neighbour.score:8.3f}  {neighbour.name}{same}")
        if summaries:
            print_safe(terminal.wrap(summaries[number], indent=" " * 6))


def _content_id(query: Any) -> str | None:
    """Return the id that a file or a text would have in a collection; None for an item."""
    from bilrp.collection.sources import SourceItem

    if not isinstance(query, str):
        return None
    return SourceItem(Path(query) if os.path.isfile(query) else query, query, "", "").content_id()


def _describe_part(part: str | None, words: str | None, count: int) -> str:
    """Describe the part of the query for the header."""
    name = f"its words {words}" if part is None else f"its box {part}"
    return f"{name} ({count} region{'s' * (count != 1)})"


def _describe_recall(
    index_or_reason: ApproximateIndex | str | None, *, is_whole_item: bool, count: int
) -> tuple[str, dict[str, Any]]:
    """Return the recall of an index in words and as JSON values; it is only claimed for what it was measured on."""
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


def with_full_view(collection: Collection, decomposition: Decomposition, query: Query) -> Decomposition:
    """Replace the stored thumbnail by the image from its file, if that still exists.

    Args:
        collection, decomposition: the collection, and the decomposition of the query.
        query: the query, as for `Collection.view`.
    """
    from bilrp.inputs import Image

    return (
        replace(decomposition, view=collection.view(query, full=True))
        if isinstance(decomposition.view, Image)
        else decomposition
    )


def resolve_query(collection: Collection, query: str) -> int | str:
    """Return an item's number or id, or the query itself if it is a file or a text."""
    if re.fullmatch(r"[0-9]{1,18}", query) and int(query) < len(collection):
        return int(query)
    if collection.position(query) is not None:
        return query
    positions = [n for n, name in enumerate(collection.names) if name == query]
    if len(positions) > 1:
        examples = ", ".join(collection.items.sources[n] or collection.ids[n] for n in positions[:3])
        raise InputError(
            f"{len(positions)} items are called {query}: give the file or id of one, e.g. {examples}"
        )
    if positions:
        return positions[0]
    if not os.path.exists(query) and _contains_images(collection):
        raise InputError(
            f"{query}: no such file; {collection.path} contains images: give an image file, or an item's name, "
            f"number or id"
        )
    return query


def _contains_images(collection: Collection) -> bool:
    from bilrp.inputs import Image

    return len(collection) > 0 and isinstance(collection.view(0), Image)


def find_regions_in_box(decomposition: Decomposition, part: str) -> list[int]:
    """Return the regions whose centre is in a box X,Y,W,H of the image file."""
    from bilrp.inputs import Image

    number = r"\d{1,9}(?:\.\d{0,9})?"
    box = [float(n) for n in part.split(",")] if re.fullmatch(rf"{number}(,{number}){{3}}", part) else []
    region_boxes = decomposition.region_boxes
    if len(box) != 4 or region_boxes is None or not isinstance(decomposition.view, Image):
        raise InputError(f"--part {part}: give X,Y,W,H in pixels of the image, as in 120,40,200,160")
    left, top, width, height = box
    regions = []
    for region, region_box in enumerate(region_boxes):
        x0, y0, x1, y1 = decomposition.view.map_to_original(tuple(region_box))
        if left <= (x0 + x1) / 2 <= left + width and top <= (y0 + y1) / 2 <= top + height:
            regions.append(region)
    if not regions:
        size = decomposition.view.original_size or decomposition.view.size
        raise InputError(f"--part {part}: no region has its centre there; the image is {size[0]}×{size[1]}")
    return regions


def find_word_regions(decomposition: Decomposition, words: str) -> list[int]:
    """Return the regions of words I to J of a text, counted from 1 without special tokens."""
    from bilrp.inputs import Text

    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", words)
    if match is None or not isinstance(decomposition.view, Text):
        raise InputError(f"--words {words}: give I-J, words of a text counted from 1, as in 3-5")
    regions: Sequence[int] = [i for i, span in enumerate(decomposition.view.spans) if span is not None]
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= len(regions):
        raise InputError(f"--words {words}: the text has words 1 … {len(regions)}")
    return list(regions[first - 1 : last])
