"""The bigram network of Section 6: ten digit maps, and the sum of every pair of neighbouring digits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bilrp.encoder import InputLike
from bilrp.encoders import table_numbers
from bilrp.errors import InputError, wrap_errors
from bilrp.inputs import Image, Item

if TYPE_CHECKING:
    from bilrp.encoder import Encoder
    from bilrp.regions import Regions

WEIGHTS_PATH = Path(__file__).with_name("bigram.safetensors")
"""Weights in the package, trained on a few pages of printed barometer tables."""

GAMMA = 0.5
"""The paper's γ for every convolution of this network."""

STRIDE_PIXELS = 2
"""Input pixels from one cell of the digit maps to the next; cell i is centred on pixel edge 2 i + 1."""

MAX_REGIONS = 2000
"""Regions of one scanned page: keeps the number of pairs small enough for an HTML page."""

MIN_BIGRAMS_PER_PIXEL = 150e-6
"""Threshold of `has_few_bigrams`: printed tables have 3,000 bigrams per million pixels, photographs and texts below 60."""

SHIFTS_PIXELS = (8, 10, 12)
"""Horizontal shifts τ in input pixels: pages are scaled to a digit pitch of 8, and 12 across a decimal point."""


class DigitNet(nn.Module):
    """First part: convolutions and ReLUs from ink to ten maps with a small peak at every digit.

    Without biases a = 0 where there is no ink, and explanations conserve exactly. The receptive field of 14 px is at
    most one digit, so that a peak is explained by its own digit and not by the neighbours.
    """

    def __init__(self, width: int = 20, depth: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(1, width, 6, stride=STRIDE_PIXELS, padding=2, bias=False),
            nn.ReLU(),
        ]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.ReLU()]
        self.stack = nn.Sequential(*layers, nn.Conv2d(width, 10, 1, bias=False))
        self.gate = nn.ReLU()

    def forward(self, ink: Tensor) -> Tensor:
        return self.gate(self.stack(ink))


class BigramNet(nn.Module):
    """Second part: φ_jk(x) = ‖max_τ min{a_j(x), τ(a_k(x))}‖₁, 100 coordinates 10 j + k.

    Since max_τ min{a, b_τ} = min{a, max_τ b_τ}, the maximum over shifts is taken first, on ten maps instead of a
    hundred, which needs less memory.
    """

    def __init__(self, digits: nn.Module, shifts: tuple[int, ...] = SHIFTS_PIXELS) -> None:
        super().__init__()
        self.digits = digits
        self.shift_cells = tuple(sorted({round(s / STRIDE_PIXELS) for s in shifts}))

    def forward(self, ink: Tensor) -> Tensor:
        maps = self.digits(ink)
        # Separate maps: coordinate 10 j + k then depends on two of the ten maps only.
        digits = [maps[:, j : j + 1] for j in range(maps.shape[1])]
        following = [self._max_over_shifts(digit) for digit in digits]
        sums = [torch.minimum(first, second).sum(dim=(2, 3)) for first in digits for second in following]
        return torch.cat(sums, dim=1)

    def _max_over_shifts(self, digit: Tensor) -> Tensor:
        """Return max_τ τ(a_k)."""
        maximum = _shift_left(digit, self.shift_cells[0])
        for cells in self.shift_cells[1:]:
            maximum = torch.maximum(maximum, _shift_left(digit, cells))
        return maximum


def _shift_left(maps: Tensor, cells: int) -> Tensor:
    """Return τ(maps): shifted left by `cells`, padded with zeros."""
    return functional.pad(maps[..., cells:], (0, min(cells, maps.shape[-1])))


def bigram(weights: str | Path | None = None) -> Encoder:
    """Return the bigram network as an encoder of scanned tables: whole pages or crops, at any resolution.

    A scan is converted to ink in [0, 1] and scaled to the digit height of the training data.

    >>> bilrp.explain(bigram(), "page1.jpg", "page2.jpg", similarity="cosine").score
    """
    net, metadata = load_weights(WEIGHTS_PATH if weights is None else weights)
    threshold = float(metadata.get("threshold", table_numbers.DETECTION_THRESHOLD))
    return build_encoder(net, name="bigram", threshold=threshold)


