"""The arena: its ground truths by their definitions, entries from outside, losses first, and a run of all of it, small."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import bilrp
from bilrp import evaluation
from bilrp.covering import order_by_findings, order_by_sum
from bilrp.encoders import images, sentence
from bilrp.errors import InputError
from bilrp.regions import grid
from bilrp.render.report import Table
from bilrp_studies.arena import methods, photo_truths, report, study, text_truths
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.truth import Case, measure
from bilrp_studies.common.word_subsets import StudySentence
from text_folders import ARCHITECTURES

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
WORDS = """<sentence id="1" status="">
// A cat sat on the mat .
// The dog sat on a mat , a rug .
<source>
1 A :
2 cat :
3 sat :
4 on :
5 the :
6 mat :
7 . :
</source>
<translation>
1 The :
2 dog :
3 sat :
4 on :
5 a :
6 mat :
7 , :
8 a :
9 rug :
10 . :
</translation>
<alignment>
7 <==> 0 // NOALI // NIL // . <==> -not aligned-
0 <==> 8 9 // NOALI // NIL // -not aligned- <==> a rug
0 <==> 2 // NOALI // NIL // -not aligned- <==> dog
1 2 <==> 1 // SIMI // 3 // A cat <==> The
3 <==> 3 // EQUI // 5 // sat <==> sat
4 5 6 <==> 4 5 6 // EQUI // 5 // on the mat <==> on a mat
</alignment>
</sentence>
"""


def small_encoder() -> bilrp.Encoder:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 2, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return bilrp.Encoder(
        net.eval().requires_grad_(False),
        read=lambda item: images.read_with_view(item, size=64),
        name="small",
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Photographs with boxes, and two files of aligned chunks, drawn at random."""
    rng = np.random.default_rng(0)
    for name in ("pascal_voc/images", "pascal_voc/annotations", "ists"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(6):
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((80, 64))
        picture.save(tmp_path / "pascal_voc" / "images" / f"{number}.jpg")
        box = "<bndbox><xmin>20</xmin><ymin>16</ymin><xmax>100</xmax><ymax>96</ymax></bndbox>"
        (tmp_path / "pascal_voc" / "annotations" / f"{number}.xml").write_text(
            f"<annotation><size><width>160</width><height>128</height></size>"
            f"<object><name>{'cat' if number % 2 else 'dog'}</name>{box}</object></annotation>"
        )
    for name in ("first", "second"):
        (tmp_path / "ists" / f"{name}.wa").write_text(WORDS)
    return tmp_path


@pytest.fixture
def settings(data: Path) -> ArenaSettings:
    return ArenaSettings(
        data=data, out=data / "out", encoders="small", photographs=2, pairs=2, sentences=2, planted=2, steps=0,
        integration_steps=1, size=64, regions=16, resamples=50,
    )  # fmt: skip


def test_the_same_place_is_never_right_under_a_warp(settings: ArenaSettings) -> None:
    """What counts has moved by more than a region, and an explanation that knows the warp is always right."""
    finer = replace(settings, regions=8)
    cases = list(photo_truths.warp_cases(small_encoder(), finer))
    assert {case.truth for case in cases} == {f"warp: {kind}" for kind in photo_truths.WARPS}
    for case in cases:
        places = torch.eye(len(case.match))
        assert evaluation.hit_rate(places, case.match, mask=case.mask) == 0, case.truth
        assert evaluation.relevance_share(places, case.match, mask=case.mask).positive == 0, case.truth
        assert evaluation.hit_rate(case.match, case.match, mask=case.mask) == 1, case.truth


def test_planted_objects_are_one_patch_in_two_corners(settings: ArenaSettings) -> None:
    for case in photo_truths.object_cases(small_encoder(), settings):
        rows, columns = (side.nonzero()[:, 0].tolist() for side in (case.match.any(1), case.match.any(0)))
        assert len(rows) == len(columns) == 9 and rows != columns
        labels = grid(16)(case.a).labels
        patches = [x[0][torch.isin(labels, torch.tensor(n))] for x, n in ((case.a, rows), (case.b, columns))]
        assert torch.equal(*patches)


def test_boxes_of_one_class_in_pixels_of_the_input(settings: ArenaSettings) -> None:
    """The annotation's picture is twice as large as the file, and the input is the middle of the file."""
    encoder = small_encoder()
    path = photo_truths.list_photographs(settings.data)[0]
    (box,) = photo_truths.read_photograph(encoder, path).boxes["dog"]
    item = bilrp.encoder.read_item(encoder, path)
    assert isinstance(item.view, bilrp.inputs.Image)
    left, top, right, bottom = item.view.box
    across, down = 64 / (right - left), 64 / (bottom - top)
    expected = (8 - top) * down, (10 - left) * across, (48 - top) * down, (50 - left) * across
    assert box == pytest.approx(expected)
    inside = photo_truths.regions_in_boxes(grid(16)(item.x), [(0, 0, 33, 41)])
    assert inside.reshape(4, 4).tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    cases = list(photo_truths.class_cases(encoder, settings))
    assert len(cases) == 2 and all(case.cover and case.match.any() for case in cases)


def test_chunks_are_read_and_aligned(data: Path, settings: ArenaSettings, tmp_path: Path) -> None:
    (pair,) = text_truths.read_aligned_pairs(data / "ists" / "first.wa")
    assert pair.a == "A cat sat on the mat ." and pair.b.startswith("The dog sat")
    assert pair.chunks_a == ((0, 1), (2,), (3, 4, 5))  # without punctuation
    assert pair.chunks_b == ((0,), (1,), (2,), (3, 4, 5), (7, 8))
    assert pair.aligned == {(0, 0), (1, 2), (2, 3)}
    encoder = sentence(ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32))
    case = next(text_truths.chunk_cases(encoder, settings))
    assert case.match.tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    assert case.units is not None
    assert [row.nonzero()[:, 0].tolist() for row in case.units[0]] == [[1, 2], [3], [4, 5, 6]]  # 0 is [CLS]
    planted = list(text_truths.planted_cases(encoder, settings))
    assert len(planted) == 4 and all(float(case.match.sum()) == 1 for case in planted)


