"""Train the digit maps on single labelled patches: small Gaussian blobs at digits, zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bilrp.encoders.bigram import STRIDE_PIXELS, DigitNet

LAYOUT_SCALE = 2
"""The layout is found at twice the network's scale, where neighbouring glyphs come apart."""

PATCH_PIXELS = 96
"""Side of a stored patch in layout pixels: room for scaling, turning and shifting what the network sees."""

TRAIN_WINDOW_PIXELS = 30
"""Side in network pixels of what the network sees of a patch during training."""

ZERO_MARGIN = 0.15
"""How far below zero the network's last sums should be where there is no digit of their class."""


@dataclass(frozen=True)
class Patches:
    """Patches [n, PATCH_PIXELS, PATCH_PIXELS] with the label of their centre.

    `label` is the digit, or −1 for a negative; `reach` [n, 2] is the distance from the centre (x, y, in network pixels) up
    to which that label is valid.
    """

    ink: np.ndarray
    label: np.ndarray
    reach: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def select(self, selection: np.ndarray) -> Patches:
        return Patches(self.ink[selection], self.label[selection], self.reach[selection])


def join_patches(parts: Sequence[Patches]) -> Patches:
    """Concatenate several sets of patches."""
    return Patches(
        np.concatenate([p.ink for p in parts]),
        np.concatenate([p.label for p in parts]),
        np.concatenate([p.reach for p in parts]),
    )


@dataclass(frozen=True)
class Recipe:
    """Training hyperparameters; together with the patches they determine the weights."""

    steps: int = 2500
    batch: int = 48
    rate: float = 4e-3
    blob: float = 0.9
    width: int = 20
    depth: int = 2
    seed: int = 0


