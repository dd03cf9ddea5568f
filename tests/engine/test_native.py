"""Rows in native code against the reference implementation in torch, number for number, in memory that is not cleared."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bilrp
from bilrp import native
from bilrp.engine.executors import sparse as active
from bilrp.engine.executors.sparse_layout import (
    Kernel,
    RowTerm,
    SparseLayout,
    TorchSparseTangent,
    WeightTerm,
)
from bilrp.engine.executors.sparse_native import NativeSparseTangent
from bilrp.engine.windows import Cone, Geometry
from bilrp.sparse_parts import densify
from type_asserts import assert_not_none

needs_library = pytest.mark.skipif(
    native.load_library() is None,
    reason="needs the compiled library: pip install -e . makes it where there is a compiler",
)


def test_a_compiler_makes_a_library() -> None:
    """Where there is one, an installation without the library is a broken one."""
    if shutil.which("cc") is None or not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("needs a C compiler and a processor with AVX2")
    assert native.load_library() is not None, "pip install -e . compiles it"


def test_the_sources_compile_without_warnings(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    flags = ["-Wall", "-Wextra", "-Werror", "-O3", "-ffp-contract=fast", "-shared", "-fPIC"]
    if platform.machine() in ("x86_64", "AMD64"):
        flags += ["-mavx2", "-mfma"]
    sources = map(str, sorted(native.NATIVE_FOLDER.glob("*.c")))
    process = subprocess.run(
        ["cc", *flags, *sources, "-o", str(tmp_path / "native.compiled")], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


def cone(size: tuple[int, int], regions: int, seed: torch.Generator) -> Cone:
    """Any rectangles inside the image."""
    limit = torch.tensor(size)
    ends = (torch.rand(2, regions, 2, generator=seed) * limit).long().sort(0).values
    return Cone(ends[0], torch.minimum(ends[1] + 1, limit), size)


def layout(
    shape: tuple[int, int, int], reach: Cone, seed: torch.Generator, density: float = 0.5
) -> SparseLayout:
    here = torch.rand(shape, generator=seed) < density
    return SparseLayout(here & (reach.regions_per_position > 0)[:, :, None], reach)


def images(of: SparseLayout, seed: torch.Generator, dtype: torch.dtype) -> Tensor:
    """One whole image for each region, zero where it cannot reach and where there is no row."""
    height, width, channels = of.mask.shape
    low, high = of.cone.low, of.cone.high
    ys, xs = torch.arange(height)[None, :, None], torch.arange(width)[None, None, :]
    inside = (
        (ys >= low[:, :1, None])
        & (ys < high[:, :1, None])
        & (xs >= low[:, 1:, None])
        & (xs < high[:, 1:, None])
    )
    numbers = torch.randn(len(low), channels, height, width, generator=seed, dtype=dtype)
    return numbers * inside[:, None] * of.mask.permute(2, 0, 1)


def rows(
    kind: type[TorchSparseTangent] | type[NativeSparseTangent],
    of: SparseLayout,
    values: Tensor | None,
    dtype: torch.dtype,
) -> TorchSparseTangent | NativeSparseTangent:
    """Rows that hold these images, or (as memory that was used before) no numbers at all."""
    tangent = kind(torch.full((kind.count_elements(of),), float("nan"), dtype=dtype), of)
    if values is not None:
        tangent.values.zero_()
        tangent.load_columns(values, torch.arange(len(values)))
    return tangent


def to_images(tangent: TorchSparseTangent | NativeSparseTangent) -> Tensor:
    return tangent.to_dense()[:, None]


KINDS = (TorchSparseTangent, NativeSparseTangent)


@needs_library
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    regions=st.sampled_from([1, 3, 8, 9, 16, 17, 40, 90, 150]),
    channels=st.tuples(st.integers(1, 7), st.integers(1, 13)),
    terms=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    threads=st.sampled_from([1, 2]),
)
def test_convolutions(
    seed, kernel, stride, dilation, padding, size, regions, channels, terms, dtype, threads
) -> None:
    generator = torch.Generator().manual_seed(seed)
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    reach = Geometry(extent, stride, padding)
    out = tuple((n + 2 * p - e) // s + 1 for n, p, e, s in zip(size, padding, extent, stride, strict=True))
    assume(min(out) >= 1)
    inside, outside = channels
    before = cone(size, regions, generator)
    source = layout((*size, inside), before, generator)
    target = layout((*out, outside), before.propagate(reach, out), generator)
    make = torch.randn
    weights = tuple(make(outside, inside, *kernel, generator=generator, dtype=dtype) for _ in terms)
    factors = [
        tuple(make(1, c, *s, generator=generator, dtype=dtype) if t[i] else None for t in terms)
        for i, (c, s) in enumerate([(inside, size), (outside, out)])
    ]
    work = [
        WeightTerm(
            weight,
            None if first is None else source.gather(first),
            None if last is None else target.gather(last),
        )
        for weight, first, last in zip(weights, *factors, strict=True)
    ]
    values = images(source, generator, dtype)
    results, had = [], torch.get_num_threads()
    for kind in KINDS:
        goal = rows(kind, target, None, dtype)
        torch.set_num_threads(threads)
        try:
            goal.convolve(rows(kind, source, values, dtype), work, Kernel(kernel, dilation, reach))
        finally:
            torch.set_num_threads(had)
        results.append(to_images(goal))
    slow = torch.zeros_like(results[0][:, 0])
    for weight, first, last in zip(weights, *factors, strict=True):
        inputs = values if first is None else values * first
        term = nn.functional.conv2d(inputs, weight, None, stride, padding, dilation)
        slow += term if last is None else term * last
    slow = slow * target.mask.permute(2, 0, 1)
    accuracy = 1e-12 if dtype == torch.float64 else 1e-4
    for each in results:
        torch.testing.assert_close(each[:, 0], slow, rtol=accuracy, atol=accuracy)


@needs_library
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    regions=st.sampled_from([1, 5, 33]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_poolings(seed, regions, kernel, stride, padding, dtype) -> None:
    """Some offsets of each field win, some share, of some nothing is there."""
    generator, size, channels = torch.Generator().manual_seed(seed), (7, 8), 5
    reach = Geometry(kernel, stride, padding)
    out = tuple((n + 2 * p - k) // s + 1 for n, p, k, s in zip(size, padding, kernel, stride, strict=True))
    before = cone(size, regions, generator)
    source = layout((*size, channels), before, generator)
    target = layout((*out, channels), before.propagate(reach, out), generator)
    offsets = tuple((y, x) for y in range(kernel[0]) for x in range(kernel[1]))
    shares = torch.rand(len(offsets), 1, channels, *out, generator=generator, dtype=dtype)
    shares = shares * (torch.rand(shares.shape, generator=generator) < 0.4)
    values, results = images(source, generator, dtype), []
    for kind in KINDS:
        goal = rows(kind, target, None, dtype)
        tangent = rows(kind, source, values, dtype)
        shifts = [(y - padding[0], x - padding[1]) for y, x in offsets]
        terms = (
            RowTerm(tangent, shift, target.gather(share)) for shift, share in zip(shifts, shares, strict=True)
        )
        goal.combine(list(terms), stride)
        results.append(to_images(goal)[:, 0])
    (top, left), (down, across) = padding, stride
    padded = nn.functional.pad(values, (left, left, top, top))
    slow = sum(
        share
        * padded[:, :, y : y + down * (out[0] - 1) + 1 : down, x : x + across * (out[1] - 1) + 1 : across]
        for share, (y, x) in zip(shares, offsets, strict=True)
    )
    for each in results:
        torch.testing.assert_close(each, slow * target.mask.permute(2, 0, 1))


@needs_library
@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    regions=st.sampled_from([1, 5, 33]),
    factored=st.lists(st.booleans(), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_combinations(seed, regions, factored, dtype) -> None:
    """Rows of any sources, shifted, whose regions are among the target's own."""
    generator = torch.Generator().manual_seed(seed)
    size = (6, 7)
    narrow = cone(size, regions, generator)
    wide = Cone(narrow.low * 0, narrow.low * 0 + torch.tensor(size), size)  # every region everywhere
    target = layout((*size, 3), wide, generator)
    sources = [layout((*size, 4), reach, generator) for reach in (narrow, wide, narrow)[: len(factored)]]
    values = [images(of, generator, dtype) for of in sources]
    shifts = torch.randint(-2, 3, (len(sources), 2), generator=generator).tolist()
    factors = [
        torch.randn(target.row_count, generator=generator, dtype=dtype) if has else None for has in factored
    ]
    results = []
    for kind in KINDS:
        goal = rows(kind, target, None, dtype)
        tangents = [rows(kind, of, each, dtype) for of, each in zip(sources, values, strict=True)]
        goal.combine([RowTerm(*each) for each in zip(tangents, shifts, factors, strict=True)])
        results.append(to_images(goal))
    torch.testing.assert_close(
        results[1], results[0], rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-12
    )


