"""Write a graph: as a page, and as data that Gephi, Cytoscape and networkx read."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.collection.graph_layout import lay_out
from bilrp.errors import InputError, import_optional, to_printable
from bilrp.inputs import Image, Text
from bilrp.io import files

if TYPE_CHECKING:
    from bilrp.collection.core import Collection
    from bilrp.collection.edge_reasons import EdgeReason
    from bilrp.collection.graph import Graph

SUFFIXES = (".html", ".json", ".graphml", ".gexf")
MAX_PAGE_NODES = 10_000
MAX_PAGE_PARTS = 400  # shared parts listed on a page
MAX_REASONED_EDGES = 20_000  # on a page
MAX_CROPPED_EDGES = 120  # edges of a page whose parts are cut from the original files
MAX_TEXT_CHARACTERS = 600  # of an item on a page
MAX_CROP_SIDE_PIXELS = 420
THUMBNAIL_SIDES = (
    (300, 320),
    (1000, 200),
    (4000, 128),
)  # (items up to, longest side in pixels): the page stays small


def write_graph(graph: Graph, path: Path, *, time: str | None = None, place: str | None = None) -> Path:
    """Write a graph in the format of the suffix.

    Args:
        graph: The graph.
        path: The file.
        time: Column of the metadata for how shared parts spread.
        place: Column of the metadata that names where items are from.
    """
    writers: dict[str, Callable[[Graph], bytes]] = {".graphml": _to_graphml, ".gexf": _to_gexf}
    suffix = path.suffix.lower()
    if suffix in writers:
        return files.write_bytes(path, writers[suffix](graph))
    if suffix == ".json":
        data = graph.to_dict()
        if time is not None:
            data["spread"] = [each.to_dict() for each in graph.spread(time, place=place)]
            data["sources"] = [
                {"source": a, "copy": b, **d} for a, b, d in graph.sources(time).edges(data=True)
            ]
        return files.write_bytes(
            path, json.dumps(data, ensure_ascii=False, indent=1, default=str).encode("utf-8")
        )
    if suffix != ".html":
        raise InputError(f"{path}: a graph is written as {', '.join(SUFFIXES)}")
    from bilrp.render import graph_page

    return graph_page.write(build_payload(graph, time=time, place=place), path)


def _flatten(graph: Graph) -> Any:
    """Return a copy of the network with texts and numbers only, each edge with its reason as a text if it is known."""
    flat = graph.network.copy()
    for _, data in flat.nodes(data=True):
        for key in [key for key, value in data.items() if value is None]:
            del data[key]
        for key, value in data.items():
            data[key] = value if isinstance(value, bool | int | float) else _to_xml_text(str(value))
    for i, j, data in flat.edges(data=True):
        reason = graph.known_reason(i, j)
        if reason is not None:
            data["reason"] = _to_xml_text(reason.text)
    return flat


def _to_xml_text(text: str) -> str:
    """Return a text without characters that XML does not allow."""
    return "".join(c for c in to_printable(text) if c in "\t\n\r" or c >= " ")


def _to_graphml(graph: Graph) -> bytes:
    networkx, buffer = import_optional("networkx", "collection", "graphs of collections"), BytesIO()
    networkx.write_graphml_xml(_flatten(graph), buffer)
    return buffer.getvalue()


def _to_gexf(graph: Graph) -> bytes:
    networkx, buffer = import_optional("networkx", "collection", "graphs of collections"), BytesIO()
    flat = _flatten(graph)
    for _, data in flat.nodes(data=True):
        data["label"] = data["name"]
        data.pop("id", None)  # an attribute of every node of the format
    networkx.write_gexf(flat, buffer)
    return buffer.getvalue()


def build_payload(graph: Graph, *, time: str | None = None, place: str | None = None) -> dict[str, Any]:
    """Return what the page shows: joined items with their places on it, edges with reasons, shared parts.

    Args:
        graph: The graph.
        time: Column of the metadata that orders items.
        place: Column of the metadata that names where they are from.
    """
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


def _list_nodes(graph: Graph, joined: list[int], time: str | None, place: str | None) -> list[dict[str, Any]]:
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
            "time": "" if time is None or data.get(time) is None else to_printable(str(data[time])),
            "place": "" if place is None or data.get(place) is None else to_printable(str(data[place])),
            "group": to_printable(str(data["group"])),
        }
        nodes.append(node | _show_item(graph.collection, position, side))
    return nodes


def _show_item(collection: Collection, position: int, side: int) -> dict[str, Any]:
    """Return the thumbnail or text of an item."""
    view = collection.view(position)
    if isinstance(view, Text):
        return {"text": to_printable(view.text[:MAX_TEXT_CHARACTERS])}
    if isinstance(view, Image) and side:
        return {"image": encode_jpeg(view.pixels, side)}
    return {}


def encode_jpeg(pixels: Any, side: int) -> str:
    """Return pixels as a JPEG data URI, scaled down to a longest side.

    Args:
        pixels: Bytes [height, width, 3].
        side: In pixels.
    """
    import base64

    from PIL import Image as Pillow

    image = Pillow.fromarray(pixels)
    image.thumbnail((side, side), Pillow.Resampling.LANCZOS)
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=72)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _list_edges(graph: Graph, number: dict[int, int]) -> list[dict[str, Any]]:
    edges, cropped = [], 0
    for n, (i, j, score) in enumerate(graph.edges):
        edge: dict[str, Any] = {"a": number[i], "b": number[j], "score": round(score, 4)}
        reason = graph.known_reason(i, j) if n < MAX_REASONED_EDGES else None
        if reason is not None:
            edge["reason"] = _serialize_reason(graph, reason)
            if cropped < MAX_CROPPED_EDGES and _add_crops(graph.collection, reason, edge["reason"]):
                cropped += 1
        edges.append(edge)
    return edges


def _serialize_reason(graph: Graph, reason: EdgeReason) -> dict[str, Any]:
    parts = []
    for part in reason.parts:
        row: dict[str, Any] = {"share": part.share, "textA": part.text_a, "textB": part.text_b}
        if graph.by == "numbers":
            row |= {"numbers": [graph.pages[reason.a].numbers[n] for n in part.a]}
        if part.places_a and len(part.places_a[0]) == 4:
            row |= {"boxA": part.places_a[0], "boxB": part.places_b[0]}
        parts.append(row)
    changed = [{"a": each.a, "b": each.b, "digits": each.digits} for each in reason.changed]
    return {"text": reason.text, "parts": parts, "changed": changed}


def _add_crops(collection: Collection, reason: EdgeReason, data: dict[str, Any]) -> bool:
    """Add crops of the first part from the original files; return whether there are any."""
    if not data["parts"] or "boxA" not in data["parts"][0]:
        return False
    for item, side in ((reason.a, "A"), (reason.b, "B")):
        view = collection.view(item, full=True)
        if not isinstance(view, Image):
            return False
        wide, high = view.size
        left, top, right, bottom = data["parts"][0][f"box{side}"]
        rows = slice(max(0, int(top * high) - 4), int(bottom * high) + 5)
        columns = slice(max(0, int(left * wide) - 4), int(right * wide) + 5)
        data[f"crop{side}"] = encode_jpeg(view.pixels[rows, columns], MAX_CROP_SIDE_PIXELS)
    return True


def _list_parts(
    graph: Graph, spreads: list[Any], number: dict[int, int], time: str | None
) -> list[dict[str, Any]]:
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


def _list_sources(graph: Graph, time: str, number: dict[int, int]) -> list[dict[str, Any]]:
    edges = graph.sources(time).edges(data=True)
    return [{"source": number[a], "copy": number[b], "certain": data["certain"]} for a, b, data in edges]
