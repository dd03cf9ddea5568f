"""Graphs of collections: edges against all pairs in float64, reasons against explanations, tables by their numbers."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder, write_scenes
from PIL import Image as Pillow

from bilrp import Encoder, collection
from bilrp.collection import integrity, page_numbers, tables
from bilrp.collection.core import Collection
from bilrp.collection.graph import Graph, find_nearest_pairs, find_shared_blocks
from bilrp.collection.graph_payload import arrange_block, build_payload
from bilrp.collection.spread import read_times
from bilrp.errors import InputError
from bilrp.findings.number_copies import PageNumbers
from bilrp.inputs import Image, Item
from bilrp.regions import NUMBERS, Regions

CELL = (16, 44)  # height and width of the place of a number


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    folder = tmp_path_factory.mktemp("graph")
    return collection.build(write_scenes(folder / "p", 8, stamped=False), tiny_encoder(), folder / "c.lance")


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("mutual", [True, False])
def test_edges_are_the_nearest_of_all_pairs(
    cosine: bool, mutual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bilrp.collection.graph.BLOCK_ITEMS", 7)
    rows = np.random.default_rng(0).normal(size=(40, 6))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True) if cosine else rows
    scores = unit @ unit.T
    np.fill_diagonal(scores, -np.inf)
    near = [set(np.argsort(-row)[:4].tolist()) for row in scores]
    needed = 2 if mutual else 1
    expected = {
        (i, j): scores[i, j]
        for i in range(40)
        for j in range(i + 1, 40)
        if (j in near[i]) + (i in near[j]) >= needed and scores[i, j] >= 0.3
    }
    pairs = find_nearest_pairs(rows, 4, cosine=cosine, mutual=mutual, threshold=0.3)
    assert pairs.keys() == expected.keys()
    assert all(abs(pairs[pair] - expected[pair]) < 1e-5 for pair in pairs)


def test_reasons_are_the_findings_of_the_pair(scenes: Collection) -> None:
    graph = scenes.graph(3)
    i, j, score = graph.edges[0]
    reason, explanation = graph.explain_edge(i, j), scenes.explain(i, j)
    assert score == pytest.approx(explanation.score, rel=1e-4)
    positive = [each for each in explanation.findings(4) if each.relevance > 0]
    assert [(part.a, part.b, part.share) for part in reason.parts] == [
        (tuple(each.a), tuple(each.b), each.share) for each in positive
    ]
    back = graph.explain_edge(j, i)
    assert {(part.b, part.a) for part in back.parts} == {(part.a, part.b) for part in reason.parts}
    missing = next((a, b) for a in range(16) for b in range(a) if not graph.network.has_edge(a, b))
    with pytest.raises(InputError, match="not joined"):
        graph.explain_edge(*missing)


def test_shared_parts_are_on_the_same_regions(scenes: Collection) -> None:
    graph = scenes.graph(3)
    parts = graph.shared_parts()
    for part in parts:
        assert all(graph.network.has_edge(*edge) for edge in part.edges)
        for a, b in part.edges:
            reason = graph.explain_edge(a, b)
            assert any({*p.a} <= {*part.items[a]} and {*p.b} <= {*part.items[b]} for p in reason.parts)
    assert len(parts[0].items) == max(len(part.items) for part in parts)


def test_options_are_checked(scenes: Collection) -> None:
    with pytest.raises(InputError, match="at least 1"):
        scenes.graph(0)
    with pytest.raises(InputError, match="bigram"):
        scenes.graph(by="numbers")
    with pytest.raises(InputError, match="no column 'year'"):
        scenes.graph(2).sources("year")
    with pytest.raises(InputError, match="no column 'town'"):
        scenes.graph(2).save("x.html", place="town")
    with pytest.raises(InputError, match="joined"):
        scenes.graph(2, threshold=1e9).save("x.html")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["1551", "1602", "900"], {0: 1551.0, 1: 1602.0, 2: 900.0}),
        (["1551-03-02", "", "1551-03-01T00:00:00Z"], {0: "1551-03-02", 2: "1551-03-01T00:00:00Z"}),
        (["1551-03-02", "1602", "900"], "when of 2 is 900, and others are dates: .* such as 0900"),
        (["1551-03-02", "1602"], {0: "1551-03-02", 1: "1602"}),
        (["1551", "c. 1602", "900"], "when of 1 is 'c. 1602': give a number"),
    ],
)
def test_times_are_numbers_or_dates(given: list[str], expected: dict | str, tmp_path: Path) -> None:
    texts = [{"text": f"{n + 1}", "name": f"{n}", "when": when} for n, when in enumerate(given)]
    encoder = Encoder(torch.nn.Flatten(), read=lambda text: Item(torch.full((1, 2), float(text))), name="x")
    graph = collection.build(texts, encoder, tmp_path / "x.lance").graph(1)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            read_times(graph, "when")
    else:
        names = graph.collection.names
        assert {int(names[n]): time for n, time in read_times(graph, "when").items()} == expected


# ------------------------------------------------------------ tables


def read_cells(x: torch.Tensor) -> Regions:
    """The numbers of a page on which each cell is as dark as its number: what a digit network does, without digits."""
    rows, columns = x.shape[2] // CELL[0], x.shape[3] // CELL[1]
    labels = torch.full(x.shape[2:], rows * columns)
    names = []
    for r in range(rows):
        for c in range(columns):
            area = (slice(CELL[0] * r + 2, CELL[0] * r + 14), slice(CELL[1] * c + 6, CELL[1] * c + 38))
            labels[area] = r * columns + c
            names.append(f"{round(float(x[0, 0][area].double().mean()) * 10_000):04}")
    return Regions(labels[None], len(names) + 1, NUMBERS, names=(*names, "rest of the page"))


def read_page(raw) -> Item:
    x = torch.from_numpy(np.load(raw))[None, None] if not isinstance(raw, torch.Tensor) else raw
    view = np.repeat((255 * (1 - x[0, 0].clamp(0, 1))).byte().numpy()[..., None], 3, axis=2)
    return Item(x, view=Image.from_image(view), name=Path(str(raw)).name)


def trust_right_half(x: torch.Tensor) -> torch.Tensor:
    """Confidence 0.4 in the left half of a page, 1 in the right."""
    weights = torch.ones(1, *x.shape[2:])
    weights[..., : x.shape[3] // 2] = 0.4
    return weights


def page_encoder() -> Encoder:
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten())
    return Encoder(
        net, read=read_page, regions=read_cells, name="cells", similarity="dot", reliability=trust_right_half
    )


def write_page(path: Path, numbers: np.ndarray) -> Path:
    cells = np.kron(numbers / 10_000, np.ones(CELL))
    np.save(path, cells.astype(np.float32))
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Five pages: 1 copies 0 with an error, 2 copies 1 with its error and one more, 3 copies 0, 4 is its own."""
    folder, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(5)
    numbers = rng.integers(1000, 10_000, (5, 6, 5))
    for copy, source in ((1, 0), (2, 1), (3, 0)):
        numbers[copy, 1:5, 1:5] = numbers[source, 1:5, 1:5] if copy == 2 else numbers[source, :4, :4]
        if copy < 3:
            row, column = (2, 3) if copy == 1 else (3, 2)
            numbers[copy, row, column] += 1 if numbers[copy, row, column] % 10 < 9 else -1
    records = [
        {
            "file": str(write_page(folder / f"{n}.npy", numbers[n])),
            "name": f"{n}",
            "year": 1500 + 10 * n,
            "town": "abcde"[n],
        }
        for n in range(5)
    ]
    return collection.build(records, page_encoder(), folder / "pages.lance")


