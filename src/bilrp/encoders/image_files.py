"""Decode image files to upright RGB images, with bounded memory and time.

Sizes are checked in the header before any pixel is decoded (at most 1 GB of memory), only the first frame is read, and
errors of a decoder become one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.errors import InputError, suppress_warnings, wrap_errors

if TYPE_CHECKING:
    from PIL.Image import Image

    from bilrp.encoder import InputLike

MAX_PIXELS = 100_000_000  # 4 bytes as decoded and 4 as RGB: 0.8 GB
MAX_FILE_BYTES = 512_000_000
SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".avif",
    ".jp2", ".tga", ".mpo", ".ico", ".qoi",
)  # fmt: skip
# Raster formats only: Pillow passes EPS to Ghostscript and WMF to the system.
_FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000", "TGA", "ICO", "ICNS",
    "PCX", "SGI", "QOI",
)  # fmt: skip
# Lower limits for decoders that keep several copies (1 GB), and for decoders written in Python (seconds).
_MAX_PIXELS_BY_FORMAT = {
    "WEBP": 50_000_000,
    "AVIF": 32_000_000,
    "JPEG2000": 16_000_000,
    "ICO": 16_000_000,
    "ICNS": 16_000_000,
}
_MAX_PIXELS_BY_CODEC = {
    "qoi": 4_000_000,
    "bmp_rle": 4_000_000,
    "ppm_plain": 4_000_000,
    "ppm": 4_000_000,
    "SGI16": 16_000_000,
}
_MAX_REDUCED_JPEG_PIXELS = 400_000_000  # decoded at 1/2, 1/4 or 1/8 of their side
_MAX_JPEG_SCAN_PIXELS = 2_000_000_000  # pixels × scans; a progressive file can have any number of scans
_BAND_PIXELS = 2_000_000  # pixels converted at a time


def open_image(raw_input: InputLike, *, max_pixels: int = MAX_PIXELS) -> Image:
    """Return an upright RGB image from a path, a PIL image or a uint8 array (H×W, H×W×3 or H×W×4)."""
    from PIL import Image

    if isinstance(raw_input, Image.Image):
        with wrap_errors("the image cannot be read"):
            return _to_upright_rgb(raw_input, name="the image", max_pixels=max_pixels)
    if isinstance(raw_input, np.ndarray):
        return _to_upright_rgb(_from_array(raw_input), name="the array", max_pixels=max_pixels)
    if not isinstance(raw_input, (str, Path)):
        raise InputError(f"expected a path, a PIL image or a uint8 array, got {type(raw_input).__name__}")
    path = Path(raw_input)
    with wrap_errors(f"{path}: damaged or unreadable image"):
        return _from_file(path, max_pixels=max_pixels)


def is_animated(path: str | Path) -> bool:
    """Return whether a GIF, PNG or WebP file has more than one frame (`open_image` reads the first)."""
    from PIL import Image

    try:
        with Image.open(path, formats=("GIF", "PNG", "WEBP")) as image:
            return bool(getattr(image, "is_animated", False))
    except Exception:  # `open_image` reports unreadable files
        return False


def list_images(folder: str | Path) -> list[Path]:
    """Return the image files under `folder` by suffix, sorted, without hidden ones; raise if there are none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )
    if not paths:
        raise InputError(f"{folder}: no images in this folder")
    return paths


