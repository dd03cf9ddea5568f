"""Secants between a reference input and the input: parts sum to φ(x) − φ(x₀) exactly, with nothing left to biases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions
from bilrp.errors import BilrpError, RuleError, TapeError
from bilrp.render.score_line import format_score_line as account_line
from bilrp.rules.secants import path_shares
from bilrp.trace.recorder import record
from bilrp.trace.reference_run import run_at_reference
from models import CASES, Case, randomize_norms
from type_asserts import assert_not_none

# These compute in float32, also in float64: softmax, and on transformers 4 ConvNeXt's norm of channels.
ROUNDED = {"bert-eager", "vit-eager", "clip-eager", "dinov2-eager"}
ROUNDED |= {"convnext"} if metadata.version("transformers").startswith("4.") else set()


def other(x: Tensor, seed: int = 3) -> Tensor:
    """A reference far from the input."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def off(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parts_sum_to_the_difference_of_two_embeddings(case: Case) -> None:
    model, x = case.model(), case.input()
    composite = composites.secant(other, gamma=0.25 if case.name in {"mlp", "residual", "vit-sdpa"} else 0.0)
    slack = 1e-4 if case.name in ROUNDED else 1e-9
    pushed, pulled = (bilrp.decompose(model, x, composite=composite, mode=mode) for mode in ("push", "pull"))
    with torch.no_grad():
        difference = (model(x) - model(other(x))).flatten()
    assert pushed.parts.abs().max() > 1e-6
    assert off(pushed.parts, pulled.parts) < 1e-9
    assert off(pushed.parts.sum(0), difference) < slack
    assert pushed.reference is not None
    assert off(pushed.unattributed, pushed.reference) < slack


def test_what_has_no_secant_is_refused_in_one_line() -> None:
    with pytest.raises(RuleError, match=r"no secant is known for .*topk") as refusal:
        bilrp.decompose(lambda x: x.topk(2).values, torch.rand(1, 6), composite=composites.secant(other))
    assert "\n" not in str(refusal.value)


