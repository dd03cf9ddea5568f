"""The picture: against a golden image, and against the numbers it shows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image as Pillow

from bilrp import regions
from bilrp.decomposition import Decomposition
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.inputs import Image, Text
from bilrp.render import figure, links, scene
from bilrp.render import findings_figure as drawn_findings
from type_asserts import assert_instance, assert_not_none

GOLDEN = Path(__file__).parent / "golden"


def side(height: int, width: int, size: int = 8) -> Decomposition:
    """An image that runs from black to colours, in patches."""
    y, x = np.mgrid[:height, :width]
    picture = np.stack([x * 255 // width, y * 255 // height, (x + y) % 64 * 3], axis=2).astype(np.uint8)
    partition = regions.grid(size)(torch.zeros(1, 3, height, width))
    return make_decomposition(partition, picture)


def words(count: int, names: tuple[str, ...] | None = None) -> Decomposition:
    return make_decomposition(regions.Regions(torch.arange(count), count, "labels", names=names))


def make_decomposition(partition: regions.Regions, picture: np.ndarray | None = None) -> Decomposition:
    nothing = torch.zeros(partition.count, 1, dtype=torch.float64)
    return Decomposition(
        nothing, nothing[0], partition, {}, None if picture is None else Image.from_image(picture)
    )


@pytest.fixture
def pair() -> Explanation:
    a, b = side(32, 40), side(24, 32)
    R = torch.zeros(20, 12, dtype=torch.float64)
    R[0, 0], R[7, 5], R[19, 11], R[12, 3], R[3, 8] = 4.0, 3.0, -4.0, -2.0, 1.0
    return Explanation(a, b, 2.5, R)


Sides: TypeAlias = tuple[tuple[np.ndarray, np.ndarray], tuple[torch.Tensor, torch.Tensor]]


def pictures_and_boxes(pair: Explanation) -> Sides:
    (a, b), sides = (
        (assert_not_none(pair.a.input_image), assert_not_none(pair.b.input_image)),
        (pair.a.regions, pair.b.regions),
    )
    return (a, b), (assert_not_none(sides[0].boxes), assert_not_none(sides[1].boxes))


def drawn_arcs(pair: Explanation, colours: str) -> np.ndarray:
    """Only the arcs' axes: letters differ between font libraries, lines do not."""
    canvas = Figure(figsize=(4.0, 2.0), facecolor="white")
    axes = canvas.add_axes((0, 0, 1, 1))
    arcs = links.compute_links(pair.relevance, links.resolve_style("ucf", high=2.5))
    figure.draw_arcs(axes, *pictures_and_boxes(pair), arcs, figure.resolve_palette(colours))
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=100)
    return np.asarray(Pillow.open(buffer).convert("RGB"), float)


@pytest.mark.parametrize("colours", ["paper", "safe"])
def test_golden_arcs(pair, colours):
    pixels = drawn_arcs(pair, colours)
    path = GOLDEN / f"arcs-{colours}.png"
    if os.environ.get("BILRP_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        Pillow.fromarray(pixels.astype(np.uint8)).save(path, optimize=True)
    golden = np.asarray(Pillow.open(path).convert("RGB"), float)
    assert pixels.shape == golden.shape
    assert np.sqrt(((pixels - golden) ** 2).mean()) < 3


def test_golden_arcs_would_notice_a_lost_link(pair):
    R = pair.relevance.clone()
    R[12, 3] = 0
    golden = np.asarray(Pillow.open(GOLDEN / "arcs-paper.png").convert("RGB"), float)
    assert np.sqrt(((drawn_arcs(replace(pair, relevance=R), "paper") - golden) ** 2).mean()) > 3
    swapped = replace(pair, relevance=-pair.relevance)
    assert np.sqrt(((drawn_arcs(swapped, "paper") - golden) ** 2).mean()) > 3


def test_arcs_end_in_the_middle_of_their_regions(pair):
    canvas = Figure(figsize=(4.0, 2.0), facecolor="white")
    axes = canvas.add_axes((0, 0, 1, 1))
    arcs = links.compute_links(pair.relevance, links.resolve_style("ucf", high=2.5))
    figure.draw_arcs(axes, *pictures_and_boxes(pair), arcs, figure.resolve_palette("paper"), gap=0.5)
    (lines, *_) = axes.collections
    ends_of = {}
    for (i, j, value, alpha), path, colour in zip(
        arcs, lines.get_paths(), np.asarray(lines.get_edgecolor()), strict=True
    ):
        assert colour[3] == pytest.approx(alpha)
        assert (colour[0] > colour[2]) == (value > 0), "red raises, blue lowers"
        ends = np.asarray(path.vertices)[[0, -1]].tolist()
        ends_of[i, j] = ends[0], ends[1]
    shift = 40 + 0.5 * 32
    assert ends_of[0, 0] == ([4, 4], [shift + 4, 4 + 4])  # b is 8 pixels lower, so it starts 4 further down
    assert ends_of[7, 5] == ([20, 12], [shift + 12, 12 + 4])


def test_overlay_puts_value_where_the_box_is():
    path = side(16, 16)
    flat = np.full((16, 16, 3), 128, np.uint8)
    values = np.array([1.0, 0.0, -1.0, 0.0])
    image = figure.tint_regions(
        flat, assert_not_none(path.regions.boxes), values, figure.resolve_palette("paper")
    )
    red, untouched, blue = image[4, 4], image[4, 12], image[12, 4]
    assert red[0] > red[2] + 0.4 and blue[2] > blue[0] + 0.3
    assert np.ptp(untouched) < 1e-12 and np.array_equal(untouched, image[12, 12])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_files_are_whole_and_repeatable(tmp_path, pair, suffix):
    first = figure.write(pair, tmp_path / f"a{suffix}", dpi=50).read_bytes()
    second = figure.write(pair, tmp_path / f"b{suffix}", dpi=50).read_bytes()
    assert first == second and len(first) > 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]


