"""The captions study: the truth that is drawn, the game by its definition, its report, and that it can be interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import bilrp
from bilrp.errors import InputError
from bilrp.progress import Progress
from bilrp.render.report import Report
from bilrp_studies.captions import caption_model, methods, pointing_game, report, retrieval, scenes, study
from bilrp_studies.captions.settings import CaptionsSettings
from bilrp_studies.common.cache import Cache


def draw_scene(count: int, *, named: int | None = None, seed: int = 0) -> scenes.Scene:
    return scenes.draw_scene(np.random.default_rng(seed), object_count=count, named_count=named or count)


@pytest.fixture(scope="module")
def untrained() -> caption_model.CaptionModel:
    return caption_model.init_model(3)


@pytest.fixture(scope="module", autouse=True)
def few_methods() -> Iterator[None]:
    """Runs of the study compare two methods; what each finds has a test of its own."""
    few = [each for each in methods.all_methods(1) if each.name in (methods.OUR_METHOD, "hidden states")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "all_methods", lambda path: few)
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CaptionsSettings:
    return CaptionsSettings(
        out=tmp_path_factory.mktemp("out"), steps=1, scenes=2, retrieval=8, integration_steps=1
    )


@pytest.fixture(scope="module")
def first(settings: CaptionsSettings, few_methods: None) -> Report:
    """One run of the whole study: the dearest thing here."""
    return study.run(settings)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_boxes_hold_their_objects_and_nothing_else_does(count: int) -> None:
    for seed in range(5):
        scene = draw_scene(count, seed=seed)
        # grey has three equal channels up to grain; every colour is far from it
        coloured = np.ptp(scene.pixels.astype(int), axis=2) > 90
        assert len(scene.objects) == count
        for item in scene.objects:
            top, left, bottom, right = item.box
            part = coloured[top:bottom, left:right].copy()
            for edge in (part[0], part[-1], part[:, 0], part[:, -1]):
                assert edge.any(), "a box is tight"
            middle = scene.pixels[top:bottom, left:right][part].mean(0) / 255
            assert np.abs(middle - scenes.COLORS[item.color]).max() < 0.08
            coloured[top:bottom, left:right] = False
        assert not coloured.any()
        assert len({t.color for t in scene.objects}) == len({t.shape for t in scene.objects}) == count


def test_words_go_with_the_object_they_name() -> None:
    for seed in range(10):
        scene = draw_scene(4, named=3, seed=seed)
        words = scene.caption.split()
        assert len(words) == len(scene.object_of_word) and set(words) <= set(scenes.VOCABULARY)
        for number, item in enumerate(scene.named_objects):
            named = [w for w, owner in zip(words, scene.object_of_word, strict=True) if owner == number]
            assert named == [item.color, item.shape] and item in scene.objects
        assert [o for o in scene.object_of_word if o is not None] == [0, 0, 1, 1, 2, 2]


def test_relations_are_true() -> None:
    for seed in range(20):
        one, other = (scene := draw_scene(2, seed=seed)).named_objects
        relation, reversed_relation = (
            scene.caption.split()[3],
            scenes.reverse_relations(scene.caption).split()[3],
        )
        (y, x), (v, u) = one.center, other.center
        holds = {"left": x < u, "right": x > u, "above": y < v, "below": y > v}
        assert holds[relation] and not holds[reversed_relation]


def test_a_caption_is_not_wrong_where_it_is_true() -> None:
    scene = draw_scene(3, named=1)
    another = draw_scene(4, seed=5)
    result = caption_model.match_captions([scene, replace(scene, named_objects=scene.objects), another])
    assert result[:2, :2].tolist() == [[True, True], [True, True]]
    assert not result[:2, 2].any() and result[2, 2]


def test_the_game_by_hand() -> None:
    neighbours = scenes.SceneObject("red", "circle", (0, 0, 16, 16))
    far = scenes.SceneObject("blue", "square", (40, 40, 64, 64))
    scene = scenes.Scene(np.zeros((64, 64, 3), np.uint8), (neighbours, far), (neighbours, far))
    assert scene.caption == "a red circle left of a blue square"
    relevance = torch.zeros(64, 8)
    relevance[9, 1] = 3.0  # red, in the circle's box
    relevance[20, 2] = 1.0  # circle, outside
    relevance[0, 7] = 2.0  # square, in the circle's box
    relevance[63, 0] = 9.0  # a word of no object
    assert pointing_game.score_pointing(relevance, scene) == (0.5, 0.375)
    assert pointing_game.score_pointing(-relevance, scene) == (0.0, 0.0)
    assert pointing_game.patches_in_box(far.box).sum() == 9


def test_padding_changes_nothing(untrained: caption_model.CaptionModel) -> None:
    captions = ["a red circle", "a red circle left of a blue square"]
    alone = torch.cat([untrained.text_encoder(untrained.read_caption(caption).x) for caption in captions])
    torch.testing.assert_close(untrained.embed_captions(captions), alone)


def test_every_method_looks_at_patches_and_words(untrained: caption_model.CaptionModel) -> None:
    scene = draw_scene(2)
    words = scene.caption.split()
    with torch.no_grad():
        for method in methods.all_methods(1):
            explanation = method.explain(untrained, scene)
            assert explanation.shape == (64, len(words)) and explanation.isfinite().all(), method.name
            assert explanation.abs().sum() > 0, method.name


def test_the_towers_explain_exactly(untrained: caption_model.CaptionModel) -> None:
    """Push = pull on both towers, patches against words; hidden states add up but for the heads' biases."""
    scene = draw_scene(2)
    pushed, pulled = (
        bilrp.explain(untrained.dual_encoder, scene, scene.caption, mode=mode, similarity="dot")
        for mode in ("push", "pull")
    )
    torch.testing.assert_close(pushed.relevance, pulled.relevance, rtol=1e-3, atol=1e-6)
    assert pushed.b.regions.names == tuple(scene.caption.split())
    with torch.no_grad():
        places = untrained.image_encoder.hidden_states(scenes.stack_pixels([scene])).mean(1)
        texts = untrained.text_encoder.hidden_states(untrained.read_caption(scene.caption).x).mean(1)
        heads = places @ untrained.image_encoder.head.weight.T, texts @ untrained.text_encoder.head.weight.T
        torch.testing.assert_close(
            methods.hidden_state_products(untrained, scene).sum(), (heads[0] * heads[1]).sum()
        )


