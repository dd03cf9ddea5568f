"""Why two items of a graph are joined, and which reasons are the same on several edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bilrp.errors import import_optional
from bilrp.findings.formatting import describe_location, format_share
from bilrp.findings.grouping import MIN_RELIABILITY
from bilrp.findings.number_copies import MIN_BLOCK_NUMBERS, CopiedBlock, PageNumbers
from bilrp.findings.number_matches import MAX_LISTED_NUMBERS
from bilrp.findings.summary import UNRELIABLE
from bilrp.inputs import Image, Text

if TYPE_CHECKING:
    import networkx

    from bilrp.collection.core import Collection
    from bilrp.decomposition import Decomposition

MAX_FINDINGS = 4  # of one edge
MIN_OVERLAP_FRACTION = 0.5  # of the smaller of two sets of regions of one item: then they are the same part
MIN_SAME_CARRIERS_FRACTION = 0.6  # of the pages that carry one of two numbers: then these are in one part

Place = tuple[float, ...]
"""(left, top, right, bottom) in fractions of a picture, or (start, end) in characters of a text."""


@dataclass(frozen=True)
class ReasonPart:
    """Regions of a that match regions of b.

    Args:
        a, b: Regions of the two items; for tables, their numbers.
        text_a, text_b: The words, the numbers, or where the regions are.
        places_a, places_b: Boxes in fractions of the picture, or spans of characters.
        share: Of the score; None where there is no explanation of the score, or the score is near zero.
        reliability: Mean product of both sides' confidence over the pairs; None if the encoder has none.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    text_a: str
    text_b: str
    places_a: tuple[Place, ...] = ()
    places_b: tuple[Place, ...] = ()
    share: float | None = None
    reliability: float | None = None


@dataclass(frozen=True)
class ChangedNumber:
    """A number that differs between two pages inside a block that they share.

    Args:
        a, b: Its digits on both pages.
        place_a, place_b: Its boxes on them.
        digits: How many digits differ; None for numbers of different lengths.
        reliability: Product of the confidence in both; None if the encoder has none.
    """

    a: str
    b: str
    place_a: Place
    place_b: Place
    digits: int | None
    reliability: float | None = None

    @property
    def is_unreliable(self) -> bool:
        """Whether it may be misread: then it is marked."""
        return self.reliability is not None and self.reliability < MIN_RELIABILITY


