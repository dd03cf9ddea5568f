"""Local steps keep a cone: padding, permutations, channel norms, matrices at each position, scales of the whole image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions
from bilrp.engine import executor as execute
from bilrp.engine import plan
from bilrp.engine.costs import all_schedules
from bilrp.engine.passes.channels_first import rewrite_channels_first
from bilrp.engine.program import pull, push
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from models import randomize_norms


class ConvNext(nn.Module):
    """Depthwise convolution, then a norm, two matrices and a layer's scale with channels last; patchify stem."""

    def __init__(self, *, back: bool = True) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm(6)
        self.deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)
        self.scale, self.back = nn.Parameter(torch.rand(6)), back

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem((x - 0.3) / 2.0).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        if not self.back:  # the output itself has its channels last
            return y + x.permute(0, 2, 3, 1)
        return (x + y.permute(0, 3, 1, 2)).mean((2, 3))


class Mobile(nn.Module):
    """Padding on one side only, depthwise and strided convolutions, ReLU6, a gate squeezed out of the whole image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, bias=False)
        self.deep, self.norm = nn.Conv2d(6, 6, 3, stride=2, groups=6), nn.BatchNorm2d(6)
        self.squeeze, self.excite = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)
        self.out = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(F.pad(x, (0, 1, 0, 1))))
        x = F.relu6(self.norm(self.deep(F.pad(x, (1, 2, 0, 1)))))
        x = x * torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return F.pad(self.out(x), (-1, 0, 0, -1)).flatten(1)


NETS = {
    "convnext": ConvNext,
    "convnext, channels last": lambda: ConvNext(back=False),
    "mobile": Mobile,
}
GAMMAS = {"lrp-0": 0.0, "gamma": 0.25}


def freeze_program(net: nn.Module, x: Tensor, gamma: float):
    return freeze(simplify(record(net, x)), composites.uniform(gamma))


def image(height: int = 10, width: int = 12) -> Tensor:
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("composite", GAMMAS)
@pytest.mark.parametrize("name", NETS)
def test_every_schedule_gives_the_parts_of_a_plain_pull(name: str, composite: str) -> None:
    net, x = randomize_norms(NETS[name]()), image()
    program = freeze_program(net, x, GAMMAS[composite])
    channels_first = rewrite_channels_first(program)
    count = program.result.numel()
    for spec in (regions.grid(3), regions.labels(torch.arange(120).reshape(10, 12) % 3)):
        partition = spec(x)
        seeds = torch.eye(count, dtype=x.dtype).reshape(count, *program.result.shape)
        expected = partition.pool(pull(program, seeds)).T
        context = plan.PlanContext(channels_first, partition, count)
        assert context.spatial_count > len(channels_first.links) - 3, "the whole net but its end is spatial"
        for schedule in all_schedules(context):
            parts = execute.execute_plan(context, plan.plan_for(context, schedule))[channels_first.output]
            torch.testing.assert_close(parts, expected, rtol=1e-9, atol=1e-10, msg=str(schedule))
        masks = partition.masks(torch.arange(partition.count), x.dtype)
        pushed = push(program, masks)[program.output].flatten(1)
        torch.testing.assert_close(pushed, expected, rtol=1e-9, atol=1e-10)


def test_the_maps_have_the_networks_own_derivative() -> None:
    """At γ = 0 a net of linear local steps is its own Jacobian."""

    class Straight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.matrix = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(F.pad((x - 1) * 2 / torch.tensor([1.0, 2.0, 4.0])[:, None, None], (2, -1, 0, 3)))
            return (self.matrix(y.permute(0, 2, 3, 1)) * 0.5).transpose(1, 3).flatten(1)

    net, x = Straight().double(), image(6, 7)
    decomposition = bilrp.decompose(net, x, composite=composites.uniform(0.0), regions=regions.features())
    jacobian = torch.autograd.functional.jacobian(net, x).reshape(-1, x.numel())
    torch.testing.assert_close(decomposition.parts, (jacobian * x.flatten()).T, rtol=1e-9, atol=1e-10)


def test_a_layer_inside_channels_last_steps_has_the_same_parts() -> None:
    net, x = randomize_norms(ConvNext()), image()
    inner = record(net, x)
    names = [step.op for step in inner.steps]
    number = inner.steps[names.index("gelu")].output
    encoder = bilrp.Encoder(net, layers=lambda tape, n: n)
    options = {"regions": 4, "composite": composites.uniform(0.25)}
    decomposition = bilrp.decompose(encoder, x, layers=[number], **options)[number]

    def until(x: Tensor) -> Tensor:
        x = net.first(net.stem((x - 0.3) / 2.0).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.gelu(net.up(net.norm(net.deep(x).permute(0, 2, 3, 1))))

    expected = bilrp.decompose(until, x, mode="pull", **options)
    torch.testing.assert_close(decomposition.embedding, expected.embedding)
    torch.testing.assert_close(decomposition.parts, expected.parts, rtol=1e-9, atol=1e-10)


def test_local_steps_cost_less_than_a_pass_for_each_region() -> None:
    """Counted: on a large image most of what a push of full tensors would take is left out."""
    x = image(64, 64)
    for build in (ConvNext, Mobile):
        program = rewrite_channels_first(freeze_program(randomize_norms(build()), x, 0.0))
        context = plan.PlanContext(program, regions.grid(4)(x), program.result.numel())
        full = plan.plan_for(context, plan.Schedule("push"))
        windowed = plan.plan_for(
            context, plan.Schedule("push", context.bottlenecks[-2], context.bottlenecks[-2])
        )
        assert windowed.flops < full.flops / 5
