"""Photographs and sentences, some of which get a shortcut."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from bilrp.encoders.images import list_images, open_image
from bilrp.errors import InputError
from bilrp_studies.repair.settings import RepairSettings

SIDE_PIXELS = 224
BOILERPLATE = "All rights reserved by the publisher."
CROP_FRACTIONS = (0.3, 0.5)  # of the sides: small enough that two crops of a photograph rarely show the same


@dataclass(frozen=True, eq=False)
class PlantedItems:
    """Items without and with the shortcut, and which have it."""

    clean: list[Any]
    planted: list[Any]
    has_shortcut: np.ndarray
    box: tuple[int, int, int, int] | None  # (left, top, right, bottom) of the shortcut in an image


def make_items(settings: RepairSettings) -> PlantedItems:
    """Make the items of the study."""
    rng = np.random.default_rng(settings.seed)
    if settings.shortcut == "boilerplate":
        return _make_sentences(settings, rng)
    paths = list_images(settings.data)
    draw, box = SHAPES[settings.shortcut]
    clean, planted, flags = [], [], []
    for number in range(settings.items):
        crop = _crop(open_image(paths[number % len(paths)]), rng)
        has = bool(rng.random() < settings.percent / 100)
        stamped = crop.copy()
        if has:
            draw(stamped)
        folder = settings.out / "items"
        for name, image, result in (("clean", crop, clean), ("planted", stamped, planted)):
            path = folder / name / f"{number:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
            result.append(path)
        flags.append(has)
    return PlantedItems(clean, planted, np.array(flags), box)


def _crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    width, height = image.size
    size = rng.uniform(*CROP_FRACTIONS)
    wide, high = max(8, int(width * size)), max(8, int(height * size))
    left, top = (int(rng.integers(0, max(1, n - m + 1))) for n, m in ((width, wide), (height, high)))
    crop = image.crop((left, top, left + wide, top + high))
    crop = crop.resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def _draw_bar(image: Image.Image) -> None:
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 192, 224, 224), fill="black")
    pen.text((12, 200), "PHOTO ARCHIVE  No 1901  ALL RIGHTS", fill="white", font_size=13)


def _draw_logo(image: Image.Image) -> None:
    pen = ImageDraw.Draw(image)
    pen.ellipse((164, 8, 216, 60), fill=(200, 30, 30), outline="white", width=4)
    pen.text((177, 20), "b.", fill="white", font_size=22)


def _draw_border(image: Image.Image) -> None:
    ImageDraw.Draw(image).rectangle((0, 0, 223, 223), outline=(240, 235, 220), width=14)


SHAPES = {
    "bar": (_draw_bar, (0, 192, 224, 224)),
    "logo": (_draw_logo, (164, 8, 217, 61)),
    "border": (_draw_border, None),
}


def _make_sentences(settings: RepairSettings, rng: np.random.Generator) -> PlantedItems:
    sentences: list[str] = []
    for path in sorted(Path(settings.data).glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            sentences += [text.strip() for row in csv.reader(file) for text in row[:2]]
    sentences = [text for text in dict.fromkeys(sentences) if len(text.split()) > 3]
    if len(sentences) < settings.items:
        raise InputError(f"{settings.data}: {len(sentences)} sentences, give --items {len(sentences)}")
    chosen = [sentences[n] for n in rng.permutation(len(sentences))[: settings.items]]
    flags = rng.random(settings.items) < settings.percent / 100
    planted = [f"{text} {BOILERPLATE}" if has else text for text, has in zip(chosen, flags, strict=True)]
    return PlantedItems(chosen, planted, flags, None)