@pytest.fixture(scope="module")
def tables_graph(pages: Collection) -> Graph:
    return pages.graph()


def test_pages_are_joined_by_their_numbers(tables_graph: Graph) -> None:
    assert tables_graph.by == "numbers"
    assert {(i, j) for i, j, _ in tables_graph.edges} == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert tables_graph.network.edges[0, 3]["score"] == 16
    reason = tables_graph.explain_edge(1, 0)
    assert len(reason.parts[0].a) == 15 and "one digit differs" in reason.text
    (changed,) = reason.changed
    assert changed.digits == 1 and abs(int(changed.a) - int(changed.b)) == 1
    other = tables_graph.explain_edge(0, 1).changed[0]
    assert (other.a, other.b) == (changed.b, changed.a)


def test_reasons_have_the_reliability_of_both_pages(tables_graph: Graph) -> None:
    """The left two of five columns have confidence 0.4, the middle one 0.7."""
    columns = np.array([0.4, 0.4, 0.7, 1, 1])
    trust = [np.tile(columns, 6)[: len(page.numbers)] for page in tables_graph.pages]
    (part,) = tables_graph.explain_edge(0, 3).parts
    products = [trust[0][m] * trust[3][n] for m, n in zip(part.a, part.b, strict=True)]
    assert part.reliability == pytest.approx(np.mean(products), abs=0.01)
    reliabilities = []
    for other in (1, 2, 3):
        for changed in tables_graph.explain_edge(0, other).changed:
            places = [tables_graph.pages[n].numbers.index(d) for n, d in ((0, changed.a), (other, changed.b))]
            expected = trust[0][places[0]] * trust[other][places[1]]
            assert changed.reliability == pytest.approx(expected, abs=0.01)
            reliabilities.append(expected)
    text = tables_graph.explain_edge(0, 2).text
    marked = [each.is_unreliable for each in tables_graph.explain_edge(0, 2).changed]
    assert text.count("unreliable input") == sum(marked) and min(reliabilities) < 0.5 < max(reliabilities)


