"""The real stereo pair at layers 17 and 31: the package in float32 against the plain float64 reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bilrp
import vgg_reference as reference
from bilrp.encoders import images, vgg16, vgg_weights

skdata = pytest.importorskip("skimage.data", reason="the stereo pair is scikit-image's")

SIDES = ("motorcycle_left.png", "motorcycle_right.png")


@pytest.fixture(scope="module")
def tensors(data: Path):
    return vgg_weights.from_file(data / "vgg16" / "vgg16_features.safetensors")


def stereo(size: int) -> list[torch.Tensor]:
    folder = Path(skdata.__file__).parent
    return [images.read(folder / name, size=size) for name in SIDES]


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).abs().max() / expected.abs().max())


def active(inputs, tensors, layer) -> torch.Tensor:
    """Coordinates that matter to the dot product: φ_m φ'_m ≠ 0."""
    left, right = (reference.forward(x.double(), tensors, layer)[-1].flatten() for x in inputs)
    return (left * right).nonzero().flatten()


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("layer", "size", "count"), [(17, 64, 24), (31, 64, 24), (17, 128, 8), (31, 128, 8)])
def test_parts_are_the_references(layer, size, count, tensors):
    inputs = stereo(size)
    explanation = bilrp.explain(vgg16(layer, weights=tensors), *inputs, similarity="dot")
    index = active(inputs, tensors, layer)
    index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(layer))[:count]]
    sides = []
    for x, side in zip(inputs, (explanation.a, explanation.b), strict=True):
        R, values = reference.relevance(x, tensors, layer, index)
        assert error(side.embedding[index], values) < 1e-4
        assert error(side.parts[:, index], reference.pool_relevance(R).T) < 1e-4
        sides.append(reference.pool_relevance(R))
    partial = explanation.a.parts[:, index] @ explanation.b.parts[:, index].T
    assert error(partial, sides[0].T @ sides[1]) < 1e-4


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("layer", "size"), [(17, 16), (31, 48)])
def test_relevance_over_every_coordinate(layer, size, tensors):
    inputs = stereo(size)
    explanation = bilrp.explain(vgg16(layer, weights=tensors), *inputs, similarity="dot")
    index = active(inputs, tensors, layer)
    left, right = (reference.pool_relevance(reference.relevance(x, tensors, layer, index)[0]) for x in inputs)
    assert error(explanation.relevance, left.T @ right) < 1e-4


@pytest.mark.data
def test_the_check_would_notice_zero_based_layers(tensors):
    """The authors' indices are one off: the first convolution of blocks 3 to 5 gets its neighbour's γ."""
    (x, _) = stereo(32)
    index = active([x, x], tensors, 17)[::500]
    right = reference.pool_relevance(reference.relevance(x, tensors, 17, index)[0])
    shifted = lambda layer: reference.paper_gamma(layer - 1)  # noqa: E731
    wrong = reference.pool_relevance(reference.relevance(x, tensors, 17, index, gamma=shifted)[0])
    assert error(wrong, right) > 1e-2
