"""Several numbers put in one place: the one that stays owns it, the others get nothing, push = pull."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bilrp
from bilrp import composites, regions, rules
from bilrp.errors import RuleError

GENERATOR = torch.Generator().manual_seed(1)
W = torch.randn(8, 3, generator=GENERATOR, dtype=torch.float64)
X = torch.randn(1, 8, generator=GENERATOR, dtype=torch.float64)
TWICE = torch.tensor([[0, 0, 1, 1, 2, 2, 3, 3]])


def zeros(x: Tensor) -> Tensor:
    return torch.zeros(1, 8, dtype=x.dtype)


def in_place(x: Tensor) -> Tensor:
    return zeros(x).scatter_(1, TWICE, x)


WRITES = {
    "scatter": lambda x: zeros(x).scatter(1, TWICE, x),
    "scatter_": in_place,
    "scatter into a live tensor": lambda x: (2 * x).scatter(1, TWICE, x),
    "scatter of a number": lambda x: x.scatter(1, TWICE[:, :2], 3.0),
    "scatter of constants": lambda x: x.scatter(1, TWICE, W[None, :, 0]),
    "scatter, fewer than there is": lambda x: zeros(x).scatter(1, TWICE[:, 2:5], x),
    "index_put": lambda x: zeros(x)[0].index_put((TWICE[0],), x[0])[None],
    "index_put into a live tensor": lambda x: (2 * x)[0].index_put((TWICE[0],), x[0])[None],
    "index_copy": lambda x: zeros(x).index_copy(1, TWICE[0], x),
    "put": lambda x: zeros(x).put(TWICE, x),
    "index_put_": lambda x: zeros(x)[0].index_put_((TWICE[0],), x[0])[None],
    "index_copy_": lambda x: zeros(x).index_copy_(1, TWICE[0], x),
    "put_": lambda x: zeros(x).put_(TWICE, x),
    "masked_scatter": lambda x: zeros(x).masked_scatter(TWICE % 2 == 0, x),
    "masked_scatter_": lambda x: zeros(x).masked_scatter_(TWICE % 2 == 0, x),
    "constants that look like addresses": lambda x: torch.arange(8.0).to(x)[None].scatter(1, TWICE[:, :4], x[:, :4]),
}  # fmt: skip


def compute_parts_by_removal(function, x: Tensor) -> Tensor:
    """parts [features, outputs] by setting one feature after the other to zero: a write is linear in what is written."""
    full, results = function(x), []
    for feature in range(x.numel()):
        without = x.clone().flatten()
        without[feature] = 0
        results.append((full - function(without.reshape(x.shape))).flatten())
    return torch.stack(results)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "composite", [composites.uniform(0.0), composites.hessian_product()], ids=lambda b: b.name
)
def test_only_what_stays_owns_its_place(name: str, composite) -> None:
    def function(x: Tensor) -> Tensor:
        return WRITES[name](x) @ W

    expected = compute_parts_by_removal(function, X)
    for mode in ("push", "pull", "auto"):
        parts = bilrp.decompose(function, X, regions=regions.features(), composite=composite, mode=mode).parts
        torch.testing.assert_close(parts, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_narrow_types_addresses_are_still_exact(dtype: torch.dtype) -> None:
    x = torch.randn(1, 4096, generator=GENERATOR).to(dtype)
    index = torch.arange(4096)[None] // 2
    labels = regions.labels(torch.arange(4096) // 64)
    parts = bilrp.decompose(lambda t: torch.zeros_like(t).scatter(1, index, t), x, regions=labels).parts
    assert torch.equal(parts.sum(0)[:2048], x[0, 1::2])


def test_writes_that_add_stay_sums() -> None:
    adding = {
        "index_put": lambda x: zeros(x)[0].index_put((TWICE[0],), x[0], accumulate=True)[None],
        "put": lambda x: zeros(x).put(TWICE, x, True),
        "scatter_add": lambda x: zeros(x).scatter_add(1, TWICE, x),
    }
    for function in adding.values():
        for mode in ("push", "pull"):
            parts = bilrp.decompose(function, X, regions=regions.features(), mode=mode).parts
            torch.testing.assert_close(parts, compute_parts_by_removal(function, X))


def test_the_true_derivative_of_a_double_write_is_refused() -> None:
    """Torch's own says two things: the overwritten number changes nothing, and gets the same as the one that stayed."""
    composite = composites.first_match(("scatter", rules.jacobian()), otherwise=composites.uniform(0.0))
    with pytest.raises(RuleError, match=r"contradict each other.*write the operation out"):
        bilrp.decompose(WRITES["scatter"], X, composite=composite)
    once = torch.tensor([[3, 0, 1, 2, 7, 5, 6, 4]])
    bilrp.decompose(lambda x: zeros(x).scatter(1, once, x), X, composite=composite)
