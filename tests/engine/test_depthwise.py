"""Depthwise convolutions on rows: a weighted sum over the offsets of a field, channel by channel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp import composites, native, rules
from bilrp.engine import executor, plan
from bilrp.engine.plan import PlanContext, Schedule
from bilrp.rules.freezing import freeze
from bilrp.sparse_parts import densify
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify

COMPOSITES = {
    "lrp-0": composites.uniform(0.0),
    "gamma": composites.uniform(0.25),
    "alphabeta": composites.first_match(
        (composites.is_weighted, rules.alphabeta(2.0, 1.0)), otherwise=composites.uniform(0.0)
    ),
    "graded": composites.graded(),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU6(), nn.Conv2d(8, 6, 1),
        nn.Conv2d(6, 6, (3, 5), stride=2, padding=(2, 1), dilation=(2, 1), groups=6), nn.ReLU(),
        nn.Conv2d(6, 12, 3, groups=6),  # two outputs for each input: not depthwise, through whole images
        nn.ReLU(), nn.Flatten(),
    ).double()  # fmt: skip


@pytest.mark.parametrize("with_library", [True, False])
@pytest.mark.parametrize("name", COMPOSITES)
def test_rows_are_exact(name: str, with_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_library:
        monkeypatch.setattr(native, "load_library", lambda: None)
    x = torch.randn(1, 3, 18, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        program = freeze(simplify(record(network(), x)), COMPOSITES[name])
        context = PlanContext(program, bilrp.regions.grid(4)(x), program.result.numel())
        pulled = plan.plan_for(context, Schedule("pull"))
        expected = densify(executor.execute_plan(context, pulled)[program.output])
        calls, kind = [], context.tangent_type
        combine = kind.combine
        monkeypatch.setattr(
            kind, "combine", lambda *given: calls.append(len(given[1]) > 1) or combine(*given)
        )
        by_rows = plan.plan_for(context, Schedule("push", 1, context.spatial_count))
        parts = densify(executor.execute_plan(context, by_rows)[program.output])
    assert sum(calls) == 2, "both depthwise convolutions, also under rules with input factors"
    assert float((parts - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    assert float(expected.abs().max()) > 1e-6