def train(
    patches: Patches, recipe: Recipe | None = None, *, progress: Callable[[int, float], None] | None = None
) -> DigitNet:
    """Fit the digit network: minimise Σ m (a_j − g_j)², where g is a Gaussian blob for the patch's class.

    The mask m covers only the centre of a patch, where its single label is valid.

    Args:
        patches: Labelled digits and negatives.
        recipe: Training hyperparameters; the defaults of `Recipe` if None.
        progress: Called with (step, loss) after each step.

    >>> train(patches, Recipe(steps=100))  # doctest: +SKIP
    DigitNet(...)
    """
    recipe = recipe or Recipe()
    source = torch.Generator().manual_seed(recipe.seed)
    net = _init_network(recipe)
    ink = _smooth(torch.from_numpy(np.ascontiguousarray(patches.ink, dtype=np.float32)).unsqueeze(1))
    label = torch.from_numpy(patches.label.astype(np.int64))
    reach = torch.from_numpy(patches.reach.astype(np.float32))
    places = [torch.nonzero(label >= 0).flatten(), torch.nonzero(label < 0).flatten()]
    optimiser = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=recipe.steps)
    for step in range(recipe.steps):
        some = torch.cat([_sample(p, recipe.batch // 2, source) for p in places if len(p)])
        seen, target, mask = augment(ink[some], label[some], reach[some], recipe.blob, source)
        loss = blob_loss(net.stack(seen), target, mask)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, float(loss.detach()))
    return net.eval().requires_grad_(False)


def _init_network(recipe: Recipe) -> DigitNet:
    """Return a new network whose weights depend only on the recipe's seed, not on torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return DigitNet(recipe.width, recipe.depth)


def _sample(indices: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return indices[torch.randint(len(indices), (count,), generator=generator)]


def _smooth(ink: Tensor) -> Tensor:
    """Apply the low-pass filter of downscaling by two, once, before patches are resampled."""
    kernel = torch.tensor([0.25, 0.5, 0.25])
    kernel = (kernel[:, None] * kernel[None]).view(1, 1, 3, 3)
    return functional.conv2d(ink, kernel, padding=1)


def blob_loss(scores: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Squared error against the blobs; off the blobs, against staying below −ZERO_MARGIN before the ReLU.

    The maps of other classes must be exactly zero: activations of 0.05, harmless for detection, would sum over a page to
    bigrams that do not exist.

    Args:
        scores: Activations before the last ReLU, [n, 10, cells, cells].
        target: Blobs, of the same shape.
        mask: Cells that count, [n, 1, cells, cells].
    """
    off = target <= 0.05
    error = torch.where(off, (scores + ZERO_MARGIN).clamp(min=0), scores - target)
    # At a digit, all ten maps get the higher weight: those of other classes as much as its own.
    weight = mask * (1 + 8 * target.amax(dim=1, keepdim=True))
    return (weight * error**2).sum() / weight.sum()


def augment(
    ink: Tensor, label: Tensor, reach: Tensor, blob: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate print and scan: rotate, scale, shift, thicken, fade, blur, add noise. Return (image, target, mask).

    Digits that are not digits when rotated by 180° (1, 2, 3, 4, 5, 7) are sometimes shown upside down, as negatives. Digits
    are sometimes shown with other neighbours, so that the network does not rely on context.

    Args:
        ink: Patches, [n, 1, PATCH_PIXELS, PATCH_PIXELS].
        label: Class of each patch, −1 for negatives.
        reach: Distance from the centre (x, y) up to which the label is valid, in network pixels.
        blob: Standard deviation of the target blobs, in network pixels.
        generator: Source of randomness.
    """
    count = len(label)

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=generator) * (high - low) + low

    turned = (torch.rand(count, generator=generator) < 0.15) & torch.isin(
        label, torch.tensor([1, 2, 3, 4, 5, 7])
    )
    scale, angle = uniform(0.88, 1.13), uniform(-3.0, 3.0).deg2rad() + turned * torch.pi
    slant, shift = uniform(-0.06, 0.06), torch.stack([uniform(-2, 2), uniform(-2, 2)], dim=1)
    seen = _neighbours(_resample(ink, scale, angle, slant, shift), label, shift, scale, uniform)
    seen = _print_and_scan(seen, uniform, generator)
    target, mask = _make_targets(torch.where(turned, -1, label), reach * scale[:, None], shift, blob)
    return seen, target, mask


def _resample(ink: Tensor, scale: Tensor, angle: Tensor, slant: Tensor, shift: Tensor) -> Tensor:
    """Resample the patch rotated, slanted and scaled about its centre, the centre moved by `shift` pixels."""
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    matrix = torch.stack([torch.stack([cos, sin + slant], 1), torch.stack([-sin, cos], 1)], 1)
    axis = torch.arange(TRAIN_WINDOW_PIXELS) + 0.5 - TRAIN_WINDOW_PIXELS / 2
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
    offset = grid[None] - shift[:, None, None]
    points = torch.einsum("bij,bhwj->bhwi", matrix, offset) * LAYOUT_SCALE / (PATCH_PIXELS / 2)
    return functional.grid_sample(ink, points, align_corners=False)


def _neighbours(
    images: Tensor, label: Tensor, shift: Tensor, scale: Tensor, uniform: Callable[[float, float], Tensor]
) -> Tensor:
    """Show a digit with its own neighbours, alone, or between the neighbours of another patch."""
    across = torch.arange(TRAIN_WINDOW_PIXELS) + 0.5 - TRAIN_WINDOW_PIXELS / 2 - shift[:, :1]
    own = (across.abs() <= 4.6 * scale[:, None])[:, None, None].float()
    other = torch.where(
        uniform(0, 1)[:, None, None, None] < 0.5, images.roll(1, dims=0), torch.zeros_like(images)
    )
    # Only patches with a digit at the centre have a label that is independent of the surroundings.
    swap = ((uniform(0, 1) < 0.5) & (label >= 0))[:, None, None, None]
    return torch.where(swap, own * images + (1 - own) * other, images)


def _print_and_scan(
    images: Tensor, uniform: Callable[[float, float], Tensor], generator: torch.Generator
) -> Tensor:
    soft = functional.avg_pool2d(functional.pad(images, (1, 1, 1, 1)), 3, stride=1)
    blur = (uniform(-0.5, 0.8)).clamp(min=0).view(-1, 1, 1, 1)
    images = (1 - blur) * images + blur * soft
    images = images.clamp(min=1e-6) ** torch.exp(uniform(-0.5, 0.5)).view(-1, 1, 1, 1)
    images = images * uniform(0.75, 1.2).view(-1, 1, 1, 1)
    noise = torch.randn(images.shape, generator=generator) * uniform(-0.05, 0.15).clamp(min=0).view(
        -1, 1, 1, 1
    )
    return (images + noise).clamp(0, 1)


def _make_targets(label: Tensor, reach: Tensor, shift: Tensor, blob: float) -> tuple[Tensor, Tensor]:
    """Return targets [n, 10, cells, cells] and masks [n, 1, cells, cells] for patches centred at `shift`."""
    centre = (
        torch.arange(TRAIN_WINDOW_PIXELS // STRIDE_PIXELS) * STRIDE_PIXELS + 1.0 - TRAIN_WINDOW_PIXELS / 2
    )
    dx = centre[None] - shift[:, :1]
    dy = centre[None] - shift[:, 1:]
    shape = torch.exp(-(dx[:, None] ** 2 + dy[:, :, None] ** 2) / (2 * blob**2))
    hot = functional.one_hot(label.clamp(min=0), 10) * (label >= 0)[:, None]
    mask = (dx.abs()[:, None] <= reach[:, :1, None]) & (dy.abs()[:, :, None] <= reach[:, 1:, None])
    return hot[:, :, None, None] * shape[:, None], mask[:, None].float()
