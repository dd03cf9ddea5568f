"""Views of contrasts and sets: what is drawn adds up, on one scale, in every format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import bilrp
from bilrp.errors import InputError
from bilrp.groups import Contrast
from bilrp.inputs import Image, Item
from bilrp.render import group_views, strips


def decompose(seed: int, *, bias: bool = True) -> bilrp.Decomposition:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=bias), torch.nn.ReLU(), torch.nn.MaxPool2d(4), torch.nn.Flatten()
    ).double()  # fmt: skip
    x = torch.rand(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    pixels = (255 * x[0]).permute(1, 2, 0).numpy().astype(np.uint8)
    side = bilrp.decompose(net, Item(x, Image(pixels, (0, 0, 32, 32))), regions=8)
    return replace(side, name=f"{seed}.png")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_tints_of_a_contrast_add_up_to_the_difference(similarity: str) -> None:
    contrast = bilrp.contrast(*(decompose(n) for n in range(3)), similarity=similarity)
    rows, legend = group_views.contrast_strips(contrast)
    a, b, c = (item.values.sum() for item in rows[0].items)
    assert a == pytest.approx(contrast.score - contrast.unattributed, rel=1e-9)
    assert b + c == pytest.approx(a, rel=1e-9) and legend.unit == similarity
    assert strips.find_largest(rows) == max(abs(item.values).max() for item in rows[0].items)


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg", ".pdf", ".npz", ".safetensors"])
def test_a_contrast_and_sets_are_written_in_every_format(tmp_path: Path, suffix: str) -> None:
    sides = [decompose(n) for n in range(5)]
    for value in (bilrp.contrast(*sides[:3], similarity="cosine"), bilrp.compare_sets(sides[:2], sides[2:])):
        path = value.save(tmp_path / f"why{suffix}")
        assert path.stat().st_size > 1000
        if suffix == ".png":
            with Pillow.open(path) as image:
                assert image.size[0] == 1800


def test_a_contrast_is_read_as_it_was_written(tmp_path: Path) -> None:
    contrast = bilrp.contrast(*(decompose(n) for n in range(3)), similarity="cosine")
    for suffix in (".npz", ".safetensors"):
        loaded = Contrast.load(contrast.save(tmp_path / f"why{suffix}"))
        assert loaded.score == contrast.score and loaded.unattributed == contrast.unattributed
        assert torch.equal(loaded.relevance, contrast.relevance)
        assert loaded.summary() == contrast.summary()
    contrast.toward.save(tmp_path / "one.npz")
    with pytest.raises(InputError, match="not a stored contrast"):
        Contrast.load(tmp_path / "one.npz")
    with pytest.raises(InputError, match="cannot write"):
        contrast.save(tmp_path / "why.txt")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_sets_show_the_mean_of_all_pairs_and_what_each_member_adds_to_it(similarity: str) -> None:
    a, b = [decompose(n, bias=False) for n in range(3)], [decompose(n, bias=False) for n in range(3, 7)]
    both = bilrp.compare_sets(a, b, similarity=similarity, members=2, examples=3)
    every = [[bilrp.pair(x, y, similarity=similarity).score for y in b] for x in a]
    assert torch.allclose(both.scores, torch.tensor(every, dtype=torch.float64), rtol=1e-9)
    assert both.mean == pytest.approx(both.explanation.score / 12, rel=1e-9)
    for members, means in ((both.members_a, both.scores.mean(1)), (both.members_b, both.scores.mean(0))):
        assert [m.mean for m in members] == sorted(means.tolist(), reverse=True)[:2]
        for member in members:
            assert float(member.values.sum()) == pytest.approx(member.mean, rel=1e-9)
    shown = [(e.a.name, e.b.name) for e in both.examples]
    assert len({one for one, _ in shown}) == len({other for _, other in shown}) == 3
    assert both.examples[0].score == pytest.approx(float(both.scores.max()))
    assert "random" not in both.summary() and "3 × 4 pairs" in both.summary()


def test_a_distance_of_sets_has_no_tints_and_its_nearest_pairs() -> None:
    sides = [decompose(n) for n in range(4)]
    both = bilrp.compare_sets(sides[:2], sides[2:], similarity="squared_distance")
    assert both.examples[0].score == pytest.approx(float(both.scores.min()))
    assert not any(bool(m.values.any()) for m in both.members_a)
    assert both.plot() is not None


def test_notebooks_show_contrasts_sets_attributions_findings_and_figures() -> None:
    sides = [decompose(n) for n in range(4)]
    contrast = bilrp.contrast(*sides[:3], similarity="cosine")
    for value in (contrast, bilrp.compare_sets(sides[:2], sides[2:])):
        assert value._repr_html_().startswith("<iframe srcdoc=")
    findings = contrast.toward.findings()
    html = findings._repr_html_()  # type: ignore[attr-defined]
    assert html.count("<tr>") == len(findings) + 1 and "data:image/jpeg" in html
    assert findings == list(findings)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    attribution = bilrp.attribute(net, torch.rand(1, 3, 2, 2), torch.rand(1, 3, 2, 2))
    assert attribution._repr_html_().startswith("<img ")
    assert contrast.toward.plot()._repr_png_()[1:4] == b"PNG"  # type: ignore[attr-defined]
