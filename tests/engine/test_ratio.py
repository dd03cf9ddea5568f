"""γ's denominators, made for all outputs or coming with the push of active rows: the same parts, for less work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp import native
from bilrp.encoder import as_encoder, read_item
from bilrp.engine import executor as execute
from bilrp.engine import plan
from bilrp.engine.costs import Schedule, sparse_segments
from bilrp.engine.maps import Gated, LazyGammaFactor, Weighted
from bilrp.engine.plan import PlanContext
from bilrp.engine.sparse_parts import densify
from bilrp.pipeline import prepare
from bilrp.regions import RegionSpec
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify


def network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    layers += [
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 10, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers).double()


def make_context(model: nn.Module, x: Tensor, regions: RegionSpec, gamma: float = 0.25) -> PlanContext:
    """Frozen anew: nobody has made any denominators."""
    with torch.no_grad():
        program = freeze(simplify(record(model, x)), bilrp.composites.uniform(gamma))
    return PlanContext(program, bilrp.regions.resolve(regions, x), program.result.numel())


def by_rows(context: PlanContext) -> plan.Plan:
    """Crops up to the first bottleneck, then rows as far as they go."""
    (first, last), *_ = sparse_segments(context)
    return plan.plan_for(context, Schedule(first, last, len(context.links)))


def ratios(context: PlanContext) -> list[LazyGammaFactor]:
    maps = (link.map.inner if isinstance(link.map, Gated) else link.map for link in context.links)
    return [
        term.after
        for m in maps
        if isinstance(m, Weighted)
        for term in m.terms
        if isinstance(term.after, LazyGammaFactor)
    ]


@pytest.mark.parametrize("with_library", [True, False])
@pytest.mark.parametrize("gamma", [0.25, 1e-20])
def test_rows_bring_their_denominators(with_library, gamma, monkeypatch) -> None:
    if not with_library:
        monkeypatch.setattr(native, "load_library", lambda: None)
    model, x = network(), torch.rand(1, 3, 22, 22, dtype=torch.float64)
    context = make_context(model, x, 4, gamma)
    parts = execute.execute_plan(context, by_rows(context))[context.program.output]
    assert [ratio.is_computed for ratio in ratios(context)] == [
        True,
        False,
        False,
        False,
    ]  # crops need the first
    pulled = make_context(model, x, 4, gamma)
    slow = execute.execute_plan(pulled, plan.make_plan(pulled, "pull"))[pulled.program.output]
    assert all(ratio.is_computed for ratio in ratios(pulled))
    torch.testing.assert_close(parts, slow, rtol=1e-10, atol=1e-12)
    second = execute.execute_plan(context, by_rows(context))[
        context.program.output
    ]  # the same ratios on the same rows
    assert torch.equal(densify(parts), densify(second))


def regions_of_some(x: Tensor) -> Tensor:
    """The upper half is in no region."""
    labels = torch.arange(4).repeat_interleave(121).reshape(22, 22).expand(3, 22, 22).clone()
    labels[:, :11] = -1
    return torch.where(labels >= 0, labels - 2, -1)


def test_inputs_without_a_row_are_not_forgotten() -> None:
    """Where regions leave something out, rows do not know the whole input: all denominators are made."""
    model, x = network(), torch.rand(1, 3, 22, 22, dtype=torch.float64)
    spec = bilrp.regions.labels(regions_of_some(x))
    context, pulled = make_context(model, x, spec), make_context(model, x, spec)
    parts = execute.execute_plan(context, by_rows(context))[context.program.output]
    slow = execute.execute_plan(pulled, plan.make_plan(pulled, "pull"))[pulled.program.output]
    assert any(ratio.is_computed for ratio in ratios(context)[1:])
    torch.testing.assert_close(parts, slow, rtol=1e-10, atol=1e-12)


def test_what_a_bias_alone_makes_is_not_forgotten() -> None:
    """An input that is positive by its bias, and that no region reaches, has no row but counts in denominators."""
    model, x = network(), torch.rand(1, 3, 22, 22, dtype=torch.float64)
    with torch.no_grad():
        model.get_parameter("0.bias").fill_(0.3)
        x[..., :9, :] = 0  # nothing to share there but biases
    context, pulled = make_context(model, x, 4), make_context(model, x, 4)
    parts = execute.execute_plan(context, by_rows(context))[context.program.output]
    slow = execute.execute_plan(pulled, plan.make_plan(pulled, "pull"))[pulled.program.output]
    torch.testing.assert_close(parts, slow, rtol=1e-10, atol=1e-12)


def test_it_is_less_work_than_making_them() -> None:
    model, x = network(), torch.rand(1, 3, 22, 22, dtype=torch.float64)
    work = []
    for precomputed in (False, True):
        context = make_context(model, x, 11)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            if precomputed:
                assert all(ratio.value.isfinite().all() for ratio in ratios(context))
            execute.execute_plan(context, by_rows(context))
        work.append(counter.get_total_flops())
    assert work[0] < 0.8 * work[1], work


def test_a_gate_shuts_what_is_counted() -> None:
    ratio = ratios(make_context(network(), torch.rand(1, 3, 22, 22, dtype=torch.float64), 4))[0]
    gate = (torch.rand_like(ratio.numerator) < 0.5).double()
    torch.testing.assert_close(ratio.with_gate(gate).value, ratio.value * gate)
    assert not replace(ratio).is_computed


class Keeps(nn.Module):
    """A model that keeps what it sees in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)
        self.kept: Tensor
        self.register_buffer("kept", torch.zeros(1, 6, 12, 12))

    def forward(self, x: Tensor) -> Tensor:
        self.kept.detach_().copy_(torch.relu(self.first(x)))
        return torch.relu(self.second(self.kept)).flatten(1)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_denominators_are_of_this_run_also_after_the_next(mode) -> None:
    """They are made when they are asked for, from an input that the model may have overwritten since."""
    model, (x, y) = Keeps().double(), torch.rand(2, 1, 3, 12, 12, dtype=torch.float64)
    encoder, how = (
        as_encoder(model),
        {"regions": 2, "composite": bilrp.composites.uniform(0.25), "mode": mode},
    )
    expected = bilrp.decompose(model, x, **how).parts
    ready = prepare(encoder, read_item(encoder, x), **how)
    with torch.no_grad():
        model(y)
    torch.testing.assert_close(ready.compute_parts(ready.regions)[0], expected, rtol=0, atol=0)


