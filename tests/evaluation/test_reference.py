"""Appendix C: the factored computation equals the direct second-order propagation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bilrp
import second_order_reference as reference
from bilrp import composites, regions, rules


def dense(bias: bool) -> nn.Sequential:
    layers = [
        nn.Linear(5, 7, bias=bias),
        nn.ReLU(),
        nn.Linear(7, 6, bias=bias),
        nn.ReLU(),
        nn.Linear(6, 3, bias=bias),
    ]
    return nn.Sequential(*layers).double()


def convolutional(bias: bool) -> nn.Sequential:
    layers = [
        nn.Conv2d(1, 2, 3, padding=1, bias=bias),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 3, 2, stride=2, bias=bias),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3, 4, bias=bias),
    ]
    return nn.Sequential(*layers).double()


def one_dimensional(bias: bool) -> nn.Sequential:
    layers = [
        nn.Conv1d(2, 2, 3, bias=bias),
        nn.ReLU(),
        nn.MaxPool1d(3, stride=2, padding=1),
        nn.Conv1d(2, 2, 1, bias=bias),
    ]
    return nn.Sequential(*layers).double()


NETWORKS = {
    "dense": (dense, (1, 5)),
    "conv": (convolutional, (1, 1, 4, 4)),
    "1d": (one_dimensional, (1, 2, 7)),
}


def per_layer(network: nn.Sequential, gammas: list[float]):
    """A composite with one γ for each weighted layer, by the names of nn.Sequential."""
    numbers = [n for n, layer in enumerate(network) if isinstance(layer, reference.WEIGHTED_LAYERS)]
    entries = [(str(n), rules.gamma(g)) for n, g in zip(numbers, gammas, strict=True)]
    return composites.first_match(*entries, otherwise=composites.uniform(0.0))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_factored_equals_direct(name: str, bias: bool, signed: bool) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(5)
    network = make(bias).requires_grad_(False)
    a, b = (torch.randn(shape).double() if signed else torch.rand(shape).double() for _ in range(2))
    gammas = [0.5, 0.25, 0.1][: sum(isinstance(m, reference.WEIGHTED_LAYERS) for m in network)]
    direct = reference.second_order(network, a, b, gamma=gammas)
    for mode in ("push", "pull"):
        factored = bilrp.explain(
            network,
            a,
            b,
            composite=per_layer(network, gammas),
            regions=regions.features(),
            mode=mode,
            similarity="dot",
        )
        assert direct.abs().max() > 1e-6
        assert torch.allclose(factored.relevance, direct, atol=1e-12, rtol=1e-9)
    if not bias:
        score = float((network(a) * network(b)).sum())
        assert float(direct.sum()) == pytest.approx(score, abs=1e-12)  # Prop. 1


def test_gamma_matters() -> None:
    torch.manual_seed(5)
    network, a = dense(False), torch.rand(1, 5).double()
    plain, boosted = (reference.second_order(network, a, a, gamma=g) for g in (0.0, 0.5))
    assert not torch.allclose(plain, boosted, atol=1e-3)


def test_without_gamma_it_is_hessian_product() -> None:
    """Prop. 2, on the reference: x_i x'_i' ∂²y/∂x_i∂x'_i'."""
    torch.manual_seed(5)
    network = dense(True).requires_grad_(False)
    a, b = torch.randn(1, 5).double(), torch.randn(1, 5).double()

    def similarity(x: Tensor, y: Tensor) -> Tensor:
        return (network(x) * network(y)).sum()

    hessian = torch.autograd.functional.hessian(similarity, (a, b))[0][1].reshape(5, 5)
    direct = reference.second_order(network, a, b)
    assert torch.allclose(direct, torch.outer(a[0], b[0]) * hessian, atol=1e-12, rtol=0)


def test_ties_are_shared() -> None:
    network = nn.Sequential(nn.MaxPool1d(2), nn.Flatten()).double()
    x = torch.tensor([[[1.0, 1.0, 3.0, 2.0]]]).double()
    direct = reference.second_order(network, x, x)
    factored = bilrp.explain(
        network, x, x, regions=regions.features(), composite=composites.uniform(0.0), similarity="dot"
    )
    expected = torch.tensor([[0.25, 0.25, 0, 0], [0.25, 0.25, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]]).double()
    assert torch.equal(direct, expected)
    assert torch.allclose(factored.relevance, expected, atol=1e-12)


def test_the_network_is_untouched_and_others_are_refused() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    reference.second_order(network, torch.rand(1, 2), torch.rand(1, 2), gamma=0.1)
    assert network[0].weight.dtype == torch.float32 and network[1].inplace and network.training
    with pytest.raises(bilrp.errors.RuleError, match="GELU"):
        reference.second_order(nn.Sequential(nn.Linear(2, 2), nn.GELU()), torch.rand(1, 2), torch.rand(1, 2))
    with pytest.raises(bilrp.errors.InputError, match="3 values of gamma for 1"):
        reference.second_order(network, torch.rand(1, 2), torch.rand(1, 2), gamma=(0.1, 0.1, 0.1))