def build_encoder(
    digits: nn.Module, *, name: str = "bigram", threshold: float = table_numbers.DETECTION_THRESHOLD
) -> Encoder:
    """Return an encoder of `BigramNet(digits)`, with γ = 0.5 at each convolution and the numbers as regions.

    Args:
        digits: network from ink to ten digit maps.
        name: name of the encoder.
        threshold: minimum height of a digit's peak on its map.
    """
    from bilrp.encoder import Encoder
    from bilrp.rules import composites

    regions = table_numbers.number_regions(
        digits, threshold=threshold, max_regions=MAX_REGIONS, fallback=patch_regions
    )

    return Encoder(
        module=BigramNet(digits).eval().requires_grad_(False),
        read=read,
        composite=composites.uniform(GAMMA),
        regions=regions,
        name=name,
        to_image=to_image,
        similarity="dot",  # as in the paper
        reliability=table_numbers.number_reliability(digits, threshold=threshold),
    )


def has_few_bigrams(sums: Tensor, pixels: int) -> bool:
    """Return whether an image with these sums has too few bigrams for a printed table, given its number of pixels."""
    return float(sums.sum()) < MIN_BIGRAMS_PER_PIXEL * pixels


def patch_regions(ink: Tensor) -> Regions:
    """Return patches of 8×8 px, about one digit; larger ones where there would be more than `MAX_REGIONS`."""
    from bilrp.regions import grid

    side = 8
    while -(-ink.shape[2] // side) * -(-ink.shape[3] // side) > MAX_REGIONS:
        side *= 2
    return grid(side)(ink)


def read(raw_input: InputLike) -> Item:
    """Read a scan (path, Pillow image or array) as ink [1, 1, height, width], scaled to a fixed digit height."""
    from bilrp.encoders import images
    from bilrp.encoders.binarization import load_gray, normalize_scan

    scan = raw_input if isinstance(raw_input, np.ndarray) else images.open_image(raw_input)
    gray = load_gray(scan)
    ink, _ = normalize_scan(gray)
    pixels = gray_to_rgb(gray) if isinstance(scan, np.ndarray) else np.asarray(scan)
    x = torch.from_numpy(ink.copy())[None, None]
    return Item(x, view=Image.from_image(pixels), name=images.input_name(raw_input))


def to_image(ink: Tensor) -> np.ndarray:
    """Return ink as an image: black print on white paper, (height, width, 3) bytes."""
    return gray_to_rgb(1 - ink[0, 0].float().cpu().numpy())


def gray_to_rgb(gray: np.ndarray) -> np.ndarray:
    """Return grey values from 0 (black) to 1 (white) as an image, (height, width, 3) bytes."""
    return (255 * gray.clip(0, 1)).round().astype(np.uint8)[..., None].repeat(3, axis=2)


def save_weights(net: DigitNet, path: str | Path, metadata: Mapping[str, object]) -> Path:
    """Write the digit network as safetensors, atomically.

    Args:
        net: network to save.
        path: file to write.
        metadata: description of the training, stored as JSON.
    """
    from safetensors.torch import save

    from bilrp.io import files

    header = {"bigram": json.dumps(dict(metadata), sort_keys=True)}
    return files.write_bytes(path, save(net.state_dict(), metadata=header))


def load_weights(path: str | Path) -> tuple[DigitNet, dict[str, Any]]:
    """Return the network and the metadata of a file written by `save_weights`."""
    from safetensors import safe_open

    if not Path(path).is_file():
        raise InputError(
            f"no bigram weights at {path}: `bilrp study tables` writes them as bigram.safetensors"
        )
    with wrap_errors(f"{path} does not contain bigram weights"):
        with safe_open(str(path), framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            metadata = json.loads((stored.metadata() or {}).get("bigram", "{}"))
        kernels = [t for name, t in sorted(tensors.items()) if name.startswith("stack.")]
        with torch.device("meta"):  # shapes only: no memory is allocated before they are compared
            net = DigitNet(width=kernels[0].shape[0], depth=len(kernels) - 2)
        net.load_state_dict(tensors, assign=True)
        if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
            raise ValueError("NaN or infinite values")
    return net.eval().requires_grad_(False), metadata
