"""VGG-16 is torchvision's, layer by layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bilrp
from bilrp.encoders import vgg, vgg_weights
from bilrp.errors import InputError


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    by_name = {}
    for number, inputs, outputs in vgg_weights.CONVOLUTIONS:
        scale = (2 / (9 * inputs)) ** 0.5
        by_name[f"features.{number}.weight"] = scale * torch.randn(outputs, inputs, 3, 3, generator=generator)
        by_name[f"features.{number}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
    return by_name


def test_poolings_are_the_papers_layers():
    network = vgg.VGG16(31)
    kinds = {i + 1: type(m) for i, m in enumerate(network.features)}
    assert (
        [i for i, kind in kinds.items() if kind is nn.MaxPool2d]
        == [5, 10, 17, 24, 31]
        == list(vgg.POOLING_LAYERS)
    )
    assert [i for i, kind in kinds.items() if kind is nn.Conv2d] == [
        1, 3, 6, 8, 11, 13, 15, 18, 20, 22, 25, 27, 29,
    ]  # fmt: skip


@pytest.mark.parametrize("layer", range(1, 32))
def test_every_layer_cuts_where_it_says(layer, tensors):
    network = vgg.load_module(layer, weights=tensors)
    assert len(network.features) == layer
    assert not network.training
    assert not any(p.requires_grad for p in network.parameters())
    assert all(name in tensors for name in network.state_dict())


def test_forward_is_the_plain_chain(tensors):
    x = torch.randn(1, 3, 32, 40)
    expected = x
    for number, *_ in vgg_weights.CONVOLUTIONS[:7]:
        weight, bias = tensors[f"features.{number}.weight"], tensors[f"features.{number}.bias"]
        expected = F.relu(F.conv2d(expected, weight, bias, padding=1))
        if number in (2, 7, 14):
            expected = F.max_pool2d(expected, 2)
    torch.testing.assert_close(vgg.load_module(17, weights=tensors)(x), expected)


def test_given_tensors_are_copied(tensors):
    network = vgg.load_module(3, weights=tensors)
    with torch.no_grad():
        bias = network.get_parameter("features.0.bias").add_(1)
    assert not torch.equal(bias, tensors["features.0.bias"])


@pytest.mark.parametrize("layer", [0, -1, 4, 31])
def test_sweeps_name_layers_of_the_network(layer, tensors):
    """Layer 0 must not wrap around to the last one."""
    x = torch.zeros(1, 3, 16, 16)
    with pytest.raises(InputError, match="has layers 1 … 3"):
        bilrp.decompose(bilrp.encoders.vgg16(3, weights=tensors), x, layers=[layer])


@pytest.mark.parametrize("layer", [0, 32, -1])
def test_layers_outside_are_refused(layer):
    with pytest.raises(InputError, match="layers 1 … 31"):
        vgg.VGG16(layer)


def test_images_too_small_for_a_layer_are_refused(tensors):
    with pytest.raises(InputError, match="at least 32 pixels"):
        vgg.vgg16(31, weights=tensors, size=24)
    with pytest.raises(InputError, match="at least 8 pixels"):
        vgg.vgg16(17, weights=tensors, size=(64, 7))
    assert vgg.vgg16(17, weights=tensors, size=8).read is not None
