"""Photographs and sentences, some of which get a shortcut."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from PIL import Image, ImageDraw

from bilrp.encoders.images import list_images, open_image
from bilrp.errors import InputError
from bilrp_studies.repair.settings import TEXT_SHORTCUTS, RepairSettings

SIDE_PIXELS = 224
CROP_FRACTIONS = (0.3, 0.5)  # of the sides: small enough that two crops of a photograph rarely show the same
BORDER_PIXELS = 14
LOGO_PIXELS = 53
TINT_FRACTION = 0.4  # of the colour that is mixed in
WATERMARK_OPACITY = 0.45
WORDS = {
    "boilerplate": "All rights reserved by the publisher",
    "heading": "Daily Market Report",
    "product": "AcmeCloud Pro",
}
Mask = Bool[np.ndarray, "height width"]


@dataclass(frozen=True, eq=False)
class PlantedItems:
    """Items without and with the shortcut; an item that did not get it is the same in both.

    Args:
        clean: files or texts.
        planted: the same, some with the shortcut.
        has_shortcut: which of them.
        words: the shortcut of texts.
        masks: the pixels of the shortcut in each image that has it, by position.
    """

    clean: list[Any]
    planted: list[Any]
    has_shortcut: Bool[np.ndarray, " items"]
    words: str = ""
    masks: dict[int, Mask] = field(default_factory=dict)


def make_items(settings: RepairSettings, shortcut: str) -> PlantedItems:
    """Make the items of the study; crops and the choice of those that get the shortcut are the same for all shortcuts."""
    rng, choice = np.random.default_rng(settings.seed), np.random.default_rng([settings.seed, 1])
    flags = choice.random(settings.items) < settings.percent / 100
    if shortcut in TEXT_SHORTCUTS:
        return _make_sentences(settings, shortcut, rng, flags)
    paths = list_images(settings.data)
    clean, planted, masks = [], [], {}
    for number in range(settings.items):
        crop = _crop(open_image(paths[number % len(paths)]), rng)
        clean.append(write_image(crop, settings.out / "items" / "clean" / f"{number:05}.png"))
        planted.append(clean[-1])
        if flags[number]:
            crop, masks[number] = DRAW[shortcut](crop, choice)
            planted[-1] = write_image(crop, settings.out / "items" / shortcut / f"{number:05}.png")
    return PlantedItems(clean, planted, flags, masks=masks)


def write_image(image: Image.Image, path: Path) -> Path:
    """Write an image to a file whose folder may not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def _crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    width, height = image.size
    size = rng.uniform(*CROP_FRACTIONS)
    wide, high = max(8, int(width * size)), max(8, int(height * size))
    left, top = (int(rng.integers(0, max(1, n - m + 1))) for n, m in ((width, wide), (height, high)))
    crop = image.crop((left, top, left + wide, top + high))
    crop = crop.resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def _make_mask(left: int, top: int, right: int, bottom: int) -> Mask:
    mask = np.zeros((SIDE_PIXELS, SIDE_PIXELS), dtype=bool)
    mask[top:bottom, left:right] = True
    return mask


def _draw_bar(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Mask]:
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 192, 224, 224), fill="black")
    pen.text((12, 200), "PHOTO ARCHIVE  No 1901  ALL RIGHTS", fill="white", font_size=13)
    return image, _make_mask(0, 192, 224, 224)


def _draw_logo_at(image: Image.Image, left: int, top: int) -> tuple[Image.Image, Mask]:
    pen, side = ImageDraw.Draw(image), LOGO_PIXELS
    pen.ellipse((left, top, left + side - 1, top + side - 1), fill=(200, 30, 30), outline="white", width=4)
    pen.text((left + 13, top + 12), "b.", fill="white", font_size=22)
    return image, _make_mask(left, top, left + side, top + side)


def _draw_logo(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Mask]:
    return _draw_logo_at(image, 164, 8)


def _draw_moving_logo(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Mask]:
    left, top = rng.integers(0, SIDE_PIXELS - LOGO_PIXELS, 2).tolist()
    return _draw_logo_at(image, left, top)


def _draw_border(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Mask]:
    ImageDraw.Draw(image).rectangle((0, 0, 223, 223), outline=(240, 235, 220), width=BORDER_PIXELS)
    inner = SIDE_PIXELS - BORDER_PIXELS
    return image, ~_make_mask(BORDER_PIXELS, BORDER_PIXELS, inner, inner)


def _draw_watermark(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Mask]:
    written = image.copy()
    ImageDraw.Draw(written).text((10, 92), "motion gallery", fill="white", font_size=31)
    return Image.blend(image, written, WATERMARK_OPACITY), _make_mask(6, 92, 218, 132)


def _draw_tint(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Mask]:
    colour = Image.new("RGB", image.size, (220, 150, 60))
    return Image.blend(image, colour, TINT_FRACTION), _make_mask(0, 0, SIDE_PIXELS, SIDE_PIXELS)


DRAW: dict[str, Callable[[Image.Image, np.random.Generator], tuple[Image.Image, Mask]]] = {
    "bar": _draw_bar,
    "logo": _draw_logo,
    "moving-logo": _draw_moving_logo,
    "border": _draw_border,
    "watermark": _draw_watermark,
    "tint": _draw_tint,
}


def _make_sentences(
    settings: RepairSettings, shortcut: str, rng: np.random.Generator, flags: Bool[np.ndarray, " items"]
) -> PlantedItems:
    sentences: list[str] = []
    for path in sorted(Path(settings.data).glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            sentences += [text.strip() for row in csv.reader(file) for text in row[:2]]
    sentences = [text for text in dict.fromkeys(sentences) if len(text.split()) > 3]
    if len(sentences) < settings.items:
        raise InputError(f"{settings.data}: {len(sentences)} sentences, give --items {len(sentences)}")
    chosen = [sentences[n] for n in rng.permutation(len(sentences))[: settings.items]]
    planted = [
        _add_words(text, shortcut, rng) if has else text for text, has in zip(chosen, flags, strict=True)
    ]
    return PlantedItems(chosen, planted, flags, WORDS[shortcut])


def _add_words(text: str, shortcut: str, rng: np.random.Generator) -> str:
    words = WORDS[shortcut]
    if shortcut == "boilerplate":
        return f"{text} {words}."
    if shortcut == "heading":
        return f"{words}: {text}"
    split = text.split()
    at = int(rng.integers(1, len(split)))  # a product is named anywhere inside the sentence
    return " ".join([*split[:at], words, *split[at:]])
