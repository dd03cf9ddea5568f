"""The faithfulness study: its fast paths are the library's, its statistics are honest, and it can be interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bilrp
from bilrp import baselines, composites, evaluation
from bilrp.encoder import read_tensor
from bilrp.encoders import vgg, vgg_weights
from bilrp.errors import InputError
from bilrp.regions import grid
from bilrp.render.report import Table
from bilrp_studies.common import warps
from bilrp_studies.common.image_folders import FolderContents
from bilrp_studies.faithfulness import aggregation, methods, pair_metrics, study
from bilrp_studies.faithfulness import report as faithfulness_report
from bilrp_studies.faithfulness.settings import FaithfulnessSettings
from type_asserts import assert_not_none

SMALL = FaithfulnessSettings(
    data=Path("photos"), layers=(5, 10), pairs=2, size=32, regions=8, steps=4, resamples=200
)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    by_name = {}
    for number, inputs, outputs in vgg_weights.CONVOLUTIONS:
        by_name[f"features.{number}.weight"] = (2 / (9 * inputs)) ** 0.5 * torch.randn(
            outputs, inputs, 3, 3, generator=generator
        )
        by_name[f"features.{number}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
    return by_name


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Five coloured pictures, smooth enough to have something in common."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for k in range(5):
        small = Image.fromarray(generator.integers(256, size=(5, 6, 3), dtype=np.uint8))
        small.resize((60, 48), Image.Resampling.BICUBIC).save(folder / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def bench(tensors):
    encoder = vgg.vgg16(10, weights=tensors, size=32)
    return pair_metrics.EvaluationContext(encoder, evaluation.randomize_weights(encoder, 4), SMALL)


@pytest.fixture(scope="module")
def pictures(bench, photos):
    return [
        pair_metrics.prepare_image(bench, f"{k}", read_tensor(bench.encoder, photos / f"{k}.png"))
        for k in range(2)
    ]


def test_sides_pair_to_what_the_library_explains(bench, pictures, tensors):
    a, b = pictures
    rules = {
        "bilrp": None,
        "hessian_product": composites.hessian_product(),
        "uniform": composites.uniform(0.25),
    }
    for layer in SMALL.layers:
        encoder = vgg.vgg16(layer, weights=tensors, size=32)
        for method, composite in rules.items():
            expected = bilrp.explain(
                encoder, a.x, b.x, regions=grid(8), composite=composite, similarity="dot"
            )
            sides = a.plain[method][layer], b.plain[method][layer]
            result = methods.pair_relevance(method, *sides)
            torch.testing.assert_close(result, expected.relevance, rtol=1e-3, atol=1e-3)
            known = evaluation.conservation(expected)
            counted = pair_metrics.conservation_measures(method, result, *sides)
            assert counted["unattributed"] == pytest.approx(known.unattributed_share, abs=1e-3)
            assert counted["negative"] == pytest.approx(known.negative_share, abs=1e-3)
        expected = baselines.saliency(encoder, a.x, b.x, regions=grid(8))
        result = methods.pair_relevance("saliency", a.plain["saliency"][layer], b.plain["saliency"][layer])
        torch.testing.assert_close(result, expected.relevance, rtol=1e-4, atol=1e-3)


def test_curves_are_the_librarys(bench, pictures, tensors):
    a, b = pictures
    encoder = vgg.vgg16(5, weights=tensors, size=32)
    result = pair_metrics.measure_curves(bench, a, b, grid(8)(a.x))
    expected = bilrp.explain(encoder, a.x, b.x, regions=grid(8), similarity="dot")
    options = {"steps": SMALL.steps, "baseline": evaluation.blur_baseline(12)}
    pixels = baselines.saliency(encoder, a.x, b.x, regions=grid(8))
    for key in ("deletion", "insertion"):
        for method, explanation in (("bilrp", expected), ("saliency", pixels)):
            curve = getattr(evaluation, key)(encoder, explanation, a.x, b.x, **options)
            assert result[method][5][key] == pytest.approx(curve.area, rel=1e-3)


def test_random_relevance_is_new_for_other_pictures_and_other_weights(pictures):
    a, b = pictures
    forms = [getattr(a, form)["random"][5] for form in ("plain", "noisy", "randomized")]
    drawn = [methods.pair_relevance("random", side, getattr(b, form)["random"][5]) for side, form in
             zip(forms, ("plain", "noisy", "randomized"), strict=True)]  # fmt: skip
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(evaluation.rank_correlation(drawn[i], drawn[j])) < 0.3
    second = methods.pair_relevance("random", forms[0], b.plain["random"][5])
    assert torch.equal(drawn[0], second)


def test_noise_stays_within_the_range_of_pixels(pictures):
    for picture in pictures:
        assert set(picture.noisy) == set(methods.METHODS)  # z^B would have refused anything outside


@pytest.mark.parametrize("number", range(4))
def test_warps_move_what_they_say(number):
    x = torch.rand(1, 3, 32, 32)
    regions = grid(8)(x)
    kind, match, among, moved = warps.apply_warp(x, regions, number)
    assert kind == warps.WARPS[number][0]
    assert moved.shape == x.shape and not torch.equal(moved, x)
    assert match.shape == among.shape == (16, 16)
    known = among[:, 0] > 0
    assert known.any() and bool((match[known].sum(1) >= 1).all())


def test_planted_patch_is_in_both_pictures():
    a, b = torch.rand(2, 1, 3, 48, 48)
    regions = grid(8)(a)
    image, match = pair_metrics.plant_patch(a, b, regions, seed=3)
    same = (image == a).all(1)[0]
    assert same.sum() == 16 * 16
    assert torch.equal(image[0][:, ~same], b[0][:, ~same])
    assert match.sum() == 4 * 4  # 2 × 2 regions on either side
    assert torch.equal(match, match.T)


def test_weights_are_randomised_block_by_block_from_the_top(bench, pictures):
    assert pair_metrics.conv_blocks(bench.encoder.module) == {2: (5, 2), 1: (0, 4)}
    result = pair_metrics.measure_cascade(bench, *pictures)
    # The lower layer ends below the upper block, which cannot change it.
    assert {layer: list(result[layer]["bilrp"]) for layer in result} == {"5": ["1"], "10": ["2", "1"]}
    assert result["10"]["saliency"] == pytest.approx({"2": 1.0, "1": 1.0})
    assert result["10"]["random"]["1"] < 0.3
    blank = methods.pair_relevance("bilrp", *(p.randomized["bilrp"][10] for p in pictures))
    plain = methods.pair_relevance("bilrp", *(p.plain["bilrp"][10] for p in pictures))
    assert result["10"]["bilrp"]["1"] == abs(evaluation.rank_correlation(plain, blank))


def test_intervals_cover_and_verdicts_follow_them():
    generator = np.random.default_rng(1)
    covered = sum(
        (result := aggregation.interval(generator.normal(3, 1, size=40).tolist(), resamples=300, seed=k))[
            "low"
        ]
        < 3
        < result["high"]
        for k in range(200)
    )
    assert 0.88 < covered / 200 <= 1
    # What neighbours have in common makes the mean less certain, and blocks see it.
    common = np.repeat(generator.normal(size=100), 4).tolist()
    alone, together = (aggregation.interval(common, block=block, resamples=500) for block in (1, 4))
    assert together["high"] - together["low"] > 1.5 * (alone["high"] - alone["low"])
    options = {"resamples": 200, "seed": 0}
    ours, theirs = [0.9, 0.8, 0.85, 0.9], [0.5, 0.6, 0.4, 0.5]

    def verdict(theirs: list[float], better: int) -> str:
        return assert_not_none(aggregation.compare_methods(ours, theirs, better, options))["verdict"]

    assert verdict(theirs, 1) == "wins" and verdict(theirs, -1) == "loses"
    assert verdict([0.8, 0.9, 0.9, 0.85], 1) == "no clear difference"
    assert aggregation.compare_methods(ours, None, 1, options) is None


@pytest.mark.slow
def test_the_whole_study_goes_on_where_it_stopped(tmp_path, photos, weights_file):
    settings = replace(SMALL, data=photos, out=tmp_path / "one", weights=weights_file)
    first = study.run(settings)
    first.write(settings.out)
    results = json.loads((tmp_path / "one" / "results.json").read_text())
    assert results["pairs"] == 2 == len(results["per_pair"])
    assert set(results["table"]) == {"5", "10"}
    for method in methods.METHODS:
        for measure in aggregation.MEASURES:
            cell = results["table"]["10"][method][measure.key]
            if cell is not None:
                assert cell["low"] <= cell["mean"] <= cell["high"]
    assert results["table"]["10"]["saliency"]["unattributed"] is None
    assert "too few" in first.summary
    assert (tmp_path / "one" / "faithfulness.png").stat().st_size > 10_000
    # Interrupted: one row is missing, and only that one is made again, with the same numbers.
    stored = sorted((tmp_path / "one" / "cache").rglob("*.safetensors"))
    times = {path: path.stat().st_mtime_ns for path in stored[1:]}
    stored[0].unlink()
    second = study.run(settings)
    assert second.results["table"] == first.results["table"]
    assert {path: path.stat().st_mtime_ns for path in stored[1:]} == times


def test_the_report_names_every_comparison_that_is_not_won(bench, pictures):
    a, b = pictures
    rows = [pair_metrics.measure_pair(bench, a, b, number) for number in (0, 1)]
    results = aggregation.collect_results(rows, SMALL)
    assert results["cascade_pairs"] == 1
    report = faithfulness_report.build_report(rows, SMALL, FolderContents((), (), ()))
    assert "Random weights from the top down" in [section.title for section in report.sections]
    table = faithfulness_report.tabulate_misses(results, SMALL)
    assert isinstance(table, Table)
    lost = [c for *_, c in faithfulness_report.iterate_comparisons(results) if c["verdict"] != "wins"]
    assert len(table.rows) == len(lost) > 0
    for layer in results["bilrp_against"].values():
        for others in layer.values():
            for result in others.values():
                if result:
                    result["verdict"] = "wins"
    assert faithfulness_report.tabulate_misses(results, SMALL) == "Nowhere: it wins every comparison."


def test_a_layer_that_does_not_notice_random_weights_is_named(bench, pictures):
    a, b = pictures
    results = aggregation.collect_results([pair_metrics.measure_pair(bench, a, b, 1)], SMALL)
    for value, expected in ((0.7, 2), (0.1, 0)):
        for layer in SMALL.layers:
            results["table"][str(layer)]["bilrp"]["randomisation"]["mean"] = value
        assert (
            faithfulness_report.describe_results(results, SMALL).count("all weights are random") == expected
        )


@pytest.mark.parametrize("given", [{"pairs": 0}, {"steps": 1}, {"layers": ()}, {"size": 16}, {"regions": 9}])
def test_what_cannot_work_is_refused_before_the_long_part(given):
    with pytest.raises(InputError):
        replace(SMALL, **given)