def check_image_file(path: Path) -> None:
    """Raise `InputError` for a folder, a missing or empty file, a special file such as a pipe, or one that is too large."""
    if path.is_dir():
        raise InputError(f"{path}: a folder, not an image file")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if not path.is_file():  # reading a pipe or a device could block
        raise InputError(f"{path}: not a regular file")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: more than {MAX_FILE_BYTES // 1_000_000} MB; make it smaller first")


def _from_file(path: Path, *, max_pixels: int) -> Image:
    from PIL import Image, UnidentifiedImageError

    check_image_file(path)
    with suppress_warnings():  # sizes are checked below, from the header
        Image.init()
        formats = [name for name in _FORMATS if name in Image.OPEN]  # some builds lack AVIF, WebP, …
        try:
            with Image.open(path, formats=formats) as image:
                _reduce_jpeg(image, path, max_pixels)
                return _to_upright_rgb(
                    image, name=str(path), max_pixels=_decoder_pixel_limit(image, max_pixels)
                )
        except UnidentifiedImageError:
            raise InputError(f"{path}: not a supported image file (PNG, JPEG, WebP, TIFF, GIF, …)") from None
        except Image.DecompressionBombError:
            raise InputError(f"{path}: {_size_limit_message(max_pixels)}") from None


def _decoder_pixel_limit(image: Image, max_pixels: int) -> int:
    """Return the largest number of pixels allowed for this image's decoder."""
    codecs = [tile[0] for tile in getattr(image, "tile", ())[:1]]
    limits = [_MAX_PIXELS_BY_FORMAT.get(image.format or "", max_pixels)]
    limits += [_MAX_PIXELS_BY_CODEC.get(codec, max_pixels) for codec in codecs]
    return min(max_pixels, *limits)


def _reduce_jpeg(image: Image, path: Path, max_pixels: int) -> None:
    """Decode a large JPEG at 1/2, 1/4 or 1/8; raise for a progressive one with too many scans."""
    if image.format not in ("JPEG", "MPO"):
        return
    pixels = image.width * image.height
    progressive = bool(image.info.get("progressive"))  # all coefficients are in memory
    if progressive and pixels * _count_scans(path) > _MAX_JPEG_SCAN_PIXELS:
        raise InputError(
            f"{path}: too many scans of {image.width}×{image.height} pixels; save it again as a baseline JPEG"
        )
    if max_pixels < pixels <= _MAX_REDUCED_JPEG_PIXELS and not progressive:
        scale = next((scale for scale in (2, 4) if pixels <= max_pixels * scale**2), 8)
        image.draft(None, (-(-image.width // scale), -(-image.height // scale)))


def _count_scans(path: Path) -> int:
    """Return an upper bound of a JPEG's scans: its start-of-scan markers."""
    count, last = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            count += (last + chunk).count(b"\xff\xda")
            last = chunk[-1:]
    return count


def _to_upright_rgb(image: Image, *, name: str, max_pixels: int) -> Image:
    from PIL import ImageOps

    _check_size(image, name, max_pixels)
    if image.tell() != 0:
        image.seek(0)
    image.load()
    _check_size(image, name, max_pixels)  # some formats decode to another size than their header says
    upright = ImageOps.exif_transpose(image, in_place=False) if _is_rotated(image) else image
    return _to_rgb(upright, name)


def _is_rotated(image: Image) -> bool:
    return image.getexif().get(0x0112, 1) != 1


def _check_size(image: Image, name: str, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise InputError(f"{name}: {image.width}×{image.height} pixels are {_size_limit_message(max_pixels)}")
    if image.width * image.height == 0:
        raise InputError(f"{name}: the image has no pixels")


def _to_rgb(image: Image, name: str) -> Image:
    """Convert any mode to RGB in bands of rows: transparency over white, 16-bit and float grey scaled."""
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()  # the original is closed with its file
    white = _white_level(image, name) if image.mode.startswith("I") or image.mode == "F" else 0.0
    canvas = Image.new("RGB", image.size)
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        canvas.paste(_band_to_rgb(image.crop(box), image.info, white), box)
    return canvas


def _band_to_rgb(band: Image, info: dict[Any, Any], white: float) -> Image:
    from PIL import Image

    if white:
        eight = np.rint(np.asarray(band).astype(np.float64) * (255 / white)).astype(np.uint8)
        return Image.fromarray(eight).convert("RGB")
    if band.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in info:
        layer = band.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if band.mode == "LAB":
        from PIL import ImageCms

        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(band, lab, rgb, outputMode="RGB")
        assert converted is not None  # None only with inPlace=True
        return converted
    return band.convert("RGB")


def _white_level(image: Image, name: str) -> float:
    """Return the value of white: 65535 for integers, 1 or 255 for floats; raise for other ranges."""
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    if not np.isfinite([low, high]).all() or low < 0 or high > (255 if image.mode == "F" else 65535):
        kind = "floating-point" if image.mode == "F" else "integer"
        raise InputError(f"{name}: {kind} pixels from {low:g} to {high:g}; save it as an 8- or 16-bit image")
    return (1.0 if high <= 1 else 255.0) if image.mode == "F" else 65535.0


def _from_array(values: np.ndarray) -> Image:
    from PIL import Image

    if values.dtype != np.uint8 or not (values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (3, 4))):
        shape = "×".join(map(str, values.shape))
        raise InputError(f"expected a uint8 array H×W, H×W×3 or H×W×4, got {values.dtype} {shape}")
    if values.size == 0:
        raise InputError("the array has no pixels")
    return Image.fromarray(values)


def _size_limit_message(max_pixels: int) -> str:
    return f"more than {max_pixels / 1e6:g} megapixels; make it smaller first"
