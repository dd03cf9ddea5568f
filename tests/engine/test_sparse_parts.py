"""Parts stored as windows and sparse rows equal the dense matrix, and so do their products."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import native, regions, sparse_parts
from bilrp.engine import executor as execute
from bilrp.engine import plan, tapped_parts
from bilrp.engine.costs import Schedule, all_schedules
from bilrp.engine.plan import PlanContext
from bilrp.engine.program import Key
from bilrp.errors import MismatchError
from bilrp.rules.freezing import freeze
from bilrp.similarity import Similarity
from bilrp.sparse_parts import AnyParts, SparseParts, densify
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from models import randomize_norms
from type_asserts import assert_instance


def chain(*, stride: int, padding: int, pool: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=padding),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=stride, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(pool, stride=2),
        nn.Conv2d(6, 5, 2, padding=padding),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3, padding=1),
        nn.ReLU(),
    )


class Branching(nn.Module):
    """Intermediate values that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 3, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.one(x))
        y = F.relu(self.two(y)) + y
        return self.out(y * 0.5)


NETS = {
    "plain": lambda: chain(stride=1, padding=1, pool=2),
    "strided": lambda: chain(stride=2, padding=0, pool=3),
    "wide border": lambda: chain(stride=1, padding=2, pool=2),
    "branching": Branching,
}


def build(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return randomize_norms(NETS[name]())


def image(seed: int, height: int = 19, width: int = 15, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, height, width, generator=generator, dtype=torch.float64).to(dtype)


def blobs(x: Tensor, seed: int = 0, count: int = 6) -> Tensor:
    """Regions of all shapes and sizes, and places that belong to none."""
    height, width = x.shape[-2:]
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(count, 2, generator=generator) * torch.tensor([height, width])
    at = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
    distance = (at[:, :, None] - centre).norm(dim=-1)
    label = distance.argmin(-1)
    return torch.where(distance.amin(-1) < 5, label, -1)


def make_context(net: nn.Module, x: Tensor, spec: regions.RegionSpec, budget: int = 2**20) -> PlanContext:
    """Every intermediate value is tapped."""
    with torch.no_grad():
        program = freeze(simplify(record(net, x)), bilrp.composites.uniform(0.25))
    partition = regions.resolve(spec, x)
    taps = frozenset(link.target for link in program.links)
    return PlanContext(program, partition, program.result.numel(), taps, budget)


@pytest.fixture
def everything_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapped_parts, "MAX_SPARSE_FRACTION", 2.0)


def dense_run(
    context: PlanContext, chosen: plan.Plan, monkeypatch: pytest.MonkeyPatch
) -> dict[Key, AnyParts]:
    with monkeypatch.context() as patch:
        patch.setattr(execute, "choose_sparse_taps", lambda *_: {})
        return execute.execute_plan(context, chosen)


