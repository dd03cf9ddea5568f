"""The propositions and appendices of the paper, by number; symmetry; and the model stays unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions, similarity
from bilrp.engine.executor import execute_plan
from bilrp.engine.plan import PlanContext, make_plan
from bilrp.errors import BilrpError
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from models import CASES, PLAIN, Block, Case, Selecting, mlp, randomize_norms, vgg_like

by_name = {case.name: case for case in CASES}


class Unbiased(nn.Module):
    """Residual, convolution, pooling, max, cat: everything the propositions cover, and no bias anywhere."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.two = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2, bias=False)
        self.head = nn.Linear(7, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.one(x))
        y = F.relu(self.two(y) + y)
        z = torch.maximum(F.max_pool2d(self.up(y), 4), -F.avg_pool2d(self.up(y), 4))
        return self.head(torch.cat([y.mean((2, 3)), z.amax((2, 3))], 1))


def selecting() -> nn.Module:
    model = Selecting()
    for layer in (model.a, model.b):
        nn.init.zeros_(layer.bias)
    return model


UNBIASED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(bias=False), (6,)),
    "vgg": (lambda: vgg_like(bias=False), (3, 8, 8)),
    "residual": (Unbiased, (2, 8, 8)),
    "selecting": (selecting, (8,)),
}


def pair_of(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 1, *shape, dtype=torch.float64, generator=generator)
    return a, b


