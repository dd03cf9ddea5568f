"""Mutated pictures of every format: read, or refused in one line, within a gigabyte and five seconds."""

from __future__ import annotations

import io
import random
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from attack import cases
from attack.budget import measure_cost
from attack.mutate import mutate_bytes, smallest
from attack.table import Failure, Row
from bilrp.encoders import images
from bilrp.errors import BilrpError

TRIALS = 600  # a round
SIDE = 24


def check(path: Path) -> Failure | bool:
    """Whether a file is read (True) or refused (False), or what went wrong."""
    read = None
    with measure_cost() as cost:
        try:
            read = images.read_with_view(path, size=16)
        except BilrpError as error:
            if "\n" in str(error):
                return Failure("unexpected error", f"more than one line: {error}")
        except Exception as error:
            return Failure("unexpected error", f"{type(error).__name__}: {error}"[:300])
    if cost.over:
        return Failure("over budget", str(cost))
    if read is not None and (read.x.shape != (1, 3, 16, 16) or not torch.isfinite(read.x).all()):
        return Failure("wrong", f"a tensor of {tuple(read.x.shape)}")
    return read is not None


def attack(seed: int, folder: Path) -> Row:
    draw, row = random.Random(seed), Row("images")
    files = list(seeds().items())
    for trial in range(TRIALS):
        name, full = draw.choice(files)
        suffix = f".{name.partition(' ')[0]}"
        data = mutate_bytes(full, draw, [other for _, other in files])
        path = folder / f"trial{suffix}"
        path.write_bytes(data)
        outcome = check(path)
        if isinstance(outcome, Failure):
            row.failed(
                outcome.what,
                f"seed {seed} trial {trial} ({name}): {outcome.description}; {shrunk(path, data, outcome)}",
            )
        elif outcome:
            row.right += 1
        else:
            row.refused += 1
    return row


def shrunk(path: Path, data: bytes, outcome: Failure) -> str:
    """The smallest file that fails alike, kept as a case."""

    def fails(tried: bytes) -> bool:
        path.write_bytes(tried)
        second = check(path)
        return isinstance(second, Failure) and second.what == outcome.what

    return cases.keep(
        "images", smallest(data, fails, tries=200 if outcome.what == "unexpected error" else 12), path.suffix
    )


@cache
def seeds() -> dict[str, bytes]:
    """Small whole files, by suffix and what is special about them; every one of them is read."""
    draw = np.random.default_rng(0)
    rgb = Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
    grey, bits, palette = rgb.convert("L"), rgb.convert("1"), rgb.quantize(16)
    rgba = rgb.copy()
    rgba.putalpha(grey)
    deep = Image.fromarray(draw.integers(0, 2**16, (SIDE, SIDE), np.uint16))
    real = Image.fromarray(draw.random((SIDE, SIDE), np.float32))
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    more = {"save_all": True, "append_images": [rgb, rgb]}
    lab = Image.merge("LAB", [grey, grey, grey])
    specs: list[tuple[str, Image.Image, str, dict]] = [
        ("png rgb", rgb, "PNG", {}), ("png rgba", rgba, "PNG", {}), ("png bits", bits, "PNG", {}),
        ("png deep", deep, "PNG", {}), ("png rotated", rgb, "PNG", {"exif": exif}), ("png many", rgb, "PNG", more),
        ("png palette", palette, "PNG", {"transparency": 3}),
        ("jpg rgb", rgb, "JPEG", {}), ("jpg grey", grey, "JPEG", {}), ("jpg cmyk", rgb.convert("CMYK"), "JPEG", {}),
        ("jpg progressive", rgb, "JPEG", {"progressive": True}), ("jpg rotated", rgb, "JPEG", {"exif": exif}),
        ("mpo two", rgb, "MPO", {"save_all": True, "append_images": [rgb]}),
        ("gif one", palette, "GIF", {}), ("gif many", palette, "GIF", {"save_all": True, "append_images": [grey, palette]}),
        ("bmp rgb", rgb, "BMP", {}), ("bmp bits", bits, "BMP", {}), ("bmp palette", palette, "BMP", {}),
        ("tif raw", rgb, "TIFF", {}), ("tif lzw", rgb, "TIFF", {"compression": "tiff_lzw"}),
        ("tif deflate", rgb, "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("tif jpeg", rgb, "TIFF", {"compression": "jpeg"}), ("tif pack", rgba, "TIFF", {"compression": "packbits"}),
        ("tif fax", bits, "TIFF", {"compression": "group4"}), ("tif real", real, "TIFF", {}),
        ("tif deep", deep, "TIFF", {}), ("tif lab", lab, "TIFF", {}), ("tif many", rgb, "TIFF", more),
        ("webp lossy", rgb, "WEBP", {}), ("webp exact", rgba, "WEBP", {"lossless": True}), ("webp many", rgb, "WEBP", more),
        ("ppm rgb", rgb, "PPM", {}), ("pgm grey", grey, "PPM", {}), ("pgm deep", deep, "PPM", {}),
        ("pbm bits", bits, "PPM", {}),
        ("avif rgb", rgb, "AVIF", {}), ("jp2 rgb", rgb, "JPEG2000", {}), ("tga raw", rgba, "TGA", {}),
        ("tga packed", rgb, "TGA", {"compression": "tga_rle"}), ("ico two", rgba, "ICO", {"sizes": [(16, 16), (24, 24)]}),
        ("icns one", rgba, "ICNS", {}), ("pcx rgb", rgb, "PCX", {}), ("sgi rgb", rgb, "SGI", {}),
        ("qoi rgba", rgba, "QOI", {}),
        ("dib rgb", rgb, "DIB", {}),
    ]  # fmt: skip
    Image.init()
    encoded = {}
    for name, image, kind, options in specs:
        buffer = io.BytesIO()
        if kind in Image.SAVE:  # not every build has all of them
            image.save(buffer, kind, **options)
            encoded[name] = buffer.getvalue()
    encoded["ppm plain"] = b"P3 3 2 255\n" + b"1 2 3 " * 6
    return encoded
