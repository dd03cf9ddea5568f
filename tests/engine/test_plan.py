"""Every schedule of a program gives the same parts, and costs what its plan says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp.engine import executor as execute
from bilrp.engine import plan
from bilrp.engine.costs import Schedule, ScheduleCosts, all_schedules
from bilrp.engine.plan import PlanContext
from bilrp.errors import InputError
from bilrp.rules.composites import as_composite
from bilrp.rules.freezing import freeze
from bilrp.sparse_parts import densify
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify


def make_context(module, x, rules, regions, coordinates=None, budget=2**20) -> PlanContext:
    with torch.no_grad():
        program = freeze(simplify(record(module, x)), rules)
    return PlanContext(program, regions(x), coordinates or program.result.numel(), budget=budget)


def every_schedule(context: PlanContext) -> list[Schedule]:
    """All placements of the stages that the program allows."""
    tiled = [Schedule("pull", tiled_end=context.chain_length)] if context.chain_length else []
    return list(dict.fromkeys([*tiled, *all_schedules(context)]))


def check_every_plan(context: PlanContext, tolerance: float, some: int | None = None) -> int:
    reference = densify(
        execute.execute_plan(context, plan.plan_for(context, Schedule("pull")))[context.program.output]
    )
    scale = reference.abs().max()
    options = every_schedule(context)
    if some is not None and len(options) > some:
        options = options[:: -(-len(options) // some)]
    for schedule in options:
        parts = densify(
            execute.execute_plan(context, plan.plan_for(context, schedule))[context.program.output]
        )
        error = (parts - reference).abs().max()
        assert error <= tolerance * max(float(scale), 1e-30), (schedule, float(error))
    return len(options)


@st.composite
def conv_chains(draw):
    """A random chain of convolutions, ReLUs and poolings that leaves at least one pixel."""
    size = [draw(st.integers(7, 19)), draw(st.integers(7, 19))]
    channels, layers = draw(st.integers(1, 3)), []
    start = (channels, *size)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()) or not layers:
            kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
            padding, dilation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
            out = draw(st.integers(1, 4))
            groups = out if channels == out and draw(st.booleans()) else 1
            layer = nn.Conv2d(
                channels, out, kernel, stride, padding, dilation, groups, bias=draw(st.booleans())
            )
            after = [(n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for n in size]
        else:
            kernel, stride = draw(st.integers(2, 3)), draw(st.integers(1, 3))
            layer, out = nn.MaxPool2d(kernel, stride), channels
            after = [(n - kernel) // stride + 1 for n in size]
        if min(after) < 1:
            break
        layers.append(layer)
        if isinstance(layer, nn.Conv2d) and draw(st.booleans()):
            layers.append(nn.ReLU())
        size, channels = after, out
    if not layers:
        layers = [nn.ReLU()]
    return nn.Sequential(*layers), start, draw(st.integers(1, 9)), draw(st.integers(0, 2**16))


RULES = {
    "gamma": bilrp.composites.uniform(0.25),
    "zero": bilrp.composites.uniform(0.0),
    "alphabeta": as_composite(bilrp.rules.alphabeta()),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@settings(max_examples=6, deadline=None)
@given(chain=conv_chains())
def test_every_path_agrees_in_float64(rules, chain):
    network, shape, region, seed = chain
    generator = torch.Generator().manual_seed(seed)
    network = network.double().eval()
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    x = torch.randn(1, *shape, generator=generator, dtype=torch.float64)
    assert check_every_plan(make_context(network, x, rules, bilrp.regions.grid(region)), 1e-9, some=6) > 1


@settings(max_examples=6, deadline=None)
@given(chain=conv_chains())
def test_float32_agrees_with_the_float64_reference(chain):
    network, shape, region, seed = chain
    torch.manual_seed(seed)
    x = torch.rand(1, *shape)
    rules, regions = bilrp.composites.uniform(0.25), bilrp.regions.grid(region)
    network = network.float().eval()
    single = make_context(network, x, rules, regions)
    parts = densify(execute.execute_plan(single, plan.make_plan(single))[single.program.output])
    double = make_context(network.double(), x.double(), rules, regions)
    exact = densify(
        execute.execute_plan(double, plan.plan_for(double, Schedule("pull")))[double.program.output]
    )
    assert (parts - exact).abs().max() <= 1e-4 * exact.abs().max().clamp(min=1e-30)


class Block(nn.Module):
    """A strided residual block: its two branches have different cones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.left = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(6, 6, 5, padding=2)
        self.short = nn.Conv2d(4, 6, 1, stride=2)
        self.last = nn.Conv2d(6, 3, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        y = torch.relu(self.deep(torch.relu(self.left(x))) + self.short(x))
        return torch.relu(self.last(y)).flatten(1)


@pytest.fixture
def block() -> PlanContext:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 22, 17, dtype=torch.float64)
    return make_context(Block().double(), x, bilrp.composites.uniform(0.1), bilrp.regions.grid(5))


