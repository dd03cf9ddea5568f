"""Sanity checks of a method: random weights (Adebayo et al. 2018), input noise, and random relevance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder, EncoderLike, InputLike, as_encoder, read_tensor
from bilrp.errors import InputError
from bilrp.evaluation.baselines import saliency
from bilrp.evaluation.metrics import cosine, rank_correlation
from bilrp.explanation import Explanation
from bilrp.regions import RegionFunction

Method = Callable[[Any, Any, Any], Explanation]


def randomization(
    method: Method,
    encoder: EncoderLike,
    a: InputLike,
    b: InputLike,
    *,
    depths: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Return {depth: rank correlation} with explanations of the model whose last `depth` layers have random weights.

    A method that explains the model falls to 0; one that ignores it stays at 1 (Adebayo et al. 2018).

    Args:
        method: function (encoder, a, b) → Explanation.
        encoder: encoder whose module is an nn.Module.
        a, b: the inputs.
        depths: numbers of layers to randomise, counted from the output; all by default.
        seed: seed of the random weights.

    >>> from bilrp.evaluation import baselines
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> randomization(baselines.saliency, net, *torch.rand(2, 1, 4))  # it ignores the model
    {1: 1.0, 2: 1.0}
    """
    encoder = as_encoder(encoder)
    before = method(encoder, a, b).relevance
    total = len(list_weighted_modules(encoder.module))
    depths = range(1, total + 1) if depths is None else depths
    return {
        depth: rank_correlation(before, method(randomize_weights(encoder, depth, seed=seed), a, b).relevance)
        for depth in depths
    }


def randomize_weights(encoder: EncoderLike, depth: int, *, seed: int = 0) -> Encoder:
    """Return a copy of the encoder whose last `depth` weighted modules have normal weights of the same mean and std.

    Args:
        encoder: encoder whose module is an nn.Module; it is not modified.
        depth: number of modules to randomise, counted from the output.
        seed: seed of the random weights.
    """
    encoder = as_encoder(encoder)
    module = deepcopy(encoder.module)
    layers = list_weighted_modules(module)
    if not 1 <= depth <= len(layers):
        raise InputError(
            f"this encoder has {len(layers)} layers with weights, depth must be 1 … {len(layers)}, got {depth}"
        )
    generator = torch.Generator().manual_seed(seed)
    # Draw from the output down, so that a larger depth gives the upper layers the same random weights.
    for layer in reversed(layers[-depth:]):
        for parameter in layer.parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            spread = parameter.detach().std() if parameter.numel() > 1 else parameter.detach().abs().mean()
            parameter.data = parameter.detach().mean() + spread * noise
    return replace(encoder, module=module, name=f"{encoder.name} (last {depth} randomised, seed {seed})")


def list_weighted_modules(module: Callable[..., object]) -> list[nn.Module]:
    """Return the modules that own a weight matrix or kernel, in their order of definition."""
    if not isinstance(module, nn.Module):
        raise InputError(
            "randomising weights needs an encoder whose module is an nn.Module; this one is a function"
        )
    return [m for m in module.modules() if any(p.dim() > 1 for p in m.parameters(recurse=False))]


def stability(
    method: Method,
    encoder: EncoderLike,
    a: InputLike,
    b: InputLike,
    *,
    noise: float = 0.05,
    repeats: int = 1,
    seed: int = 0,
) -> float:
    """Return the mean cosine between the explanation and explanations of noisy inputs (Alvarez-Melis and Jaakkola 2018).

    1 means unchanged. Read it together with the other metrics: a constant explanation is stable, but useless.

    Args:
        method: function (encoder, a, b) → Explanation.
        encoder: encoder of both inputs.
        a, b: the inputs.
        noise: standard deviation of the noise, relative to that of the input.
        repeats: number of noisy pairs.
        seed: seed of the noise.

    >>> from bilrp import explain
    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU())
    >>> stability(explain, net, *torch.rand(2, 1, 4), noise=0.0) > 0.999
    True
    """
    encoder = as_encoder(encoder)
    first, second = read_tensor(encoder, a), read_tensor(encoder, b)
    original = method(encoder, first, second)
    generator = torch.Generator().manual_seed(seed)
    noisy = [
        method(encoder, add_noise(first, noise, generator), add_noise(second, noise, generator))
        for _ in range(repeats)
    ]
    return sum(float(cosine(explanation, original)) for explanation in noisy) / repeats


def add_noise(x: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return x plus normal noise with standard deviation `noise` × std(x).

    Args:
        x: the input.
        noise: standard deviation relative to that of x.
        generator: source of randomness.
    """
    return x + noise * x.std() * torch.randn(x.shape, generator=generator).to(x)


def random_method(seed: int = 0, *, regions: RegionFunction | None = None) -> Method:
    """Return a method that gives normally distributed random relevance, the same for the same seed and regions.

    >>> random_method(seed=1)(nn.Identity(), *torch.rand(2, 1, 3)).relevance.shape
    torch.Size([3, 3])
    """

    def method(encoder: EncoderLike, a: InputLike, b: InputLike) -> Explanation:
        explanation = saliency(encoder, a, b, regions=regions)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(explanation.relevance.shape, generator=generator).to(explanation.relevance)
        return replace(explanation, relevance=noise)

    return method
