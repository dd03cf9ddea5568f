"""Sets, contrasts and many inputs against brute force over all pairs or tuples, in float64."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bilrp
from bilrp import groups, regions, similarity

HALVES = regions.labels(torch.tensor([0, 0, 1, 1, 2, -1]))
THIRDS = regions.labels(torch.tensor([0, 1, 1, 1, 0, 0]))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5)).double()


def some(count: int, seed: int, spec=HALVES, model: nn.Module | None = None) -> list[bilrp.Decomposition]:
    model = model or network()
    torch.manual_seed(seed)
    return [bilrp.decompose(model, torch.randn(1, 6).double(), regions=spec) for _ in range(count)]


MATRIX = torch.randn(5, 5, generator=torch.Generator().manual_seed(3)).double()


@pytest.mark.parametrize(
    "how",
    ["dot", "cosine", "squared_distance", similarity.bilinear(MATRIX), similarity.projected(3)],
    ids=lambda s: s if isinstance(s, str) else s.name,
)
def test_sets_equal_the_sum_over_all_pairs(how) -> None:
    a, b = some(4, 1), some(3, 2, THIRDS)
    explanation = bilrp.explain_sets(a, iter(b), similarity=how)
    each = [bilrp.pair(x, y, similarity=how) for x in a for y in b]
    assert explanation.score == pytest.approx(sum(e.score for e in each), abs=1e-10)
    assert torch.allclose(explanation.relevance, sum_of([e.relevance for e in each]), atol=1e-10, rtol=0)
    assert explanation.unattributed == pytest.approx(sum(e.unattributed for e in each), abs=1e-10)
    if how == "squared_distance":
        assert explanation.self_terms is not None
        for side in (0, 1):
            expected = sum_of([e.self_terms[side] for e in each if e.self_terms])
            assert torch.allclose(explanation.self_terms[side], expected, atol=1e-10, rtol=0)


def sum_of(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0)


class Work(TorchDispatchMode):
    """Counts the numbers that torch calls write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.written += out.numel() if isinstance(out, Tensor) else 0
        return out


@pytest.mark.parametrize("how", ["dot", "cosine", "squared_distance"])
def test_sets_cost_linear_time(how: str) -> None:
    one = some(1, 1)[0]

    def work(count: int) -> int:
        with Work() as counted:
            bilrp.explain_sets([one] * count, [one] * count, similarity=how)
        return counted.written

    ten, twenty, forty = work(10), work(20), work(40)
    assert forty - twenty == 2 * (twenty - ten) > 0


def test_a_set_is_a_decomposition_of_its_own() -> None:
    a = some(3, 1)
    summed = groups.sum_decompositions(a)
    assert torch.allclose(summed.embedding, sum_of([d.embedding for d in a]), atol=1e-12)
    assert torch.allclose(summed.unattributed, sum_of([d.unattributed for d in a]), atol=1e-12)
    assert torch.equal(a[0].parts, some(3, 1)[0].parts), "the members stay as they are"


def test_a_set_of_images_shows_its_mean() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
    images = [torch.rand(1, 1, 8, 8) for _ in range(2)]
    decompositions = [bilrp.decompose(model, x, regions=regions.grid(4)) for x in images]
    picture = groups.sum_decompositions(decompositions).input_image
    assert picture is not None and picture.shape == (8, 8, 3)
    expected = (decompositions[0].input_image.astype(float) + decompositions[1].input_image) / 2  # type: ignore[union-attr]
    assert abs(picture - expected).max() <= 0.5


def test_sets_refuse_what_does_not_add_up() -> None:
    a = some(2, 1)
    with pytest.raises(bilrp.errors.InputError, match="b is an empty set"):
        bilrp.explain_sets(a, [], similarity="dot")
    with pytest.raises(bilrp.errors.MismatchError, match="decomposition 2 has other regions"):
        bilrp.explain_sets([*a, *some(1, 3, THIRDS)], a, similarity="dot")
    with pytest.raises(bilrp.errors.MismatchError, match="composite"):
        bilrp.explain_sets(
            a,
            [bilrp.decompose(network(), torch.rand(1, 6).double(), composite=bilrp.rules.zero())],
            similarity="dot",
        )
    squared = similarity.Similarity("squared", lambda x, y: (x @ y) ** 2, lambda x, y: lambda p, q: p @ q.T)
    with pytest.raises(bilrp.errors.InputError, match="'squared' is not linear"):
        bilrp.explain_sets(a, a, similarity=squared)
    zero = made_of(torch.zeros(3, 5).double())
    with pytest.raises(bilrp.errors.InputError, match="non-zero"):
        bilrp.explain_sets([zero], [zero], similarity="cosine")