def test_residual_blocks_are_pushed_as_windows_and_sparse_rows(block):
    assert check_every_plan(block, 1e-9) > 10
    assert block.spatial_count >= 7  # the whole block but for the last flatten


def test_regions_beyond_the_last_field_of_a_strided_convolution():
    """The outermost strip of 64 pixels, 7 at a time, is where a stride of 4 never looks."""
    torch.manual_seed(6)
    network = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten()).double()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    check_every_plan(make_context(network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(7)), 1e-9)
    decomposition = bilrp.decompose(network.float(), x.float(), regions=7)
    corner = decomposition.parts.reshape(10, 10, -1)[-1]
    assert not corner.any() and decomposition.parts.any()


def test_ragged_regions_use_their_bounding_boxes():
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU()
    )
    x = torch.randn(1, 3, 16, 14, dtype=torch.float64)
    mask = torch.randint(-1, 6, (3, 16, 14))
    mask.view(-1)[:6] = torch.arange(6)
    context = make_context(network.double(), x, bilrp.composites.uniform(0.2), bilrp.regions.labels(mask))
    check_every_plan(context, 1e-9)


def test_first_layer_rules_are_pushed_as_windows():
    torch.manual_seed(2)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.ReLU()
    ).double()
    x = torch.rand(1, 3, 13, 15, dtype=torch.float64)
    for first in (bilrp.rules.zbox(0.0, 1.0), bilrp.rules.flat(), bilrp.rules.wsquare()):
        composite = bilrp.composites.first_match(("0", first), otherwise=bilrp.composites.uniform(0.25))
        check_every_plan(make_context(network, x, composite, bilrp.regions.grid(4)), 1e-9)


def vgg_like(size: int = 24) -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(3)
    network = nn.Sequential(
        *(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ),
        *(
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ),
        *(nn.Flatten(), nn.Linear(16 * (size // 4) ** 2, 12)),
    ).double()
    return network, torch.rand(1, 3, size, size, dtype=torch.float64)


@pytest.mark.parametrize("coordinates", [12, 3])
def test_predicted_flops_are_the_counted_ones(coordinates):
    network, x = vgg_like()
    how = (network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4), coordinates)
    weights = torch.randn(coordinates, 12, dtype=torch.float64) if coordinates != 12 else None
    for schedule in every_schedule(make_context(*how)):
        context = make_context(*how)
        chosen = plan.plan_for(context, schedule)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            execute.execute_plan(context, chosen, weights=weights)
        projection = 2 * 36 * 12 * coordinates if weights is not None and schedule.direction == "push" else 0
        counted = counter.get_total_flops() - projection
        assert abs(chosen.flops - counted) <= 0.02 * counted, (schedule, chosen.flops, counted)


def test_windows_are_counted_by_the_batches_that_run():
    """Batches of windows end with their chunk of regions, and each is as large as its largest window."""
    network, x = vgg_like()
    context = make_context(network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4), budget=300_000)
    checked = 0
    for schedule in all_schedules(context):
        chosen = plan.plan_for(context, schedule)
        is_uneven = chosen.region_chunk < context.region_count and chosen.region_chunk % chosen.window_batch
        if not (schedule.windowed_end and schedule.windowed_end == schedule.sparse_end and is_uneven):
            continue
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            execute.execute_plan(context, chosen)
        assert chosen.flops == counter.get_total_flops(), schedule
        checked += 1
    assert checked


def test_auto_takes_less_work_than_either_direction_alone():
    network, x = vgg_like(96)
    context = make_context(
        network[:10], x, bilrp.composites.uniform(0.25), bilrp.regions.grid(8), budget=2**28
    )
    chosen = plan.make_plan(context)
    assert chosen.flops < 0.5 * plan.make_plan(context, "pull").flops
    assert chosen.flops < 0.5 * plan.plan_for(context, Schedule("push")).flops


def method_costs(costs: ScheduleCosts, schedule: Schedule) -> list[float]:
    """The cost of each link under the one method that the schedule has for it."""
    sums = []
    for link in range(len(costs.context.links)):
        if schedule.direction == "pull":
            sums.append([costs.context.coordinate_count * each for each in costs.pull_vector])
        elif link < schedule.windowed_end:
            sums.append(costs.push_windowed)
        elif link < schedule.sparse_end:
            sums.append(costs.push_sparse)
        else:
            sums.append(costs.push_dense)
    return [each[link + 1] - each[link] for link, each in enumerate(sums)]


@pytest.mark.parametrize("coordinates", [None, 3])
def test_a_schedule_costs_what_its_links_cost(block, coordinates):
    """Each link counts under exactly one method."""
    network, x = vgg_like(32)
    chain = make_context(network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(8), coordinates)
    for context in (block, chain):
        costs, schedules = ScheduleCosts(context), list(all_schedules(context))
        assert any(schedule.sparse_end > schedule.windowed_end > 0 for schedule in schedules)
        for schedule in schedules:
            assert costs.total_cost(schedule) == pytest.approx(sum(method_costs(costs, schedule))), schedule


def test_deep_convolutions_are_pushed_on_what_can_be_active():
    """Behind two poolings a region reaches most places but few of the features are not zero."""
    network, x = vgg_like(64)
    context = make_context(
        network[:10], x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4), budget=2**28
    )
    chosen = plan.make_plan(context, "push")
    assert chosen.schedule.sparse_end > chosen.schedule.windowed_end > 0
    windows_alone = Schedule("push", chosen.schedule.sparse_end, chosen.schedule.sparse_end)
    assert chosen.flops < 0.8 * plan.plan_for(context, windows_alone).flops


