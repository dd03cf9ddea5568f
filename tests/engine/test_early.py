"""A pooling done before the matrices behind which it stood gives the same parts, with fewer products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp import composites, regions
from bilrp.engine import executor as execute
from bilrp.engine import plan
from bilrp.engine.costs import all_schedules
from bilrp.engine.maps import Mean, Narrow, Pooling
from bilrp.engine.maps.pooling import factor_rank_one
from bilrp.engine.passes.channels_first import rewrite_channels_first
from bilrp.engine.passes.hoist_pooling import hoist_poolings
from bilrp.engine.program import Key, Program, pull, push
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from models import randomize_norms

WIDTH, TOKENS = 6, 5
Pool = Callable[[Tensor], Tensor]
MASK = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)[None, :, None]


def masked_mean(x: Tensor) -> Tensor:
    return (x * MASK).sum(1) / MASK.sum(1).clamp(min=1e-9)


POOLS: dict[str, Pool] = {
    "mean": lambda x: x.mean(1),
    "mean, all axes kept": lambda x: x.mean(dim=-2, keepdim=True),
    "mean under a mask": masked_mean,
    "sum": lambda x: x.sum((1,)),
    "first token": lambda x: x[:, 0],
    "last token": lambda x: x[:, -1, :],
    "token, selected": lambda x: x.select(1, 2),
    "mean without the first token": lambda x: x[:, 1:].mean(1),
    "all but the first token": lambda x: x[:, 1:],
    "every second token": lambda x: x[:, ::2].mean(1),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).view(1, x.shape[1], 2, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention and two matrices, each with its residual, norms behind them (BERT) or before (ViT)."""

    def __init__(self, *, post: bool) -> None:
        super().__init__()
        self.attention, self.up, self.down = Attention(), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.first_norm, self.second_norm, self.post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), post

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.first_norm(x + self.attention(x))
            return self.second_norm(self.mlp(x) + x)
        x = x + self.attention(self.first_norm(x))
        return x + self.mlp(self.second_norm(x))


class Encoder(nn.Module):
    """Two blocks, a norm at the end of those that have none, a pooling."""

    def __init__(self, pool: Pool, *, post: bool = True) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(post=post), Block(post=post))
        self.end, self.pool = nn.Identity() if post else nn.LayerNorm(WIDTH), pool

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.pool(self.end(self.blocks(x))), dim=-1)


class ConvNext(nn.Module):
    """A block as ConvNeXt has it, its mean over the image, and a norm."""

    def __init__(self, pool: Pool = lambda x: x.mean((2, 3))) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 6, 2, stride=2), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 24), nn.Linear(24, 6)
        self.scale, self.pool, self.last = nn.Parameter(torch.rand(6)), pool, nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return self.last(self.pool(x + y.permute(0, 3, 1, 2)).flatten(1))