@pytest.mark.parametrize("how", ["dot", "cosine"])
def test_contrast_on_common_regions(how: str) -> None:
    a, b, c = some(3, 4)
    difference = bilrp.contrast(a, b, c, similarity=how)
    scale_b, scale_c = 1.0, 1.0
    if how == "cosine":
        scale_b, scale_c = (float(a.embedding.norm() * d.embedding.norm()) for d in (b, c))
    expected = a.parts @ (b.parts / scale_b - c.parts / scale_c).T
    assert torch.allclose(difference.relevance, expected, atol=1e-12, rtol=0)
    y = float(a.embedding @ (b.embedding / scale_b - c.embedding / scale_c))
    assert difference.score == pytest.approx(y, abs=1e-12)
    assert difference.score == pytest.approx(float(expected.sum()) + difference.unattributed, abs=1e-12)
    opposite = bilrp.contrast(a, c, b, similarity=how)
    assert torch.allclose(opposite.relevance, -difference.relevance, atol=1e-12)


def test_contrast_with_different_regions() -> None:
    model = network()
    (a, b), (c,) = some(2, 4, model=model), some(1, 5, THIRDS, model=model)
    difference = bilrp.contrast(a, b, c, similarity="dot")
    with pytest.raises(bilrp.errors.MismatchError, match=r"\.toward"):
        _ = difference.relevance
    of_a, of_b, of_c = difference.marginals()
    assert of_b.shape == (3,) and of_c.shape == (2,)
    assert float(of_a.sum()) == pytest.approx(float(of_b.sum() + of_c.sum()), abs=1e-12)
    assert difference.score == pytest.approx(float(of_a.sum()) + difference.unattributed, abs=1e-12)
    expected = [("b", i, j, float(a.parts[i] @ b.parts[j])) for i in range(3) for j in range(3)]
    expected += [("c", i, j, -float(a.parts[i] @ c.parts[j])) for i in range(3) for j in range(2)]
    expected.sort(key=lambda e: -abs(e[3]))
    for ours, theirs in zip(difference.top(100), expected, strict=True):
        assert ours[:3] == theirs[:3] and ours.relevance == pytest.approx(theirs[3], abs=1e-12)


def named_like_another() -> list[similarity.Similarity]:
    """What a user may write: the name says one thing, the arithmetic another."""
    return [
        replace(similarity.cosine(), name="angle"),
        similarity.bilinear(MATRIX, name="cosine"),
        similarity.bilinear(MATRIX, name="distance head"),
        similarity.Similarity(
            "nearness",
            lambda x, y: (x + y).square().sum(),
            lambda x, y: lambda p, q: 2 * p @ q.T,
            has_self_terms=True,
        ),
    ]


@pytest.mark.parametrize("how", named_like_another(), ids=lambda s: s.name)
def test_arithmetic_asks_the_similarity_not_its_name(how: similarity.Similarity) -> None:
    a, b = some(3, 1), some(2, 2)
    explanation = bilrp.explain_sets(a, b, similarity=how)
    each = [bilrp.pair(x, y, similarity=how) for x in a for y in b]
    assert explanation.score == pytest.approx(sum(e.score for e in each), abs=1e-10)
    assert torch.allclose(explanation.relevance, sum_of([e.relevance for e in each]), atol=1e-10, rtol=0)
    assert explanation.unattributed == pytest.approx(sum(e.unattributed for e in each), abs=1e-9)
    assert not explanation.is_distance and not each[0].is_distance
    assert bilrp.contrast(a[0], a[1], b[0], similarity=how).score == pytest.approx(
        bilrp.pair(a[0], a[1], similarity=how).score - each[0].score, abs=1e-10
    )


def test_a_distance_says_so(tmp_path) -> None:
    a, b = some(2, 1)
    explanation = bilrp.pair(a, b, similarity="squared_distance")
    assert explanation.is_distance and bilrp.explain_sets([a], [b], similarity="squared_distance").is_distance
    assert bilrp.Explanation.load(explanation.save(tmp_path / "d.npz")).is_distance
    assert not bilrp.Explanation.load(bilrp.pair(a, b, similarity="dot").save(tmp_path / "e.npz")).is_distance