def order_regions(explanation: bilrp.Explanation, side: int) -> list[int]:
    return order_by_findings(explanation.relevance, explanation.findings(), side, range(16))


@pytest.mark.parametrize("has_peaks", [True, False])
def test_covering_by_hand(has_peaks: bool) -> None:
    """The fall is that of the score with the first regions in mean colour, one side at a time: three of 16, for any method.

    Relevance with two peaks has findings there; without peaks regions are taken by their strongest pair, ties in order.
    """
    encoder = small_encoder()
    torch.manual_seed(3)
    a, b = torch.rand(2, 1, 3, 64, 64)
    relevance = torch.zeros(16, 16)
    if has_peaks:
        relevance[0, 5], relevance[10, 3] = 1.0, 0.8
        regions = [0, 10, 1], [5, 3, 0]
    else:
        relevance += 0.5
        relevance[2, 3] = relevance[4, 3] = relevance[4, 9] = 0.5 + 1e-6
        regions = [2, 4, 0], [3, 9, 0]
    explanation = replace(bilrp.explain(encoder, a, b, regions=16), relevance=relevance)
    assert bool(explanation.findings()) == has_peaks
    assert tuple(order_regions(explanation, side)[:3] for side in (0, 1)) == regions
    match = torch.eye(16)
    result = measure(
        encoder, explanation, Case("class", a, b, match, torch.ones_like(match), group=0, cover=True)
    )
    falls = []
    for x, other, hidden in ((a, b, regions[0]), (b, a, regions[1])):
        inside = torch.isin(grid(16)(x).labels, torch.tensor(sorted(hidden)))
        changed = torch.where(inside, x.mean((2, 3), keepdim=True), x)
        cosine = nn.functional.cosine_similarity(encoder.module(changed), encoder.module(other))
        falls.append(1 - float(cosine) / explanation.score)
    assert result["fall"] == pytest.approx(sum(falls) / 2, abs=1e-6) and abs(result["fall"]) > 1e-6


