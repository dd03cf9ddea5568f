"""Second-order propagation as in the paper (Appendix C): a slow, independent implementation, used as a test oracle.

Relevance on pairs of neurons is propagated layer by layer, one pair (k, k') at a time, in float64 and with dense
matrices. Nothing here uses the engine. The cost grows with the fourth power of a layer's width: tiny networks only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from bilrp.errors import InputError, RuleError

WEIGHTED_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
POOLING_LAYERS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def second_order(
    network: nn.Sequential, a: Tensor, b: Tensor, *, gamma: float | Sequence[float] = 0.0
) -> Tensor:
    """Return R_ii' of y = ⟨φ(x), φ(x')⟩ on pairs of single features, [features of a, features of b].

    From R_kk' = a_k a_k' 1[k = k'] at the output, each layer propagates
    R_jj' = Σ_kk' (a_j a_j' ρ(w_jk) ρ(w_j'k') / Σ_jj' a_j a_j' ρ(w_jk) ρ(w_j'k')) R_kk', with ρ(w) = w + γw⁺; a max-pooling
    uses its gradient instead of ρ(w). A bias is one more neuron with a_j = 1, whose relevance is dropped.

    Args:
        network: Linear, Conv, ReLU, MaxPool and Flatten layers.
        a: first input.
        b: second input.
        gamma: one number, or one for each linear or convolution layer from input to output.

    >>> network = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    >>> x = torch.rand(1, 3)
    >>> relevance = second_order(network, x, x, gamma=(0.25, 0.0))
    >>> torch.allclose(relevance.sum(), network.double()(x.double()).square().sum())
    True
    """
    layers = _copy_layers(network)
    gammas = _layer_gammas(layers, gamma)
    left, right = _activations(layers, a.double()), _activations(layers, b.double())
    if left[-1].numel() != right[-1].numel():
        raise InputError(f"the embeddings have {left[-1].numel()} and {right[-1].numel()} coordinates")
    relevance = torch.diag(left[-1].flatten() * right[-1].flatten())
    for n in reversed(range(len(layers))):
        if isinstance(layers[n], nn.ReLU | nn.Flatten):
            continue  # one neuron to one neuron: Σ_jj' has a single term, and the pair keeps its relevance
        c_a, c_b = (contributions(layers[n], side[n], side[n + 1], gammas[n]) for side in (left, right))
        relevance = redistribute(relevance, c_a, c_b)[: left[n].numel(), : right[n].numel()]
    return relevance


def redistribute(relevance: Tensor, contributions_a: Tensor, contributions_b: Tensor) -> Tensor:
    """Return Σ_kk' (c_jk c'_j'k' / Σ_jj' c_jk c'_j'k') R_kk', one pair (k, k') at a time; 0 where the sum is 0.

    Args:
        relevance: R_kk' on pairs of outputs.
        contributions_a: c_jk [inputs, outputs] of the first input's layer.
        contributions_b: c'_j'k' of the second.
    """
    out = contributions_a.new_zeros(contributions_a.shape[0], contributions_b.shape[0])
    for k, l in relevance.nonzero().tolist():  # noqa: E741
        pairs = torch.outer(contributions_a[:, k], contributions_b[:, l])
        total = pairs.sum()
        if total != 0:
            out += pairs / total * relevance[k, l]
    return out


def contributions(layer: nn.Module, a: Tensor, z: Tensor, gamma: float) -> Tensor:
    """Return c_jk [inputs (+ 1 for the bias), outputs]: the contribution of input j to output k under LRP-γ.

    Where a ≥ 0 and z > 0, c_jk = a_j ρ(w_jk). In general (generalised γ rule) the contributions that have the sign of
    z_k are multiplied by 1 + γ.

    Args:
        layer: a linear, convolution or max-pooling layer.
        a: its input.
        z: its output.
        gamma: γ; not used for poolings.
    """
    if isinstance(layer, POOLING_LAYERS):
        return _max_pool_contributions(layer, a, z)
    constant = layer(torch.zeros_like(a)).flatten()
    basis = torch.eye(a.numel(), dtype=a.dtype).reshape(-1, *a.shape[1:])
    matrix = layer(basis).flatten(1) - constant  # [inputs, outputs]: the layer as a dense matrix
    plain = torch.cat([a.flatten()[:, None] * matrix, constant[None]])
    favoured = torch.where(z.flatten() > 0, plain.clamp(min=0), plain.clamp(max=0))
    return plain + gamma * favoured


def _max_pool_contributions(layer: nn.Module, a: Tensor, z: Tensor) -> Tensor:
    """Return a_j [∇a_k]_j of a max-pooling: the gradient is 1 for the maximum of window k, split equally in a tie."""
    basis = torch.eye(a.numel(), dtype=a.dtype).reshape(-1, *a.shape[1:])
    inside = layer(basis).flatten(1) > 0  # input j is in window k
    is_maximum = (inside & (a.flatten()[:, None] == z.flatten())).to(a.dtype)
    return a.flatten()[:, None] * is_maximum / is_maximum.sum(0)


def _copy_layers(network: Iterable[nn.Module]) -> list[nn.Module]:
    """Return copies of the layers in float64."""
    layers = [deepcopy(layer).double().eval().requires_grad_(False) for layer in network]
    for n, layer in enumerate(layers):
        if not isinstance(layer, (*WEIGHTED_LAYERS, *POOLING_LAYERS, nn.ReLU, nn.Flatten)):
            raise RuleError(
                f"the reference supports Linear, Conv, ReLU, MaxPool and Flatten, not layer {n}, {type(layer).__name__}: "
                "use bilrp.explain"
            )
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    return layers


def _layer_gammas(layers: list[nn.Module], gamma: float | Sequence[float]) -> list[float]:
    """Return γ of every layer; 0 for those without weights."""
    weighted = [n for n, layer in enumerate(layers) if isinstance(layer, WEIGHTED_LAYERS)]
    gammas = [float(gamma)] * len(weighted) if isinstance(gamma, int | float) else [float(g) for g in gamma]
    if len(gammas) != len(weighted):
        raise InputError(f"{len(gammas)} values of gamma for {len(weighted)} linear and convolution layers")
    by_layer = dict(zip(weighted, gammas, strict=True))
    return [by_layer.get(n, 0.0) for n in range(len(layers))]


def _activations(layers: list[nn.Module], x: Tensor) -> list[Tensor]:
    """Return the input and the output of every layer."""
    activations = [x]
    for layer in layers:
        activations.append(layer(activations[-1]))
    return activations
