"""How a shared part spreads over dated items: who had it first, who has it later, and from whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bilrp.errors import InputError, import_optional

if TYPE_CHECKING:
    import networkx

    from bilrp.collection.core import Collection
    from bilrp.collection.edge_reasons import SharedPart
    from bilrp.collection.graph import Graph

Time = float | str
MIN_EVIDENCE_NUMBERS = 4  # equal numbers that no better source explains
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
DATE = re.compile(r"\d{4}(-\d\d(-\d\d.*)?)?$")


@dataclass(frozen=True)
class Carrier:
    """An item that has a shared part.

    Args:
        item, name: Its position and its name.
        time: Its time, from the metadata.
        place: Its place, from the metadata; empty if there is none.
        source: The earlier item that agrees with it most; None for the earliest.
        equal: For tables, how many numbers of the part are equal to the source's.
        changed: For tables, (number of the source, number here) where they differ.
    """

    item: int
    name: str
    time: Time
    place: str
    source: int | None = None
    equal: int = 0
    changed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Spread:
    """A shared part and its carriers, earliest first; items without a time are left out."""

    part: SharedPart
    carriers: tuple[Carrier, ...]

    @property
    def earliest(self) -> Carrier:
        """The first that has the part; of several of the same time, the first in the collection."""
        return self.carriers[0]

    def to_dict(self) -> dict[str, object]:
        """Return it JSON-ready."""
        return {
            "text": self.part.text,
            "items": {str(item): list(rows) for item, rows in self.part.items.items()},
            "carriers": [asdict(carrier) for carrier in self.carriers],
        }


def check_column(collection: Collection, column: str) -> None:
    """Raise `InputError` if the items have no such metadata."""
    columns = collection.columns
    if column not in columns:
        names = ", ".join(columns) or "none: index a table with a column file and others"
        raise InputError(f"there is no column {column!r} in the metadata; its columns are {names}")


def read_times(graph: Graph, column: str) -> dict[int, Any]:
    """Return the time of each item that has one: a number, or a date that sorts as text, such as 1551-03-02."""
    check_column(graph.collection, column)
    data = graph.network.nodes(data=True)
    texts = {n: text for n, each in data if (text := format_time(each.get(column)))}
    numbers = {n: float(text) for n, text in texts.items() if NUMBER.fullmatch(text)}
    wrong = next((n for n in texts.keys() - numbers.keys() if not DATE.match(texts[n])), None)
    if wrong is not None:
        name = graph.network.nodes[wrong]["name"]
        raise InputError(
            f"{column} of {name} is {texts[wrong]!r}: give a number such as 1551 or a date such as 1551-03-02, or leave it "
            "empty where it is not known"
        )
    if len(numbers) == len(texts):
        return dict(numbers)
    odd = next((n for n, text in texts.items() if not DATE.match(text)), None)
    if odd is not None:  # as texts, 900 would come after 1551-03-02
        raise InputError(
            f"{column} of {graph.network.nodes[odd]['name']} is {texts[odd]}, and others are dates: give all as dates with "
            f"years of four digits, such as {texts[odd].split('.')[0].zfill(4)}"
        )
    return dict(texts)


def format_time(value: object) -> str:
    """Return a time as text, a whole number without decimals; empty for None.

    >>> format_time(1551.0), format_time("1551-03-02"), format_time(None)
    ('1551', '1551-03-02', '')
    """
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else "" if value != value else str(value)
    return "" if value is None else str(value).strip()


def trace_parts(
    graph: Graph, parts: Sequence[SharedPart], *, time: str, place: str | None = None
) -> list[Spread]:
    """Order the carriers of each part by time, each with its likely source; parts with one dated item are left out.

    Args:
        graph, parts: The graph, and its shared parts.
        time, place: Columns of the metadata: what orders items, and where they are from.
    """
    times = read_times(graph, time)
    if place is not None:
        check_column(graph.collection, place)
    spreads = []
    for part in parts:
        items = sorted((item for item in part.items if item in times), key=lambda item: (times[item], item))
        carriers = [_trace(graph, part, item, items, times, place) for item in items]
        if len(carriers) >= 2:
            spreads.append(Spread(part, tuple(carriers)))
    return spreads


def _trace(
    graph: Graph,
    part: SharedPart,
    item: int,
    items: Sequence[int],
    times: Mapping[int, Any],
    place: str | None,
) -> Carrier:
    """Return an item of a part with its likely source: the earlier one that agrees most, the later of equals."""
    data = graph.network.nodes[item]
    where = "" if place is None or data.get(place) is None else str(data[place])
    rows = []
    for other in items:
        if times[other] < times[item]:
            pairs = [(cell[other], cell[item]) for cell in part.cells if other in cell and item in cell]
            changed = tuple((a, b) for a, b in pairs if a != b)
            equal = len(pairs) - len(changed)
            score = graph.network.edges[other, item]["score"] if graph.network.has_edge(other, item) else 0.0
            agreement = float(equal - len(changed)) if part.cells else score
            rows.append((agreement, times[other], -other, equal, changed))
    if not rows:
        return Carrier(item, data["name"], times[item], where)
    _, _, source, equal, changed = max(rows, key=lambda row: row[:3])
    return Carrier(item, data["name"], times[item], where, -source, equal, changed)


def find_sources(graph: Graph, time: str) -> networkx.DiGraph:
    """Return an edge from each source to its copy: the earlier items that explain most of what a later one shares.

    For tables a page takes as its first source the earlier page with the most equal numbers, less those that differ, then
    the next for the numbers that are left: a page may be copied from several. Of equal ones the later is taken, and the edge
    is not `certain`. For embeddings it is the earlier neighbour with the highest score.
    """
    networkx = import_optional("networkx", "collection", "graphs of collections")
    times = read_times(graph, time)
    result = networkx.DiGraph()
    result.add_nodes_from(graph.network.nodes(data=True))
    for item in times:
        earlier = [other for other in graph.network[item] if other in times and times[other] < times[item]]
        edges = _choose_pages(graph, item, earlier, times) if graph.by == "numbers" else []
        if graph.by == "embedding" and earlier:
            score = {other: graph.network.edges[item, other]["score"] for other in earlier}
            best = max(earlier, key=lambda other: (score[other], times[other]))
            edges = [(best, {"score": score[best], "certain": True})]
        result.add_edges_from((source, item, data) for source, data in edges)
    return result


def _choose_pages(
    graph: Graph, item: int, earlier: Sequence[int], times: Mapping[int, Any]
) -> list[tuple[int, dict[str, object]]]:
    """Return the sources of a page, best first, until what is left is smaller than a block."""
    equal: dict[int, set[int]] = {}
    changed: dict[int, set[int]] = {}
    for other in earlier:
        blocks = graph.find_blocks(item, other)
        equal[other] = {i for block in blocks for i, _ in block.pairs}
        changed[other] = {each.a for block in blocks for each in block.differences}
    covered: set[int] = set()
    chosen: list[tuple[int, dict[str, object]]] = []
    while True:
        evidence = {
            other: len(equal[other] - covered) - len(changed[other] - covered)
            for other in earlier
            if len(equal[other] - covered) >= MIN_EVIDENCE_NUMBERS
        }
        if not evidence:
            return chosen
        best = max(evidence, key=lambda other: (evidence[other], times[other], -other))
        ties = [other for other in evidence if evidence[other] == evidence[best]]
        data = {"numbers": len(equal[best]), "errors": len(changed[best]), "certain": len(ties) == 1}
        chosen.append((best, data))
        covered |= equal[best] | changed[best]