def test_the_earliest_page_and_the_likely_source_of_each_copy(tables_graph: Graph) -> None:
    assert {*tables_graph.sources("year").edges} == {(0, 1), (1, 2), (0, 3)}
    (spread,) = tables_graph.spread("year", place="town")
    assert [carrier.name for carrier in spread.carriers] == ["0", "1", "2", "3"]
    assert spread.earliest.time == 1500 and spread.earliest.place == "a"
    assert [carrier.source for carrier in spread.carriers] == [None, 0, 1, 0]
    assert [len(carrier.changed) for carrier in spread.carriers] == [0, 1, 1, 0]
    assert len(spread.part.cells) == 16 and len(spread.part.variants) == 2


def test_numbers_are_read_once_and_checked_when_read(
    pages: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = page_numbers.read_numbers(pages)
    monkeypatch.setattr(Collection, "read_original", lambda *_: pytest.fail("read again"))
    again = page_numbers.read_numbers(pages)
    assert [page.numbers for page in first] == [page.numbers for page in again]
    assert all((a.boxes == b.boxes).all() and a.shape == b.shape for a, b in zip(first, again, strict=True))
    assert integrity.check(pages.path) == []


@pytest.mark.parametrize(
    "row",
    [
        {"numbers": "12 <b>", "boxes": b"\0" * 32, "confidence": b"", "height": 9, "width": 9},
        {"numbers": "12 34", "boxes": b"\0" * 16, "confidence": b"", "height": 9, "width": 9},
        {"numbers": "12", "boxes": b"\0" * 15, "confidence": b"", "height": 9, "width": 9},
        {"numbers": "12", "boxes": b"\0" * 16, "confidence": b"12", "height": 9, "width": 9},
        {"numbers": "12", "boxes": b"\0" * 16, "confidence": b"", "height": 0, "width": 9},
    ],
)
def test_damaged_numbers_are_refused(tmp_path: Path, row: dict) -> None:
    path = write_page(tmp_path / "a.npy", np.full((3, 3), 1234))
    built = collection.build([path], page_encoder(), tmp_path / "x.lance")
    tables.append_rows(built.path, tables.NUMBERS_TABLE, [{"id": "other", **row}], tables.numbers_schema())
    with pytest.raises(InputError, match="damaged"):
        built.graph()


def test_removed_pages_lose_their_numbers(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(1000, 10_000, (3, 4, 4))
    paths = [write_page(tmp_path / f"{n}.npy", each) for n, each in enumerate(numbers)]
    built = collection.build(paths, page_encoder(), tmp_path / "x.lance")
    page_numbers.read_numbers(built)
    built.remove([1])
    dataset = tables.open_table(built.path, tables.NUMBERS_TABLE)
    assert sorted(tables.read_columns(dataset, ["id"])["id"]) == sorted(built.ids)


def test_candidates_are_all_pairs_with_a_block() -> None:
    """The index of runs finds what comparing every pair of pages finds."""
    from bilrp.findings.number_copies import find_copies

    rng, some = np.random.default_rng(2), []
    grids = rng.integers(1000, 10_000, (12, 5, 5))
    for n in range(4, 12):
        grids[n, 1:4, 1:4] = grids[rng.integers(n), :3, 2:5]
    boxes = np.array([(16 * r, 44 * c, 16 * r + 12, 44 * c + 30) for r in range(5) for c in range(5)], float)
    some = [PageNumbers(tuple(map(str, grid.ravel())), boxes, (100, 300)) for grid in grids]
    every = {
        (i, j): copies
        for i in range(12)
        for j in range(i + 1, 12)
        if (copies := find_copies(some[i], some[j], min_numbers=5))
    }
    assert find_shared_blocks(some) == every and len(every) >= 8


def test_files(tables_graph: Graph, tmp_path: Path) -> None:
    data = json.loads(tables_graph.save(tmp_path / "x.json", time="year").read_text())
    assert [edge["score"] for edge in data["edges"]] == [score for *_, score in tables_graph.edges]
    assert data["edges"][0]["reason"]["parts"] and len(data["sources"]) == 3
    for name, read in (("x.graphml", networkx.read_graphml), ("x.gexf", networkx.read_gexf)):
        network = read(tables_graph.save(tmp_path / name))
        assert network.number_of_nodes() == 5 and network.number_of_edges() == 6
        assert all("numbers are together" in d["reason"] for *_, d in network.edges(data=True))
        assert {d["year"] for _, d in network.nodes(data=True)} == {1500, 1510, 1520, 1530, 1540}
    page = tables_graph.save(tmp_path / "x.html", time="year", place="town").read_text("utf-8")
    assert "default-src 'none'" in page and 'src="http' not in page
    with pytest.raises(InputError, match="written as"):
        tables_graph.save(tmp_path / "x.txt")


def test_a_block_is_shown_as_it_is_on_the_page(tables_graph: Graph) -> None:
    (block,) = tables_graph.find_blocks(0, 1)
    rows = arrange_block(tables_graph.pages[0], tables_graph.pages[1], block)
    printed = np.array(tables_graph.pages[0].numbers[:30]).reshape(6, 5)[:4, :4]
    ((row, column),) = [(r, c) for r in range(4) for c in range(4) if isinstance(rows[r][c], list)]
    assert rows[row][column] == [printed[row, column], tables_graph.explain_edge(0, 1).changed[0].b]
    rows[row][column] = printed[row, column]
    assert rows == printed.tolist()


def test_crops_are_cut_from_the_files_at_their_resolution(tmp_path: Path) -> None:
    large = Pillow.effect_noise((1000, 800), 60).convert("RGB")
    for number in range(6):
        (tmp_path / "in").mkdir(exist_ok=True)
        large.rotate(number).save(tmp_path / "in" / f"{number}.png")
    graph = collection.build(tmp_path / "in", tiny_encoder(), tmp_path / "c.lance").graph(2)
    i, j, _ = graph.edges[0]
    left, top, right, bottom = graph.explain_edge(i, j).parts[0].places_a[0]
    payload: Any = build_payload(graph)
    part = payload["edges"][0]["reason"]["parts"][0]
    with Pillow.open(BytesIO(base64.b64decode(part["cropA"].split(",")[1]))) as crop:
        wide, high = 1.04 * (right - left) * 1000, 1.06 * (bottom - top) * 800
        scale = min(1.0, 560 / max(wide, high))
        assert crop.size == pytest.approx((scale * wide, scale * high), abs=25)
        assert max(crop.size) > 320, "the thumbnail has 320 pixels in all"


@pytest.mark.slow
@pytest.mark.browser
def test_a_click_on_an_edge_shows_its_reason(tables_graph: Graph, tmp_path: Path, chromium) -> None:
    path = tables_graph.save(tmp_path / "x.html", time="year", place="town")
    page = chromium.new_page(viewport={"width": 1000, "height": 700})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("main[data-ready=true]")
    box = page.locator("canvas").bounding_box()
    for x in range(60, int(box["width"]) - 60, 14):  # somewhere along a line across the network is an edge
        page.mouse.click(box["x"] + x, box["y"] + box["height"] / 2)
        if page.locator("aside .numbers").count():
            break
    assert (
        page.locator("aside .numbers td").count() >= 16
        and page.locator("aside .changed img").count() % 2 == 0
    )
    page.get_by_role("button", name="← All").click()
    page.locator("aside button.row").first.click()
    assert "first" in page.locator("ol.spread li").first.inner_text()
    page.get_by_role("button", name="By year").click()
    page.get_by_label("Find an item").fill("zzz")
    assert "No item" in page.locator("aside h2").inner_text()
    assert errors == []
    page.close()
