"""Corpus study: does the graph of a corpus of tables restore who copied from whom, and who had it first?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bilrp import collection as collections
from bilrp.collection.graph import Graph
from bilrp.render.report import Report, Table
from bilrp_studies.common.study_report import build_study_report
from bilrp_studies.corpus.made_pages import EDITIONS, MadePage, draw_page, make_corpus
from bilrp_studies.corpus.reader import make_encoder
from bilrp_studies.corpus.settings import CorpusSettings

PROTOCOL = (
    "Every page is a table of random four-digit numbers in the typeface and layout of its edition. Pages of later editions "
    "copy a block of at least three by three numbers from a random earlier page, to another place; some digits are changed.",
    "The pages are drawn with noise, blur and a slight rotation, indexed as scans, and read by a digit network that was "
    "trained on drawn digits of the same typefaces. An edge is right if the copy has a block from this very source, not "
    "from a page that shares it. Where two possible sources agree equally with the copy, nothing can tell them apart, "
    "and the later is taken: such edges are counted too.",
)


def run(settings: CorpusSettings) -> Report:
    """Run the study and return its report.

    >>> run(CorpusSettings(pages=100)).results["edges"]["precision"]  # doctest: +SKIP
    """
    seconds: dict[str, float] = {}
    start = time.process_time()
    encoder = make_encoder(steps=settings.steps, seed=settings.seed)
    seconds["train the reader"], start = time.process_time() - start, time.process_time()
    pages = make_corpus(settings)
    records, centers = _write_pages(pages, settings)
    seconds["draw the pages"], start = time.process_time() - start, time.process_time()
    built = collections.build(records, encoder, settings.out / "corpus.lance", progress=settings.progress)
    seconds["index"], start = time.process_time() - start, time.process_time()
    graph = built.graph(progress=settings.progress)
    seconds["read numbers and build the graph"], start = time.process_time() - start, time.process_time()
    graph.save(settings.out / "net.html", time="year", place="place")
    seconds["draw the page"] = time.process_time() - start
    order = [int(name.split("-")[1].split(".")[0]) for name in built.names]
    results = measure(graph, pages, order, centers) | {"seconds": seconds}
    return _build_report(settings, results)


def _write_pages(
    pages: Sequence[MadePage], settings: CorpusSettings
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Write every page as a picture; return the records to index, and the centres of the numbers in fractions."""
    rng = np.random.default_rng(settings.seed + 1)
    folder = settings.out / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    records, centers = [], []
    for number, page in enumerate(pages):
        image, places = draw_page(page, number + 1, rng)
        path, edition = folder / f"page-{number:05}.png", EDITIONS[page.edition]
        image.save(path, compress_level=1)
        records.append(
            {
                "file": str(path),
                "name": path.name,
                "id": path.stem,
                "year": edition.year,
                "place": edition.place,
            }
        )
        centers.append(places / np.array(image.size))
    return records, centers


