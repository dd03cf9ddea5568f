"""Pictures to tensors and back, at a fixed size; files are opened by `decode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.encoders.decode import MOST_PIXELS, SUFFIXES, listed, opened
from bilrp.engine import memory
from bilrp.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "MEAN", "MOST_PIXELS", "STD", "SUFFIXES", "bounds", "fitted", "listed", "opened", "picture", "read",
]  # fmt: skip

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
FITS = ("crop", "pad", "stretch")
MOST_AS_THEY_ARE = (
    16_000_000  # pixels of an input that is not scaled: tensors hold 50 bytes for each on the way
)


def read(
    item: Any,
    *,
    size: int | tuple[int, int] | None = 128,
    fit: str = "crop",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    most_pixels: int = MOST_PIXELS,
) -> Tensor:
    """An image as the encoder sees it: (1, 3, H, W) float32, (pixel/255 − mean) / std per channel.

    >>> read("cat.jpg", size=128).shape
    torch.Size([1, 3, 128, 128])
    """
    most = min(most_pixels, MOST_AS_THEY_ARE) if size is None else most_pixels
    picture = fitted(opened(item, most_pixels=most), size=size, fit=fit)
    pixels = torch.from_numpy(np.array(picture, dtype=np.uint8)).permute(2, 0, 1).float() / 255
    middle, spread = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    return ((pixels - middle) / spread).unsqueeze(0).contiguous()


def picture(tensor: Tensor, *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> np.ndarray:
    """The way back, for drawing: (1, 3, H, W) → uint8 H×W×3."""
    pixels = tensor.detach().to("cpu", torch.float64)[0]
    middle, spread = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
    return ((pixels * spread + middle) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def bounds(
    *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What black and white become in each channel: the pixel bounds l ≤ x ≤ h of the z^B rule."""
    channels = list(zip(mean, std, strict=True))
    return tuple((0 - m) / s for m, s in channels), tuple((1 - m) / s for m, s in channels)


def fitted(image: Image, *, size: int | tuple[int, int] | None, fit: str = "crop") -> Image:
    """The picture at `size` (one number: a square; a pair: height, width; None: as it is).

    crop keeps the middle, pad keeps everything inside a border of the mean colour, stretch keeps
    everything and gives up the proportions.
    """
    from PIL import Image

    if size is None:
        return image
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise InputError(f"size must be at least 1 pixel, got {height}×{width}")
    if fit not in FITS:
        raise InputError(f"fit must be one of {', '.join(FITS)}, got {fit!r}")
    _check_room(height, width)
    bicubic = Image.Resampling.BICUBIC
    if fit == "stretch":
        return image.resize((width, height), bicubic)
    if fit == "crop":
        # cut first, then scale: a 1×10000 strip must not be blown up before it is cut
        return image.resize((width, height), bicubic, box=_middle(image.size, width / height))
    scale = min(width / image.width, height / image.height)
    inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    canvas = Image.new("RGB", (width, height), tuple(round(255 * value) for value in MEAN))
    canvas.paste(image.resize(inner, bicubic), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return canvas


def _check_room(height: int, width: int) -> None:
    """Refuse sizes whose pixels alone cannot fit: as a picture, as numbers and as the model's input."""
    pixels = 3 * height * width * (1 + 4 + 4)
    memory.check(
        pixels, torch.device("cpu"), f"a picture of {height}×{width}", "use a smaller size (--size 128)"
    )


def _middle(size: tuple[int, int], ratio: float) -> tuple[float, float, float, float]:
    """The largest centred box of width/height = ratio, at least a pixel each way."""
    width, height = size
    wide, tall = max(1.0, min(width, height * ratio)), max(1.0, min(height, width / ratio))
    wide, tall = min(wide, width), min(tall, height)
    left, top = (width - wide) / 2, (height - tall) / 2
    return left, top, left + wide, top + tall
