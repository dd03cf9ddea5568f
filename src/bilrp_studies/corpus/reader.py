"""A digit network for the typefaces of the made corpus, trained on drawn digits; no page of the corpus is used."""

from __future__ import annotations

import string

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bilrp.encoder import Encoder
from bilrp.encoders.bigram import build_encoder
from bilrp.encoders.binarization import DIGIT_HEIGHT_PIXELS
from bilrp_studies.common.digit_training import LAYOUT_SCALE, PATCH_PIXELS, Patches, Recipe, train
from bilrp_studies.corpus.made_pages import EDITIONS, load_typeface

PATCHES_PER_DIGIT = 60  # of each typeface
LINE_PIXELS = 32  # in layout pixels, as network pages have it
THRESHOLD = 0.3
ENCODER_NAME = "corpus-bigram"


def make_encoder(*, steps: int, seed: int = 0) -> Encoder:
    """Train the digit network and return the bigram encoder with it.

    Args:
        steps: Steps of training.
        seed: Of the drawn digits and of the weights.
    """
    net = train(draw_patches(np.random.default_rng(seed)), Recipe(steps=steps, seed=seed))
    return build_encoder(net, name=ENCODER_NAME, threshold=THRESHOLD)


def draw_patches(rng: np.random.Generator) -> Patches:
    """Draw digits of every typeface between others, and what is not a digit: gaps, spaces between lines, letters."""
    rows: list[tuple[np.ndarray, int, tuple[float, float]]] = []
    for edition in EDITIONS:
        face = load_typeface(edition.typeface, DIGIT_HEIGHT_PIXELS * LAYOUT_SCALE)
        for number in range(10 * PATCHES_PER_DIGIT):
            rows += _draw_examples(face, number, rng)
    ink, label, reach = zip(*rows, strict=True)
    return Patches(np.array(ink, np.float32), np.array(label), np.array(reach))


def _draw_examples(
    face: ImageFont.FreeTypeFont, number: int, rng: np.random.Generator
) -> list[tuple[np.ndarray, int, tuple[float, float]]]:
    """Return one digit and one place without a digit."""
    digit, pitch = number % 10, face.getlength("0")
    before, after = ("".join(map(str, rng.integers(0, 10, 2))) for _ in range(2))
    cut = int(rng.integers(3))  # inside a number, at its end, at its start
    text = f"{before if cut < 2 else ''}{digit}{after if cut != 1 else ''}"
    left = PATCH_PIXELS / 2 - pitch * (0.5 if cut == 2 else 2.5)
    image = _draw_lines(face, text, left, rng)
    examples = [(np.asarray(image) / 255, digit, (4.0, 6.0))]
    kind = number % 4
    if kind == 0:
        letters = "".join(rng.choice(list(string.ascii_letters), 5))
        other, reach = _draw_lines(face, letters, PATCH_PIXELS / 2 - pitch * 2.5, rng), (4.0, 6.0)
    elif kind == 1:
        other, reach = _shift(image, 0, LINE_PIXELS // 2), (4.0, 2.0)
    elif cut:
        other, reach = _shift(image, 1.6 * pitch * (1 if cut == 1 else -1), 0), (4.0, 6.0)
    else:
        other, reach = _shift(image, pitch / 2, 0), (1.5, 6.0)
    return [*examples, (np.asarray(other) / 255, -1, reach)]


def _draw_lines(
    face: ImageFont.FreeTypeFont, text: str, left: float, rng: np.random.Generator
) -> Image.Image:
    """Draw a line of text at the middle of a patch, often with lines of digits above and below it."""
    image = Image.new("L", (PATCH_PIXELS, PATCH_PIXELS), 0)
    pen = ImageDraw.Draw(image)
    base = PATCH_PIXELS / 2 + DIGIT_HEIGHT_PIXELS * LAYOUT_SCALE / 2
    pen.text((left, base), text, font=face, fill=255, anchor="ls")
    if rng.random() < 0.7:
        for shift in (-LINE_PIXELS, LINE_PIXELS):
            other = "".join(map(str, rng.integers(0, 10, len(text))))
            pen.text((left, base + shift), other, font=face, fill=255, anchor="ls")
    return image


def _shift(image: Image.Image, across: float, down: float) -> Image.Image:
    """Return the patch whose centre is this far to the right of and below the other's."""
    moved = Image.new("L", image.size, 0)
    moved.paste(image, (-round(across), -round(down)))
    return moved
