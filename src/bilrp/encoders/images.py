"""Convert images to input tensors of a fixed size and back; `image_files` decodes the files."""

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
from bilrp.regions import Regions, grid

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
"""Nothing is cut off or added (docs/choosing.md compares the modes)."""

MAX_INPUT_PIXELS = 16_000_000  # reading takes about 50 bytes for each


def read(
    raw_input: InputLike,
    *,
    size: int | tuple[int, int] | None = 128,
    resize: str = DEFAULT_RESIZE,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Read an image as input tensor (1, 3, H, W) float32, (pixel/255 − mean) / std per channel.

    Args:
        raw_input: a path, a PIL image or a uint8 array.
        size: side in pixels, (height, width), or None to keep the image's size.
        resize: "crop", "pad" or "stretch".
        mean, std: mean and standard deviation of each channel.
        max_pixels: largest image that is decoded.
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
    """Read an image as in `read`, together with the original image for display.

    Args:
        raw_input, size, resize, mean, std, max_pixels: as for `read`.
    """
    image = _open_limited(raw_input, size, max_pixels)
    x = _to_tensor(image, size, resize, mean, std)
    box = input_box(image.size, size=size, resize=resize)
    return Item(x, view=Image.from_image(image, box), name=input_name(raw_input))


def _open_limited(raw_input: InputLike, size: int | tuple[int, int] | None, max_pixels: int) -> Pillow.Image:
    return open_image(raw_input, max_pixels=min(max_pixels, MAX_INPUT_PIXELS) if size is None else max_pixels)


def _to_tensor(
    image: Pillow.Image,
    size: int | tuple[int, int] | None,
    resize: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> Tensor:
    resized = resize_image(image, size=size, resize=resize, fill=mean)
    pixels = torch.from_numpy(np.array(resized, dtype=np.uint8)).permute(2, 0, 1).float() / 255
    middle, spread = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    return ((pixels - middle) / spread).unsqueeze(0).contiguous()


def to_image(tensor: Tensor, *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> np.ndarray:
    """Invert `read` for display: (1, 3, H, W) → uint8 H×W×3.

    Args:
        tensor: input tensor.
        mean, std: mean and standard deviation of each channel.
    """
    pixels = tensor.detach().cpu().double()[0]
    middle, spread = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (mean, std))
    return ((pixels * spread + middle) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def pixel_bounds(
    *, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the bounds l ≤ x ≤ h of the z^B rule: the values of black and white in each channel."""
    channels = list(zip(mean, std, strict=True))
    return tuple((0 - m) / s for m, s in channels), tuple((1 - m) / s for m, s in channels)


def resize_image(
    image: Pillow.Image,
    *,
    size: int | tuple[int, int] | None,
    resize: str = DEFAULT_RESIZE,
    fill: Sequence[float] = MEAN,
) -> Pillow.Image:
    """Resize an image.

    Args:
        image: RGB image.
        size: side of a square, (height, width), or None to keep the size.
        resize: "crop" to the centre, "pad" to the aspect ratio of `size`, or "stretch".
        fill: colour of the padding, 0 … 1 per channel.
    """
    from PIL import Image as Pillow

    target = _target_size(size, resize)
    if target is None:
        return image
    height, width = target
    bicubic = Pillow.Resampling.BICUBIC
    if resize != "pad":
        # crop first: a strip of 1×10000 pixels must not be enlarged before it is cropped
        return image.resize((width, height), bicubic, box=input_box(image.size, size=size, resize=resize))
    inner = _scaled_size(image.size, width, height)
    canvas = Pillow.new("RGB", (width, height), tuple(round(255 * min(max(m, 0.0), 1.0)) for m in fill))
    canvas.paste(image.resize(inner, bicubic), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return canvas


def input_box(
    image_size: tuple[int, int], *, size: int | tuple[int, int] | None, resize: str = DEFAULT_RESIZE
) -> Box:
    """Return the (left, top, right, bottom) of the resized input, in pixels of an image of this (width, height).

    Args:
        image_size: (width, height) of the image.
        size: side of a square, (height, width), or None to keep the size.
        resize: "crop", "pad" or "stretch".

    >>> input_box((200, 100), size=64, resize="crop"), input_box((200, 100), size=64, resize="pad")
    ((50.0, 0.0, 150.0, 100.0), (0.0, -50.0, 200.0, 150.0))
    """
    target = _target_size(size, resize)
    if target is None or resize == "stretch":
        return 0.0, 0.0, float(image_size[0]), float(image_size[1])
    height, width = target
    if resize == "crop":
        return _center_box(image_size, width / height)
    inner = _scaled_size(image_size, width, height)
    across, down = image_size[0] / inner[0], image_size[1] / inner[1]
    left, top = 0.0 - (width - inner[0]) // 2 * across, 0.0 - (height - inner[1]) // 2 * down
    return left, top, left + width * across, top + height * down


def check_resize_mode(resize: str) -> None:
    """Raise `InputError` for an unknown resize mode."""
    if resize not in RESIZE_MODES:
        raise InputError(f"resize must be one of {', '.join(RESIZE_MODES)}, got {resize!r}")


def _target_size(size: int | tuple[int, int] | None, resize: str) -> tuple[int, int] | None:
    """Return the checked (height, width), or None to keep the size."""
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
    """Return the largest (width, height) of the same aspect ratio that fits."""
    scale = min(width / image_size[0], height / image_size[1])
    return max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))


def input_name(raw_input: InputLike) -> str:
    """Return the file name of a path, or of the file that an image was opened from; else an empty string."""
    path = raw_input if isinstance(raw_input, (str, Path)) else getattr(raw_input, "filename", "")
    return display_name(path) if isinstance(path, (str, Path)) else ""


def _center_box(size: tuple[int, int], ratio: float) -> tuple[float, float, float, float]:
    """Return the largest centred box of width/height = ratio, at least one pixel per side."""
    width, height = size
    wide, tall = max(1.0, min(width, height * ratio)), max(1.0, min(height, width / ratio))
    wide, tall = min(wide, width), min(tall, height)
    left, top = (width - wide) / 2, (height - tall) / 2
    return left, top, left + wide, top + tall


POSITIONS, MIN_REGION_PIXELS = 7, 8  # along one side


def position_regions(x: Tensor) -> Regions:
    """Split an image into about 7 × 7 patches, the positions of the last feature map of most convolutional networks.

    Smaller regions than positions get relevance of both signs that nearly cancels.

    >>> position_regions(torch.zeros(1, 3, 224, 224)).count, position_regions(torch.zeros(1, 3, 32, 32)).count
    (49, 16)
    """
    return grid(max(MIN_REGION_PIXELS, min(x.shape[2:]) // POSITIONS))(x)