class Squeeze(nn.Module):
    """What MobileNet and EfficientNet are made of: batch norm, ReLU6, SiLU, depthwise, squeeze-and-excite, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.apart = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.down, self.up = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu6(3 * self.norm(self.stem(x))), 3, 1, 1)
        z = F.silu(self.apart(y))
        gate = torch.sigmoid(self.up(F.relu(self.down(z.mean((2, 3), keepdim=True)))))
        return F.gelu(self.head((y + z * gate).mean((2, 3))))


def test_parts_equal_those_of_a_reference_implementation() -> None:
    """Layer by layer, number by number, without tape, rules or engine."""
    torch.manual_seed(2)
    net = randomize_norms(Squeeze())
    assert isinstance(net, Squeeze)
    x = 2 * torch.randn(1, 3, 8, 8, dtype=torch.float64)
    decomposition = bilrp.decompose(net, x, regions=regions.grid(4), composite=composites.secant("mean"))
    x0 = x.mean((2, 3), keepdim=True).expand_as(x)
    with torch.no_grad():
        for number, (top, left) in enumerate(itertools.product((0, 4), repeat=2)):
            moved = torch.zeros_like(x)
            window = (..., slice(top, top + 4), slice(left, left + 4))
            moved[window] = (x - x0)[window]
            assert off(decomposition.parts[number], push_by_hand(net, x, x0, moved).flatten()) < 1e-10


def push_by_hand(net: Squeeze, x: Tensor, x0: Tensor, s: Tensor) -> Tensor:
    """s carried through secants by hand."""

    def along(f: Callable[[Tensor], Tensor], a: Tensor, a0: Tensor, t: Tensor) -> Tensor:
        return torch.where(t == 0, 0, t * (f(a) - f(a0)) / (a - a0))

    def straight(layer: nn.Module, t: Tensor) -> Tensor:
        return layer(t) - layer(torch.zeros_like(t))

    a, a0 = (3 * net.norm(net.stem(v)) for v in (x, x0))
    s = 3 * straight(net.norm, straight(net.stem, s))
    s, a, a0 = along(F.relu6, a, a0, s), F.relu6(a), F.relu6(a0)
    s, y, y0 = slow_pool(a, a0, s), F.max_pool2d(a, 3, 1, 1), F.max_pool2d(a0, 3, 1, 1)
    t, z, z0 = straight(net.apart, s), net.apart(y), net.apart(y0)
    t, z, z0 = along(F.silu, z, z0, t), F.silu(z), F.silu(z0)
    g, g0, u = (v.mean((2, 3), keepdim=True) for v in (z, z0, t))
    g, g0, u = net.down(g), net.down(g0), straight(net.down, u)
    g, g0, u = F.relu(g), F.relu(g0), along(F.relu, g, g0, u)
    g, g0, u = net.up(g), net.up(g0), straight(net.up, u)
    g, g0, u = torch.sigmoid(g), torch.sigmoid(g0), along(torch.sigmoid, g, g0, u)
    mixed = s + t * (g + g0) / 2 + u * (z + z0) / 2
    h, h0 = (net.head((v + w * k).mean((2, 3))) for v, w, k in ((y, z, g), (y0, z0, g0)))
    return along(F.gelu, h, h0, straight(net.head, mixed.mean((2, 3))))


def slow_pool(a: Tensor, a0: Tensor, s: Tensor) -> Tensor:
    """3×3 windows: on each stretch of the way between two crossings the winner in its middle has it all."""
    out = torch.zeros_like(s)
    for c, i, j in itertools.product(*map(range, a.shape[1:])):
        rows, columns = slice(max(0, i - 1), i + 2), slice(max(0, j - 1), j + 2)
        start, end, moved = (v[0, c, rows, columns].flatten().tolist() for v in (a0, a, s))
        times = {0.0, 1.0}
        for k, m in itertools.combinations(range(len(start)), 2):
            steep = (end[k] - start[k]) - (end[m] - start[m])
            if steep and 0 < (t := (start[m] - start[k]) / steep) < 1:
                times.add(t)
        for low, high in itertools.pairwise(sorted(times)):
            at = [p + (low + high) / 2 * (q - p) for p, q in zip(start, end, strict=True)]
            first = [k for k, v in enumerate(at) if abs(v - max(at)) < 1e-14]
            out[0, c, i, j] += (high - low) * sum(moved[k] for k in first) / len(first)
    return out


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12), ties=st.booleans())
def test_the_way_a_maximum_is_won(seed: int, count: int, ties: bool) -> None:
    """Shares are not negative, sum to one, and carry differences to the difference of the maxima."""
    generator = torch.Generator().manual_seed(seed)
    a, a0 = (torch.randn(1, count, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    if ties:
        a, a0 = a.round(), a0.round()
    step = run_at_reference(record(lambda v: v.amax(1), a), a0).steps[0]
    shares = path_shares(step, lambda values: values[0].movedim(1, 0))[:, 0]
    assert float(shares.min()) >= 0
    torch.testing.assert_close(shares.sum(0), torch.ones_like(shares[0]))
    expected = (a.amax(1) - a0.amax(1))[0]
    torch.testing.assert_close((shares * (a - a0)[0]).sum(0), expected)
    if ties:  # equal candidates have equal shares
        for k, m in itertools.combinations(range(count), 2):
            same = (a[0, k] == a[0, m]) & (a0[0, k] == a0[0, m])
            torch.testing.assert_close(shares[k][same], shares[m][same])


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max pool, padded, ceil": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive max pool": lambda x: F.adaptive_max_pool2d(x, 2),
    "maximum": lambda x: torch.maximum(x[:, :2], x[:, 2:]),
    "minimum with a constant": lambda x: torch.minimum(x, torch.full((6, 6), 0.3, dtype=x.dtype)),
    "min": lambda x: x.min(1)[0],
    "clamp": lambda x: x.clamp(-0.5, 0.25),
    "square by hand": lambda x: x * x,
    "quotient": lambda x: x / (2 + x.abs()),
    "softmax": lambda x: x.softmax(1),
    "rms": lambda x: F.rms_norm(x, (6,)),
    "unit length": lambda x: F.normalize(x.flatten(1)),
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": lambda x: F.instance_norm(x),
    "batch norm of its own": lambda x: F.batch_norm(x, None, None, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, 2 * x.flip(2), x.square(), is_causal=True),
    "hardswish and exp": lambda x: F.hardswish(x).exp(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_single_functions(name: str) -> None:
    function, x = FUNCTIONS[name], 2 * torch.randn(1, 4, 6, 6, dtype=torch.float64)
    composite = composites.secant(other)
    push, pull = (
        bilrp.decompose(function, x, regions=2, composite=composite, mode=m) for m in ("push", "pull")
    )
    assert off(push.parts, pull.parts) < 1e-9
    assert off(push.parts.sum(0), (function(x) - function(other(x))).flatten()) < 1e-9


def test_it_is_one_linear_map_of_the_difference() -> None:
    net = randomize_norms(Squeeze())
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    fine = bilrp.decompose(net, x, regions=2, composite=composites.secant("blurred"))
    coarse = bilrp.decompose(net, x, regions=4, composite=composites.secant("blurred"))
    assert off(fine.coarsen(regions.grid(4)).parts, coarse.parts) < 1e-10


def test_near_the_reference_a_secant_is_the_gradient() -> None:
    """Quotients of small numbers would be noise."""
    torch.manual_seed(0)
    net = randomize_norms(Squeeze())
    x, way = torch.randn(2, 1, 3, 8, 8, dtype=torch.float64)
    gradient = torch.autograd.functional.jacobian(net, x)[0, :, 0]
    for size in (1e-6, 1e-9, 1e-12):
        step = size * way
        decomposition = bilrp.decompose(
            net, x, regions=regions.features(), composite=composites.secant(x - step)
        )
        expected = (gradient * (x - (x - step))).flatten(1).T
        assert off(decomposition.parts, expected) < 1e-3
    same = bilrp.decompose(net, x, composite=composites.secant(x))
    assert not same.parts.any() and off(same.unattributed, same.embedding) == 0


def test_what_a_reference_may_be() -> None:
    net, x = randomize_norms(Squeeze()), torch.randn(1, 3, 8, 8, dtype=torch.float64)

    def decompose_from(reference) -> bilrp.Decomposition:
        return bilrp.decompose(net, x, regions=4, composite=composites.secant(reference))

    assert decompose_from("zero").origin["composite"] == "secant(zero)"
    assert torch.equal(decompose_from(torch.zeros_like(x)).parts, decompose_from("zero").parts)
    halves = [decompose_from(lambda v: v / 2), decompose_from(lambda v: v / 3)]
    assert halves[0].origin != halves[1].origin
    with pytest.raises(BilrpError, match="differ in composite"):
        bilrp.pair(*halves, similarity="dot")
    for wrong, message in (
        ("median", "unknown reference 'median': use one of mean, blurred, zero"),
        (torch.zeros(1, 3, 4, 4), "must have the input's shape"),
        (lambda v: v * float("nan"), "NaN"),
        (7, "got int"),
    ):
        with pytest.raises(RuleError, match=message):
            decompose_from(wrong)
    with pytest.raises(RuleError, match="is for images"):
        bilrp.decompose(nn.Linear(4, 2), torch.ones(1, 4), composite=composites.secant("mean"))
    with pytest.raises(RuleError, match="needs a reference input"):
        bilrp.decompose(nn.Linear(4, 2), torch.ones(1, 4), composite=bilrp.rules.secant())


def test_a_model_that_goes_another_way_at_the_reference_is_refused() -> None:
    with pytest.raises(TapeError, match="takes other branches at the reference"):
        bilrp.decompose(
            lambda x: 2 * x if bool((x > 0).all()) else 5 * x, torch.ones(1, 4),
            composite=composites.secant(-torch.ones(1, 4))
        )  # fmt: skip


def test_single_steps_may_have_other_rules() -> None:
    net, x = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).double(), torch.randn(1, 4, dtype=torch.float64)
    composite = composites.first_match(
        ("softmax", bilrp.rules.jacobian()), otherwise=composites.secant(other)
    )
    decomposition = bilrp.decompose(net, x, composite=composite)
    assert decomposition.reference is not None
    assert (
        off(decomposition.unattributed, decomposition.reference) > 1e-3
    )  # the derivative at one end leaves a rest
    assert [row.rule for row in bilrp.ops(net, x, composite=composite)] == ["secant", "jacobian"]


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
def test_a_score_is_pairs_and_references(similarity: str, tmp_path) -> None:
    """⟨φ, φ'⟩ = ⟨Δ, Δ'⟩ + ⟨Δ, φ₀'⟩ + ⟨φ₀, Δ'⟩ + ⟨φ₀, φ₀'⟩, and each term is said."""
    net = randomize_norms(Squeeze())
    a, b = torch.randn(2, 1, 3, 8, 8, dtype=torch.float64)
    b = b + 2  # another mean colour: other references
    explanation = bilrp.explain(
        net, a, b, regions=4, composite=composites.secant("mean"), similarity=similarity
    )
    breakdown = explanation.breakdown
    known = breakdown.reference_terms_a + breakdown.reference_terms_b + breakdown.reference_score
    assert abs(breakdown.explained + known - explanation.score) < 1e-12 * max(1.0, abs(explanation.score))
    assert (
        abs(
            explanation.relevance.sum()
            + sum(w.sum() for w in explanation.self_terms or ())
            + explanation.unattributed
            - explanation.score
        )
        < 1e-12
    )
    if similarity == "dot":
        references = assert_not_none(explanation.a.reference), assert_not_none(explanation.b.reference)
        left, right = explanation.a.embedding - references[0], explanation.b.embedding - references[1]
        expected = (left @ right, left @ references[1], references[0] @ right, references[0] @ references[1])
        got = (
            breakdown.explained,
            breakdown.reference_terms_a,
            breakdown.reference_terms_b,
            breakdown.reference_score,
        )
        torch.testing.assert_close(torch.tensor(got).double(), torch.stack(expected))
    for kind in ("npz", "safetensors"):
        second = bilrp.Explanation.load(explanation.save(tmp_path / f"why.{kind}"))
        assert second.breakdown == breakdown
    coarse = explanation.coarsen(regions.grid(8))
    assert abs(coarse.breakdown.reference_terms_a - breakdown.reference_terms_a) < 1e-12
    assert account_line(explanation).count("against the reference picture") == 1
    assert "against the reference picture" in explanation.summary()


