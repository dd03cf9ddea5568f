"""Pictures to tensors and back, at a fixed size; files are opened by `decode`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bilrp.encoder import Readable
from bilrp.encoders.image_files import MOST_PIXELS, SUFFIXES, listed, opened
from bilrp.errors import InputError
from bilrp.inputs import Box, Image, Item, name_of

if TYPE_CHECKING:
    from PIL import Image as Pillow

__all__ = [
    "MEAN", "MOST_PIXELS", "STD", "SUFFIXES", "bounds", "called", "fitted", "item", "listed", "opened", "picture",
    "read", "where",
]  # fmt: skip

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
FITS = ("crop", "pad", "stretch")
FIT = "stretch"
"""How pictures are brought to a size where nobody says how: nothing is cut off or added (docs/design.md has figures)."""

MOST_OF_AN_INPUT = 16_000_000  # pixels: tensors hold 50 bytes for each on the way


def read(
    thing: Readable,
    *,
    size: int | tuple[int, int] | None = 128,
    fit: str = FIT,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    most_pixels: int = MOST_PIXELS,
) -> Tensor:
    """An image as the encoder sees it: (1, 3, H, W) float32, (pixel/255 − mean) / std per channel.

    >>> read("cat.jpg", size=128).shape
    torch.Size([1, 3, 128, 128])
    """
    return _tensor(_photograph(thing, size, most_pixels), size, fit, mean, std)


def item(
    thing: Readable,
    *,
    size: int | tuple[int, int] | None = 128,
    fit: str = FIT,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    most_pixels: int = MOST_PIXELS,
) -> Item:
    """An image as the encoder sees it (as `read` gives it), and the photograph as people see it.

    >>> item("cat.jpg").view.size
    (640, 480)
    """
    photograph = _photograph(thing, size, most_pixels)
    x = _tensor(photograph, size, fit, mean, std)
    box = where(photograph.size, size=size, fit=fit)
    return Item(x, view=Image.of(photograph, box), name=called(thing))


def _photograph(thing: Readable, size: int | tuple[int, int] | None, most_pixels: int) -> Pillow.Image:
    return opened(thing, most_pixels=min(most_pixels, MOST_OF_AN_INPUT) if size is None else most_pixels)


def _tensor(
    image: Pillow.Image,
    size: int | tuple[int, int] | None,
    fit: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> Tensor:
    seen = fitted(image, size=size, fit=fit, around=mean)
    pixels = torch.from_numpy(np.array(seen, dtype=np.uint8)).permute(2, 0, 1).float() / 255
    middle, spread = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    return ((pixels - middle) / spread).unsqueeze(0).contiguous()


def picture(tensor: Tensor, *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> np.ndarray:
    """The way back, for drawing: (1, 3, H, W) → uint8 H×W×3."""
    pixels = tensor.detach().cpu().double()[0]
    middle, spread = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
    return ((pixels * spread + middle) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def bounds(
    *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What black and white become in each channel: the pixel bounds l ≤ x ≤ h of the z^B rule."""
    channels = list(zip(mean, std, strict=True))
    return tuple((0 - m) / s for m, s in channels), tuple((1 - m) / s for m, s in channels)


def fitted(
    image: Pillow.Image,
    *,
    size: int | tuple[int, int] | None,
    fit: str = FIT,
    around: Sequence[float] = MEAN,
) -> Pillow.Image:
    """The picture at `size` (one number: a square; a pair: height, width; None: as it is).

    crop keeps the middle, pad keeps everything inside a border of the mean colour, stretch keeps
    everything and gives up the proportions.
    """
    from PIL import Image as Pillow

    wanted = _measured(size, fit)
    if wanted is None:
        return image
    height, width = wanted
    bicubic = Pillow.Resampling.BICUBIC
    if fit != "pad":
        # cut first, then scale: a 1×10000 strip must not be blown up before it is cut
        return image.resize((width, height), bicubic, box=where(image.size, size=size, fit=fit))
    inner = _inside(image.size, width, height)
    canvas = Pillow.new("RGB", (width, height), tuple(round(255 * min(max(m, 0.0), 1.0)) for m in around))
    canvas.paste(image.resize(inner, bicubic), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return canvas


def where(picture: tuple[int, int], *, size: int | tuple[int, int] | None, fit: str = FIT) -> Box:
    """Where the fitted input lies in a picture of this (width, height): (left, top, right, bottom) in its pixels.

    >>> where((200, 100), size=64, fit="crop"), where((200, 100), size=64, fit="pad")
    ((50.0, 0.0, 150.0, 100.0), (0.0, -50.0, 200.0, 150.0))
    """
    wanted = _measured(size, fit)
    if wanted is None or fit == "stretch":
        return 0.0, 0.0, float(picture[0]), float(picture[1])
    height, width = wanted
    if fit == "crop":
        return _middle(picture, width / height)
    inner = _inside(picture, width, height)
    across, down = picture[0] / inner[0], picture[1] / inner[1]
    left, top = 0.0 - (width - inner[0]) // 2 * across, 0.0 - (height - inner[1]) // 2 * down
    return left, top, left + width * across, top + height * down


def check_fit(fit: str) -> None:
    """Refuse a way of fitting that there is not."""
    if fit not in FITS:
        raise InputError(f"fit must be one of {', '.join(FITS)}, got {fit!r}")


def _measured(size: int | tuple[int, int] | None, fit: str) -> tuple[int, int] | None:
    """(height, width), checked; None: as the picture is."""
    check_fit(fit)
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise InputError(f"size must be at least 1 pixel, got {height}×{width}")
    if height * width > MOST_OF_AN_INPUT:
        raise InputError(f"an input of {height}×{width} is too large: use a smaller size, e.g. 128")
    return height, width


def _inside(picture: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """The (width, height) of a picture that just fits, in its proportions."""
    scale = min(width / picture[0], height / picture[1])
    return max(1, round(picture[0] * scale)), max(1, round(picture[1] * scale))


def called(thing: Readable) -> str:
    """What people call it: a file's own name, also of a picture that was opened from one."""
    path = thing if isinstance(thing, (str, Path)) else getattr(thing, "filename", "")
    return name_of(path) if isinstance(path, (str, Path)) else ""


def _middle(size: tuple[int, int], ratio: float) -> tuple[float, float, float, float]:
    """The largest centred box of width/height = ratio, at least a pixel each way."""
    width, height = size
    wide, tall = max(1.0, min(width, height * ratio)), max(1.0, min(height, width / ratio))
    wide, tall = min(wide, width), min(tall, height)
    left, top = (width - wide) / 2, (height - tall) / 2
    return left, top, left + wide, top + tall