def test_training_is_the_same_each_time_and_learns() -> None:
    once, second = (
        caption_model.load_or_train(steps=6, seed=1, cache=Cache(None), bar=Progress()) for _ in range(2)
    )
    batch = next(caption_model.draw_batches(9, 1))
    with torch.no_grad():
        before, after, same = (
            float(caption_model.contrastive_loss(m, batch))
            for m in (caption_model.init_model(1), once, second)
        )
    assert after == pytest.approx(same, rel=1e-5) and after < before


def test_the_whole_study_and_its_report(settings: CaptionsSettings, first: Report) -> None:
    first.write(settings.out)
    results = json.loads((settings.out / "results.json").read_text())
    for games in results["means"].values():
        assert set(games) == set(report.GAMES)
        for by_count in games.values():
            assert set(by_count) == {"1", "2", "3", "4"}
            for result in by_count.values():
                assert set(result) == {methods.OUR_METHOD, "hidden states", pointing_game.CHANCE}
                assert all(0 <= low <= mean <= high <= 1 for mean, low, high in result.values())
    assert results["retrieval"]["of"] == 8 and not results["retrieval"]["learnt"]
    page = (settings.out / "report.html").read_text()
    assert "has NOT learnt its task" in page and "scene-1.png" in page and "pointing.png" in page


def test_an_interrupted_study_goes_on(
    settings: CaptionsSettings, first: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("made twice")

    monkeypatch.setattr(study, "score_scene", never)
    monkeypatch.setattr(caption_model, "train", never)
    second = study.run(settings)
    assert json.dumps(second.results["values"]) == json.dumps(first.results["values"])
    with pytest.raises(AssertionError, match="made twice"):
        study.run(replace(settings, seed=1))


def test_losses_and_doubts_are_said() -> None:
    result = {
        methods.OUR_METHOD: [0.5] * 6,
        "other": [0.75] * 6,
        "worse": [0.0] * 6,
        pointing_game.CHANCE: [0.1] * 6,
    }
    rivals = report.compare_with_others(result, measure="pointing", game="four drawn", count=3, seed=0)
    means = {"pointing": {"four drawn": {3: {methods.OUR_METHOD: (0.5, 0.5, 0.5)}}}}
    learnt = retrieval.RetrievalResult(0.9, (0.9,), 100, 90, 0.5)
    message = report.describe_results(means, rivals, learnt)
    assert (
        "clearly better in 1. It loses clearly to other by 0.25 (four objects drawn, some named, 3)."
        in message
    )
    assert "NOT learnt" not in message and "share" not in message
    shares = report.compare_with_others(result, measure="share", game="four drawn", count=3, seed=0)
    message = report.describe_results(means, [*rivals, *shares], learnt)
    assert message.endswith(
        "By the share of relevance in the box it is behind other in 1 of 2, clearly in 1."
    )
    assert report.describe_results(means, rivals, replace(learnt, accuracy=0.2)).startswith(
        "The model has NOT learnt"
    )


def test_bad_settings_raise_one_line_errors(untrained: caption_model.CaptionModel) -> None:
    for wrong in ({"steps": 0}, {"scenes": 1}, {"retrieval": 1}, {"integration_steps": 0}, {"seed": -1}):
        with pytest.raises(InputError, match="give at least"):
            CaptionsSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no caption has the word 'cat'"):
        bilrp.explain(untrained.dual_encoder, draw_scene(1), "a red cat", similarity="dot")
    with pytest.raises(InputError, match="reads drawn scenes"):
        bilrp.decompose(untrained.dual_encoder.image, "scene.png")
    for bad in ("", " ".join(["a"] * 40)):
        with pytest.raises(InputError, match="a caption has from one to"):
            untrained.read_caption(bad)
