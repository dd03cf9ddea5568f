"""graded: γ by the size of a step's feature map, from the paper's schedule, with biases distributed to inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import bilrp
from bilrp import composites, rules
from bilrp.errors import RuleError
from bilrp.rules.composites import GradedBias, format_call, paper_gamma
from bilrp.trace.recorder import record
from models import randomize_norms
from vision_folders import ARCHITECTURES


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


@pytest.fixture
def net() -> nn.Module:
    """Maps of 16, 8, 4 and 2 pixels, a layer without stride among them, and a linear head."""
    layers = [_block(3, 4, 2), _block(4, 4, 1), _block(4, 5, 2), _block(5, 5, 2), _block(5, 6, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)]
    return randomize_norms(nn.Sequential(*layers, *head).double())


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(1, 3, 32, 32, dtype=torch.float64)


def test_gamma_falls_with_the_size_of_the_map(net: nn.Module, x: torch.Tensor) -> None:
    composite = composites.graded((0.5, 0.25, 0.1, 0.0), bias="inputs")
    table = [row.rule for row in bilrp.ops(net, x, composite=composite) if row.rule.startswith("gamma")]
    gammas = [0.5, 0.5, 0.25, 0.1, 0.0, 0.0]  # the head counts as the smallest map
    assert table == [rules.gamma(value, bias="inputs").name for value in gammas]


def test_nothing_is_unattributed(net: nn.Module, x: torch.Tensor) -> None:
    options: list[tuple[GradedBias, torch.Tensor]] = [
        (
            "position",
            net.get_parameter("7.bias").detach(),
        ),  # the head's bias comes after the last feature map
        ("inputs", torch.zeros(4)),
    ]
    for bias, expected in options:
        decomposition = bilrp.decompose(net, x, regions=8, composite=composites.graded(bias=bias))
        left = decomposition.embedding - decomposition.parts.sum(0)
        torch.testing.assert_close(left, expected.to(left), rtol=0, atol=1e-12)
    left = bilrp.decompose(net, x, regions=8, composite=composites.graded(bias="rest"))
    assert left.unattributed.abs().max() > 1e-3 * left.embedding.abs().max()


@pytest.mark.parametrize("bias", ["position", "inputs", "rest"])
def test_push_equals_pull(net: nn.Module, x: torch.Tensor, bias: GradedBias) -> None:
    composite = composites.graded(bias=bias)
    pushed = bilrp.decompose(net, x, regions=8, composite=composite, mode="push").parts
    pulled = bilrp.decompose(net, x, regions=8, composite=composite, mode="pull").parts
    torch.testing.assert_close(pushed, pulled, rtol=1e-9, atol=1e-12)


def test_one_gamma_is_the_same_everywhere(net: nn.Module, x: torch.Tensor) -> None:
    graded = bilrp.decompose(net, x, regions=8, composite=composites.graded((0.25,), bias="inputs"))
    uniform = bilrp.decompose(net, x, regions=8, composite=composites.bias_to_inputs(0.25))
    assert torch.equal(graded.parts, uniform.parts)


def test_on_vgg_it_is_the_schedule_of_the_paper(random_weights: dict[str, torch.Tensor]) -> None:
    from bilrp.encoders.vgg import VGG16

    net = VGG16(31)
    net.load_state_dict(random_weights)
    tape = record(net, torch.rand(1, 3, 64, 64))
    bound = composites.graded((0.5, 0.25, 0.1, 0.0), bias="rest").bind
    assert bound is not None
    choose = bound(tape)
    for step in tape.steps:
        if composites.is_weighted(step):
            number = int(step.name.split(".")[-1]) + 1
            rule = choose(step)
            assert rule is not None and rule.name == rules.gamma(paper_gamma(number)).name


def test_it_can_be_extended(net: nn.Module, x: torch.Tensor) -> None:
    composite = composites.first_match(("0.0", rules.flat()), otherwise=composites.graded())
    table = [row.rule for row in bilrp.ops(net, x, composite=composite)]
    assert table[0] == "flat" and "gamma(0.25, bias=inputs)" in table


def test_how_it_is_written_in_a_call() -> None:
    assert format_call(composites.graded()) == "bilrp.composites.graded((0.5, 0.25, 0.1, 0))"
    assert eval(format_call(composites.graded((0.1,)))).name == "graded(0.1)"


def test_wrong_arguments_say_what_to_do(x: torch.Tensor) -> None:
    with pytest.raises(RuleError, match="at least one gamma"):
        composites.graded(())
    with pytest.raises(RuleError, match="gamma"):
        composites.graded((-1.0,))
    with pytest.raises(RuleError, match="whole tape"):
        composites.graded()(record(nn.Conv2d(3, 2, 3).double(), x).steps[0])


def test_position_adds_the_remainder_of_each_position_to_the_region_there(
    net: nn.Module, x: torch.Tensor
) -> None:
    """By hand: a 2×2 map of a 32×32 image, so that regions of 16 pixels are its positions."""
    assert isinstance(net, nn.Sequential)
    composite = composites.graded()
    left = composites.Composite(
        "left", composites.first_match(otherwise=composite).choose_rule, None, composite.bind
    )
    full = bilrp.decompose(net, x, regions=16, composite=composite)
    without = bilrp.decompose(net, x, regions=16, composite=left)
    remainder = bilrp.decompose(net[:5], x, regions=16, composite=left).unattributed.reshape(6, 4)
    expected = without.parts + (net.get_parameter("7.weight") @ remainder / 4).T
    torch.testing.assert_close(full.parts, expected.detach(), rtol=1e-9, atol=1e-12)


def test_position_follows_regions_that_are_smaller_and_leave_something_out(
    net: nn.Module, x: torch.Tensor
) -> None:
    """Parts of a union are the sum of parts; regions outside the partition keep their share unattributed."""
    fine = bilrp.decompose(net, x, regions=4, composite=composites.graded())
    coarse = bilrp.decompose(net, x, regions=16, composite=composites.graded())
    blocks = fine.parts.reshape(2, 4, 2, 4, -1).sum((1, 3)).reshape(4, -1)
    torch.testing.assert_close(blocks, coarse.parts, rtol=1e-9, atol=1e-12)
    labels = torch.full((3, 32, 32), -1)
    labels[:, :16, :16] = 0
    corner = bilrp.decompose(net, x, regions=labels, composite=composites.graded())
    torch.testing.assert_close(corner.parts[0], coarse.parts[0], rtol=1e-9, atol=1e-12)


def test_one_pull_gives_the_products_of_the_parts(net: nn.Module, x: torch.Tensor) -> None:
    """Remainders by position are part of a backward sweep too."""
    decomposition = bilrp.decompose(net, x, regions=8, composite=composites.graded())
    vector = torch.randn(4, dtype=torch.float64)
    attribution = bilrp.attribute(net, x, vector, similarity="dot", regions=8, composite=composites.graded())
    torch.testing.assert_close(attribution.values, decomposition.parts @ vector, rtol=1e-9, atol=1e-12)


class Dense(nn.Module):
    """Two dense blocks as in DenseNet: each layer reads all maps before it, and a transition halves the side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _block(3, 4, 2)
        self.layers = nn.ModuleList([_block(4, 4, 1), _block(8, 4, 1), _block(6, 4, 1), _block(10, 4, 1)])
        self.transition = nn.Sequential(nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 6, 1), nn.AvgPool2d(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for number, layer in enumerate(self.layers):
            x = self.transition(x) if number == 2 else x
            x = torch.cat([x, layer(x)], dim=1)
        return x.mean((2, 3))


def build_regnet() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 2, 1], groups_width=8
    )
    return Pooled(transformers.RegNetModel(config))