def test_svg_has_one_path_for_each_visible_link_and_says_the_sum(tmp_path, pair):
    text = figure.write(pair, tmp_path / "a.svg", names=("left $x$ 山\udcff", "right & co")).read_text()
    assert "dot 2.5 = 2 explained by pairs of regions (80 %) + 0.5 unattributed (20 %)" in text
    assert "left $x$ □□" in text and "right &amp; co" in text


def test_unknown_names_are_one_line(tmp_path, pair):
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        figure.write(pair, tmp_path / "a.gif")
    with pytest.raises(InputError, match="no palette 'pink'"):
        figure.write(pair, tmp_path / "a.png", palette="pink")
    with pytest.raises(InputError, match="no style"):
        figure.write(pair, tmp_path / "a.png", style="nope")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [("the", "cat", "sat"), None])
def test_without_pictures_a_matrix(tmp_path, names):
    R = torch.tensor([[1.0, 0.0], [0.0, -2.0], [0.5, 0.0]])
    explanation = Explanation(words(3, names), words(2), 1.0, R)
    text = figure.write(explanation, tmp_path / "m.svg").read_text()
    for name in names or ("0", "1", "2"):
        assert name in text


def test_zero_relevance_and_single_regions_draw(tmp_path):
    a, b = side(8, 8), side(1, 1)
    nothing = figure.write(Explanation(a, b, 0.0, torch.zeros(1, 1)), tmp_path / "z.png", dpi=40)
    something = figure.write(Explanation(a, b, 1.0, torch.ones(1, 1)), tmp_path / "o.png", dpi=40)
    assert nothing.read_bytes().startswith(b"\x89PNG")
    assert nothing.read_bytes() != something.read_bytes()


def test_no_pyplot_and_nothing_heavy_at_import():
    code = (
        "import sys, bilrp, bilrp.render.figure, bilrp.encoders.vgg, bilrp.render.report\n"
        "heavy = [m for m in ('matplotlib', 'typer', 'skimage', 'sklearn') if m in sys.modules]\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_drawing_leaves_pyplot_alone(tmp_path, pair):
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import test_figure as t, pathlib\n"
        "p = t.Explanation(t.side(16, 16), t.side(16, 16), 1.0, t.torch.ones(4, 4))\n"
        "t.figure.write(p, pathlib.Path(sys.argv[1]) / 'a.png', dpi=40)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    here = Path(__file__).parent
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(here), str(here.parent)], check=True)


@pytest.mark.parametrize(
    ("name", "distance", "red"),
    [("long-distance head", False, "more"), ("unlikeness", True, "less")],
    ids=["a similarity", "a distance"],
)
def test_the_legend_asks_the_similarity_not_its_name(tmp_path, pair, name, distance, red):
    shown = figure.plot(replace(pair, similarity=name, is_distance=distance))
    first, second = (text.get_text() for text in shown.legends[0].get_texts())
    assert first == f"makes them {red} similar" and second != first


def make_text(text: str) -> Decomposition:
    """A text in words, as a text encoder reads it."""
    starts = [0, *(n + 1 for n, c in enumerate(text) if c == " ")]
    spans = tuple((start, start + len(word)) for start, word in zip(starts, text.split(), strict=True))
    return replace(words(len(spans)), view=Text(text, spans))