def test_contrast_refuses_distances() -> None:
    a, b, c = some(3, 4)
    with pytest.raises(bilrp.errors.InputError, match="is a distance"):
        bilrp.contrast(a, b, c, similarity="squared_distance")


def made_of(parts: Tensor, embedding: Tensor | None = None) -> bilrp.Decomposition:
    """A decomposition with these parts, as if some encoder had made it."""
    partition = regions.features()(torch.zeros(1, len(parts)))
    return bilrp.Decomposition(parts, parts.sum(0) if embedding is None else embedding, partition, {})


def whole(parts: list[Tensor]) -> Tensor:
    """Σ_m P₁[I₁, m] ⋯ P_n[I_n, m], written out."""
    letters = string.ascii_lowercase[: len(parts)]
    return torch.einsum(",".join(f"{x}z" for x in letters) + f"->{letters}", *parts)


sizes = st.lists(st.integers(1, 6), min_size=2, max_size=5)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(1, 4), st.integers(0, 10_000), st.integers(1, 40), st.booleans())
def test_many_against_brute_force(counts, coordinates, seed, k, positive) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, coordinates, generator=generator, dtype=torch.float64) for n in counts]
    parts = [p.abs() if positive else p for p in parts]
    explanation, brute = bilrp.explain_many([made_of(p) for p in parts], similarity="dot"), whole(parts)
    for i, marginal in enumerate(explanation.marginals()):
        others = [axis for axis in range(len(parts)) if axis != i]
        assert torch.allclose(marginal, brute.sum(others), atol=1e-10, rtol=0)
    others = list(range(1, len(parts) - 1))
    pairs = brute.sum(others) if others else brute
    assert torch.allclose(explanation.between(0, len(parts) - 1), pairs, atol=1e-10, rtol=0)
    expected = brute.flatten().sort(descending=True).values[:k].tolist()
    strongest = explanation.top(k)
    assert [t.relevance for t in strongest] == pytest.approx(expected, abs=1e-10)
    assert len({t.regions for t in strongest}) == len(strongest)
    for t in strongest:
        assert float(brute[t.regions]) == pytest.approx(t.relevance, abs=1e-10)
        assert explanation.relevance(*t.regions) == pytest.approx(t.relevance, abs=1e-10)
    assert explanation.score == pytest.approx(float(brute.sum()), abs=1e-9)


def test_many_accounts_for_biases() -> None:
    decompositions = some(3, 6)
    explanation = bilrp.explain_many(decompositions, similarity="dot")
    score = float(
        (decompositions[0].embedding * decompositions[1].embedding * decompositions[2].embedding).sum()
    )
    assert explanation.score == pytest.approx(score, abs=1e-12)
    assert explanation.unattributed == pytest.approx(
        score - float(whole([d.parts for d in decompositions]).sum()), abs=1e-12
    )
    assert abs(explanation.unattributed) > 1e-6


def test_two_inputs_are_a_pair() -> None:
    a, b = some(2, 7)
    many, two = bilrp.explain_many([a, b], similarity="dot"), bilrp.pair(a, b, similarity="dot")
    assert many.score == pytest.approx(two.score, abs=1e-12)
    assert [(t.regions, t.relevance) for t in many.top(4)] == [((m.a, m.b), m.relevance) for m in two.top(4)]


def test_the_bound_spares_most_of_the_search() -> None:
    """Parts as ReLU encoders make them, sparse and of unequal strength: few choices of two inputs are opened."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(4):
        strength = torch.rand(40, 1, generator=generator, dtype=torch.float64) ** 4
        active = torch.rand(40, 30, generator=generator) < 0.1
        parts.append(strength * active)
    result, opened = groups.find_strongest(parts, 5)
    assert opened < 0.05 * (1 + 40 + 40**2)
    expected = whole(parts).flatten().topk(5).values.tolist()
    assert [t.relevance for t in result] == pytest.approx(expected, abs=1e-12)


def test_many_refuses() -> None:
    a, b = some(2, 1)
    with pytest.raises(bilrp.errors.InputError, match="at least two"):
        bilrp.explain_many([a], similarity="dot")
    with pytest.raises(bilrp.errors.InputError, match="one region for each"):
        bilrp.explain_many([a, b], similarity="dot").relevance(0)
    other = bilrp.decompose(
        network(), torch.rand(1, 6).double(), composite=bilrp.rules.zero(), regions=HALVES
    )
    with pytest.raises(bilrp.errors.MismatchError, match="composite"):
        bilrp.explain_many([a, other], similarity="dot")