@pytest.mark.parametrize("gamma", [0.0, 0.09, 0.5])
@pytest.mark.parametrize("name", UNBIASED)
def test_proposition_1_conservation(name: str, gamma: float) -> None:
    """Zero biases, rules 0 and γ: Σ_ii' R_ii' = y."""
    build, shape = UNBIASED[name]
    model = build().double()
    a, b = pair_of(shape)
    for kind in ("dot", "cosine", "squared_distance"):
        explanation = bilrp.explain(
            model, a, b, similarity=kind, composite=composites.uniform(gamma), regions=regions.features()
        )
        assert abs(explanation.unattributed) < 1e-10 * max(1.0, abs(explanation.score))
        assert explanation.explained == pytest.approx(explanation.score, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("name", ["mlp", "vgg"])
def test_proposition_2_hessian_times_product(name: str, bias: bool) -> None:
    """γ = 0: R_ii' = x_i x'_i' ∂²y/∂x_i∂x'_i', by autograd's Hessian of the similarity itself."""
    model = (mlp if name == "mlp" else vgg_like)(bias=bias).double()
    if name == "vgg":
        model, shape = nn.Sequential(model[0], model[1], model[4], model[5], nn.ReLU()), (3, 4, 4)
    else:
        shape = (6,)
    a, b = pair_of(shape)
    size = a.numel()

    def score(both: Tensor) -> Tensor:
        left, right = both.split(size)
        return (model(left.reshape(a.shape)) * model(right.reshape(a.shape))).sum()

    hessian = torch.autograd.functional.hessian(score, torch.cat([a.flatten(), b.flatten()]))
    assert isinstance(hessian, Tensor)
    expected = a.flatten()[:, None] * hessian[:size, size:] * b.flatten()
    assert expected.abs().max() > 1e-4
    for composite in (composites.uniform(0.0), composites.hessian_product()):
        for mode in ("push", "pull"):
            explanation = bilrp.explain(
                model, a, b, composite=composite, regions=regions.features(), mode=mode, similarity="dot"
            )
            torch.testing.assert_close(explanation.relevance, expected, rtol=1e-10, atol=1e-12)


def test_uniform_zero_is_gradient_times_input() -> None:
    case = by_name["residual"]
    model, x = case.model(), case.input()
    jacobian = torch.autograd.functional.jacobian(model, x)
    assert isinstance(jacobian, Tensor)
    decomposition = bilrp.decompose(model, x, composite=composites.uniform(0.0), regions=regions.features())
    torch.testing.assert_close(
        decomposition.parts, (jacobian.reshape(12, -1) * x.flatten()).T, rtol=1e-9, atol=1e-11
    )


@settings(max_examples=6)
@given(st.integers(0, 2**16), st.integers(1, 5), st.sampled_from(["vgg", "inception", "residual"]))
def test_appendix_e_coarse_graining_sums(seed: int, patch: int, name: str) -> None:
    """Parts of a patch are the sums of its pixels' parts, whichever way they were computed."""
    model, x = by_name[name].model(), by_name[name].input(seed)
    pixels = bilrp.decompose(model, x, regions=regions.grid(1))
    coarse = bilrp.decompose(model, x, regions=regions.grid(patch))
    spec = regions.grid(patch)(x)
    sums = torch.zeros_like(coarse.parts).index_add_(0, spec.labels[0].flatten(), pixels.parts)
    torch.testing.assert_close(coarse.parts, sums, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(pixels.coarsen(regions.grid(patch)).parts, sums, rtol=1e-9, atol=1e-10)


def test_coarsening_an_explanation_conserves() -> None:
    case = by_name["vgg"]
    fine = bilrp.explain(case.model(), case.input(1), case.input(2), regions=2, similarity="squared_distance")
    coarse = fine.coarsen(4)
    assert coarse.relevance.shape == (4, 4)
    assert coarse.explained == pytest.approx(fine.explained, rel=1e-12)
    direct = bilrp.explain(
        case.model(), case.input(1), case.input(2), regions=4, similarity="squared_distance"
    )
    torch.testing.assert_close(coarse.relevance, direct.relevance, rtol=1e-9, atol=1e-10)
    with pytest.raises(BilrpError, match="cut through"):
        fine.coarsen(3)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_symmetry(case: Case) -> None:
    """R(a, b) = R(b, a)ᵀ; x with itself is symmetric and positive semidefinite."""
    model = case.model()
    spec = regions.features() if case.name in {"mlp", "selecting"} else regions.labels(stripes(case.shape))
    a, b = (bilrp.decompose(model, case.input(seed), regions=spec) for seed in (1, 2))
    for kind in ("dot", "cosine"):
        forth, back = bilrp.pair(a, b, similarity=kind), bilrp.pair(b, a, similarity=kind)
        assert forth.score == pytest.approx(back.score, rel=1e-14)
        torch.testing.assert_close(forth.relevance, back.relevance.T, rtol=1e-12, atol=1e-13)
        own = bilrp.pair(a, a, similarity=kind).relevance
        torch.testing.assert_close(own, own.T, rtol=1e-12, atol=1e-13)
        assert torch.linalg.eigvalsh(own).min() > -1e-10 * own.abs().max()


def stripes(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 7


def test_similarities_add_up() -> None:
    """Cosine, bilinear and projected relevance are the same parts, weighed otherwise; each sums to its score."""
    model = mlp(bias=False).double()
    a, b = pair_of((6,))
    left, right = bilrp.decompose(model, a), bilrp.decompose(model, b)
    matrix = torch.randn(4, 4, dtype=torch.float64)
    expected = {
        similarity.dot(): left.embedding @ right.embedding,
        similarity.cosine(): F.cosine_similarity(left.embedding, right.embedding, dim=0),
        similarity.bilinear(matrix): left.embedding @ matrix @ right.embedding,
        similarity.squared_distance(): (left.embedding - right.embedding).square().sum(),
    }
    for kind, score in expected.items():
        explanation = bilrp.pair(left, right, similarity=kind)
        assert explanation.score == pytest.approx(float(score), rel=1e-12)
        assert explanation.explained == pytest.approx(explanation.score, rel=1e-9)


def test_projection_is_seeded_and_unbiased() -> None:
    model = mlp(bias=False).double()
    a, b = pair_of((6,))
    explanation = bilrp.explain(model, a, b, project=3, similarity="dot")
    second = bilrp.explain(model, a, b, project=3, mode="push", similarity="dot")
    torch.testing.assert_close(explanation.relevance, second.relevance, rtol=1e-9, atol=1e-12)
    left, right = model(a)[0].detach(), model(b)[0].detach()
    estimates = torch.tensor([similarity.projected(8, seed=s).score(left, right) for s in range(300)])
    exact = float(left @ right)
    error = estimates.std() / 300**0.5
    assert abs(float(estimates.mean()) - exact) < 4 * float(error)


# ---------------------------------------------------------------- the model is untouched


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model and the process that a call could change."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    hooks = [
        (name, key, len(value))
        for name, part in model.named_modules()
        for key, value in vars(part).items()
        if "hook" in key and hasattr(value, "__len__")
    ]
    return {
        "values": {name: t.detach().clone() for name, t in tensors.items()},
        "identity": {
            name: (id(t), t.data_ptr(), t.requires_grad, t.dtype, t._version) for name, t in tensors.items()
        },
        "grad": {name: None if t.grad is None else t.grad.clone() for name, t in tensors.items()},
        "training": {name: part.training for name, part in model.named_modules()},
        "attributes": {name: sorted(vars(part)) for name, part in model.named_modules()},
        "forward": {name: "forward" in vars(part) for name, part in model.named_modules()},
        "hooks": hooks,
        **process(),
    }


def process() -> dict[str, Any]:
    backends = torch.backends
    return {
        # not Python's own generator: beartype, which checks signatures here, draws from it (see test_cost.py)
        "random": (torch.get_rng_state(), str(np.random.get_state())),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "default": (torch.get_default_dtype(), str(torch.get_default_device()), torch.get_num_threads()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.is_warn_always_enabled()),
        "backends": (backends.mkldnn.flags, backends.cudnn.benchmark, backends.cudnn.allow_tf32),
        "attention": (backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
    }  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def list_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before if not same(before[key], after[key])]


GRADIENTS = ("residual", "selecting", "transformer-seq", "vit-sdpa")


@pytest.mark.parametrize(
    ("case", "composite"),
    [
        *((case, composites.uniform(0.25)) for case in CASES),
        *((by_name[name], composites.hessian_product()) for name in GRADIENTS),
    ],
    ids=lambda v: v.name,
)
def test_model_is_untouched_and_the_second_call_gives_the_same(case: Case, composite) -> None:
    model, a = case.model(), case.input()
    assert isinstance(model, nn.Module)
    stored = a.clone()
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    for p in parameters[1:3]:
        p.grad = torch.full_like(p, 0.5)
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    before = snapshot(model)
    first = bilrp.decompose(model, a, composite=composite, mode="pull")
    second = bilrp.decompose(model, a, composite=composite, mode="pull")
    assert list_changes(before, snapshot(model)) == []
    assert torch.equal(first.parts, second.parts) and torch.equal(first.embedding, second.embedding)
    assert torch.equal(a, stored) and not a.requires_grad and a.grad is None
    assert not first.parts.requires_grad and not first.embedding.requires_grad
    assert len(calls) == 2, "the user's own hooks run, once for each call"
    handle.remove()


def with_error(kind: str) -> nn.Module:
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.block(x)
            if kind == "model":
                raise KeyError("deep inside")
            if kind == "tape":
                y[0] = 0
            if kind == "no_grad":
                with torch.no_grad():
                    raise ValueError("inside no_grad")
            return y.softmax(-1) if kind == "rule" else y

    return randomize_norms(Failing())


@pytest.mark.parametrize("kind", ["model", "tape", "no_grad", "rule", "regions", "interrupt"])
def test_model_is_untouched_after_an_exception(kind: str, monkeypatch) -> None:
    model, x = with_error(kind), torch.randn(1, 4, 6, 6, dtype=torch.float64)
    if kind == "interrupt":  # in the midst of propagating

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("bilrp.engine.maps.Weighted.pull", interrupted)
    before = snapshot(model)
    bad = torch.tensor([[0, 2]]) if kind == "regions" else None
    with pytest.raises((BilrpError, KeyError, ValueError, KeyboardInterrupt)):
        bilrp.decompose(model, x, regions=bad, mode="pull")
    assert list_changes(before, snapshot(model)) == []


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(context) -> None:
    case = by_name["residual"]
    model, x = case.model(), case.input()
    expected = bilrp.decompose(model, x).parts
    with context():
        before = process()
        parts = bilrp.decompose(model, x).parts
        assert list_changes(before, process()) == []
    assert torch.equal(parts, expected)


def test_a_model_in_training_mode_without_random_layers_is_fine_and_stays_so() -> None:
    model = mlp().double().train()
    bilrp.decompose(model, torch.ones(1, 6).double())
    assert model.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types_are_kept(dtype: torch.dtype) -> None:
    case = by_name["vgg"]
    model, x = case.model(), case.input()
    assert isinstance(model, nn.Module)
    exact = bilrp.decompose(model, x, regions=4)
    decomposition = bilrp.decompose(model.to(dtype), x.to(dtype), regions=4)
    assert decomposition.parts.dtype == decomposition.embedding.dtype == dtype
    slack = 40 * torch.finfo(dtype).eps * float(exact.parts.abs().max())
    torch.testing.assert_close(decomposition.parts.double(), exact.parts, rtol=0, atol=slack)


@pytest.mark.parametrize("mode", ["push", "pull", "auto"])
def test_memory_budget_only_changes_the_chunks(mode: str) -> None:
    case = by_name["vgg"]
    model, x = case.model(), case.input()
    with torch.no_grad():
        program = freeze(simplify(record(model, x)), composites.uniform(0.25))
        results = []
        for budget in (2**29, 40_000):
            setting = PlanContext(program, regions.grid(2)(x), program.result.numel(), budget=budget)
            results.append(execute_plan(setting, make_plan(setting, mode))[program.output])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)