def test_a_bias_of_one_number_for_all() -> None:
    """Torch adds it to every channel; rows look it up channel by channel."""
    torch.manual_seed(1)
    first, weight, bias = nn.Conv2d(3, 4, 3).double(), torch.randn(6, 4).double(), torch.rand(1).double()

    def model(x: Tensor) -> Tensor:
        inner = nn.functional.linear(first(x).relu().permute(0, 2, 3, 1), weight, bias).relu()
        return inner.permute(0, 3, 1, 2).flatten(1)

    x = torch.rand(1, 3, 14, 14, dtype=torch.float64)
    how = {"regions": 3, "composite": bilrp.composites.uniform(0.25)}
    pushed, pulled = (bilrp.decompose(model, x, mode=mode, **how).parts for mode in ("push", "pull"))
    torch.testing.assert_close(pushed, pulled, rtol=1e-10, atol=1e-12)


def test_groups_make_their_own() -> None:
    """A convolution in groups is no product of rows: what the plan counts is what is done."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(), nn.Flatten()
    ).double()
    context = make_context(model, torch.rand(1, 3, 14, 14, dtype=torch.float64), 3)
    chosen = by_rows(context)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        execute.execute_plan(context, chosen)
    assert abs(chosen.flops - counter.get_total_flops()) <= 0.01 * chosen.flops
