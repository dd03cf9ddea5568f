"""A new kind of map is one class, also in a user's file: here average pooling, which windowed and sparse pushes use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp import composites
from bilrp.engine import executor as execute
from bilrp.engine import plan
from bilrp.engine.plan import Schedule
from bilrp.rules.freezing import freeze
from bilrp.sparse_parts import densify
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify

OWN = '''
from dataclasses import dataclass

import torch.nn.functional as F
from bilrp.engine.maps import Map, Geometry
from bilrp.rules import Rule


@dataclass(frozen=True, eq=False)
class Average(Map):
    """The mean of each block of size × size."""

    size: int

    def push(self, *tangents):
        return F.avg_pool2d(tangents[0][:, 0], self.size)[:, None]

    def pull(self, cotangent):
        spread = cotangent / self.size**2
        return (spread.repeat_interleave(self.size, -1).repeat_interleave(self.size, -2),)

    def geometry(self, shapes):
        return Geometry(extent=(self.size, self.size), stride=(self.size, self.size))


class Blind(Average):
    """The same without a geometry: push and pull are enough for an answer."""

    def geometry(self, shapes):
        return None


def average(kind=Average):
    return Rule("average", lambda step: kind(step.argument(1, "kernel_size")))
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_map.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_map  # type: ignore[import-not-found]

    return own_map


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 5, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten()).double()


def make_context(rule) -> plan.PlanContext:
    x = torch.randn(1, 3, 20, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    composite = composites.first_match(("avg_pool2d", rule), otherwise=composites.uniform(0.25))
    with torch.no_grad():
        program = freeze(simplify(record(net(), x)), composite)
    return plan.PlanContext(program, bilrp.regions.grid(4)(x), program.result.numel())


def test_windowed_and_sparse_pushes_use_a_map_of_ones_own(own):
    context = make_context(own.average())
    names = [link.rule for link in context.program.links]
    at = names.index("average")
    assert context.spatial_count == at + 2  # the convolution behind it as well
    pulled = plan.plan_for(context, Schedule("pull"))
    expected = densify(execute.execute_plan(context, pulled)[context.program.output])
    for windowed_end, sparse_end in (
        (at + 1, at + 1),
        (at + 2, at + 2),
        (at, at + 1),
        (at, at + 2),
        (1, at + 2),
    ):
        chosen = plan.plan_for(context, Schedule("push", windowed_end, sparse_end))
        parts = densify(execute.execute_plan(context, chosen)[context.program.output])
        assert (parts - expected).abs().max() <= 1e-9 * expected.abs().max()


def test_push_and_pull_are_enough(own):
    context = make_context(own.average(own.Blind))
    assert context.spatial_count == [link.rule for link in context.program.links].index("average")
    parts, expected = (
        densify(execute.execute_plan(context, plan.make_plan(context, mode))[context.program.output])
        for mode in ("auto", "pull")
    )
    assert (parts - expected).abs().max() <= 1e-9 * expected.abs().max()


def test_a_map_without_push_is_not_a_map():
    from bilrp.engine.maps import Map

    class Half(Map):
        def pull(self, cotangent):
            return (cotangent,)

    with pytest.raises(TypeError, match="push"):
        Half()  # type: ignore[abstract]
