"""Pulling tile by tile gives what pulling everything gives, and is only done where it pays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp.engine.executors import tiles
from bilrp.engine.program import INPUT, Program, pull_to
from bilrp.rules.composites import uniform
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify


def freeze_program(net: nn.Module, x: torch.Tensor, gamma: float) -> Program:
    with torch.no_grad():
        return freeze(simplify(record(net.double(), x), keep=frozenset()), uniform(gamma), None)


def spots(program: Program, count: int = 3) -> torch.Tensor:
    """A few coordinates, each with two places of its own, one of them at a corner of the image."""
    cotangents = torch.zeros(count, *program.result.shape, dtype=torch.float64)
    height, width = program.result.shape[-2:]
    for i in range(count):
        cotangents[i, 0, :, (5 * i + 2) % height, (11 * i + 3) % width] = 1.0
        cotangents[i, 0, i % cotangents.shape[2], -(i % 2), -1] = -2.0
    return cotangents


NETS = {
    "stride": nn.Sequential(
        nn.Conv2d(1, 4, 6, stride=2, padding=2), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)
    ),
    "no gates": nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 5, padding=2)),
    "dilation": nn.Sequential(nn.Conv2d(1, 4, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(4, 2, 1)),
    "groups": nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2, padding=1), nn.ReLU()
    ),
    "activation": nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3, padding=1)),
}


@pytest.mark.parametrize("gamma", [0.0, 0.5])
@pytest.mark.parametrize("name", NETS)
def test_tiles_are_exact(name, gamma):
    x = torch.randn(1, 1, 90, 117, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    program = freeze_program(NETS[name], x, gamma)
    assert tiles.count_chain_links(program) == len(program.links)
    pulled = tiles.pull_chain(program.links, spots(program))
    torch.testing.assert_close(pulled, pull_to(program, spots(program))[INPUT], rtol=1e-10, atol=1e-12)


def test_a_closed_gate_hides_what_arrives_there():
    x = torch.zeros(1, 1, 64, 64, dtype=torch.float64)
    x[..., :8, :8] = 1.0
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.ReLU())
    program = freeze_program(net, x, 0.0)
    everywhere = torch.ones(1, *program.result.shape, dtype=torch.float64)
    assert tiles.find_occupied_tiles(program.links[-1], everywhere)[:, 1:].max() <= 1


def test_a_value_used_twice_ends_the_chain():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x):
            y = torch.relu(self.one(x))
            return y + self.two(y)

    assert (
        tiles.count_chain_links(freeze_program(Twice(), torch.rand(1, 1, 16, 16, dtype=torch.float64), 0.0))
        == 1
    )


def test_decompositions_by_tiles_equal_those_of_other_plans():
    class Corners(nn.Module):
        """One coordinate for each corner of a feature map."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 5, stride=2, padding=2)

        def forward(self, x):
            y = torch.relu(self.conv(x))
            return torch.cat([y[..., :4, :4].sum((2, 3)), y[..., -4:, -4:].sum((2, 3))], dim=1)

    net, x = Corners().double(), torch.rand(1, 1, 96, 128, dtype=torch.float64)
    by_tiles = bilrp.decompose(net, x, mode="pull")
    assert by_tiles.plan is not None and by_tiles.plan.schedule.tiled_end == 1
    full = bilrp.decompose(net, x, mode="push")
    torch.testing.assert_close(by_tiles.parts, full.parts, rtol=1e-10, atol=1e-12)