def pushing(context: PlanContext) -> list[Schedule]:
    """Some schedules that push on windows, on rows, or on both."""
    local = [schedule for schedule in all_schedules(context) if schedule.sparse_end]
    return local[:: -(-len(local) // 3)]


SPECS = {"grid": lambda x: regions.grid(4), "blobs": lambda x: regions.labels(blobs(x))}


@pytest.mark.parametrize("library", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", NETS)
def test_kept_parts_are_the_matrix_bit_by_bit_and_so_are_their_sums_and_products(
    name, spec, library, everything_kept, monkeypatch
):
    if not library:
        monkeypatch.setattr(native, "load_library", lambda: None)
    net, pieces = build(name), 0
    sides = [make_context(net, x, SPECS[spec](x)) for x in (image(1), image(2))]
    for schedule in pushing(sides[0]):
        whole_plans = [plan.plan_for(context, schedule) for context in sides]
        in_chunks = [replace(p, region_chunk=-(-p.region_count // 3), window_batch=2) for p in whole_plans]
        for chosen in (whole_plans, in_chunks):
            results = [execute.execute_plan(context, p) for context, p in zip(sides, chosen, strict=True)]
            full = [dense_run(context, p, monkeypatch) for context, p in zip(sides, chosen, strict=True)]
            for key in results[0]:
                check(
                    *(
                        (actual[key], densify(expected[key]))
                        for actual, expected in zip(results, full, strict=True)
                    )
                )
                pieces += isinstance(results[0][key], SparseParts)
    assert pieces >= 6, "some were stored"


def check(*sides: tuple[Tensor | SparseParts, Tensor]) -> None:
    for parts, expected in sides:
        assert torch.equal(densify(parts), expected) and parts.shape == expected.shape
        assert densify(parts).dtype == expected.dtype
        total = parts.sum() if isinstance(parts, SparseParts) else parts.sum(0)
        torch.testing.assert_close(total, expected.sum(0), rtol=1e-12, atol=1e-12)
    (a, p), (b, q) = sides
    if isinstance(a, SparseParts) and isinstance(b, SparseParts):
        scale = float((p.abs() @ q.abs().T).max()) or 1.0
        for one, other, product in ((a, b, p @ q.T), (b, a, q @ p.T), (a, a, p @ p.T)):
            assert float((one.product(other) - product).abs().max()) <= 1e-12 * scale
        third = torch.tensor(3.0, dtype=p.dtype)
        assert float(((a / third).product(b) - p @ q.T / 3).abs().max()) <= 1e-12 * scale


def test_products_go_tile_by_tile():
    """No matrix is made for them."""
    net = build("plain")
    sides = [make_context(net, image(seed, 47, 41), regions.grid(4)) for seed in (1, 2)]
    kept_there = tapped_parts.choose_sparse_taps(sides[0], pushing(sides[0])[0])
    assert kept_there
    runs = [execute.execute_plan(context, plan.plan_for(context, pushing(context)[0])) for context in sides]
    one, other = ([assert_instance(run[key], SparseParts) for key in kept_there] for run in runs)
    for a, b in zip(one, other, strict=True):
        product = a.product(b)
        assert "_dense" not in vars(a) and "_dense" not in vars(b)
        torch.testing.assert_close(product, a.to_dense() @ b.to_dense().T, rtol=1e-12, atol=1e-12)


def test_columns_of_two_inputs_are_intersected():
    p, q = torch.tensor([[0.0, 2.0, 1.0, 0.0]]), torch.tensor([[5.0, 3.0, 0.0, 0.0], [0.0, 0.0, 4.0, 1.0]])
    assert SparseParts.from_dense(p).product(SparseParts.from_dense(q)).tolist() == (p @ q.T).tolist()


# ---------------------------------------------------------------- by the public functions


def encoder(net: nn.Module) -> bilrp.Encoder:
    return bilrp.Encoder(net, layers=lambda tape, n: tape.steps[n - 1].output, name="small")


LAYERS = (2, 5, 9)


def decompose_layers(
    seed: int, dtype: torch.dtype = torch.float64, **options
) -> dict[int, bilrp.Decomposition]:
    net = build("plain").to(dtype)
    options = {"regions": 4, "layers": LAYERS, **options}
    return bilrp.decompose(encoder(net), image(seed, 63, 57, dtype), **options)


@pytest.fixture
def dense_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all matrices that were made of stored parts."""
    sizes, zeros = [], sparse_parts.allocate_zeros
    monkeypatch.setattr(
        sparse_parts,
        "allocate_zeros",
        lambda rows, columns, like: sizes.append(columns) or zeros(rows, columns, like),
    )
    return sizes


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_early_layer_is_explained_without_its_matrix(similarity, dtype, dense_sizes):
    a, b = decompose_layers(1, dtype)[2], decompose_layers(2, dtype)[2]
    assert isinstance(a.stored_parts, SparseParts)
    explanation = bilrp.pair(a, b, similarity=similarity)
    assert "Explanation" in repr(explanation) and "Decomposition" in repr(a)
    residue = a.unattributed
    assert not dense_sizes
    close = 1e-12 if dtype == torch.float64 else 1e-5
    full = [bilrp.Decomposition(d.parts, d.embedding, d.regions, d.origin) for d in (a, b)]
    assert len(dense_sizes) == 2
    expected = bilrp.pair(*full, similarity=similarity)
    scale = float(expected.relevance.abs().max())
    for one, other in zip(
        [explanation.relevance, *(explanation.self_terms or ()), *explanation.marginals()],
        [expected.relevance, *(expected.self_terms or ()), *expected.marginals()],
        strict=True,
    ):
        assert one.dtype == dtype and float((one - other).abs().max()) <= close * max(
            scale, float(other.abs().max())
        )
    torch.testing.assert_close(residue, full[0].unattributed, rtol=close, atol=close)


def test_parts_are_a_matrix_when_read(tmp_path: Path, dense_sizes, monkeypatch):
    decomposition = decompose_layers(1)[2]
    first = decomposition.parts
    assert first is decomposition.parts and first.shape == (
        decomposition.regions.count,
        decomposition.embedding.numel(),
    )
    assert len(dense_sizes) == 1
    with monkeypatch.context() as patch:
        patch.setattr(execute, "choose_sparse_taps", lambda *_: {})
        full = decompose_layers(1)[2]
    assert isinstance(full.stored_parts, Tensor) and torch.equal(first, full.parts)
    renamed = replace(decomposition, name="other")
    assert renamed.name == "other" and torch.equal(renamed.parts, first)
    doubled = replace(decomposition, parts=2 * first)
    assert torch.equal(doubled.parts, 2 * first) and torch.equal(decomposition.parts, first)
    for name in ("parts.safetensors", "parts.npz"):
        assert torch.equal(
            bilrp.Decomposition.load(decompose_layers(1)[2].save(tmp_path / name)).parts, first
        )
    coarse, expected = decompose_layers(1)[2].coarsen(8), full.coarsen(8)
    assert torch.equal(coarse.parts, expected.parts)
    with pytest.raises(AttributeError):
        decomposition.parts = first  # type: ignore[misc]


def test_parts_of_one_kind_pair_with_those_of_the_other():
    a, b = decompose_layers(1)[2], decompose_layers(2)[2]
    full = replace(b, name="whole", parts=b.parts)
    assert isinstance(full.stored_parts, Tensor) and isinstance(b.stored_parts, SparseParts)
    expected = bilrp.pair(a, b, similarity="dot").relevance
    torch.testing.assert_close(
        bilrp.pair(a, full, similarity="dot").relevance, expected, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        bilrp.pair(full, a, similarity="dot").relevance, expected.T, rtol=1e-12, atol=1e-12
    )


def test_other_similarities_and_some_coordinates_get_matrices():
    a, b = decompose_layers(1)[2], decompose_layers(2)[2]
    size = a.embedding.numel()
    weights = torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = Similarity(
        "own", lambda p, q: (weights * p * q).sum(), lambda _, __: lambda p, q: (p * weights) @ q.T
    )
    relevance = bilrp.pair(a, b, similarity=own).relevance
    torch.testing.assert_close(relevance, (a.parts * weights) @ b.parts.T, rtol=1e-12, atol=1e-12)
    among = torch.arange(0, size, 3)
    some = bilrp.pair(a, b, coordinates=among, similarity="dot").relevance
    torch.testing.assert_close(some, a.parts[:, among] @ b.parts[:, among].T, rtol=1e-12, atol=1e-12)


def test_only_layers_with_few_non_zero_parts_are_sparse_and_projections_are_dense():
    layers = decompose_layers(1)
    assert [isinstance(layers[n].stored_parts, SparseParts) for n in LAYERS] == [True, True, False]
    large = decompose_layers(1, regions=64)
    assert not any(isinstance(d.stored_parts, SparseParts) for d in large.values())
    projected = decompose_layers(1, project=6)[2]
    assert isinstance(projected.stored_parts, Tensor) and projected.parts.shape[1] == 6


def test_images_of_another_size_do_not_pair():
    a = decompose_layers(1)[2]
    b = bilrp.decompose(encoder(build("plain")), image(1, 63, 41), regions=4, layers=[2, 9])[2]
    with pytest.raises(MismatchError, match="coordinates"):
        bilrp.pair(a, b, similarity="dot")


def test_copies_and_pickles_hold_the_matrix():
    """Before anything was read, after a pair, and after it was read."""
    decomposition, other = decompose_layers(1)[2], decompose_layers(2)[2]
    expected = decompose_layers(1)[2].parts
    for act in (
        lambda: None,
        lambda: bilrp.pair(decomposition, other, similarity="dot"),
        lambda: decomposition.parts,
    ):
        act()
        for second in (copy.deepcopy(decomposition), pickle.loads(pickle.dumps(decomposition))):
            assert torch.equal(second.parts, expected)