def test_regions_of_a_finding_are_covered_by_their_relevance_to_it() -> None:
    """A finding of two neighbours comes before a single stronger region of a weaker finding, its stronger region first."""
    encoder = small_encoder()
    torch.manual_seed(3)
    relevance = torch.zeros(16, 16)
    relevance[4, 5], relevance[5, 5], relevance[10, 3] = 0.8, 1.0, 1.1
    explanation = replace(
        bilrp.explain(encoder, *torch.rand(2, 1, 3, 64, 64), regions=16), relevance=relevance
    )
    assert [(each.a, each.b) for each in explanation.findings()] == [([4, 5], [5]), ([10], [3])]
    assert order_regions(explanation, 0)[:4] == [5, 4, 10, 0]
    assert order_regions(explanation, 1)[:3] == [5, 3, 0]


def test_regions_are_covered_by_their_sums_of_relevance() -> None:
    """A region with many weak partners comes before one with a single strong one, and is covered first."""
    encoder = small_encoder()
    torch.manual_seed(3)
    a, b = torch.rand(2, 1, 3, 64, 64)
    relevance = torch.zeros(16, 16)
    relevance[5, 7], relevance[9], relevance[3, :8], relevance[12, 8:] = 0.6, 0.1, 0.1, 0.09
    explanation = replace(bilrp.explain(encoder, a, b, regions=16), relevance=relevance)
    assert order_by_sum(explanation.relevance, 0, range(16))[:4] == [9, 3, 12, 5]
    assert order_regions(explanation, 0)[0] == 5
    match = torch.eye(16)
    case = Case("class", a, b, match, torch.ones_like(match), group=0, cover=True)
    falls = []
    for x, other, hidden in (
        (a, b, [9, 3, 12]),
        (b, a, order_by_sum(explanation.relevance, 1, range(16))[:3]),
    ):
        changed = torch.where(
            torch.isin(grid(16)(x).labels, torch.tensor(hidden)), x.mean((2, 3), keepdim=True), x
        )
        cosine = nn.functional.cosine_similarity(encoder.module(changed), encoder.module(other))
        falls.append(1 - float(cosine) / explanation.score)
    result = measure(encoder, explanation, case)
    assert result["fall by region"] == pytest.approx(sum(falls) / 2, abs=1e-6)
    assert abs(result["fall by region"] - result["fall"]) > 1e-5
    assert result["fall, checked"] >= max(result["fall"], result["fall by region"])


def test_the_stereo_pair_matches_by_its_disparity(settings: ArenaSettings) -> None:
    pytest.importorskip("skimage")
    (case,) = photo_truths.stereo_cases(small_encoder(), settings)
    assert case.a.shape == case.b.shape == (1, 3, 64, 64) and not torch.equal(case.a, case.b)
    rows, columns = (case.match * case.mask).nonzero().T
    assert len(rows) >= 8 and bool(
        (rows // 4 - columns // 4).abs().max() <= 1
    )  # along rows, up to the tolerance
    assert (
        float((rows % 4 - columns % 4).double().mean()) > 0
    )  # the right camera sees everything further left


def test_sampled_shapley_values_of_words(tmp_path: Path) -> None:
    """They add up as the exact values do, and come close to them with many orders; special tokens have none."""
    encoder = sentence(ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32))
    text = StudySentence(encoder, encoder, "a cat sat on")
    exact, few, many = (text.shapley_values(), *(text.sample_shapley_values(n) for n in (2, 200)))
    assert torch.allclose(few.sum(0), exact.sum(0), atol=1e-6)
    assert float((many - exact).norm()) < 0.1 * float(exact.norm())
    relevance = methods.shapley_pairs(encoder, "a cat sat on", "a dog sat", None)
    assert relevance.shape == (6, 5) and not relevance[[0, -1]].any() and not relevance[:, [0, -1]].any()
    norms = (
        text.embedding.double().norm()
        * StudySentence(encoder, encoder, "a dog sat").embedding.double().norm()
    )
    other = StudySentence(encoder, encoder, "a dog sat").shapley_values()
    assert torch.allclose(relevance[1:-1, 1:-1], exact @ other.T / norms)


