"""Write a graph: as a page, and as data that Gephi, Cytoscape and networkx read."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from bilrp.collection.graph_payload import build_payload
from bilrp.errors import InputError, import_optional, to_printable
from bilrp.io import files

if TYPE_CHECKING:
    import networkx

    from bilrp.collection.graph import Graph

SUFFIXES = (".html", ".json", ".graphml", ".gexf")


def write_graph(graph: Graph, path: Path, *, time: str | None = None, place: str | None = None) -> Path:
    """Write a graph in the format of the suffix.

    Args:
        graph, path: The graph, and the file.
        time, place: As for `graph_payload.build_payload`.
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


def _flatten(graph: Graph) -> networkx.Graph:
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
