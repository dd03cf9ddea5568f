"""Ink, layout, alignment, patches, blocks and scores, on pages drawn here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from bilrp.encoders import binarization
from bilrp.errors import InputError
from bilrp_studies.tables import bigram_agreement, digit_metrics, patches, table_blocks
from bilrp_studies.tables.alignment import Transcription, align_digits, count_bigrams, read_transcription
from bilrp_studies.tables.page_layout import (
    LAYOUT_DIGIT_HEIGHT,
    LAYOUT_SCALE,
    find_layout,
    regularize_columns,
)
from bilrp_studies.tables.pages import Page, find_pages, read_page
from table_pages import COLUMN_PIXELS, LEFT, ROW_PIXELS, TOP, draw_page, write_page

pytest.importorskip("scipy")
pytest.importorskip("skimage")


@pytest.fixture(scope="module")
def made():
    return draw_page()


@pytest.fixture(scope="module")
def page(made, tmp_path_factory) -> Page:
    return read_page(*write_page(tmp_path_factory.mktemp("pages"), "one", made))


def drawn_digits(built) -> np.ndarray:
    return np.array([[[int(c) for c in t.replace(".", "")] for t in row] for row in built.values]).reshape(-1)


# ── ink ──


def test_paper_is_exactly_zero_and_print_is_not(made):
    result = binarization.estimate_ink(binarization.load_gray(made.image))
    gray = np.asarray(made.image)
    assert result[gray > 195].max() == 0
    assert np.median(result[gray < 70]) > 0.8


def test_yellowed_dark_paper_gives_the_same_ink(made):
    plain = binarization.estimate_ink(binarization.load_gray(made.image))
    dull = np.asarray(made.image, dtype=np.float32) / 255 * 0.6 + 0.05
    assert np.abs(binarization.estimate_ink(dull) - plain).mean() < 0.01


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7])
def test_scale_is_normalised(made, factor):
    size = round(made.image.width * factor), round(made.image.height * factor)
    result, _ = binarization.normalize_scan(made.image.resize(size, Image.Resampling.LANCZOS))
    assert binarization.estimate_digit_height(result) == pytest.approx(
        binarization.DIGIT_HEIGHT_PIXELS, rel=0.08
    )


@pytest.mark.parametrize(
    "bad", [np.zeros((4, 4), np.float32), np.full((40, 40), np.nan), np.zeros((2, 40, 40))]
)
def test_bad_arrays_are_refused_in_one_line(bad):
    with pytest.raises(InputError) as error:
        binarization.load_gray(bad)
    assert "\n" not in str(error.value)


def test_unreadable_file_is_refused(tmp_path):
    path = tmp_path / "page.jpg"
    path.write_text("no image")
    with pytest.raises(InputError, match="not a supported image file"):
        binarization.load_gray(path)


# ── layout and alignment ──


@pytest.mark.parametrize("angle", [0.0, 1.5, -2.0])
def test_rows_columns_and_skew_are_found(angle):
    built = draw_page(angle=angle)
    layout = find_layout(built.image)
    assert (len(layout.rows), len(layout.columns)) == (14, 8)
    assert layout.angle == pytest.approx(-angle, abs=0.2)


def join_columns(built, gutters: tuple[int, ...]) -> Image.Image:
    """The page with what is left of worn rules: short dashes next to the text lines, too short to be known as a rule."""
    image = built.image.copy()
    draw = ImageDraw.Draw(image)
    for gutter in gutters:
        x = LEFT + gutter * COLUMN_PIXELS - 12
        for row in range(len(built.values)):
            y = TOP + row * ROW_PIXELS
            draw.rectangle((x - 3, y - 17, x + 4, y + 17), fill=205)
            draw.rectangle((x, y - 9, x + 1, y + 9), fill=70)
    return image


def faint(built, column: int, *, keep: int) -> Image.Image:
    """The page with one column worn off in all but every `keep`-th line."""
    image = built.image.copy()
    draw = ImageDraw.Draw(image)
    for row in range(len(built.values)):
        if row % keep:
            x, y = LEFT + column * COLUMN_PIXELS, TOP + row * ROW_PIXELS
            draw.rectangle((x - 6, y - 16, x + 74, y + 16), fill=205)
    return image


@pytest.mark.parametrize(
    "worn",
    [
        pytest.param(lambda built: join_columns(built, (3,)), id="two joined"),
        pytest.param(lambda built: join_columns(built, (2, 3, 10)), id="three joined, and two"),
        pytest.param(lambda built: faint(built, 4, keep=4), id="a faint one"),
        pytest.param(lambda built: faint(built, 11, keep=4), id="the last one faint"),
    ],
)
def test_columns_of_worn_pages_are_found(worn):
    """On other pages of the same almanac 23 or 24 of 25 columns were found, and the pages were skipped."""
    built = draw_page(rows=12, columns=12)
    layout, full = find_layout(worn(built)), find_layout(built.image)
    assert len(layout.columns) == len(full.columns) == 12
    scale = full.scale / layout.scale
    assert np.abs(layout.columns * scale - full.columns).max() < 0.6 * LAYOUT_DIGIT_HEIGHT
    digits = align_digits(layout, Transcription(tuple(tuple(row) for row in built.values)))
    order = np.lexsort((digits.place, digits.column, digits.row))
    where = np.stack([digits.x, digits.y], axis=1)[order] * LAYOUT_SCALE / layout.scale
    assert (digits.value[order] == drawn_digits(built)).all()
    assert np.abs(where - built.centres.reshape(-1, 2)).max() < 5


def test_columns_are_left_alone_where_nothing_is_amiss_or_known():
    left = np.array([10.0, 109, 197, 285, 373, 461, 565])  # a label, five alike, and one set apart
    columns = np.stack([left, left + np.array([31, 71, 71, 71, 71, 71, 74])], axis=1)
    cover = np.zeros(700)
    for x0, x1 in columns.astype(int):
        cover[x0:x1] = 0.9
    assert np.array_equal(regularize_columns(columns, cover), columns)
    gone = np.delete(columns, 3, axis=0)
    cover[285:356] = 0.0
    assert np.array_equal(regularize_columns(gone, cover), gone), "nothing is put where nothing is printed"
    unlike = np.array([[0.0, 20], [50, 130], [150, 420], [450, 470]])
    assert np.array_equal(regularize_columns(unlike, np.ones(500)), unlike), "no common width, no repair"


def test_every_digit_is_placed_where_it_was_drawn(made, page):
    order = np.lexsort((page.digits.place, page.digits.column, page.digits.row))
    assert (page.digits.value[order] == drawn_digits(made)).all()
    where = np.stack([page.digits.x, page.digits.y], axis=1)[order] * LAYOUT_SCALE / page.layout.scale
    assert np.abs(where - made.centres.reshape(-1, 2)).max() < 3.5
    assert page.digits.certain.mean() > 0.5


def test_cell_borders_are_on_the_rules(page):
    gutters = page.layout.rules[:, np.round(page.layout.borders[1:-1]).astype(int)]
    assert (gutters.mean(axis=0) > 0.4).all()


def test_a_transcription_of_another_table_is_refused(made):
    layout = find_layout(made.image)
    with pytest.raises(InputError, match="the transcription has 20"):
        align_digits(layout, Transcription(tuple(("1.234",) * 8 for _ in range(20))))
    with pytest.raises(InputError, match="do not fit"):
        align_digits(layout, Transcription(tuple(("12",) * 8 for _ in range(14))))


def test_upside_down_is_said(made):
    with pytest.raises(InputError, match="upside down"):
        find_layout(made.image.rotate(180))


def test_lying_on_its_side_is_said(made):
    with pytest.raises(InputError, match=r"on its side|no table found"):
        find_layout(made.image.rotate(90, expand=True))


def test_pictures_without_a_table_are_refused():
    from skimage import data

    rng = np.random.default_rng(0)
    blank = Image.new("L", (300, 200), 220)
    noise = Image.fromarray((255 * rng.uniform(size=(200, 300))).astype(np.uint8))
    for picture in (blank, noise, Image.fromarray(data.astronaut()), Image.fromarray(data.page())):
        with pytest.raises(InputError, match="no table found"):
            find_layout(picture)


def test_transcription_reading(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("'  ','  1','  2'\n'  1','9.093','0.115'\n'  2','9.570','0.594'\n")
    assert read_transcription(path).values == (("9.093", "0.115"), ("9.570", "0.594"))
    path.write_text("'only'\n")
    with pytest.raises(InputError, match="not a table"):
        read_transcription(path)


def test_bigrams_skip_the_point():
    counts = count_bigrams(["9.093", "93"])
    assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == {9: 1, 90: 1, 93: 2}


def test_a_folder_without_pages_is_refused(tmp_path):
    with pytest.raises(InputError, match="no pages in"):
        find_pages(tmp_path)


# ── patches and blocks ──


def test_digit_patches_are_balanced_and_show_their_digit(page):
    result = patches.digit_patches(page, 60)
    assert len(result) == 60
    assert np.bincount(result.label, minlength=10).min() >= 4
    middle = result.ink[:, 36:60, 40:56]
    assert (middle.mean(axis=(1, 2)) > 0.1).all()


def test_smaller_label_sets_are_part_of_larger_ones(page):
    small, large = patches.digit_patches(page, 20, seed=3), patches.digit_patches(page, 60, seed=3)
    assert (large.ink[:20] == small.ink).all()


def test_negatives_hold_no_digit_at_their_centre(page):
    d = page.digits
    for points in (
        patches.gutter_centers(page),
        patches.line_gap_centers(page),
        patches.decimal_point_centers(page),
    ):
        neighbours = (np.abs(points[:, :1] - d.x) < 3.5) & (np.abs(points[:, 1:] - d.y) < 5.5)
        assert len(points) > 10
        assert not neighbours.any()


def test_letters_come_from_the_heading(page):
    points = patches.letter_centers(page)
    assert len(points) >= 10
    assert (points[:, 1] < page.digits.y.min() - 8).all()


def test_blocks_tile_the_table_and_know_their_text(made, page):
    result = table_blocks.cut_blocks(page, rows=7, columns=4)
    assert len(result) == 4
    cells = [t for row in made.values[:7] for t in row[:4]]
    assert (result[0].bigram_counts() == count_bigrams(cells)).all()
    total = sum(b.bigram_counts().sum() for b in result)
    assert total == 3 * 14 * 8


@pytest.mark.parametrize("kind", table_blocks.DISTORTIONS)
def test_every_distortion_changes_the_picture_and_not_its_size_by_much(page, kind):
    block = table_blocks.cut_blocks(page, rows=7, columns=4)[0]
    plain, second = block.crop_scan(), table_blocks.distort(block, kind, np.random.default_rng(1))
    assert second.width == pytest.approx(plain.width, rel=0.12)
    same = np.asarray(second.convert("L").resize(plain.size), float) - np.asarray(plain, float)
    assert np.abs(same).mean() > 0.3


# ── scores ──


def maps_with(points: list[tuple[int, int, int]], shape=(40, 60)) -> torch.Tensor:
    maps = torch.zeros(1, 10, *shape)
    for digit, x, y in points:
        maps[0, digit, y, x] = 1.0
    return maps


def test_perfect_maps_score_one_and_a_wrong_class_costs_two(page):
    d = page.digits
    height, width = page.network_ink().shape
    x, y = np.round((d.x - 1) / 2).astype(int), np.round((d.y - 1) / 2).astype(int)
    perfect = maps_with(list(zip(d.value, x, y, strict=True)), (height // 2, width // 2))
    assert digit_metrics.match_digits(digit_metrics.detect(perfect), d).f1 == 1.0
    perfect[0, :, y[0], x[0]] = torch.nn.functional.one_hot(torch.tensor((d.value[0] + 1) % 10), 10).float()
    score = digit_metrics.match_digits(digit_metrics.detect(perfect), d)
    assert (score.correct, score.spurious, score.missed) == (len(d) - 1, 1, 1)


def test_spearman_sees_order_only():
    a = np.array([1.0, 2.0, 3.0, 10.0])
    assert digit_metrics.spearman(a, a**3) == 1.0
    assert digit_metrics.spearman(a, -a) == -1.0
    assert digit_metrics.spearman(a, np.ones(4)) == 0.0


def test_places_number_every_pixel_and_agreement_adds_up(page):
    first, second = table_blocks.cut_blocks(page, rows=5, columns=3)[:2]
    a, b = (bigram_agreement.segment_block(block, size=(96, 136)) for block in (first, second))
    assert a.labels.min() == 0 and set(np.unique(a.labels)) == set(range(a.count))
    assert len(a.digits) == 60 and a.rule_region >= 60
    perfect = np.zeros((a.count, b.count))
    same = (a.bigrams.astype(int) @ b.bigrams.astype(int).T) > 0
    perfect[:60, :60][same] = 1.0
    result = bigram_agreement.measure_agreement(perfect, a, b)
    assert (result.bigram, result.off) == (1.0, 0.0)
    assert result.chance < 0.6
    everywhere = bigram_agreement.measure_agreement(np.ones((a.count, b.count)), a, b)
    assert everywhere.bigram == pytest.approx(same.sum() / (a.count * b.count))
    assert everywhere.off == pytest.approx(1 - 3600 / (a.count * b.count))
