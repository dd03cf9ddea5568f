"""The baselines of section 4 against the Hessian that autograd gives, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import bilrp
from bilrp import regions
from bilrp.evaluation import baselines

TOLERANCE = 1e-10


def mlp(*, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return (
        nn.Sequential(
            nn.Linear(6, 9, bias=bias),
            nn.ReLU(),
            nn.Linear(9, 8, bias=bias),
            nn.ReLU(),
            nn.Linear(8, 5, bias=bias),
        )
        .double()
        .requires_grad_(False)
    )


class Smooth(nn.Module):
    """A network where LRP-0 and gradients differ: GELU, a norm, attention, a product of two live tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.nn.functional.gelu(self.into(self.norm(x)))
        return (x + self.attend(x, x, x, need_weights=False)[0] * torch.sigmoid(x)).mean(1)


def smooth() -> nn.Module:
    torch.manual_seed(1)
    return Smooth().double().eval().requires_grad_(False)


def pairs_hessian(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    """∂²y/∂x_i∂x'_i' by differentiating y twice."""

    def similarity(left: Tensor, right: Tensor) -> Tensor:
        return (model(left) * model(right)).sum()

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
        cross = torch.autograd.functional.hessian(similarity, (a, b))[0][1]
    assert isinstance(cross, Tensor)
    return cross.reshape(a.numel(), b.numel())


def pool_pairs(pairs: Tensor, left: regions.Regions, right: regions.Regions) -> Tensor:
    """Appendix E, as plain loops."""
    out = torch.zeros(left.count, right.count, dtype=pairs.dtype)
    for i, label in enumerate(left.labels.flatten().tolist()):
        for j, other in enumerate(right.labels.flatten().tolist()):
            if label >= 0 and other >= 0:
                out[label, other] += pairs[i, j]
    return out


HALVES = regions.labels(torch.tensor([0, 0, 0, 1, 1, 2]))
GAPS = regions.labels(torch.tensor([1, 0, -1, 1, 0, -1]))
CASES = {
    "mlp": (mlp, (1, 6), (1, 6), (HALVES, GAPS)),
    "smooth": (smooth, (1, 3, 4), (1, 2, 4), (regions.tokens(), regions.features())),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest):
    make, shape_a, shape_b, specs = CASES[request.param]
    torch.manual_seed(7)
    a, b = torch.randn(shape_a).double(), torch.randn(shape_b).double()
    return make(), a, b, specs


def test_saliency(case) -> None:
    model, a, b, specs = case
    result = baselines.saliency(model, a, b, regions=specs)
    expected = pool_pairs(torch.outer(a.flatten(), b.flatten()).square(), specs[0](a), specs[1](b))
    assert torch.allclose(result.relevance, expected, atol=TOLERANCE, rtol=0)


def test_curvature(case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, a, b, specs = case
    expected = pool_pairs(pairs_hessian(model, a, b).square(), specs[0](a), specs[1](b))
    assert expected.abs().max() > 1e-4
    full = baselines.curvature(model, a, b, regions=specs)
    assert torch.allclose(full.relevance, expected, atol=TOLERANCE, rtol=0)
    monkeypatch.setattr(baselines, "MAX_HESSIAN_ELEMENTS", 2 * b.numel())  # two rows of the Hessian at a time
    assert torch.allclose(
        baselines.curvature(model, a, b, regions=specs).relevance, expected, atol=TOLERANCE, rtol=0
    )


def test_hessian_product(case) -> None:
    model, a, b, specs = case
    product = torch.outer(a.flatten(), b.flatten()) * pairs_hessian(model, a, b)
    expected = pool_pairs(product, specs[0](a), specs[1](b))
    for mode in ("push", "pull"):
        result = baselines.hessian_product(model, a, b, regions=specs, mode=mode, similarity="dot")
        assert torch.allclose(result.relevance, expected, atol=TOLERANCE, rtol=0)


def test_gradients_are_not_lrp_on_a_smooth_model() -> None:
    model, a = smooth(), torch.randn(1, 3, 4).double()
    hessian = baselines.hessian_product(model, a, a, similarity="dot")
    lrp = bilrp.explain(model, a, a, composite=bilrp.composites.uniform(0.0), similarity="dot")
    assert not torch.allclose(hessian.relevance, lrp.relevance, atol=1e-3)


def test_integrated_hessians_is_the_double_integral() -> None:
    """∫∫ H(αx, βx') x x' on a dense grid of nodes, without using that the integrand is a product."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    a, b = torch.rand(1, 3).double(), torch.rand(1, 3).double()
    nodes, weights = (torch.tensor(t) for t in np.polynomial.legendre.leggauss(12))
    expected = torch.zeros(3, 3).double()
    for alpha, u in zip((nodes + 1) / 2, weights / 2, strict=True):
        for beta, v in zip((nodes + 1) / 2, weights / 2, strict=True):
            expected += u * v * pairs_hessian(model, alpha * a, beta * b) * torch.outer(a[0], b[0])
    result = baselines.integrated_hessians(model, a, b, regions=regions.features(), similarity="dot")
    assert torch.allclose(result.relevance, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_integrated_hessians_is_complete(case, start: float) -> None:
    model, a, b, _ = case
    baseline: float | Tensor = start
    if isinstance(model, nn.Sequential):  # ReLUs make the gradient jump along the path: smooth them
        model = nn.Sequential(*(nn.Softplus() if isinstance(m, nn.ReLU) else m for m in model))
    else:  # a norm is steep near a constant input: start from another
        baseline = start + torch.linspace(-1, 1, 4).double()
    result = baselines.integrated_hessians(
        model, a, b, regions=regions.features(), baseline=baseline, steps=24, similarity="dot"
    )
    left, right = (model(x) - model(torch.zeros_like(x) + baseline) for x in (a, b))
    assert result.explained == pytest.approx(float((left * right).sum()), abs=1e-6)
    assert torch.allclose(result.a.unattributed, model(torch.zeros_like(a) + baseline).flatten(), atol=1e-6)


def test_integrated_hessians_push_equals_pull() -> None:
    """Three regions are pushed, six features against five coordinates are pulled: the same sums."""
    model, a, b = mlp(), torch.randn(1, 6).double(), torch.randn(1, 6).double()
    pulled = baselines.integrated_hessians(model, a, b, regions=regions.features(), similarity="dot")
    pushed = baselines.integrated_hessians(model, a, b, regions=HALVES, similarity="dot")
    assert torch.allclose(pulled.coarsen(HALVES).relevance, pushed.relevance, atol=TOLERANCE, rtol=0)


def test_integrated_hessians_on_images_with_a_baseline() -> None:
    """The way x − x° is pushed through maps frozen elsewhere on the path."""
    torch.manual_seed(2)
    convolutions = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU()]
    model = nn.Sequential(*convolutions, nn.AvgPool2d(2), nn.Flatten()).double().requires_grad_(False)
    x, start = torch.rand(1, 1, 12, 12).double(), torch.full((1, 1, 12, 12), 0.4, dtype=torch.float64)
    spec = regions.grid(4)
    result = baselines.integrated_hessians(model, x, x, regions=spec, baseline=0.4, steps=3, similarity="dot")
    nodes, weights = np.polynomial.legendre.leggauss(3)
    gradient = sum(
        float(w) / 2 * torch.func.jacrev(model)(start + float(n + 1) / 2 * (x - start))
        for n, w in zip(nodes, weights, strict=True)
    )
    integrated = (gradient * (x - start)).reshape(-1, 1, 1, 12, 12)  # type: ignore[operator]
    expected = spec(x).pool(integrated).T
    assert torch.allclose(result.a.parts, expected, atol=TOLERANCE, rtol=0)
    assert torch.allclose(result.relevance, expected @ expected.T, atol=TOLERANCE, rtol=0)


def test_the_joint_path_gives_a_quarter() -> None:
    """Janizek et al.'s ∫∫ αβ x x' H(αβx, αβx') for a positively homogeneous encoder: R/4 for each ordered pair."""
    model, a, b = mlp(bias=False), torch.randn(1, 6).double(), torch.randn(1, 6).double()
    joint = torch.zeros(6, 6).double()
    nodes, weights = (torch.tensor(t) for t in np.polynomial.legendre.leggauss(4))
    for alpha, u in zip((nodes + 1) / 2, weights / 2, strict=True):
        for beta, v in zip((nodes + 1) / 2, weights / 2, strict=True):
            both = alpha * beta
            joint += u * v * both * pairs_hessian(model, both * a, both * b) * torch.outer(a[0], b[0])
    result = baselines.integrated_hessians(model, a, b, regions=regions.features(), similarity="dot")
    assert torch.allclose(joint * 4, result.relevance, atol=TOLERANCE, rtol=0)
    assert abs(result.unattributed) < TOLERANCE


@pytest.mark.parametrize("name", ["hessian_product", "integrated_hessians"])
def test_under_another_similarity(name: str) -> None:
    """Cosine divides by both lengths, and so does its relevance; the score is the cosine itself."""
    model, baseline = smooth(), getattr(baselines, name)
    a, b = (torch.rand(1, 3, 4, dtype=torch.float64) for _ in range(2))
    dot, cosine = (baseline(model, a, b, similarity=similarity) for similarity in ("dot", "cosine"))
    lengths = model(a).norm() * model(b).norm()
    assert cosine.score == pytest.approx(float(torch.nn.functional.cosine_similarity(model(a), model(b))))
    torch.testing.assert_close(cosine.relevance, dot.relevance / lengths)


@pytest.mark.parametrize("name", ["saliency", "curvature", "hessian_product", "integrated_hessians"])
def test_all_report_the_models_own_score(name: str, tmp_path) -> None:
    model, a, b = mlp(), torch.randn(1, 6).double(), torch.randn(1, 6).double()
    result = getattr(baselines, name)(bilrp.Encoder(model, similarity="dot"), a, b, regions=HALVES)
    assert result.score == pytest.approx(float((model(a) * model(b)).sum()), abs=1e-12)
    assert result.unattributed == pytest.approx(result.score - float(result.relevance.sum()), abs=1e-12)
    assert torch.allclose(result.a.embedding, model(a).flatten(), atol=1e-12)
    assert name in result.a.origin["composite"]
    second = bilrp.Explanation.load(result.save(tmp_path / "found.npz"))
    assert torch.equal(second.relevance, result.relevance) and second.score == result.score


def test_errors_say_what_to_do() -> None:
    model, x = mlp(), torch.rand(1, 6).double()
    with pytest.raises(bilrp.errors.InputError, match="at least one step"):
        baselines.integrated_hessians(model, x, x, steps=0, similarity="dot")
    with pytest.raises(bilrp.errors.InputError, match="baseline of shape"):
        baselines.integrated_hessians(model, x, x, baseline=torch.zeros(1, 4), similarity="dot")
    with pytest.raises(bilrp.errors.InputError, match="NaN"):
        baselines.saliency(model, x * float("nan"), x)