class Pooled(nn.Module):
    """A model of transformers as a function of pixels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).pooler_output.flatten(1)


BATCH_NORM_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "densenet": Dense,
    "regnet": build_regnet,
    **{
        each.name: lambda each=each: Pooled(each.model())
        for each in ARCHITECTURES
        if each.name in ("resnet", "efficientnet", "mobilenet_v1", "mobilenet_v2")
    },
}


@pytest.mark.parametrize("name", BATCH_NORM_NETWORKS)
def test_networks_with_batch_norm_are_graded_by_default_and_add_up(name: str) -> None:
    """Random weights: this says that it runs and adds up, not that matches are in the right place."""
    torch.manual_seed(0)
    net = randomize_norms(BATCH_NORM_NETWORKS[name]().double().eval().requires_grad_(False))
    decomposition = bilrp.decompose(net, torch.randn(1, 3, 64, 64, dtype=torch.float64), regions=32)
    assert decomposition.origin["composite"] == composites.graded().name
    assert float(decomposition.unattributed.abs().max()) < 1e-10 * float(decomposition.embedding.abs().max())
    assert float(decomposition.parts.abs().amin(0).max()) > 0  # every region has a part


class FrozenNorm(nn.Module):
    """Batch norm as torchvision's FrozenBatchNorm2d writes it: a product and a sum with constants."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        for name, value in (("scale", scale), ("shift", norm.bias - norm.running_mean * scale)):
            self.register_buffer(name, value.detach().reshape(1, -1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.get_buffer("scale") + self.get_buffer("shift")


def test_batch_norm_under_another_name_is_graded_too(net: nn.Module, x: torch.Tensor) -> None:
    """Folded into convolutions it has the same parts, as a product and a sum nothing is left; uniform(0.25) leaves most."""
    assert isinstance(net, nn.Sequential)
    blocks: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []
    for block in list(net)[:5]:
        assert isinstance(block, nn.Sequential)
        conv, norm = block[0], block[1]
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        blocks.append((conv.eval(), norm.eval()))
    layers = {
        "batch norm": [nn.Sequential(conv, norm) for conv, norm in blocks],
        "folded": [fuse_conv_bn_eval(conv, norm) for conv, norm in blocks],
        "frozen": [nn.Sequential(conv, FrozenNorm(norm)) for conv, norm in blocks],
    }
    networks = {
        name: nn.Sequential(
            *(nn.Sequential(each, nn.ReLU()) for each in every), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        for name, every in layers.items()
    }
    decompositions = {name: bilrp.decompose(each.eval(), x, regions=8) for name, each in networks.items()}
    for name, each in decompositions.items():
        assert each.origin["composite"] == composites.graded().name, name
        torch.testing.assert_close(each.embedding, decompositions["batch norm"].embedding)
        torch.testing.assert_close(each.parts.sum(0), each.embedding, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        decompositions["folded"].parts, decompositions["batch norm"].parts, rtol=1e-9, atol=1e-12
    )
    flat = bilrp.decompose(networks["frozen"], x, regions=8, composite=composites.uniform(0.25))
    assert flat.unattributed.norm() > 0.5 * flat.embedding.norm()


@pytest.mark.parametrize(("name", "expected"), [("convnext", "uniform(0.25)"), ("shallow", "uniform(0.25)")])
def test_networks_without_evidence_for_falling_gamma_keep_one_gamma(name: str, expected: str) -> None:
    networks = {
        "convnext": lambda: Pooled(next(each for each in ARCHITECTURES if each.name == "convnext").model()),
        "shallow": lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), nn.Flatten()
        ),
    }
    decomposition = bilrp.decompose(networks[name]().eval(), torch.randn(1, 3, 64, 64), regions=32)
    assert decomposition.origin["composite"] == expected


def test_linear_layers_on_positions_have_the_depth_of_their_map() -> None:
    """ConvNeXt multiplies (1, H, W, C) by matrices; its own default is uniform(0.25), without evidence for another."""
    net = Pooled(next(each for each in ARCHITECTURES if each.name == "convnext").model().double().eval())
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    rows = bilrp.ops(net, x, composite=composites.graded((0.5, 0.0)))
    linear = {row.name: row.rule for row in rows if "pwconv" in row.name}
    expected = {0: "gamma(0.5, bias=inputs)", 1: "gamma(0)"}
    assert len(linear) == 4
    for name, rule in linear.items():
        assert rule == expected["stages.1" in name], (name, rule)