def measure(
    graph: Graph, pages: Sequence[MadePage], order: Sequence[int], centers: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Compare sources, earliest carriers and changed digits with the truth.

    Args:
        graph: The graph of the collection.
        pages: The made pages.
        order: The made page of each item.
        centers: Centres of the numbers of each made page, in fractions.
    """
    cells = {order[n]: _match_cells(graph, n, centers[order[n]]) for n in range(len(order))}
    true = {(copy.source, number) for number, page in enumerate(pages) for copy in page.copies}
    sources = graph.sources("year")
    chosen = {(order[a], order[b]): data["certain"] for a, b, data in sources.edges(data=True)}
    right = true & chosen.keys()
    certain = {edge for edge, flag in chosen.items() if flag}
    joined = {tuple(sorted((order[a], order[b]))) for a, b in graph.network.edges}
    read = [
        graph.pages[n].numbers[cells[order[n]][cell]] == pages[order[n]].numbers[cell[0]][cell[1]]
        for n in range(len(order))
        for cell in cells[order[n]]
    ]
    total = sum(page.shape[0] * page.shape[1] for page in pages)
    return {
        "numbers": {"read right": sum(read) / total, "total": total},
        "edges": {
            "true": len(true),
            "found": len(chosen),
            "precision": len(right) / max(len(chosen), 1),
            "recall": len(right) / max(len(true), 1),
            "certain precision": len(right & certain) / max(len(certain), 1),
            "certain share": len(certain) / max(len(chosen), 1),
            "pairs joined": len({tuple(sorted(edge)) for edge in true} & joined) / max(len(true), 1),
        },
        "earliest": _measure_earliest(graph, pages, order, cells),
        "changed": _measure_changed(graph, pages, order, cells),
    }


def _match_cells(graph: Graph, item: int, centers: np.ndarray) -> dict[tuple[int, int], int]:
    """Return the number that was read at each cell of a made page; cells without one are left out."""
    page = graph.pages[item]
    if not len(page.numbers):
        return {}
    top, left, bottom, right = page.boxes.T
    middle = np.stack([(left + right) / 2 / page.shape[1], (top + bottom) / 2 / page.shape[0]], axis=1)
    size = np.stack([(right - left) / page.shape[1], (bottom - top) / page.shape[0]], axis=1)
    cells = {}
    for r, row in enumerate(centers):
        for c, center in enumerate(row):
            inside = (np.abs(middle - center) <= size / 2).all(1) & np.array([bool(n) for n in page.numbers])
            if inside.any():
                cells[r, c] = int(np.flatnonzero(inside)[0])
    return cells


def _measure_earliest(
    graph: Graph,
    pages: Sequence[MadePage],
    order: Sequence[int],
    cells: dict[int, dict[tuple[int, int], int]],
) -> dict[str, float]:
    """Return how often the earliest carrier of a copied block is the page that had most of it first."""
    earliest = {}
    for spread in graph.spread("year"):
        for item, numbers in spread.part.items.items():
            earliest |= {(order[item], n): order[spread.earliest.item] for n in numbers}
    right = blocks = right_cells = count = 0
    for number, page in enumerate(pages):
        for copy in page.copies:
            truth = Counter(page.origins[r][c] for r, c in copy.cells)
            votes: Counter[int] = Counter()
            for cell in copy.cells:
                origin = earliest.get((number, cells[number].get(cell, -1)))
                count += 1
                right_cells += origin == page.origins[cell[0]][cell[1]]
                votes.update([] if origin is None else [origin])
            blocks += 1
            right += bool(votes) and votes.most_common(1)[0][0] == truth.most_common(1)[0][0]
    return {"blocks": blocks, "right": right / max(blocks, 1), "numbers right": right_cells / max(count, 1)}


def _measure_changed(
    graph: Graph,
    pages: Sequence[MadePage],
    order: Sequence[int],
    cells: dict[int, dict[tuple[int, int], int]],
) -> dict[str, float]:
    """Return how many changed digits are listed between copy and source, and how many listed ones were not changed."""
    position = {page: item for item, page in enumerate(order)}
    planted = listed = false = 0
    for number, page in enumerate(pages):
        for copy in page.copies:
            planted += len(copy.changed)
            item, other = position[number], position[copy.source]
            if not graph.network.has_edge(item, other):
                continue
            blocks = graph.find_blocks(item, other)
            errors = {each.a for block in blocks for each in block.errors}
            true = {cells[number].get(cell) for cell in copy.changed}
            listed += len(errors & true)
            false += len(errors - true)
    return {"changed": planted, "listed": listed / max(planted, 1), "false alarms": false}


def _build_report(settings: CorpusSettings, results: dict[str, Any]) -> Report:
    edges, earliest, changed = results["edges"], results["earliest"], results["changed"]
    answer = (
        f"Of {settings.pages} pages, {edges['true']} copied from earlier ones. The graph names the source of a copy with "
        f"precision {edges['precision']:.3f} and recall {edges['recall']:.3f}; the earliest carrier of a copied block is "
        f"right in {100 * earliest['right']:.1f} % of the blocks. {100 * changed['listed']:.1f} % of the "
        f"{changed['changed']} changed digits are listed, with {changed['false alarms']} false alarms."
    )
    groups = ("numbers", "edges", "earliest", "changed")
    rows = [(group, name, value) for group in groups for name, value in results[group].items()]
    costs = Table(("step", "CPU seconds"), list(results["seconds"].items()))
    sections = {
        "Against the truth": [Table(("", "figure", "value"), rows), "The graph as a page: net.html."],
        "What it cost": [costs],
    }
    return build_study_report(
        "Who copied from whom?", answer, sections, settings=settings, results=results, protocol=PROTOCOL
    )