def test_grad_cam_is_a_product_of_two_maps(settings: ArenaSettings) -> None:
    encoder = small_encoder()
    torch.manual_seed(4)
    a, b = torch.rand(2, 1, 3, 64, 64)
    result = methods.grad_cam(encoder, a, b, 8)
    assert isinstance(encoder.module, nn.Sequential)
    maps = []
    for x, other in ((a, b), (b, a)):
        last = encoder.module[:5](x).requires_grad_()
        score = nn.functional.cosine_similarity(encoder.module[5:](last), encoder.module(other)).sum()
        own = nn.functional.normalize(encoder.module(x))
        target = nn.functional.normalize(encoder.module(other)) / encoder.module(x).norm()
        (gradient,) = torch.autograd.grad(score, last)
        # with the norm detached, the gradient of the cosine is that of ⟨φ, φ'⟩ / ‖φ‖‖φ'‖
        detached = gradient + (score * own / encoder.module(x).norm())[..., None, None] / 64
        weights = detached.mean((2, 3))
        assert torch.allclose(weights, target / 64, atol=1e-6)
        maps.append((weights[..., None, None] * last).sum(1).clamp(min=0).flatten())
    assert torch.allclose(result, torch.outer(*maps).detach(), atol=1e-6)


def entry(encoder: bilrp.Encoder, a: Any, b: Any, regions: Any) -> Tensor:
    return methods.random_relevance(encoder, a, b, regions) + 1


def wrong(encoder: bilrp.Encoder, a: Any, b: Any, regions: Any) -> Tensor:
    return torch.zeros(2, 2)


