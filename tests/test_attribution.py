"""One-sided attribution: one pull gives what the parts give, and adds up to the score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bilrp
from bilrp.attribution import Attribution, Span
from bilrp.encoder import DualEncoder
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Text
from dual_encoder_folders import PAIRS
from models import mlp, randomize_norms, vgg_like
from text_folders import ARCHITECTURES


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return randomize_norms(nn.Sequential(vgg_like(), nn.AdaptiveAvgPool2d(2), nn.Flatten()))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> bilrp.Encoder:
    folder = ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"))
    return bilrp.encoders.sentence(folder, dtype=torch.float64)


def similarity_vectors(x: Tensor, y: Tensor) -> dict[str, tuple[object, Tensor]]:
    matrix = torch.randn(len(x), len(y), dtype=x.dtype)
    w = bilrp.similarity.random_projection(5, len(x), like=x)
    return {
        "dot": ("dot", y),
        "cosine": ("cosine", y / (x.norm() * y.norm())),
        "bilinear": (bilrp.similarity.bilinear(matrix), matrix @ y),
        "projected": (bilrp.similarity.projected(5), w.T @ (w @ y)),
    }


def check_against_parts(
    result: Attribution, x: bilrp.Decomposition, y: bilrp.Decomposition, vector: Tensor, score: float
) -> None:
    assert torch.allclose(result.values, x.parts @ vector, rtol=0, atol=1e-9)
    assert result.score == pytest.approx(score, abs=1e-12)
    assert float(result.values.sum()) + result.unattributed == pytest.approx(score, abs=1e-9)
    assert result.regions.count == x.regions.count


@pytest.mark.parametrize("name", ["dot", "cosine", "bilinear", "projected"])
def test_values_are_products_of_parts_with_the_similarity_s_vector(name: str) -> None:
    net, (a, b) = cnn(), torch.rand(2, 1, 3, 24, 24, dtype=torch.float64)
    x, y = (bilrp.decompose(net, each, regions=8) for each in (a, b))
    similarity, vector = similarity_vectors(x.embedding, y.embedding)[name]
    attribution = bilrp.attribute(net, a, b, similarity=similarity, regions=8)  # type: ignore[arg-type]
    expected = bilrp.explain(net, a, b, similarity=similarity, regions=8)  # type: ignore[arg-type]
    check_against_parts(attribution, x, y, vector, expected.score)


def test_the_relation_to_the_two_sided_explanation() -> None:
    net, (a, b) = cnn(), torch.rand(2, 1, 3, 24, 24, dtype=torch.float64)
    both = bilrp.explain(net, a, b, similarity="dot", regions=8)
    one = bilrp.attribute(net, a, b, similarity="dot", regions=8)
    rest = both.a.parts @ both.b.unattributed
    assert torch.allclose(one.values, both.marginals()[0] + rest, rtol=0, atol=1e-9)
    assert both.unattributed == pytest.approx(one.unattributed + float(rest.sum()), abs=1e-9)


def test_maxsim_holds_the_best_tokens_fixed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    a, b = torch.randn(1, 5, 4, dtype=torch.float64), torch.randn(1, 7, 4, dtype=torch.float64)
    both, one = (call(net, a, b, similarity="maxsim") for call in (bilrp.explain, bilrp.attribute))
    assert torch.allclose(one.values, both.marginals()[0], rtol=0, atol=1e-9)  # type: ignore[union-attr]
    assert one.score == pytest.approx(both.score) and one.unattributed == pytest.approx(0, abs=1e-9)


def test_a_distance_is_not_linear_and_is_refused() -> None:
    a, b = torch.rand(2, 1, 6, dtype=torch.float64)
    with pytest.raises(InputError, match=r"squared_distance is not linear.*bilrp\.explain"):
        bilrp.attribute(randomize_norms(mlp()), a, b, similarity="squared_distance")


def test_inputs_vectors_and_lists_give_the_same_columns() -> None:
    net = randomize_norms(mlp())
    x, *ys = torch.rand(4, 1, 6, dtype=torch.float64)
    with torch.no_grad():
        vectors = torch.cat([net(y) for y in ys])
    singles = [bilrp.attribute(net, x, y) for y in ys]
    values = torch.stack([each.values for each in singles], 1)
    for many in (vectors, vectors.numpy(), ys, list(vectors), [vectors[0], ys[1], vectors[2]], tuple(ys)):
        attribution = bilrp.attribute(net, x, many)
        assert torch.allclose(attribution.values, values, rtol=0, atol=1e-12)
        assert isinstance(attribution.score, Tensor) and attribution.score.tolist() == pytest.approx(
            [s.score for s in singles]
        )
        assert torch.allclose(
            attribution.values.sum(0) + attribution.unattributed, attribution.score, rtol=0, atol=1e-12
        )
    one = bilrp.attribute(net, x, vectors[0])
    assert one.values.dim() == 1 and torch.allclose(one.values, values[:, 0], rtol=0, atol=1e-12)
    assert bilrp.attribute(net, x, vectors[:1]).values.shape == (6, 1)
    assert bilrp.attribute(net, x, ys[:1]).values.shape == (6, 1)


def test_targets_that_do_not_fit_are_refused() -> None:
    net, x = randomize_norms(mlp()), torch.rand(1, 6, dtype=torch.float64)
    with pytest.raises(MismatchError, match="4 and 3 coordinates"):
        bilrp.attribute(net, x, torch.rand(3))
    with pytest.raises(MismatchError, match="4 coordinates"):
        bilrp.attribute(net, x, torch.rand(2, 3))
    with pytest.raises(InputError, match="at least one"):
        bilrp.attribute(net, x, [])
    with pytest.raises(InputError, match="to compare with has NaN"):
        bilrp.attribute(net, x, torch.full((4,), torch.nan))


def test_one_sweep_serves_every_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """One recorded run and one pull, whatever the number of regions and vectors; y is not recorded."""
    from bilrp.engine import executor

    sweeps: list[int] = []
    pull = executor.pull

    def count(program: object, cotangents: Tensor) -> Tensor:
        sweeps.append(len(cotangents))
        return pull(program, cotangents)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "pull", count)
    net, (x, y) = randomize_norms(mlp()), torch.rand(2, 1, 6, dtype=torch.float64)
    bilrp.attribute(net, x, y)
    bilrp.attribute(net, x, torch.rand(9, 4))
    assert sweeps == [1, 9]


def test_float32_is_close_to_the_parts() -> None:
    net, (a, b) = cnn().float(), torch.rand(2, 1, 3, 24, 24)
    x, y = (bilrp.decompose(net, each, regions=8) for each in (a, b))
    attribution = bilrp.attribute(net, a, b, regions=8)
    vector = y.embedding / (x.embedding.norm() * y.embedding.norm())
    assert float((attribution.values - x.parts @ vector).abs().max()) < 1e-6


@pytest.mark.parametrize("name", ["uniform", "secant", "attnlrp"])
def test_any_composite(name: str) -> None:
    composite = getattr(bilrp.composites, name)(*[0.0] * (name == "uniform"))
    net, (a, b) = cnn(), torch.rand(2, 1, 3, 24, 24, dtype=torch.float64)
    x = bilrp.decompose(net, a, composite=composite)
    with torch.no_grad():
        target = net(b)[0]
    attribution = bilrp.attribute(net, a, b, similarity="dot", composite=composite)
    assert torch.allclose(attribution.values, x.parts @ target, rtol=0, atol=1e-9)
    assert float(attribution.values.sum()) + attribution.unattributed == pytest.approx(
        float(x.embedding @ target), abs=1e-9
    )


def test_texts_give_spans_of_the_original_text(bert: bilrp.Encoder) -> None:
    text, other = "The  kittens rested — on a rug!", "A cat sat on the mat."
    attribution = bilrp.attribute(bert, text, other)
    x, y = bilrp.decompose(bert, text), bilrp.decompose(bert, other)
    vector = y.embedding / (x.embedding.norm() * y.embedding.norm())
    check_against_parts(attribution, x, y, vector, bilrp.explain(bert, text, other).score)
    spans = attribution.spans()
    assert [text[s.start : s.end] for s in spans] == [s.text for s in spans]
    assert [s.text for s in spans][:2] == ["The", "kittens"] and len(spans) == attribution.regions.count - 2
    assert [s.weight for s in spans] == attribution.values[attribution.span_regions].tolist()
    many = bilrp.attribute(bert, text, [other, text])
    assert many.spans(1)[0] == Span(0, 3, "The", float(many.values[many.span_regions[0], 1]))
    with pytest.raises(InputError, match="column=0"):
        many.spans()


def test_under_inference_mode(bert: bilrp.Encoder) -> None:
    expected = bilrp.attribute(bert, "A cat sat", "The dogs run").values
    with torch.inference_mode():
        attribution = bilrp.attribute(bert, "A cat sat", "The dogs run").values
    assert torch.allclose(attribution, expected)


def test_an_image_and_a_text(tmp_path: Path) -> None:
    dual = bilrp.encoders.clip(PAIRS[0].save(tmp_path), dtype=torch.float64)
    assert isinstance(dual, DualEncoder)
    image, text = (
        np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8),
        "A cat sat on the mat.",
    )
    both = bilrp.explain(dual, image, text)
    for one, side, rest in (
        (bilrp.attribute(dual, image, text), both.a, both.b),
        (bilrp.attribute(dual, text, image), both.b, both.a),
    ):
        vector = rest.embedding / (side.embedding.norm() * rest.embedding.norm())
        check_against_parts(one, side, rest, vector, both.score)
    several = bilrp.attribute(dual, text, [image, "The dogs run", both.a.embedding])
    assert torch.allclose(several.values[:, 0], several.values[:, 2], rtol=0, atol=1e-9)
    assert isinstance(several.view, Text)


def test_plots(bert: bilrp.Encoder, tmp_path: Path) -> None:
    net = cnn()
    picture = bilrp.attribute(net, *torch.rand(2, 1, 3, 24, 24, dtype=torch.float64), regions=8)
    features = bilrp.attribute(randomize_norms(mlp()), *torch.rand(2, 1, 6, dtype=torch.float64))
    words = bilrp.attribute(bert, "The kittens rested on a rug! " * 4, "A cat")
    for number, result in enumerate((picture, features, words)):
        path = tmp_path / f"{number}.png"
        result.plot(title="Why?").savefig(path)
        assert path.stat().st_size > 1000
    with pytest.raises(InputError, match="spans"):
        picture.spans()
