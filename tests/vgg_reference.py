"""LRP on VGG-16 the plain way, in float64: R = a · ρ(W)ᵀ (R / z), layer by layer.

For checking only.

Written from the paper alone and sharing nothing with the package: numbers of layers are 1-based.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).view(1, 3, 1, 1)
POOLINGS = (5, 10, 17, 24, 31)
CONVOLUTIONS = (1, 3, 6, 8, 11, 13, 15, 18, 20, 22, 25, 27, 29)


def paper_gamma(layer: int) -> float:
    if 2 <= layer <= 10:
        return 0.5
    if 11 <= layer <= 17:
        return 0.25
    if 18 <= layer <= 24:
        return 0.1
    return 0.0


def forward(x, tensors, last):
    """The input of every layer, and the output of the last: activations[k] enters layer k + 1."""
    activations = [x]
    for layer in range(1, last + 1):
        a = activations[-1]
        if layer in POOLINGS:
            a = F.max_pool2d(a, 2)
        elif layer in CONVOLUTIONS:
            name = f"features.{layer - 1}"
            a = F.conv2d(a, tensors[f"{name}.weight"].double(), tensors[f"{name}.bias"].double(), padding=1)
        else:
            a = a.clamp(min=0)
        activations.append(a)
    return activations


def safe_divide(numerator, denominator):
    return torch.where(denominator == 0, 0.0, numerator / torch.where(denominator == 0, 1.0, denominator))


def propagate_pooling(a, relevance):
    """All to the winner of each 2×2 block; equal winners share."""
    rows, columns = a.shape[-2] // 2 * 2, a.shape[-1] // 2 * 2
    blocks = a[..., :rows, :columns].unfold(2, 2, 2).unfold(3, 2, 2)  # 1 C h w 2 2
    wins = (blocks == blocks.amax((-1, -2), keepdim=True)).double()
    shares = wins / wins.sum((-1, -2), keepdim=True)
    spread = (
        (relevance[..., None, None] * shares)
        .permute(0, 1, 2, 4, 3, 5)
        .reshape(len(relevance), -1, rows, columns)
    )
    return F.pad(spread, (0, a.shape[-1] - columns, 0, a.shape[-2] - rows))


def propagate_convolution(a, weight, bias, relevance, gamma):
    weight, bias = weight + gamma * weight.clamp(min=0), bias + gamma * bias.clamp(min=0)
    z = F.conv2d(a, weight, bias, padding=1)
    return a * F.conv_transpose2d(safe_divide(relevance, z), weight, padding=1)


def propagate_pixels(x, weight, relevance):
    """z^B with the bounds of black and white pixels."""
    low, high = ((v - MEAN) / STD + torch.zeros_like(x) for v in (0.0, 1.0))
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    z = F.conv2d(x, weight, padding=1) - F.conv2d(low, up, padding=1) - F.conv2d(high, down, padding=1)
    s = safe_divide(relevance, z)
    back = lambda w: F.conv_transpose2d(s, w, padding=1)  # noqa: E731
    return x * back(weight) - low * back(up) - high * back(down)


def relevance(x, tensors, last, coordinates, gamma=paper_gamma, chunk=16):
    """R[m, channel, y, x] of each given coordinate m of the flattened output, and the coordinates' values."""
    x = x.double()
    activations = forward(x, tensors, last)
    top = activations[-1].flatten()
    layers = []
    for part in coordinates.split(chunk):
        R = torch.zeros(len(part), top.numel(), dtype=torch.float64)
        R[torch.arange(len(part)), part] = top[part]
        R = R.view(len(part), *activations[-1].shape[1:])
        for layer in range(last, 0, -1):
            a = activations[layer - 1]
            if layer in POOLINGS:
                R = propagate_pooling(a, R)
            elif layer == 1:
                R = propagate_pixels(a, tensors["features.0.weight"].double(), R)
            elif layer in CONVOLUTIONS:
                name = f"features.{layer - 1}"
                weight, bias = tensors[f"{name}.weight"].double(), tensors[f"{name}.bias"].double()
                R = propagate_convolution(a, weight, bias, R, gamma(layer))
        layers.append(R)
    return torch.cat(layers), top[coordinates]


def pool_relevance(R, size=8):
    """Sums over size × size pixels and all channels: [m, regions], regions row by row."""
    return (F.avg_pool2d(R.sum(1, keepdim=True), size, ceil_mode=True, divisor_override=1)).flatten(1)