def test_the_whole_study(settings: ArenaSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Photographs and texts on small networks, with a method from outside; what was kept is read, and gives the same."""
    text_encoder = sentence(ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32))
    built = {"small": small_encoder(), "text": text_encoder}
    monkeypatch.setattr(study, "load_encoder", lambda name, settings: built[name])
    monkeypatch.setitem(sys.modules, "outside", sys.modules[__name__])
    given = replace(settings, encoders="small,text", entry="outside:entry")
    first = study.run(given)
    page = first.write(given.out)
    results = json.loads((given.out / "results.json").read_text())
    assert {"small | warp", "small | planted object", "small | class", "text | iSTS"} <= set(results["table"])
    for key, table in results["table"].items():
        expected = set(methods.text_methods(1)) if key.startswith("text") else set(methods.image_methods(1))
        assert set(table) == expected | {"outside:entry"}
        for method, measures in table.items():
            assert 0 <= measures["hit"]["low"] <= measures["hit"]["high"] <= 1, (key, method)
            assert 0 <= measures["AUC"]["mean"] <= 1
    assert abs(results["table"]["small | class"]["last layer"]["unattributed"]["mean"]) < 1e-5
    assert "fall" in results["table"]["text | iSTS"]["default"]
    assert "Where the default is behind" in page.read_text()
    monkeypatch.setattr(study, "measure", None)
    assert study.run(given).results["table"] == first.results["table"]


def test_entries_are_refused_in_one_line(settings: ArenaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("nothing", "no.such.module:f", "math:nothing", "math:pi"):
        with pytest.raises(InputError, match=f"--entry {bad}"):
            methods.load_entry(bad)
    with pytest.raises(InputError, match=r"--methods nothing: use some of AttnLRP, Grad-CAM"):
        study.choose_methods(replace(settings, methods="occlusion,nothing"), is_text=True)
    only = study.choose_methods(replace(settings, methods="occlusion, AttnLRP"), is_text=False)
    assert list(only) == ["default", "occlusion"]
    monkeypatch.setitem(sys.modules, "outside", sys.modules[__name__])
    monkeypatch.setattr(study, "load_encoder", lambda name, settings: small_encoder())
    with pytest.raises(InputError, match=r"relevance \(2, 2\) for \(16, 16\) regions"):
        study.run(replace(settings, entry="outside:wrong"))


def test_an_input_is_decomposed_once_for_each_side_of_regions() -> None:
    """A photograph is read anew for every pair: equal tensors are one input, other regions are another decomposition."""
    calls: list[int | None] = []

    def decompose_input(encoder: bilrp.Encoder, x: Any, regions: int | None) -> bilrp.Decomposition:
        calls.append(regions)
        return bilrp.decompose(encoder, x, regions=regions)

    method, encoder = methods.pair_cached(decompose_input, bilrp.pair), small_encoder()
    a, b = torch.rand(2, 1, 3, 64, 64)
    results = [method(encoder, x, b.clone(), side) for x, side in ((a, 16), (a.clone(), 16), (a, 8))]
    assert calls == [16, 16, 8, 8]
    relevances = [each.relevance for each in results if isinstance(each, bilrp.Explanation)]
    assert [each.shape for each in relevances] == [(16, 16), (16, 16), (64, 64)]


def test_seven_regions_fit_into_a_picture(settings: ArenaSettings) -> None:
    free = replace(settings, regions=0)
    assert [photo_truths.region_side(free, torch.zeros(1, 3, n, n + 9)) for n in (3, 128, 224)] == [1, 16, 32]
    assert photo_truths.region_side(settings, torch.zeros(1, 3, 224, 224)) == 16


def test_losses_come_first() -> None:
    """Rows made by hand: one method ahead of the default, one behind, one not told apart."""

    def row(group: int, **hits: float) -> dict[str, Any]:
        scored = {
            name: {"hit": hit, "fall": hit, "AUC": 0.5, "signed": 0.5, "× chance": 1.0}
            for name, hit in hits.items()
        }
        return {"encoder": "net", "truth": "warp: shift", "group": group, "methods": scored}

    rows = [row(n, default=0.5, better=0.6 + n / 100, worse=0.2, like=0.5 + (-1) ** n / 10) for n in range(6)]
    built = report.build_report(rows, ArenaSettings(data=Path("in"), resamples=200))
    hits = [each for each in built.results["comparisons"] if each["measure"] == "hit"]
    assert [(each["other"], each["verdict"]) for each in hits] == [
        ("better", "behind"), ("like", "unclear"), ("worse", "ahead"),
    ]  # fmt: skip
    assert [section.title for section in built.sections[:2]] == [
        "The default and the best other method, losses first",
        "Where the default is behind",
    ]
    (overview,) = built.sections[0].blocks
    assert isinstance(overview, Table)
    assert overview.rows[0][2:] == (
        "hit",
        "0.50 (0.50\u00a0to\u00a00.50)",
        "better",
        "0.62 (0.61\u00a0to\u00a00.64)",
        "behind",
    )
    assert built.summary.startswith("The default is behind another method in 2 comparisons, ahead in 2")
    few = report.build_report(rows[:2], ArenaSettings(data=Path("in"), resamples=200))
    verdicts = {
        each["other"]: each["verdict"] for each in few.results["comparisons"] if each["measure"] == "hit"
    }
    assert verdicts == {
        "better": "lower",
        "worse": "higher",
        "like": "unclear",
    }  # two photographs prove nothing
    expected = {"better": 0.0, "worse": 1.0, "like": 0.5, "every other": 0.0, "more than every other": 0.0}
    covering = built.results["covering"]["net"]
    assert {name: each["mean"] for name, each in covering.items()} == expected
    assert covering["like"]["low"] < 0.5 < covering["like"]["high"] and covering["like"]["pairs"] == 6
    tied = report.compare_covering([row(0, default=0.5, same=0.5)], ArenaSettings(data=Path("in")))["net"]
    assert [each["mean"] for each in tied.values()] == [0.5, 1.0, 0.0]


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "ists").is_dir(), reason="needs BILRP_DATA with ists and pascal_voc")
def test_the_arena_on_real_weights(tmp_path: Path) -> None:
    """MiniLM and MobileNetV2, small: the default tells aligned chunks, and where a warped photograph matches."""
    settings = ArenaSettings(
        data=DATA, out=tmp_path, encoders="mobilenet,minilm", photographs=1, warps=2, pairs=1, sentences=6, planted=2,
        steps=0, integration_steps=1, resamples=200,
    )  # fmt: skip
    table = study.run(settings).results["table"]
    assert table["minilm | iSTS"]["default"]["AUC"]["mean"] > 0.8
    assert table["minilm | iSTS"]["random"]["AUC"]["mean"] < 0.75
    assert (
        table["mobilenet | warp"]["default"]["hit"]["mean"]
        > table["mobilenet | warp"]["random"]["hit"]["mean"]
    )
    assert table["mobilenet | warp"]["default"]["× chance"]["mean"] > 2