def matching(a: Decomposition, b: Decomposition, *blocks: tuple[list[int], list[int], float]) -> Explanation:
    """An explanation in which these regions match these, and nothing else does."""
    R = torch.zeros(a.regions.count, b.regions.count, dtype=torch.float64)
    for rows, columns, value in blocks:
        R[torch.tensor(rows)[:, None], torch.tensor(columns)] = value
    return Explanation(a, b, float(R.sum()), R)


def ribbons(shown):
    """The bands of a figure: (points of the curve, width in inches, colour)."""
    from matplotlib.patches import PathPatch

    patches = [p for p in shown.axes[0].patches if isinstance(p, PathPatch)]
    return [
        (np.asarray(p.get_path().vertices), p.get_linewidth() / 72, to_rgba(p.get_edgecolor()))
        for p in patches
    ]


def test_each_finding_is_outlined_on_both_sides_and_joined_by_one_numbered_ribbon():
    explanation = matching(
        side(64, 64), side(64, 64), ([0, 1, 8, 9], [6, 7], 4.0), ([62, 63], [48, 49, 56], -1.0)
    )
    assert [(f.a, f.b) for f in explanation.findings()] == [([0, 1, 8, 9], [6, 7]), ([62, 63], [48, 49, 56])]
    shown = figure.plot(explanation)
    bands = ribbons(shown)
    assert len(bands) == 2
    (_, weak, blue), (curve, strong, red) = bands  # the strongest on top
    assert weak / strong == pytest.approx(6 / 32) and red[0] > red[2] and blue[2] > blue[0]
    panels = assert_not_none(drawn_findings.place_side_by_side(explanation, top=0.0))
    height = (
        curve[0][1] - panels[0].ribbon_path([0, 1, 8, 9], right=True)[0][1]
    )  # where the photographs begin
    assert np.allclose(curve[0] - [0, height], panels[0].ribbon_path([0, 1, 8, 9], right=True)[0])
    assert np.allclose(curve[-1] - [0, height], panels[1].ribbon_path([6, 7], right=False)[0])
    assert curve[0][0] == pytest.approx(panels[0].left + panels[0].width / 4), (
        "at the right edge of two of eight patches"
    )
    numbers = [t.get_text() for t in shown.axes[0].texts if t.get_text() in ("1", "2")]
    assert sorted(numbers) == ["1", "1", "1", "2", "2", "2"], "on both inputs and on the card"
    texts = " ".join(t.get_text() for t in shown.axes[0].texts)
    assert "123 % of the score" in texts and "−23 % of the score" in texts
    assert len(shown.legends[0].get_texts()) == 2


def test_an_outline_goes_around_regions_and_not_through_them():
    panel = assert_instance(
        scene.make_panel(side(16, 16), left=1.0, top=2.0, width=4.0, height=4.0), scene.ImagePanel
    )
    (path,) = panel.outline_paths([0, 1])
    x, y = path.T
    # two regions of a quarter each are the upper half: the outline is on its border and never between them
    assert x.min() == pytest.approx(1.0) and x.max() == pytest.approx(5.0)
    assert y.min() == pytest.approx(2.0) and y.max() == pytest.approx(4.0)
    on_border = np.isclose(x, 1.0) | np.isclose(x, 5.0) | np.isclose(y, 2.0) | np.isclose(y, 4.0)
    near_corner = (
        np.minimum(np.abs(x - 1.0), np.abs(x - 5.0)) + np.minimum(np.abs(y - 2.0), np.abs(y - 4.0)) <= 1.01
    )
    assert (on_border | near_corner).all() and not on_border.all()


def test_outlines_have_holes_and_no_steps():
    inside = np.ones((5, 5), dtype=bool)
    inside[2, 2] = False
    assert sorted(len(path) for path in scene.trace_outlines(inside)) == [4, 4]
    staircase = np.tril(np.ones((6, 6), dtype=bool))
    (corners,) = scene.trace_outlines(staircase)
    path = scene.round_corners(corners, 0.5)
    turns = np.diff(np.arctan2(*np.diff(path, axis=0)[np.any(np.diff(path, axis=0), axis=1)].T[::-1]))
    turns = (turns + np.pi) % (2 * np.pi) - np.pi
    assert len(corners) == 14 and np.abs(turns).max() < np.pi / 3  # steps turn by a right angle


