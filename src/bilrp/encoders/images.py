"""Image files to tensors and back: every Pillow mode, EXIF orientation, a fixed size, a limit on bombs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
FITS = ("crop", "pad", "stretch")
MOST_PIXELS = 128_000_000
SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".avif",
    ".jp2", ".tga", ".mpo", ".ico", ".qoi",
)  # fmt: skip
# Raster formats only: Pillow hands EPS to Ghostscript and WMF to the system, neither of which a
# photograph needs.
_FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000", "TGA", "ICO", "ICNS",
    "PCX", "SGI", "QOI",
)  # fmt: skip


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
    picture = fitted(opened(item, most_pixels=most_pixels), size=size, fit=fit)
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


def opened(item: Any, *, most_pixels: int = MOST_PIXELS) -> Image:
    """An upright RGB picture from a path, a PIL image or a uint8 array (H×W, H×W×3 or H×W×4)."""
    from PIL import Image

    if isinstance(item, Image.Image):
        return _upright_rgb(item, name="the image", most_pixels=most_pixels)
    if isinstance(item, np.ndarray):
        return _upright_rgb(_from_array(item), name="the array", most_pixels=most_pixels)
    if not isinstance(item, (str, Path)):
        raise InputError(f"expected a path, a PIL image or a uint8 array, got {type(item).__name__}")
    return _from_file(Path(item), most_pixels=most_pixels)


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


def listed(folder: str | Path) -> list[Path]:
    """The visible image files under `folder`, by suffix, in a stable order; none at all is an error."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )
    if not found:
        raise InputError(f"{folder}: no images in this folder")
    return found


def _from_file(path: Path, *, most_pixels: int) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        if path.is_dir():
            raise InputError(f"{path}: a folder, not an image file")
        if not path.exists():
            raise InputError(f"{path}: no such file")
        if not path.is_file():  # a pipe or a device could block for ever
            raise InputError(f"{path}: not a regular file")
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        with warnings.catch_warnings():
            # oddities in metadata are Pillow's to warn about; sizes are checked below, from the header
            warnings.simplefilter("ignore")
            Image.init()
            known = [kind for kind in _FORMATS if kind in Image.OPEN]  # not every build has AVIF, WebP, …
            with Image.open(path, formats=known) as image:
                return _upright_rgb(image, name=str(path), most_pixels=most_pixels)
    except UnidentifiedImageError:
        raise InputError(f"{path}: not an image that can be read (PNG, JPEG, WebP, TIFF, GIF, …)") from None
    except Image.DecompressionBombError:
        raise InputError(f"{path}: {_too_large(most_pixels)}") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, MemoryError, OverflowError) as error:
        # Pillow's decoders raise all of these on damaged files
        raise InputError(f"{path}: damaged or unreadable image ({_first_line(error)})") from None


def _upright_rgb(image: Image, *, name: str, most_pixels: int) -> Image:
    from PIL import ImageOps

    if image.width * image.height > most_pixels:
        raise InputError(f"{name}: {image.width}×{image.height} pixels are {_too_large(most_pixels)}")
    if image.width * image.height == 0:
        raise InputError(f"{name}: the image has no pixels")
    if getattr(image, "n_frames", 1) > 1:
        image.seek(0)
    image.load()
    return _rgb(ImageOps.exif_transpose(image), name)


def _rgb(image: Image, name: str) -> Image:
    """Any mode as RGB: transparent over white, deep greys scaled, never clipped."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode, name)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode == "LAB":
        from PIL import ImageCms

        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, lab, rgb, outputMode="RGB")
        assert converted is not None  # None only with inPlace=True
        return converted
    return image.convert("RGB")


def _eight_bits(values: np.ndarray, mode: str, name: str) -> np.ndarray:
    """16-bit integers by their full range, floats in [0, 1] or [0, 255]; anything else is not guessed."""
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all() or low < 0 or high > (255 if mode == "F" else 65535):
        kind = "floating-point" if mode == "F" else "integer"
        raise InputError(f"{name}: {kind} pixels from {low:g} to {high:g}; save it as an 8- or 16-bit image")
    full = (1.0 if high <= 1 else 255.0) if mode == "F" else 65535.0
    return np.rint(values.astype(np.float64) * (255 / full)).astype(np.uint8)


def _from_array(values: np.ndarray) -> Image:
    from PIL import Image

    if values.dtype != np.uint8 or not (values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (3, 4))):
        shape = "×".join(map(str, values.shape))
        raise InputError(f"expected a uint8 array H×W, H×W×3 or H×W×4, got {values.dtype} {shape}")
    if values.size == 0:
        raise InputError("the array has no pixels")
    return Image.fromarray(values)


def _middle(size: tuple[int, int], ratio: float) -> tuple[float, float, float, float]:
    """The largest centred box of width/height = ratio, at least a pixel each way."""
    width, height = size
    wide, tall = max(1.0, min(width, height * ratio)), max(1.0, min(height, width / ratio))
    wide, tall = min(wide, width), min(tall, height)
    left, top = (width - wide) / 2, (height - tall) / 2
    return left, top, left + wide, top + tall


def _too_large(most_pixels: int) -> str:
    return f"more than {most_pixels / 1e6:g} megapixels; make it smaller first"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]
