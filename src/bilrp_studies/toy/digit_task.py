"""The task with known ground truth: count the matches between two sequences of six digits; and its networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from bilrp.progress import Progress

SEQUENCE_LENGTH, NUM_DIGITS, DIGIT_DIM = (
    6,
    10,
    10,
)  # digits per sequence, digit classes, dimensions of a digit's vector
LAYER_SIZES = (SEQUENCE_LENGTH * DIGIT_DIM, 100, 100, 50)
MAX_LEARNING_RATE = 1e-3
DIGIT_OVERLAP = 0.5  # size of the component shared by all digits; the paper says "correlated", not how much


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of digit sequences: digits [n, 6] and inputs [n, 60] of both sides."""

    digits_a: Tensor
    digits_b: Tensor
    a: Tensor
    b: Tensor

    @property
    def truth(self) -> Tensor:
        """T[i, j] = 1 where digit i of the first sequence equals digit j of the second; [n, 6, 6]."""
        return (self.digits_a[:, :, None] == self.digits_b[:, None, :]).float()


def make_digit_vectors(seed: int, overlap: float = DIGIT_OVERLAP) -> Tensor:
    """Ten correlated unit vectors in R₊¹⁰: v_k ∝ e_k + c·u_k with u_k uniform in [0.6, 1.4]¹⁰ and c = `overlap`.

    The shared component makes the task hard (cosines around 0.75 for c = 0.5); the distinguishing component has the same
    size for every digit and seed, so that every network learns the task.

    >>> make_digit_vectors(0).shape
    torch.Size([10, 10])
    """
    generator = torch.Generator().manual_seed(seed)
    raw = (
        torch.eye(NUM_DIGITS, DIGIT_DIM)
        + 0.6 * overlap
        + 0.8 * overlap * torch.rand(NUM_DIGITS, DIGIT_DIM, generator=generator)
    )
    return raw / raw.norm(dim=1, keepdim=True)


def mean_cosine(vectors: Tensor) -> float:
    """Return the mean cosine of two different digits.

    >>> mean_cosine(torch.eye(10))
    0.0
    """
    return float(((vectors @ vectors.T).sum() - NUM_DIGITS) / (NUM_DIGITS * (NUM_DIGITS - 1)))


def draw_pairs(
    vectors: Tensor, count: int, generator: torch.Generator, *, require_match: bool = False
) -> Pairs:
    """Draw random pairs of sequences.

    Args:
        vectors: Vectors of the ten digits.
        count: Number of pairs.
        generator: Source of randomness.
        require_match: Keep only pairs with at least one match; without one the ground truth is zero.
    """
    drawn = torch.randint(
        NUM_DIGITS, (2, 2 * count if require_match else count, SEQUENCE_LENGTH), generator=generator
    )
    if require_match:
        some = (drawn[0, :, :, None] == drawn[1, :, None, :]).any(-1).any(-1)
        drawn = drawn[:, some][:, :count]  # about 4 % have no match, so drawing twice as many is enough
    a, b = (vectors[side].flatten(1) for side in drawn)
    return Pairs(drawn[0], drawn[1], a, b)


def make_network(seed: int) -> nn.Sequential:
    """Return a 60-100-100-50 network with ReLUs and no biases, so that relevance conserves the similarity (Prop. 1)."""
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(LAYER_SIZES):
        layer = nn.Linear(inputs, outputs, bias=False)
        layer.weight.data = torch.randn(outputs, inputs, generator=generator) * math.sqrt(2 / inputs)
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules)


def train(
    vectors: Sequence[Tensor],
    seeds: Sequence[int],
    *,
    iterations: int = 10_000,
    batch_size: int = 64,
    bar: Progress | None = None,
) -> list[nn.Sequential]:
    """Fit ⟨φ(x), φ(x')⟩ to the number of matches; one network per seed, trained in parallel.

    Each iteration draws new sequences for both sides and compares all batch² pairs, which costs little more than comparing
    them one to one and makes training much more stable. Optimiser: Adam with a one-cycle learning rate.

    Args:
        vectors: Vectors of the ten digits, for each network.
        seeds: Seed of each network's weights and data.
        iterations: Training iterations.
        batch_size: New sequences per side and iteration.
        bar: Progress bar, advanced by iterations.
    """
    nets = [make_network(seed) for seed in seeds]
    stacked = [
        torch.stack([w.T for w in each]).requires_grad_()
        for each in zip(*map(weight_matrices, nets), strict=True)
    ]
    codes, which = torch.stack(list(vectors)), torch.arange(len(nets))[:, None, None]
    generators = [torch.Generator().manual_seed(seed + 1) for seed in seeds]
    optimiser = torch.optim.Adam(stacked, lr=MAX_LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, MAX_LEARNING_RATE, total_steps=iterations, pct_start=0.05
    )
    for iteration in range(iterations):
        digits = torch.stack(
            [torch.randint(NUM_DIGITS, (2 * batch_size, SEQUENCE_LENGTH), generator=g) for g in generators]
        )
        counts = nn.functional.one_hot(digits, NUM_DIGITS).sum(2).float()
        a = codes[which, digits].flatten(2)
        for weight in stacked:
            a = torch.relu(a @ weight)
        expected = counts[:, :batch_size] @ counts[:, batch_size:].mT
        loss = (a[:, :batch_size] @ a[:, batch_size:].mT - expected).square().mean((1, 2)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if bar and iteration % 100 == 99:
            bar.advance(100)
    for k, net in enumerate(nets):
        layers = (layer for layer in net if isinstance(layer, nn.Linear))
        for layer, weight in zip(layers, stacked, strict=True):
            layer.weight.data = weight.detach()[k].T.contiguous()
        net.requires_grad_(False)
    return nets


def predict(net: nn.Module, pairs: Pairs) -> Tensor:
    """Return y = ⟨φ(x), φ(x')⟩ for each pair."""
    both = net(torch.cat([pairs.a, pairs.b]))
    return (both[: len(pairs.a)] * both[len(pairs.a) :]).sum(1)


def weight_matrices(net: nn.Sequential) -> list[Tensor]:
    """Return the three weight matrices."""
    return [layer.weight.detach() for layer in net if isinstance(layer, nn.Linear)]