def overlaps(shown) -> list[tuple[str, str]]:
    """Pairs of texts, and of a text and a picture, that cover each other."""
    shown.canvas.draw()
    texts = [
        t for t in (*shown.texts, *(t for axes in shown.axes for t in axes.texts)) if len(t.get_text()) > 2
    ]
    texts += [t for legend in shown.legends for t in legend.get_texts()]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts]
    pictures = [("a picture", image.get_window_extent()) for axes in shown.axes for image in axes.images]
    pairs = [(boxes[i], other) for i in range(len(boxes)) for other in (*boxes[i + 1 :], *pictures)]
    return [
        (one, name)
        for (one, here), (name, there) in pairs
        if min(here.x1, there.x1) - max(here.x0, there.x0) > 1
        and min(here.y1, there.y1) - max(here.y0, there.y0) > 1
    ]


@pytest.mark.parametrize("style", ["auto", "pascal_voc"])
@pytest.mark.parametrize("shape", [(48, 384), (384, 48), (64, 64), (16, 800)], ids=str)
def test_captions_do_not_overlap_very_wide_and_very_tall_pictures(shape, style):
    explanation = matching(side(*shape), side(*shape), ([0], [0], 4.0), ([3, 4], [5], -1.0))
    shown = figure.plot(explanation, style=style, names=("one photograph.jpg", "another photograph.jpg"))
    assert overlaps(shown) == []


def test_sentences_are_joined_from_word_to_word_and_nothing_is_struck_through():
    a, b = make_text("a young girl is playing the guitar"), make_text("the girl plays on a guitar")
    explanation = matching(a, b, ([2], [1], 4.0), ([6], [5], 3.0), ([0], [4], 1.0))
    left, right = (
        assert_instance(p, scene.TextPanel)
        for p in assert_not_none(drawn_findings.place_stacked(explanation, 1.0))
    )
    assert left.line_count == right.line_count == 1 and right.top > left.top + left.height
    for curve, _, _ in ribbons(figure.plot(explanation)):
        assert curve[0][1] > curve[-1][1] - scene.PANEL_GAP_INCHES and (np.diff(curve[:, 1]) >= 0).all(), (
            "downwards, in the gap"
        )
    long = " ".join(["many words that do not fit into a single line of the sheet"] * 4)
    explanation = matching(
        make_text(long), make_text(long), ([0], [13], 4.0), ([11, 12], [30], 3.0), ([5], [2], 2.0)
    )
    assert drawn_findings.place_stacked(explanation, 1.0) is None
    panels = [
        assert_instance(p, scene.TextPanel)
        for p in assert_not_none(drawn_findings.place_side_by_side(explanation, 1.0))
    ]
    shown = figure.plot(explanation)
    assert len(ribbons(shown)) == 3
    moved = (
        min(t.get_position()[1] for t in shown.axes[0].texts if t.get_text() == "many")
        - panels[0].words[0].baseline
    )
    for panel in panels:
        for word in panel.words:
            inside = [
                1 for curve, _, _ in ribbons(shown) for x, y in (*curve[:2], *curve[-2:])
                if word.left < x < word.left + word.width and word.top < y - moved < word.top + word.height
            ]  # fmt: skip
            assert not inside, word.text


def test_a_photograph_and_words_stand_side_by_side():
    explanation = matching(
        side(64, 64), make_text("a red ball on a beach"), ([9, 10], [1, 2], 4.0), ([60], [5], 1.0)
    )
    shown = figure.plot(explanation)
    curve = ribbons(shown)[-1][0]
    left, right = assert_not_none(drawn_findings.place_side_by_side(explanation, 0.0))
    assert isinstance(left, scene.ImagePanel) and isinstance(right, scene.TextPanel)
    assert curve[0][0] < left.left + left.width < right.left < curve[-1][0]
    assert "“red ball”" in " ".join(t.get_text() for t in shown.axes[0].texts)


def test_details_of_a_page_are_shown_large_enough_to_read():
    page = side(800, 1200, size=32)
    band = list(range(38 * 5, 38 * 5 + 30))  # most of a row: as a whole its numbers would be dots
    explanation = matching(page, page, (band, [38 * 20 + 3, 38 * 20 + 4], 1.0))
    shown = figure.plot(explanation)
    close = [image for image in shown.axes[0].images if assert_not_none(image.get_array()).shape[1] < 600]
    assert len(close) == 2
    for image in close:
        left, right = image.get_extent()[:2]
        assert (
            32 * (right - left) / assert_not_none(image.get_array()).shape[1]
            >= 0.99 * scene.MIN_DETAIL_INCHES
        )
