"""Pictures to tensors and back, at a fixed size; files are opened by `image_files`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bilrp.encoder import InputLike
from bilrp.encoders.image_files import MAX_PIXELS, SUFFIXES, list_images, open_image
from bilrp.errors import InputError
from bilrp.inputs import Box, Image, Item, display_name

if TYPE_CHECKING:
    from PIL import Image as Pillow

__all__ = [
    "MAX_PIXELS", "MEAN", "STD", "SUFFIXES", "input_box", "input_name", "list_images", "open_image", "pixel_bounds", "read",
    "read_with_view", "resize_image", "to_image",
]  # fmt: skip

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
RESIZE_MODES = ("crop", "pad", "stretch")
DEFAULT_RESIZE = "stretch"
"""How pictures are brought to a size where nobody says how: nothing is cut off or added (docs/design.md has figures)."""

MAX_INPUT_PIXELS = 16_000_000  # pixels: tensors hold 50 bytes for each on the way


def read(
    raw_input: InputLike,
    *,
    size: int | tuple[int, int] | None = 128,
    resize: str = DEFAULT_RESIZE,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """An image as the encoder sees it: (1, 3, H, W) float32, (pixel/255 − mean) / std per channel.

    >>> read("cat.jpg", size=128).shape
    torch.Size([1, 3, 128, 128])
    """
    return _to_tensor(_open_limited(raw_input, size, max_pixels), size, resize, mean, std)


def read_with_view(
    raw_input: InputLike,
    *,
    size: int | tuple[int, int] | None = 128,
    resize: str = DEFAULT_RESIZE,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    max_pixels: int = MAX_PIXELS,
) -> Item:
    """An image as the encoder sees it (as `read` gives it), and the photograph as people see it.

    >>> read_with_view("cat.jpg").view.size
    (640, 480)
    """
    photograph = _open_limited(raw_input, size, max_pixels)
    x = _to_tensor(photograph, size, resize, mean, std)
    box = input_box(photograph.size, size=size, resize=resize)
    return Item(x, view=Image.from_image(photograph, box), name=input_name(raw_input))


def _open_limited(raw_input: InputLike, size: int | tuple[int, int] | None, max_pixels: int) -> Pillow.Image:
    return open_image(raw_input, max_pixels=min(max_pixels, MAX_INPUT_PIXELS) if size is None else max_pixels)


def _to_tensor(
    image: Pillow.Image,
    size: int | tuple[int, int] | None,
    resize: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> Tensor:
    seen = resize_image(image, size=size, resize=resize, fill=mean)
    pixels = torch.from_numpy(np.array(seen, dtype=np.uint8)).permute(2, 0, 1).float() / 255
    middle, spread = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    return ((pixels - middle) / spread).unsqueeze(0).contiguous()


def to_image(tensor: Tensor, *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> np.ndarray:
    """The way back, for drawing: (1, 3, H, W) → uint8 H×W×3."""
    pixels = tensor.detach().cpu().double()[0]
    middle, spread = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
    return ((pixels * spread + middle) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def pixel_bounds(
    *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What black and white become in each channel: the pixel bounds l ≤ x ≤ h of the z^B rule."""
    channels = list(zip(mean, std, strict=True))
    return tuple((0 - m) / s for m, s in channels), tuple((1 - m) / s for m, s in channels)


def resize_image(
    image: Pillow.Image,
    *,
    size: int | tuple[int, int] | None,
    resize: str = DEFAULT_RESIZE,
    fill: Sequence[float] = MEAN,
) -> Pillow.Image:
    """The picture at `size` (one number: a square; a pair: height, width; None: as it is).

    crop keeps the middle, pad keeps everything inside a border of the mean colour, stretch keeps
    everything and gives up the proportions.
    """
    from PIL import Image as Pillow

    wanted = _target_size(size, resize)
    if wanted is None:
        return image
    height, width = wanted
    bicubic = Pillow.Resampling.BICUBIC
    if resize != "pad":
        # cut first, then scale: a 1×10000 strip must not be blown up before it is cut
        return image.resize((width, height), bicubic, box=input_box(image.size, size=size, resize=resize))
    inner = _scaled_size(image.size, width, height)
    canvas = Pillow.new("RGB", (width, height), tuple(round(255 * min(max(m, 0.0), 1.0)) for m in fill))
    canvas.paste(image.resize(inner, bicubic), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return canvas


def input_box(
    image_size: tuple[int, int], *, size: int | tuple[int, int] | None, resize: str = DEFAULT_RESIZE
) -> Box:
    """Where the fitted input lies in a picture of this (width, height): (left, top, right, bottom) in its pixels.

    >>> input_box((200, 100), size=64, resize="crop"), input_box((200, 100), size=64, resize="pad")
    ((50.0, 0.0, 150.0, 100.0), (0.0, -50.0, 200.0, 150.0))
    """
    wanted = _target_size(size, resize)
    if wanted is None or resize == "stretch":
        return 0.0, 0.0, float(image_size[0]), float(image_size[1])
    height, width = wanted
    if resize == "crop":
        return _center_box(image_size, width / height)
    inner = _scaled_size(image_size, width, height)
    across, down = image_size[0] / inner[0], image_size[1] / inner[1]
    left, top = 0.0 - (width - inner[0]) // 2 * across, 0.0 - (height - inner[1]) // 2 * down
    return left, top, left + width * across, top + height * down


def check_resize_mode(resize: str) -> None:
    """Refuse a way of fitting that there is not."""
    if resize not in RESIZE_MODES:
        raise InputError(f"resize must be one of {', '.join(RESIZE_MODES)}, got {resize!r}")


def _target_size(size: int | tuple[int, int] | None, resize: str) -> tuple[int, int] | None:
    """(height, width), checked; None: as the picture is."""
    check_resize_mode(resize)
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise InputError(f"size must be at least 1 pixel, got {height}×{width}")
    if height * width > MAX_INPUT_PIXELS:
        raise InputError(f"an input of {height}×{width} is too large: use a smaller size, e.g. 128")
    return height, width


def _scaled_size(image_size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """The (width, height) of a picture that just fits, in its proportions."""
    scale = min(width / image_size[0], height / image_size[1])
    return max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))


def input_name(raw_input: InputLike) -> str:
    """What people call it: a file's own name, also of a picture that was opened from one."""
    path = raw_input if isinstance(raw_input, (str, Path)) else getattr(raw_input, "filename", "")
    return display_name(path) if isinstance(path, (str, Path)) else ""


def _center_box(size: tuple[int, int], ratio: float) -> tuple[float, float, float, float]:
    """The largest centred box of width/height = ratio, at least a pixel each way."""
    width, height = size
    wide, tall = max(1.0, min(width, height * ratio)), max(1.0, min(height, width / ratio))
    wide, tall = min(wide, width), min(tall, height)
    left, top = (width - wide) / 2, (height - tall) / 2
    return left, top, left + wide, top + tall
