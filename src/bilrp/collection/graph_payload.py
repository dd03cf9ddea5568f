"""What the page of a graph shows: joined items with their places, edges with reasons and crops, shared parts, sources."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.collection.graph_layout import lay_out
from bilrp.collection.spread import check_column, format_time
from bilrp.errors import InputError, to_printable
from bilrp.inputs import Image, Text

if TYPE_CHECKING:
    from PIL import Image as Pillow

    from bilrp.collection.core import Collection
    from bilrp.collection.edge_reasons import EdgeReason, Place
    from bilrp.collection.graph import Graph
    from bilrp.collection.spread import Spread
    from bilrp.findings.number_copies import CopiedBlock, PageNumbers

MAX_PAGE_NODES = 10_000
MAX_PAGE_PARTS = 400  # shared parts listed on a page
MAX_REASONED_EDGES = 20_000  # on a page
MAX_CROPPED_EDGES = 200  # edges of a page whose parts are cut from the original files
MAX_CROPPED_PARTS = 3  # of an edge
MAX_CROPPED_NUMBERS = 5  # of an edge, that differ
MAX_TEXT_CHARACTERS = 600  # of an item on a page
MAX_CROP_SIDE_PIXELS = 560
MAX_NUMBER_SIDE_PIXELS = 200
PART_MARGIN, NUMBER_MARGIN = (0.02, 0.03), (0.5, 0.5)  # of a crop, in fractions of its width and height
MIN_LINE_GAP_SIZES = 0.6  # between the middles of numbers in neighbouring rows or columns
JPEG_QUALITY = 72
THUMBNAIL_SIDES = (
    (300, 320),
    (1000, 200),
    (4000, 128),
)  # (items up to, longest side in pixels): the page stays small


def build_payload(graph: Graph, *, time: str | None = None, place: str | None = None) -> dict[str, object]:
    """Return what the page shows: joined items with their places on it, edges with reasons, shared parts.

    Args:
        graph: The graph.
        time, place: Columns of the metadata: what orders items, and where they are from.
    """
    for column in filter(None, (time, place)):
        check_column(graph.collection, column)
    joined = sorted(n for n in graph.network if graph.network.degree[n])
    if not joined:
        raise InputError(
            "no two items are joined: give a lower threshold, or a larger k, or mutual=False (--all-neighbours)"
        )
    if len(joined) > MAX_PAGE_NODES:
        raise InputError(
            f"a page shows at most {MAX_PAGE_NODES} items, and {len(joined)} are joined: give a higher threshold, or write "
            ".graphml or .gexf for Gephi"
        )
    number = {position: n for n, position in enumerate(joined)}
    spreads = [] if time is None else graph.spread(time, place=place)
    return {
        "by": graph.by,
        "title": f"{Path(graph.collection.path).stem}: {graph.network.number_of_nodes()} items",
        "lonely": graph.network.number_of_nodes() - len(joined),
        "time": time or "",
        "place": place or "",
        "nodes": _list_nodes(graph, joined, time, place),
        "edges": _list_edges(graph, number),
        "parts": _list_parts(graph, spreads, number, time),
        "sources": [] if time is None else _list_sources(graph, time, number),
    }


def _list_nodes(
    graph: Graph, joined: list[int], time: str | None, place: str | None
) -> list[dict[str, object]]:
    places = lay_out(graph.network.subgraph(joined))
    side = next((side for most, side in THUMBNAIL_SIDES if len(joined) <= most), 0)
    nodes = []
    for position in joined:
        data = graph.network.nodes[position]
        x, y = places[position]
        node = {
            "name": to_printable(str(data["name"])),
            "x": round(float(x), 2),
            "y": round(float(y), 2),
            "time": "" if time is None else to_printable(format_time(data.get(time))),
            "place": "" if place is None or data.get(place) is None else to_printable(str(data[place])),
            "group": to_printable(str(data["group"])),
        }
        nodes.append(node | _show_item(graph.collection, position, side))
    return nodes


def _show_item(collection: Collection, position: int, side: int) -> dict[str, object]:
    """Return the thumbnail or text of an item."""
    view = collection.view(position)
    if isinstance(view, Text):
        return {"text": to_printable(view.text[:MAX_TEXT_CHARACTERS])}
    if isinstance(view, Image) and side:
        from PIL import Image as Pillow

        return {"image": encode_jpeg(Pillow.fromarray(view.pixels), side)}
    return {}


def encode_jpeg(image: Pillow.Image, side: int) -> str:
    """Return an image as a JPEG data URI, scaled down to a longest side in pixels."""
    from PIL import Image as Pillow

    smaller, buffer = image.copy(), BytesIO()
    smaller.thumbnail((side, side), Pillow.Resampling.LANCZOS)
    smaller.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _list_edges(graph: Graph, number: dict[int, int]) -> list[dict[str, object]]:
    edges, explained = [], []
    for n, (i, j, score) in enumerate(graph.edges):
        edge: dict[str, Any] = {"a": number[i], "b": number[j], "score": round(score, 4)}
        reason = graph.known_reason(i, j) if n < MAX_REASONED_EDGES else None
        if reason is not None:
            edge["reason"] = _serialize_reason(graph, reason)
            explained.append((reason, edge["reason"]))
        edges.append(edge)
    explained.sort(key=lambda each: not each[0].changed)  # what differs has to be looked at
    crops = [crop for each in explained[:MAX_CROPPED_EDGES] for crop in _list_crops(*each)]
    _cut_crops(graph.collection, crops)
    return edges


def _serialize_reason(graph: Graph, reason: EdgeReason) -> dict[str, Any]:
    parts = []
    for part in reason.parts:
        row: dict[str, Any] = {"share": part.share, "textA": part.text_a, "textB": part.text_b}
        if part.reliability is not None:
            row["reliability"] = round(part.reliability, 2)
        if part.places_a and len(part.places_a[0]) == 4:
            row |= {"boxA": part.places_a[0], "boxB": part.places_b[0]}
        parts.append(row)
    if graph.by == "numbers":
        blocks = graph.find_blocks(reason.a, reason.b)
        for row, block in zip(parts, blocks, strict=True):
            row["rows"] = arrange_block(graph.pages[reason.a], graph.pages[reason.b], block)
    changed = [
        {"a": each.a, "b": each.b, "digits": each.digits, "isUnreliable": each.is_unreliable}
        for each in reason.changed
    ]
    return {"text": reason.text, "parts": parts, "changed": changed}


def arrange_block(a: PageNumbers, b: PageNumbers, block: CopiedBlock) -> list[list[str | list[str]]]:
    """Return the numbers of a block as they stand on page a, row by row: the digits, or [of a, of b] where they differ.

    Args:
        a, b: The page, and the one that it is compared with.
        block: What they have in common.
    """
    partner = dict(block.pairs) | {each.a: each.b for each in block.differences}
    numbers = sorted(partner)
    rows, columns = (_rank_places(a.boxes[numbers, side], a.boxes[numbers, side + 2]) for side in (0, 1))
    table: list[list[str | list[str]]] = [[""] * (max(columns) + 1) for _ in range(max(rows) + 1)]
    for n, row, column in zip(numbers, rows, columns, strict=True):
        here, there = a.numbers[n], b.numbers[partner[n]]
        table[row][column] = here if here == there else [here, there]
    return table


def _rank_places(start: np.ndarray, end: np.ndarray) -> list[int]:
    """Return the row of each number from its top and bottom, or its column from its left and right."""
    middle, size = (start + end) / 2, float(np.median(end - start))
    order = np.argsort(middle, kind="stable")
    steps = np.diff(middle[order], prepend=middle[order[0]]) > MIN_LINE_GAP_SIZES * size
    ranks = np.empty(len(middle), int)
    ranks[order] = np.cumsum(steps)
    return ranks.tolist()


@dataclass(frozen=True)
class Crop:
    """A box of an item, to be cut from its image and stored in `target[key]`.

    Args:
        item: Its position.
        box: (left, top, right, bottom) in fractions of the picture.
        margin: Added on each side, in fractions of the box's width and height.
        side: Longest side of the crop in pixels.
        target: What it belongs to.
        key: Its name there.
    """

    item: int
    box: Place
    margin: tuple[float, float]
    side: int
    target: dict[str, Any]
    key: str


def _list_crops(reason: EdgeReason, data: dict[str, Any]) -> Iterator[Crop]:
    """Yield the crops of the first parts of an edge, and of the numbers that differ."""
    for part, target in list(zip(reason.parts, data["parts"], strict=True))[:MAX_CROPPED_PARTS]:
        for item, key, places in ((reason.a, "cropA", part.places_a), (reason.b, "cropB", part.places_b)):
            if places and len(places[0]) == 4:
                yield Crop(item, places[0], PART_MARGIN, MAX_CROP_SIDE_PIXELS, target, key)
    for each, target in list(zip(reason.changed, data["changed"], strict=True))[:MAX_CROPPED_NUMBERS]:
        yield Crop(reason.a, each.place_a, NUMBER_MARGIN, MAX_NUMBER_SIDE_PIXELS, target, "cropA")
        yield Crop(reason.b, each.place_b, NUMBER_MARGIN, MAX_NUMBER_SIDE_PIXELS, target, "cropB")


def _cut_crops(collection: Collection, crops: Iterable[Crop]) -> None:
    """Cut all crops, opening each picture once."""
    for item, some in groupby(sorted(crops, key=lambda crop: crop.item), key=lambda crop: crop.item):
        picture = _open_picture(collection, item)
        if picture is not None:
            for crop in some:
                crop.target[crop.key] = encode_jpeg(_cut(picture, crop), crop.side)


def _cut(picture: Pillow.Image, crop: Crop) -> Pillow.Image:
    left, top, right, bottom = crop.box
    across, down = crop.margin[0] * (right - left), crop.margin[1] * (bottom - top)
    edges = (left - across, top - down, right + across, bottom + down)
    sizes = picture.size * 2
    box = [round(min(max(edge, 0.0), 1.0) * size) for edge, size in zip(edges, sizes, strict=True)]
    return picture.crop((box[0], box[1], max(box[2], box[0] + 1), max(box[3], box[1] + 1)))


def _open_picture(collection: Collection, item: int) -> Pillow.Image | None:
    """Return the picture of an item at the resolution of its file, else as the encoder shows it; None for a text."""
    from PIL import Image as Pillow

    from bilrp.encoders.images import open_image

    view = collection.view(item)
    if not isinstance(view, Image):
        return None
    with suppress(InputError):
        original = open_image(collection.original_input(item))
        if original.size == (view.original_size or view.size):  # the encoder shows all of it, upright
            return original
    full = collection.view(item, full=True)
    return Pillow.fromarray((full if isinstance(full, Image) else view).pixels)


def _list_parts(
    graph: Graph, spreads: list[Spread], number: dict[int, int], time: str | None
) -> list[dict[str, object]]:
    """Return the shared parts, with their carriers in order of time if there is one."""
    if time is None:
        if graph.by == "embedding":
            return []  # grouping would explain every edge
        parts = [(part, [{"node": number[item]} for item in part.items]) for part in graph.shared_parts()]
    else:
        parts = [
            (
                each.part,
                [
                    {
                        "node": number[carrier.item],
                        "source": None if carrier.source is None else number.get(carrier.source),
                        "equal": carrier.equal,
                        "changed": [list(pair) for pair in carrier.changed],
                    }
                    for carrier in each.carriers
                ],
            )
            for each in spreads
        ]
    return [
        {"text": part.text, "carriers": carriers, "variants": len(part.variants)}
        for part, carriers in parts[:MAX_PAGE_PARTS]
    ]


def _list_sources(graph: Graph, time: str, number: dict[int, int]) -> list[dict[str, object]]:
    edges = graph.sources(time).edges(data=True)
    return [{"source": number[a], "copy": number[b], "certain": data["certain"]} for a, b, data in edges]