def test_one_tower_alone_may_have_a_reference() -> None:
    torch.manual_seed(0)
    pictures = bilrp.Encoder(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double(), embedding_space="toy",
                             composite=composites.secant("zero"), name="pictures")  # fmt: skip
    texts = bilrp.Encoder(
        nn.Linear(4, 3).double(), embedding_space="toy", composite=composites.uniform(0.0), name="texts"
    )
    explanation = bilrp.explain(
        (pictures, texts),
        torch.randn(1, 3, 2, 2).double(),
        torch.randn(1, 4).double(),
        regions=(1, None),
        similarity="dot",
    )
    assert (
        explanation.reference_terms is not None
        and explanation.breakdown.reference_score == explanation.breakdown.reference_terms_a == 0
    )
    left = explanation.a.reference
    assert left is not None
    assert abs(explanation.breakdown.reference_terms_b - float(left @ explanation.b.parts.sum(0))) < 1e-12


def test_a_file_with_a_broken_reference_is_refused(tmp_path) -> None:
    net, (a, b) = randomize_norms(Squeeze()), torch.randn(2, 1, 3, 8, 8, dtype=torch.float64)
    explanation = bilrp.explain(net, a, b, regions=4, composite=composites.secant("mean"), similarity="dot")
    assert explanation.reference_terms is not None and explanation.a.reference is not None
    for broken in (
        replace(
            explanation, reference_terms=(explanation.reference_terms[0][:2], explanation.reference_terms[1])
        ),
        replace(
            explanation,
            reference_terms=(explanation.reference_terms[0] * float("nan"), explanation.reference_terms[1]),
        ),
        replace(explanation, reference_score=float("inf")),
        replace(explanation, a=replace(explanation.a, reference=explanation.a.reference / 0)),
    ):
        with pytest.raises(BilrpError, match="invalid"):
            bilrp.Explanation.load(broken.save(tmp_path / "broken.npz"))


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
def test_a_set_has_the_references_of_its_members(similarity: str) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    sides = [
        [
            bilrp.decompose(net, x, composite=bilrp.composites.secant("zero"))
            for x in torch.rand(3, 1, 6).double()
        ]
        for _ in range(2)
    ]
    explanation = bilrp.explain_sets(*sides, similarity=similarity)
    known = (
        explanation.breakdown.reference_terms_a
        + explanation.breakdown.reference_terms_b
        + explanation.breakdown.reference_score
    )
    pairs = [bilrp.pair(a, b, similarity=similarity).breakdown for a in sides[0] for b in sides[1]]
    assert explanation.score == pytest.approx(sum(p.score for p in pairs))
    assert explanation.unattributed == pytest.approx(sum(p.unattributed for p in pairs))
    if explanation.reference_terms is not None:
        assert known == pytest.approx(explanation.unattributed) and similarity != "squared_distance"


def test_a_reference_stays_what_it_was() -> None:
    given, net, x = torch.zeros(1, 6), nn.Sequential(nn.Linear(6, 4), nn.ReLU()), torch.rand(1, 6)
    composite = bilrp.composites.secant(given)
    before = bilrp.decompose(net, x, composite=composite).parts
    given += 1
    assert torch.equal(bilrp.decompose(net, x, composite=composite).parts, before)


def test_a_step_without_a_secant_is_refused() -> None:
    """A direction alone: a reference of zeros has none."""
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    with pytest.raises(RuleError, match="no secant is known"):
        bilrp.decompose(lambda v: F.normalize(v.flatten(1)), x, composite=composites.secant("zero"))