@needs_library
def test_weights_of_another_shape_are_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    reach = cone((5, 5), 3, generator)
    of = layout((5, 5, 4), reach, generator)
    work = [WeightTerm(torch.zeros(4, 3, 1, 1), None, None)]
    tangent = rows(NativeSparseTangent, of, None, torch.float32)
    with pytest.raises(ValueError, match=r"got \(4, 3, 1, 1\)"):
        tangent.convolve(tangent, work, Kernel((1, 1), (1, 1), Geometry()))


@needs_library
@pytest.mark.parametrize("kind", KINDS)
def test_windows_come_in_and_images_go_out(kind) -> None:
    generator = torch.Generator().manual_seed(0)
    reach = cone((9, 8), 20, generator)
    of = layout((9, 8, 5), reach, generator)
    values = images(of, generator, torch.float64)
    tangent = rows(kind, of, None, torch.float64)
    tangent.values.zero_()
    for i in range(20):  # windows of each region's own size, in any order of memory
        (top, left), (bottom, right) = reach.low[i].tolist(), reach.high[i].tolist()
        window = values[i : i + 1, :, top:bottom, left:right]
        window = window.contiguous(memory_format=torch.channels_last) if i % 2 else window
        tangent.load_columns(window, torch.tensor([i]), torch.tensor([[top, left]]))
    assert torch.equal(to_images(tangent)[:, 0], values)
    assert torch.equal(tangent.to_dense(torch.tensor([3, 17])), values[[3, 17]])
    out = torch.zeros(25, 5 * 9 * 8, dtype=torch.float64)
    tangent.write(out, torch.arange(20).flip(0) + 2)
    assert torch.equal(out[2:22].flip(0), values.flatten(1)) and not out[:2].any() and not out[22:].any()


