"""Algorithm 1 against a slow transcription of it, and the table of styles against the paper's numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from bilrp.errors import InputError
from bilrp.render import links as algorithm

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "paper.tex"


def transcription(R, low, high, p):
    """Algorithm 1, entry by entry, as printed: {(i, j): (colour, opacity)}."""
    entries = [v for row in R for v in row]
    moment = (sum(v**4 for v in entries) / len(entries)) ** 0.25
    drawn = {}
    for i, row in enumerate(R):
        for j, value in enumerate(row):
            value = value / moment if moment else 0.0
            value = value - min(max(value, -low), low)
            delta = high - low
            value = min(max(value, -delta), delta) / delta
            if value != 0:
                drawn[i, j] = ("red" if value > 0 else "blue", abs(value) ** p)
    return drawn


@pytest.mark.parametrize("name", algorithm.STYLES)
def test_links_are_the_printed_algorithm(name):
    generator = torch.Generator().manual_seed(3)
    R = torch.randn(11, 7, generator=generator, dtype=torch.float64) ** 3
    style = algorithm.STYLES[name]
    expected = transcription(R.tolist(), style.low, style.high, style.power)
    actual = {
        (i, j): ("red" if v > 0 else "blue", alpha) for i, j, v, alpha in algorithm.compute_links(R, name)
    }
    assert actual.keys() == expected.keys() and len(actual) > 5
    for pair, (colour, alpha) in expected.items():
        assert actual[pair][0] == colour
        assert actual[pair][1] == pytest.approx(alpha, rel=1e-12)


def test_table_of_styles():
    rows = {s.name: (s.size, s.pool, s.low, s.high, s.power) for s in algorithm.STYLES.values()}
    assert rows == {
        "pascal_voc": (128, 8, 0.25, 13, 2),
        "faces": (64, 4, 0.3, 60, 1),
        "ucf": (128, 8, 0.25, 20, 1),
        "illustrations": (96, 6, 0.25, 15, 2),
        "tables": (140, 20, 0.01, 4, 2),
    }


@pytest.mark.skipif(not PAPER.is_file(), reason="needs the paper's source next to the repository")
def test_table_of_styles_is_the_printed_one():
    printed = re.findall(
        r"\$(\d+)\\times \d+\$ & \$(\d+) \\times \d+\$ & ([\d.]+) & (\d+) &\s+(\d+)", PAPER.read_text()
    )
    assert len(printed) == 5
    ours = [(s.size, s.pool, s.low, s.high, s.power) for s in algorithm.STYLES.values()]
    assert [tuple(float(v) for v in row) for row in printed] == [tuple(map(float, row)) for row in ours]


@pytest.mark.parametrize("power", [0.5, 1, 2, 3])
def test_both_signs_for_every_power(power):
    R = torch.tensor([[5.0, -5.0], [0.0, 0.0]])
    drawn = {
        (i, j): (v, alpha)
        for i, j, v, alpha in algorithm.compute_links(R, algorithm.resolve_style("ucf", power=power))
    }
    assert drawn[0, 0][0] == -drawn[0, 1][0] > 0
    assert drawn[0, 0][1] == drawn[0, 1][1] > 0


def test_fourth_moment_is_one_after_normalisation():
    R = torch.randn(40, 30, dtype=torch.float64)
    assert algorithm.normalize(R).pow(4).mean() == pytest.approx(1, rel=1e-12)
    for scale in (1e-30, 1e30):  # float32's own fourth power would vanish or overflow
        torch.testing.assert_close(
            algorithm.normalize((R * scale).float()), algorithm.normalize(R), rtol=1e-5, atol=1e-6
        )


def test_steps_one_by_one():
    R = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
    sparse = algorithm.sparsify(R, low=1.0)
    assert sparse.tolist() == [-2, 0, 0, 0, 0, 0, 2]
    assert algorithm.threshold(R, low=1.0, high=3.0).tolist() == [-1, -0.5, -0.25, 0, 0.25, 0.5, 1]
    assert algorithm.opacity(R, power=2).tolist() == [9, 1, 0.25, 0, 0.25, 1, 9]


def test_empty_and_invalid_input():
    assert len(algorithm.compute_links(torch.zeros(3, 4))) == 0
    assert len(algorithm.compute_links(torch.zeros(0, 4))) == 0
    with pytest.raises(InputError, match="NaN"):
        algorithm.compute_links(torch.tensor([[float("nan")]]))
    with pytest.raises(InputError, match="a matrix"):
        algorithm.compute_links(torch.zeros(3))
    with pytest.raises(InputError, match="no style 'nope'"):
        algorithm.compute_links(torch.ones(2, 2), "nope")
    for bad in ({"low": 5, "high": 4}, {"low": -1}, {"power": 0}):
        with pytest.raises(InputError, match="a style needs"):
            algorithm.resolve_style("pascal_voc", **bad)


def test_auto_is_pascal_voc_at_the_papers_size_and_reaches_full_opacity_elsewhere():
    paper, auto = algorithm.STYLES["pascal_voc"], algorithm.resolve_style("auto", pairs=256 * 256)
    assert (auto.low, auto.high, auto.power) == (paper.low, paper.high, paper.power)
    R = torch.zeros(8, 8)
    R[2, 3] = 1  # the strongest a link can be among 64 pairs; h = 13 would leave it at 4 % opacity
    assert max(alpha for *_, alpha in algorithm.compute_links(R, "auto")) == 1
    assert max(alpha for *_, alpha in algorithm.compute_links(R, "pascal_voc")) < 0.1


def test_faintest_first_and_faintest_left_out():
    R = torch.randn(30, 30, generator=torch.Generator().manual_seed(0))
    links = algorithm.compute_links(R)
    assert (links.opacity.diff() >= 0).all()
    visible = algorithm.compute_links(R, min_opacity=1 / 255)
    assert 0 < len(visible) < len(links) and visible.opacity.min() >= 1 / 255