def test_layouts_do_not_remember_other_chunks(block):
    """The layouts of a chunk are the same as if it had been asked for alone."""
    chunks = [torch.arange(block.region_count), torch.arange(3), torch.tensor([0, 5, 7]), torch.arange(3)]
    for chunk in chunks:
        alone = PlanContext(block.program, block.partition, block.coordinate_count)
        layouts, expected = block.layouts(chunk), alone.layouts(chunk)
        keys = [link.target for link in block.links[: block.spatial_count]]
        assert keys and all(torch.equal(layouts[key].mask, expected[key].mask) for key in keys)
        assert all(torch.equal(layouts[key].cone.low, expected[key].cone.low) for key in keys)


class Spots(nn.Module):
    """64 coordinates, each of one place of a small feature map: a coordinate sees little of the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return y[..., 2::12, 2::12].flatten(1)


def test_tiles_are_a_method_of_the_plan():
    """What pulling 64 coordinates tile by tile takes is known beforehand, and taken where it is least."""
    network, x = Spots().double(), torch.rand(1, 1, 96, 96, dtype=torch.float64)
    context = make_context(network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4), budget=2**28)
    assert context.coordinate_count == 64 and context.chain_length == 2
    execute.execute_plan(
        context, plan.plan_for(context, Schedule("pull"))
    )  # makes γ's denominators, which all schedules share
    flops = {}
    for schedule in (
        Schedule("pull", tiled_end=2),
        Schedule("pull"),
        *(w for w in all_schedules(context) if w.windowed_end),
    ):
        chosen = plan.plan_for(context, schedule)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            execute.execute_plan(context, chosen)
        flops[schedule] = counter.get_total_flops()
        assert abs(chosen.flops - flops[schedule]) <= 0.05 * flops[schedule], schedule
    assert (
        plan.make_plan(context).schedule
        == plan.make_plan(context, "pull").schedule
        == Schedule("pull", tiled_end=2)
    )
    assert flops[Schedule("pull", tiled_end=2)] < 0.6 * min(
        count for schedule, count in flops.items() if not schedule.tiled_end
    )
    assert "pull_tiled" in str(plan.make_plan(context))


def test_values_inside_are_never_pulled_by_tiles():
    """A pull has no parts of other values than the embedding, however cheap it is."""
    network, x = Spots().double(), torch.rand(1, 1, 96, 96, dtype=torch.float64)
    context = make_context(network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4), budget=2**28)
    inside = context.links[0].target
    tapped = replace(context, taps=frozenset({inside}))
    chosen = plan.make_plan(tapped)
    assert tapped.chain_length and chosen.schedule.direction == "push"
    assert set(execute.execute_plan(tapped, chosen)) == {inside, context.program.output}
    with pytest.raises(InputError, match="push to get those"):
        plan.plan_for(tapped, Schedule("pull", tiled_end=context.chain_length))


def test_full_cotangents_are_pulled_whole():
    """Tiles gain nothing for a coordinate that sees everything; where the tail alone costs too much it is not computed."""
    network, x = vgg_like()
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    context = make_context(pooled.double(), x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4))
    assert context.chain_length == 1 and plan.make_plan(context, "pull").schedule == Schedule("pull")
    deep = make_context(network[:10], x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4))
    plan.make_plan(deep)
    assert deep.chain_length and "tiles_per_coordinate" not in vars(deep)


def test_a_plan_says_what_runs_where():
    network, x = vgg_like()
    decomposition = bilrp.decompose(network, x, regions=bilrp.regions.grid(4))
    text = str(decomposition.plan)
    assert "36 regions × 12 coordinates" in text and "GFLOP" in text and "links" in text
    with pytest.raises(InputError, match="stages must follow"):
        context = make_context(network, x, bilrp.composites.uniform(0.25), bilrp.regions.grid(4))
        plan.plan_for(context, Schedule("push", windowed_end=5, sparse_end=3))


def test_small_budgets_change_nothing_but_memory():
    network, x = vgg_like()
    rules, regions = bilrp.composites.uniform(0.25), bilrp.regions.grid(4)
    large = make_context(network, x, rules, regions, budget=2**28)
    small = make_context(network, x, rules, regions, budget=2**16)
    one, other = plan.make_plan(large, "push"), plan.make_plan(small, "push")
    assert other.region_chunk < one.region_chunk and other.peak_bytes < one.peak_bytes
    full, pieces = (
        densify(execute.execute_plan(s, p)[s.program.output]) for s, p in ((large, one), (small, other))
    )
    assert torch.allclose(full, pieces, rtol=1e-12, atol=1e-14)


def test_several_layers_from_one_sweep():
    network, x = vgg_like()
    convolutions = network[:10]
    encoder = bilrp.Encoder(
        module=convolutions, layers=lambda tape, n: tape.steps[n - 1].output, name="small"
    )
    regions = bilrp.regions.grid(4)
    swept = bilrp.decompose(encoder, x, regions=regions, layers=[2, 5, 7, 10])
    assert list(swept) == [2, 5, 7, 10]
    for layer, decomposition in swept.items():
        alone = bilrp.decompose(network[:layer], x, regions=regions, mode="pull")
        assert torch.allclose(decomposition.parts, alone.parts, rtol=1e-9, atol=1e-12)
        assert torch.equal(decomposition.embedding, alone.embedding)
        assert decomposition.origin["layer"] == layer
    projected = bilrp.decompose(encoder, x, regions=regions, layers=[5], project=7)[5]
    assert projected.parts.shape == (36, 7)
    assert torch.allclose(projected.parts.sum(0) + projected.unattributed, projected.embedding)


def test_layers_need_an_encoder_that_has_them():
    network, x = vgg_like()
    with pytest.raises(InputError, match="no numbered layers"):
        bilrp.decompose(network, x, layers=[3])
    encoder = bilrp.Encoder(network, layers=lambda tape, n: n)
    with pytest.raises(InputError, match="mode='pull' has no parts of inner layers"):
        bilrp.decompose(encoder, x, layers=[2], mode="pull")


def test_the_command_line_prints_the_plan(tmp_path, capsys, monkeypatch):
    from PIL import Image

    from bilrp.cli import main

    (tmp_path / "small_encoder.py").write_text(
        "import torch\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("a.png", "b.png"):
        Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / name)
    images = [str(tmp_path / name) for name in ("a.png", "b.png")]
    monkeypatch.setattr("sys.argv", ["bilrp", "explain", *images, "--encoder", "small_encoder:net", "--plan"])
    with pytest.raises(SystemExit) as stopped:
        main()
    out = capsys.readouterr().out
    assert stopped.value.code == 0, out
    assert "regions ×" in out and "GFLOP" in out