@needs_library
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_another_dtype_are_cast(kind) -> None:
    """A model may change the dtype inside: native code would take the numbers for others."""
    generator = torch.Generator().manual_seed(0)
    of = layout((6, 5, 4), cone((6, 5), 7, generator), generator)
    values = images(of, generator, torch.float64)
    tangent = rows(kind, of, values, torch.float32)
    torch.testing.assert_close(to_images(tangent)[:, 0], values.float())
    out = torch.zeros(7, 4 * 6 * 5, dtype=torch.float64)
    tangent.write(out, torch.arange(7))
    torch.testing.assert_close(out, values.float().double().flatten(1))


def test_the_regions_of_a_position_are_those_whose_field_contains_it() -> None:
    reach = cone((11, 10), 30, torch.Generator().manual_seed(1))
    for position in range(110):
        at = torch.tensor([position // 10, position % 10])
        contained = ((reach.low <= at) & (at < reach.high)).all(1).nonzero()[:, 0]
        assert torch.equal(reach.regions_at(position), contained)
        assert int(reach.regions_per_position[position // 10, position % 10]) == len(contained)


class Deep(nn.Module):
    """Residual, strided, with a gate behind a sum: what rows can be asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.two(torch.relu(self.one(x))))
        x = nn.functional.max_pool2d(torch.relu(self.down(x)), 2)
        return x.flatten(1)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_without_a_library_the_parts_are_the_same(dtype, gamma, monkeypatch) -> None:
    from bilrp.engine.costs import Schedule
    from bilrp.engine.executor import execute_plan
    from bilrp.engine.plan import PlanContext, plan_for
    from bilrp.rules.freezing import freeze
    from bilrp.trace.recorder import record
    from bilrp.trace.rewrite import simplify

    x = torch.randn(1, 3, 24, 20, generator=torch.Generator().manual_seed(3), dtype=dtype)
    with torch.no_grad():
        program = freeze(simplify(record(Deep().to(dtype), x)), bilrp.composites.uniform(gamma))
    context = PlanContext(program, bilrp.regions.grid(4)(x), program.result.numel())
    spatial = max(i for i in context.bottlenecks if i <= context.spatial_count)
    schedule = Schedule("push", context.bottlenecks[0], spatial)

    def parts() -> Tensor:
        fresh = replace(context)
        assert plan_for(fresh, schedule).schedule.sparse_end == spatial > schedule.windowed_end
        return densify(execute_plan(fresh, plan_for(fresh, schedule))[program.output])

    used = []
    for name in ("load_columns", "convolve", "combine"):
        call = getattr(NativeSparseTangent, name)
        monkeypatch.setattr(
            NativeSparseTangent,
            name,
            lambda *arguments, call=call, name=name: used.append(name) or call(*arguments),
        )
    native_parts = parts()
    assert set(used) == {"load_columns", "convolve", "combine"}
    used.clear()
    monkeypatch.setattr(native, "load_library", lambda: None)
    assert active.choose_tangent_type(x) is TorchSparseTangent
    plain = parts()
    assert not used
    accuracy = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(native_parts, plain, rtol=accuracy, atol=accuracy)
    pulled = bilrp.decompose(
        Deep().to(dtype), x, regions=4, composite=bilrp.composites.uniform(gamma), mode="pull"
    ).parts
    torch.testing.assert_close(native_parts.reshape(pulled.shape), pulled, rtol=accuracy, atol=10 * accuracy)


@needs_library
def test_a_library_of_another_source_is_not_used(tmp_path: Path, monkeypatch) -> None:
    for path in (*native.NATIVE_FOLDER.glob("*.c"), native.NATIVE_FOLDER / "native.compiled"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(native, "NATIVE_FOLDER", tmp_path)
    fresh = native.load_library.__wrapped__
    assert fresh() is not None
    with (tmp_path / "rows.c").open("a") as source:
        source.write("/* changed */")
    assert fresh() is None
    (tmp_path / "native.compiled").unlink()  # what is loaded must not be written to
    with pytest.warns(UserWarning, match="no compiled kernels"):
        assert fresh() is None
    (tmp_path / "native.compiled").write_bytes(b"no library")
    assert fresh() is None


@pytest.mark.parametrize("height", [0, 16])
def test_memory_comes_back_after_every_chunk_of_regions(height) -> None:
    """Also where no feature is active at all, and rows take no memory."""
    from bilrp.engine import executor as execute
    from bilrp.engine.costs import Schedule
    from bilrp.engine.plan import PlanContext, plan_for
    from bilrp.rules.freezing import freeze
    from bilrp.trace.recorder import record
    from bilrp.trace.rewrite import simplify

    model = Deep().double()
    x = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    if not height:
        for layer in (model.stem, model.one, model.two, model.down):
            nn.init.constant_(assert_not_none(layer.bias), -100.0)
    with torch.no_grad():
        program = freeze(simplify(record(model, x)), bilrp.composites.uniform(0.0))
    context = PlanContext(program, bilrp.regions.grid(4)(x), program.result.numel())
    spatial = max(i for i in context.bottlenecks if i <= context.spatial_count)
    schedule = plan_for(context, Schedule("push", context.bottlenecks[0], spatial))
    chunked = densify(execute.execute_plan(context, replace(schedule, region_chunk=4))[program.output])
    torch.testing.assert_close(
        chunked, execute.execute_plan(context, schedule)[program.output], rtol=0, atol=1e-12
    )
    assert bool(chunked.any()) == bool(height)