@dataclass(frozen=True)
class EdgeReason:
    """Why two items are joined.

    Args:
        a, b: Positions of the items.
        score: Of the edge.
        text: The reason as a sentence.
        parts: What matches, strongest first.
        changed: For tables, the numbers that differ inside the blocks.
    """

    a: int
    b: int
    score: float
    text: str
    parts: tuple[ReasonPart, ...]
    changed: tuple[ChangedNumber, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the reason JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class SharedPart:
    """A part that several items have in common.

    Args:
        items: Its regions (for tables, numbers) in each item that has it.
        edges: The edges whose reason it is.
        text: What it is.
        cells: For tables: for each number of the part, its digits in each item.
    """

    items: Mapping[int, tuple[int, ...]]
    edges: tuple[tuple[int, int], ...]
    text: str
    cells: tuple[Mapping[int, str], ...] = field(default=(), repr=False)

    @property
    def variants(self) -> list[Mapping[int, str]]:
        """The numbers that are not the same in all items."""
        return [cell for cell in self.cells if len({*cell.values()}) > 1]


def explain_findings(collection: Collection, a: int, b: int, score: float) -> EdgeReason:
    """Return the findings of an explanation as the reason of an edge.

    Args:
        collection, a, b: The collection, and the positions of the items.
        score: Of the edge.
    """
    explanation = collection.explain(a, b)
    findings = [each for each in explanation.findings(MAX_FINDINGS) if each.relevance > 0]
    parts = [
        ReasonPart(
            tuple(each.a),
            tuple(each.b),
            describe_location(explanation.a.regions, explanation.a.view, each.a),
            describe_location(explanation.b.regions, explanation.b.view, each.b),
            places_a=_place_regions(explanation.a, each.a),
            places_b=_place_regions(explanation.b, each.b),
            share=each.share,
        )
        for each in findings
    ]
    named = "; ".join(
        f"{part.text_a} ↔ {part.text_b}" + ("" if part.share is None else f" ({format_share(part.share)})")
        for part in parts
    )
    return EdgeReason(a, b, score, named or "no part of the two stands out", tuple(parts))


def _place_regions(side: Decomposition, numbers: Sequence[int]) -> tuple[Place, ...]:
    """Return the box around some regions of a picture, or the spans of some words."""
    if isinstance(side.view, Text):
        spans = [side.view.spans[n] for n in numbers]
        return tuple((float(span[0]), float(span[1])) for span in spans if span is not None)
    boxes = side.region_boxes
    if not isinstance(side.view, Image) or boxes is None:
        return ()
    chosen = np.array([boxes[n] for n in numbers], dtype=float)
    size = np.array(side.view.size * 2, dtype=float)
    box = np.concatenate([chosen[:, :2].min(0), chosen[:, 2:].max(0)]) / size
    return (tuple(float(v) for v in box.clip(0, 1).round(4)),)


def explain_blocks(
    a: int, b: int, page_a: PageNumbers, page_b: PageNumbers, blocks: Sequence[CopiedBlock]
) -> EdgeReason:
    """Return blocks of numbers as the reason of an edge.

    Args:
        a, b: Positions of the pages.
        page_a, page_b, blocks: Their numbers, and what they have in common.
    """
    parts, changed = [], []
    for block in blocks:
        members_a = [*block.a, *(each.a for each in block.differences)]
        members_b = [*block.b, *(each.b for each in block.differences)]
        parts.append(
            ReasonPart(
                tuple(block.a),
                tuple(block.b),
                list_numbers(page_a.numbers[n] for n in block.a),
                list_numbers(page_b.numbers[n] for n in block.b),
                (locate_numbers(page_a, members_a),),
                (locate_numbers(page_b, members_b),),
                reliability=_mean_confidence(page_a, page_b, block.pairs),
            )
        )
        changed += [
            ChangedNumber(
                page_a.numbers[each.a],
                page_b.numbers[each.b],
                locate_numbers(page_a, [each.a]),
                locate_numbers(page_b, [each.b]),
                each.digits,
                _mean_confidence(page_a, page_b, [(each.a, each.b)]),
            )
            for each in block.differences
        ]
    count = sum(len(block.pairs) for block in blocks)
    text = f"{count} numbers are together on both pages: {parts[0].text_a}"
    errors = [each for each in changed if each.digits == 1]
    if errors:
        text += "; one digit differs in " + ", ".join(
            f"{each.a} / {each.b}" + (f" ({UNRELIABLE})" if each.is_unreliable else "")
            for each in errors[:MAX_LISTED_NUMBERS]
        )
    return EdgeReason(a, b, float(count), text, tuple(parts), tuple(changed))


def _mean_confidence(
    page_a: PageNumbers, page_b: PageNumbers, pairs: Iterable[tuple[int, int]]
) -> float | None:
    """Return the mean of w_i w'_j over pairs of numbers; None if the encoder has no confidence."""
    if page_a.confidence is None or page_b.confidence is None:
        return None
    rows, columns = zip(*pairs, strict=True)
    return float(np.mean(page_a.confidence[list(rows)] * page_b.confidence[list(columns)]))


def list_numbers(numbers: Iterable[str]) -> str:
    """Return numbers as a list, shortened.

    >>> list_numbers(["9766", "9630"])
    '9766, 9630'
    """
    every = list(numbers)
    more = len(every) - MAX_LISTED_NUMBERS
    return ", ".join(every[:MAX_LISTED_NUMBERS]) + (f" and {more} more" if more > 0 else "")


def locate_numbers(page: PageNumbers, numbers: Sequence[int]) -> Place:
    """Return the box around some numbers in fractions of the page, (left, top, right, bottom)."""
    boxes, (height, width) = page.boxes[list(numbers)], page.shape
    top, left = boxes[:, :2].min(0)
    bottom, right = boxes[:, 2:].max(0)
    return tuple(round(float(v), 4) for v in (left / width, top / height, right / width, bottom / height))


def group_findings(reasons: Sequence[EdgeReason]) -> list[SharedPart]:
    """Group parts of edges that are on the same regions of a common item, those with most items first."""
    by_item: dict[int, list[tuple[tuple[int, int], set[int]]]] = defaultdict(list)
    classes = _make_union_find()
    for number, reason in enumerate(reasons):
        for at, part in enumerate(reason.parts):
            _ = classes[number, at]  # a class of its own
            for item, regions in ((reason.a, part.a), (reason.b, part.b)):
                by_item[item].append(((number, at), set(regions)))
    for entries in by_item.values():
        for n, (key, regions) in enumerate(entries):
            for other, more in entries[n + 1 :]:
                if len(regions & more) >= MIN_OVERLAP_FRACTION * min(len(regions), len(more)):
                    classes.union(key, other)
    parts = []
    for members in map(sorted, classes.to_sets()):
        items: dict[int, set[int]] = defaultdict(set)
        for number, at in members:
            reason = reasons[number]
            items[reason.a] |= {*reason.parts[at].a}
            items[reason.b] |= {*reason.parts[at].b}
        strongest = min(members, key=lambda key: -(reasons[key[0]].parts[key[1]].share or 0.0))
        edges = tuple(sorted({(reasons[number].a, reasons[number].b) for number, _ in members}))
        text = reasons[strongest[0]].parts[strongest[1]].text_a
        parts.append(SharedPart({i: tuple(sorted(rows)) for i, rows in sorted(items.items())}, edges, text))
    return sorted(parts, key=lambda part: (-len(part.items), part.edges))


def group_blocks(
    pages: Sequence[PageNumbers], blocks: Mapping[tuple[int, int], Sequence[CopiedBlock]]
) -> list[SharedPart]:
    """Group the numbers of all blocks into parts that the same pages carry, those on most pages first.

    Numbers at the same place of a block are one cell on all pages that it was copied to, also where a digit was changed.
    Cells that (nearly) the same pages carry are one part.
    """
    classes = _make_union_find()
    for (i, j), some in blocks.items():
        for block in some:
            for m, n in [*block.pairs, *((each.a, each.b) for each in block.differences)]:
                classes.union((i, m), (j, n))
    by_carriers: dict[frozenset[int], list[dict[int, int]]] = defaultdict(list)
    for members in classes.to_sets():
        cell: dict[int, int] = {}
        for page, number in sorted(members):
            cell.setdefault(page, number)
        by_carriers[frozenset(cell)].append(cell)
    groups = [(carriers, cells) for carriers, cells in by_carriers.items() if len(cells) >= MIN_BLOCK_NUMBERS]
    for carriers, cells in sorted(by_carriers.items(), key=lambda each: sorted(each[0])):
        # a number that was not read on one of the pages belongs to the block around it
        same = max(groups, key=lambda group: _overlap(group[0], carriers), default=None)
        if (
            len(cells) < MIN_BLOCK_NUMBERS
            and same
            and _overlap(same[0], carriers) >= MIN_SAME_CARRIERS_FRACTION
        ):
            same[1].extend(cells)
    parts = [_make_part(pages, blocks, carriers, cells) for carriers, cells in groups]
    return sorted(parts, key=lambda part: (-len(part.items), -len(part.cells), part.edges))


def _make_union_find() -> networkx.utils.UnionFind:
    return import_optional("networkx", "collection", "graphs of collections").utils.UnionFind()


def _overlap(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / len(a | b)


def _make_part(
    pages: Sequence[PageNumbers],
    blocks: Mapping[tuple[int, int], Sequence[CopiedBlock]],
    carriers: frozenset[int],
    cells: Sequence[Mapping[int, int]],
) -> SharedPart:
    items = {page: tuple(sorted(cell[page] for cell in cells if page in cell)) for page in sorted(carriers)}
    first = next(iter(items))
    edges = tuple(sorted((i, j) for i, j in blocks if i in carriers and j in carriers))
    digits = tuple({page: pages[page].numbers[n] for page, n in cell.items()} for cell in cells)
    text = f"{len(cells)} numbers: {list_numbers(pages[first].numbers[n] for n in items[first])}"
    return SharedPart(items, edges, text, digits)
