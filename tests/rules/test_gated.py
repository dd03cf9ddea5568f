"""glu and scatter_reduce against slow references: detached gates, sums, means, winners with ties; push = pull."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bilrp
from bilrp import composites, regions
from bilrp.errors import RuleError
from bilrp.pipeline import Mode

GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn(1, 4, 6, generator=GENERATOR, dtype=torch.float64)
W = torch.randn(6, 6, generator=GENERATOR, dtype=torch.float64)
FLAT = torch.tensor([[0.5, -1.0, 2.0, 2.0, -3.0, 0.25]], dtype=torch.float64)  # 2 and 3 are equal
INDEX = torch.tensor([[0, 0, 1, 1, 3, 3]])


def parts(function, x: Tensor, composite, mode: Mode) -> Tensor:
    return bilrp.decompose(function, x, regions=regions.features(), composite=composite, mode=mode).parts


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_glu_detaches_its_gate(dim: int) -> None:
    """J[i, j] = σ(b_i) where j is the place of a_i, nothing for b."""
    places = torch.arange(24).reshape(1, 4, 6).chunk(2, dim)[0].flatten()
    gates = X.chunk(2, dim)[1].sigmoid().flatten()
    expected = torch.zeros(24, 12, dtype=torch.float64)
    for output, (path, gate) in enumerate(zip(places, gates, strict=True)):
        expected[path, output] = X.flatten()[path] * gate
    for mode in ("push", "pull"):
        result = parts(lambda x: F.glu(x, dim), X, composites.uniform(0.0), mode)
        torch.testing.assert_close(result, expected)


COMPOSITES = [
    composites.uniform(0.25),
    composites.attnlrp(),
    composites.hessian_product(),
    composites.secant("zero"),
]


@pytest.mark.parametrize("composite", COMPOSITES, ids=lambda composite: composite.name)
def test_glu_equals_its_written_out_form(composite) -> None:
    def fused(x: Tensor) -> Tensor:
        return F.glu(F.linear(x, W)) @ W[:3]

    def written_out(x: Tensor) -> Tensor:
        a, b = F.linear(x, W).chunk(2, -1)
        return (a * b.sigmoid()) @ W[:3]

    for mode in ("push", "pull"):
        torch.testing.assert_close(parts(fused, X, composite, mode), parts(written_out, X, composite, mode))


def put_together(here: Tensor, put: Tensor, reduce: str, include: bool) -> tuple[Tensor, Tensor]:
    """J of both operands, place by place: sums, means, or the winners' equal shares."""
    of_here, of_put = torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
    for position in range(6):
        sources = [i for i in range(6) if int(INDEX[0, i]) == position]
        own = include or not sources
        numbers = [*([float(here[0, position])] if own else []), *(float(put[0, i]) for i in sources)]
        best = (max if reduce == "amax" else min)(numbers)
        won = [n == best for n in numbers]
        weights = {
            "sum": [1.0] * len(numbers),
            "mean": [1 / len(numbers)] * len(numbers),
            "amax": [w / sum(won) for w in won],
            "amin": [w / sum(won) for w in won],
        }[reduce]
        if own:
            of_here[position, position] = weights[0]
        for i, weight in zip(sources, weights[own:], strict=True):
            of_put[i, position] = weight
    return of_here, of_put


CASES = list(itertools.product(("sum", "mean", "amax", "amin"), (True, False), ("both", "here", "put")))


@pytest.mark.parametrize(("reduce", "include", "live"), CASES)
def test_scatter_reduce_equals_a_slow_reference_implementation(reduce: str, include: bool, live: str) -> None:
    constant = FLAT.flip(1)

    def operands(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x if live != "put" else constant), (2 * x if live != "here" else constant)

    def function(x: Tensor) -> Tensor:
        here, put = operands(x)
        return here.scatter_reduce(1, INDEX, put, reduce, include_self=include)

    here, put = operands(FLAT)
    of_here, of_put = put_together(here, put, reduce, include)
    expected = torch.zeros(6, 6, dtype=torch.float64)
    expected += of_here * FLAT.T if live != "put" else 0
    expected += of_put * 2 * FLAT.T if live != "here" else 0
    for mode in ("push", "pull"):
        torch.testing.assert_close(parts(function, FLAT, composites.uniform(0.0), mode), expected)


def test_scatter_reduce_in_place_and_of_a_part() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.zeros_like(x).scatter_reduce_(1, INDEX[:, :3], x, reduce="amax")

    expected = torch.zeros(6, 6, dtype=torch.float64)
    expected[0, 0], expected[2, 1] = 0.5, 2.0
    for mode in ("push", "pull"):
        torch.testing.assert_close(parts(function, FLAT, composites.uniform(0.0), mode), expected)


def test_a_product_of_what_is_put_together_has_no_rule() -> None:
    with pytest.raises(RuleError, match="no rule"):
        bilrp.decompose(lambda x: x.scatter_reduce(1, INDEX, x, "prod"), FLAT)


GATES = {
    "squared ReLU": lambda x: (x @ W).relu().square() * (x @ W.T),
    "power of a ReLU": lambda x: (x @ W).relu().pow(2) * (x @ W.T),
    "masked attention": lambda x: (x @ W).softmax(-1).masked_fill(W[:4] > 0.5, 0.0)[..., :4] @ (x @ W.T),
    "a square with a factor": lambda x: (0.3 * x) * x,
    "a norm by a power": lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5),
    "a norm by a root": lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt(),
    "the largest of a softmax": lambda x: (x @ W.T) * (x @ W).softmax(-1).topk(2).values[..., 1:],
}
GATED = {
    "squared ReLU": lambda x: (x @ W).relu().square().detach() * (x @ W.T),
    "power of a ReLU": lambda x: (x @ W).relu().pow(2).detach() * (x @ W.T),
    "masked attention": lambda x: (
        (x @ W).softmax(-1).masked_fill(W[:4] > 0.5, 0.0)[..., :4].detach() @ (x @ W.T)
    ),
    "a square with a factor": lambda x: (0.3 * x) * x.detach(),
    "a norm by a power": lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5).detach(),
    "a norm by a root": lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt().detach(),
    "the largest of a softmax": lambda x: (x @ W.T) * (x @ W).softmax(-1).topk(2).values[..., 1:].detach(),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_are_detached_where_they_are_evident(name: str) -> None:
    jacobian = torch.autograd.functional.jacobian(GATED[name], X)
    assert isinstance(jacobian, Tensor)
    expected = (jacobian.flatten(3).flatten(0, 2) * X.flatten()).T
    for mode in ("push", "pull"):
        torch.testing.assert_close(parts(GATES[name], X, composites.uniform(0.0), mode), expected)