class Weird(nn.Module):
    """What poolings may meet besides, by name."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.up, self.down = what, nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.third, self.fourth = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("both", torch.rand(1, TOKENS, WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        g = F.gelu(self.up(x))
        y = self.down(g)
        match self.what:
            case "several branches":
                return (y + self.third(g) + (x + self.fourth(x))).mean(1)
            case "a scale of its own everywhere":
                return self.fourth(y * self.both).mean(1)
            case "two poolings":
                return torch.cat([y.mean(1), self.third(g).sum(1)], 1)
            case "two poolings of one value":
                return torch.cat([y.mean(1), y[:, 0]], 1)
            case "one value pooled alike twice":
                return y[:, 0] * 2 + self.fourth(y[:, 0])
            case "pooled value used twice":
                pooled = y.mean(1)
                return torch.cat([pooled, self.fourth(pooled)], 1)
            case "used as it is as well":
                return torch.cat([self.fourth(y).mean(1), y.flatten(1)], 1)
            case "added to itself":
                return (y + y).mean(1)
            case "the input itself":
                return self.fourth(x).mean(1)
            case "over features":
                return y.mean(2)
            case "over everything":
                return y.mean((1, 2))[:, None]
            case "a relu":
                return self.fourth(F.relu(y)).mean(1)
        raise AssertionError(self.what)


WEIRD = (
    "several branches", "a scale of its own everywhere", "two poolings", "two poolings of one value",
    "one value pooled alike twice", "pooled value used twice", "used as it is as well", "added to itself",
    "the input itself", "over features", "over everything", "a relu",
)  # fmt: skip


@dataclass(frozen=True)
class Net:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (TOKENS, WIDTH)


IMAGE = (3, 8, 10)
NETS = {
    **{f"bert, {name}": Net(lambda pool=pool: Encoder(pool)) for name, pool in POOLS.items()},
    **{f"vit, {name}": Net(lambda pool=pool: Encoder(pool, post=False)) for name, pool in POOLS.items()},
    **{name: Net(lambda name=name: Weird(name)) for name in WEIRD},
    "one token": Net(lambda: Encoder(lambda x: x.mean(1)), (1, WIDTH)),
    "one token, the first": Net(lambda: Encoder(lambda x: x[:, 0]), (1, WIDTH)),
    "convnext": Net(ConvNext, IMAGE),
    "convnext, adaptive": Net(lambda: ConvNext(lambda x: F.adaptive_avg_pool2d(x, 1)), IMAGE),
    "convnext, one axis after the other": Net(lambda: ConvNext(lambda x: x.mean(-1).mean(-1)), IMAGE),
    "convnext, adaptive to more": Net(lambda: ConvNext(_to_columns), IMAGE),
}
BOOKS = {"lrp-0": composites.uniform(0.0), "gamma": composites.uniform(0.25)}


def _to_columns(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, (1, 2)).mean(-1)


def make_input(net: Net) -> Tensor:
    return torch.randn(1, *net.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def freeze_program(net: Net, composite: str = "lrp-0") -> Program:
    torch.manual_seed(0)
    with torch.no_grad():
        return rewrite_channels_first(
            freeze(simplify(record(randomize_norms(net.build()), make_input(net))), BOOKS[composite])
        )


def masks(program: Program, count: int = 4) -> Tensor:
    owner = torch.randint(count, program.x.shape, generator=torch.Generator().manual_seed(2))
    return torch.stack([(owner == i).to(program.x.dtype) for i in range(count)])


def same(program: Program, early: Program, keep: tuple[Key, ...] = ()) -> None:
    """Push and pull of both agree."""
    outputs = {program.output, *keep}
    expected, actual = (push(each, masks(program), outputs) for each in (program, early))
    for key in outputs:
        _close(actual[key], expected[key])
    count = program.result.numel()
    seeds = torch.eye(count, dtype=program.x.dtype).reshape(count, *program.result.shape)
    _close(pull(early, seeds), pull(program, seeds))
    back = pull(early, seeds).flatten(1) @ masks(program).flatten(1).T
    _close(back.T, actual[program.output].flatten(1))


def _close(actual: Tensor, expected: Tensor) -> None:
    assert (actual - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))


def macs(program: Program) -> int:
    return sum(link.cost().macs for link in program.links)


@pytest.mark.parametrize("book", BOOKS)
@pytest.mark.parametrize("name", NETS)
def test_the_parts_are_the_same(name: str, book: str) -> None:
    program = freeze_program(NETS[name], book)
    early = hoist_poolings(program)
    same(program, early)
    assert early is program or macs(early) < macs(program)


NOTHING = {
    "over features", "over everything", "a scale of its own everywhere", "used as it is as well", "one token",
    "one token, the first", "bert, every second token", "vit, every second token", "convnext, adaptive to more",
    "two poolings of one value",
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_products_are_saved_where_they_can_be(name: str) -> None:
    program = freeze_program(NETS[name])
    if name == "a scale of its own everywhere":  # only the matrix behind it
        assert 0 < macs(program) - macs(hoist_poolings(program)) == (TOKENS - 1) * WIDTH**2
    elif name == "used as it is as well":
        assert macs(program) - macs(hoist_poolings(program)) == (TOKENS - 1) * WIDTH**2
    else:
        assert (hoist_poolings(program) is program) == (name in NOTHING)


def test_a_mean_saves_the_last_matrix_and_a_token_all_behind_the_attention() -> None:
    mean, first = (freeze_program(NETS[f"bert, {name}"]) for name in ("mean", "first token"))
    down, rest = WIDTH * 16, WIDTH * 16 + WIDTH**2
    assert macs(mean) - macs(hoist_poolings(mean)) == (TOKENS - 1) * down
    assert macs(first) - macs(hoist_poolings(first)) == (TOKENS - 1) * (down + rest)
    gamma = freeze_program(NETS["bert, first token"], "gamma")
    assert macs(gamma) - macs(hoist_poolings(gamma)) == 2 * (TOKENS - 1) * (down + rest)


@pytest.mark.parametrize("name", ["bert, mean", "convnext", "vit, first token"])
def test_values_that_are_tapped_stay(name: str) -> None:
    program = freeze_program(NETS[name])
    for link in program.links[-8:]:
        early = hoist_poolings(program, frozenset({link.target}))
        assert link.target in {each.target for each in early.links}
        same(program, early, (link.target,))


@pytest.mark.parametrize("name", ["bert, mean under a mask", "vit, first token", "convnext"])
def test_the_work_that_is_counted_falls(name: str) -> None:
    program, counted = freeze_program(NETS[name]), []
    for each in (program, hoist_poolings(program)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            push(each, masks(each))
        counted.append(counter.get_total_flops())
    assert counted[0] - counted[1] == 2 * 4 * (macs(program) - macs(hoist_poolings(program))) > 0


def test_a_small_cone_stays_small() -> None:
    """Every way through a block that ends in a mean, its crops and rows too."""
    net = NETS["convnext"]
    program, x = freeze_program(net), make_input(net)
    early, count = hoist_poolings(program), program.result.numel()
    seeds = torch.eye(count, dtype=x.dtype).reshape(count, *program.result.shape)
    partition = regions.grid(3)(x)
    expected = partition.pool(pull(program, seeds)).T
    context = plan.PlanContext(early, partition, count)
    for schedule in all_schedules(context):
        parts = execute.execute_plan(context, plan.plan_for(context, schedule))[early.output]
        torch.testing.assert_close(parts, expected, rtol=1e-9, atol=1e-10, msg=str(schedule))
    pooled = [link.geometry is not None for link in early.links if isinstance(link.map, Mean)]
    assert pooled == [True, True]


def test_decompose_pools_early() -> None:
    net = randomize_norms(Encoder(masked_mean))
    x = make_input(NETS["bert, mean"])
    pushed, pulled = (
        bilrp.decompose(net, x, regions=regions.tokens(), mode=mode) for mode in ("push", "pull")
    )
    _close(pushed.parts, pulled.parts)
    assert pushed.parts.shape[0] == x.shape[1] and bool(pushed.parts.any())


def test_the_input_may_be_what_is_pooled() -> None:
    early = hoist_poolings(freeze_program(NETS["the input itself"]))
    assert isinstance(early.links[0].map, Pooling) and early.links[0].sources == (Key(0),)


def test_positions_that_are_none() -> None:
    """A model that treats some positions otherwise may have none of them."""
    none = torch.zeros(5, dtype=torch.bool)
    x = torch.rand(1, 5, 4, dtype=torch.float64)

    def encode(x: torch.Tensor) -> torch.Tensor:
        special = (x[:, none] * 2).tanh().sum(1)
        return x.mean(1) + special

    parts = bilrp.decompose(encode, x, regions=regions.features()).parts
    torch.testing.assert_close(parts.sum(0), x.mean(1)[0])
    assert factor_rank_one(torch.zeros(1, 0, 4), (-2,)) is None


def test_a_mean_of_no_axes_or_of_a_single_number_is_one_still() -> None:
    for function in (
        lambda x: x.mean(),
        lambda x: x.sum().sum(0),
        lambda x: x.mean(axis=1),
        lambda x: x.mean([]),
    ):
        x = torch.randn(1, 4, dtype=torch.float64)
        decomposition = bilrp.decompose(lambda x, function=function: function(x).reshape(1, -1), x)
        _close(decomposition.parts.sum(0) + decomposition.unattributed, decomposition.embedding)
        assert torch.equal(decomposition.embedding, function(x).flatten())


@given(st.integers(1, 5), st.integers(1, 6), st.booleans(), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_factors_are_found_if_there_are_any(rows: int, columns: int, holes: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(n, generator=generator) for n in ((1, rows, 1), (1, 1, columns)))
    if holes:
        p, q = (t * (torch.rand(t.shape, generator=generator) < 0.6) for t in (p, q))
    factors = factor_rank_one(p * q, (-2,))
    assert factors is not None
    torch.testing.assert_close(factors[0] * factors[1], p * q, rtol=1e-6, atol=0)
    if rows > 1 and columns > 1 and not holes:
        spoilt = p * q
        spoilt[0, -1, -1] *= 1.001
        assert factor_rank_one(spoilt, (-2,)) is None


@pytest.mark.parametrize("name", POOLS)
def test_what_a_pooling_is_frozen_to(name: str) -> None:
    program = freeze_program(NETS[f"vit, {name}"])
    kinds = [type(link.map) for link in program.links if isinstance(link.map, Pooling)]
    picks = {"first token", "last token", "token, selected", "all but the first token"}
    if name in picks:
        assert kinds == [Narrow]
    elif name == "mean without the first token":
        assert kinds == [Narrow, Mean]
    else:
        assert kinds == [Mean]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_mean_is_one_in_every_type(dtype: torch.dtype) -> None:
    """1/49 is no number of a narrow type, and all features would miss by the same part."""
    x = torch.rand(1, 6, 7, 7).to(dtype)
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(lambda x: x.mean((2, 3)), x, regions=3, mode=mode)
        rest = decomposition.parts.double().sum(0) - x.double().mean((2, 3)).flatten()
        assert float(rest.abs().max()) <= 2 * torch.finfo(dtype).eps
        assert dtype == torch.bfloat16 or float(rest.mean().abs()) <= 0.4 * torch.finfo(dtype).eps
