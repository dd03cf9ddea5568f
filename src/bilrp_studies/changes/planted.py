"""Changes with a known place: objects of photographs pasted, removed and recoloured; words negated, replaced, inserted."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from bilrp.errors import InputError
from bilrp_studies.common.sts_data import read_pairs

Box = tuple[int, int, int, int]
"""(left, top, right, bottom) in pixels."""

AREA_RANGE = (
    0.04,
    0.3,
)  # of a photograph: smaller objects are below the regions, larger ones are the photograph
WORD_RANGE = (6, 18)
AUXILIARY_LIST = "is are was were has have had can could will would should"
STOP_LIST = """
about above after again also because been before being between both down during each from have having here into just more
most only other over same some such than that their them then there these they this those through under until very were
what when where which while will with would your
"""
AUXILIARIES, STOP_WORDS = (frozenset(words.split()) for words in (AUXILIARY_LIST, STOP_LIST))
INSERTED_WORDS = (
    "angry",
    "broken",
    "wooden",
    "frozen",
    "invisible",
    "purple",
    "giant",
    "stolen",
    "empty",
    "royal",
)


@dataclass(frozen=True)
class PlantedChange:
    """Two inputs that differ in one place.

    Args:
        kind: pasted, removed, recoloured; negated, replaced, inserted.
        a: The original, a photograph or a sentence.
        b: The same with the change.
        box: Where a photograph was changed.
        words: Numbers of the changed words of a and of b, counted by white space.
    """

    kind: str
    a: Image.Image | str
    b: Image.Image | str
    box: Box | None = None
    words: tuple[frozenset[int], frozenset[int]] | None = None


@dataclass(frozen=True)
class _Photograph:
    image: Image.Image
    boxes: tuple[Box, ...]


def plant_in_photographs(folder: Path, count: int, *, seed: int) -> Iterator[PlantedChange]:
    """Yield `count` changes of each kind; the same photographs for all kinds.

    Args:
        folder: With images/*.jpg and annotations/*.xml.
        count: Photographs.
        seed: Of the choice of photographs and places.
    """
    rng = np.random.default_rng(seed)
    photographs = [p for p in map(_read_photograph, sorted((folder / "images").glob("*.jpg"))) if p.boxes]
    if len(photographs) < 2:
        raise InputError(
            f"{folder}: fewer than two photographs with annotated objects, give images/ and annotations/"
        )
    order = rng.permutation(len(photographs))
    for n in range(count):
        photograph, other = (photographs[order[(n + step) % len(order)]] for step in (0, 1))
        box = photograph.boxes[rng.integers(len(photograph.boxes))]
        yield _paste(photograph.image, other.image.crop(other.boxes[rng.integers(len(other.boxes))]), rng)
        yield PlantedChange("removed", photograph.image, remove_box(photograph.image, box), box)
        yield PlantedChange("recoloured", photograph.image, recolour_box(photograph.image, box), box)


def _read_photograph(path: Path) -> _Photograph:
    image = Image.open(path).convert("RGB")
    annotation = path.parent.parent / "annotations" / f"{path.stem}.xml"
    if not annotation.is_file():
        return _Photograph(image, ())
    root = ElementTree.parse(annotation).getroot()
    size = [float(root.findtext(f"size/{name}") or 0) for name in ("width", "height")]
    across, down = image.width / size[0], image.height / size[1]
    boxes = []
    for each in root.iter("bndbox"):
        left, top, right, bottom = (
            float(each.findtext(name) or 0) for name in ("xmin", "ymin", "xmax", "ymax")
        )
        box = round(left * across), round(top * down), round(right * across), round(bottom * down)
        area = (box[2] - box[0]) * (box[3] - box[1]) / (image.width * image.height)
        if AREA_RANGE[0] <= area <= AREA_RANGE[1]:
            boxes.append(box)
    return _Photograph(image, tuple(boxes))


def _paste(image: Image.Image, piece: Image.Image, rng: np.random.Generator) -> PlantedChange:
    """Paste an object of another photograph, scaled to at most a third of the width and height, at a random place."""
    scale = min(image.width / 3 / piece.width, image.height / 3 / piece.height)
    piece = piece.resize((max(8, round(piece.width * scale)), max(8, round(piece.height * scale))))
    left, top = (
        int(rng.integers(0, free + 1)) for free in (image.width - piece.width, image.height - piece.height)
    )
    changed = image.copy()
    changed.paste(piece, (left, top))
    return PlantedChange("pasted", image, changed, (left, top, left + piece.width, top + piece.height))


def remove_box(image: Image.Image, box: Box) -> Image.Image:
    """Fill a box by interpolation between its borders.

    Args:
        image: A photograph.
        box: What to remove.
    """
    pixels = np.asarray(image).astype(float)
    left, top, right, bottom = (
        max(box[0], 1),
        max(box[1], 1),
        min(box[2], image.width - 1),
        min(box[3], image.height - 1),
    )
    x = np.linspace(0, 1, right - left)[None, :, None]
    y = np.linspace(0, 1, bottom - top)[:, None, None]
    across = (1 - x) * pixels[top:bottom, left - 1][:, None] + x * pixels[top:bottom, right][:, None]
    down = (1 - y) * pixels[top - 1, left:right][None] + y * pixels[bottom, left:right][None]
    # the nearer pair of borders counts more
    weight_across, weight_down = 1 / (np.minimum(x, 1 - x) + 0.05), 1 / (np.minimum(y, 1 - y) + 0.05)
    filled = (weight_across * across + weight_down * down) / (weight_across + weight_down)
    changed = pixels.copy()
    changed[top:bottom, left:right] = filled
    return Image.fromarray(changed.round().astype(np.uint8))


def recolour_box(image: Image.Image, box: Box) -> Image.Image:
    """Turn the hue of a box by a third of the circle: red becomes green, green blue, blue red.

    Args:
        image: A photograph.
        box: What to recolour.
    """
    pixels = np.asarray(image).copy()
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = pixels[top:bottom, left:right][..., [2, 0, 1]]
    return Image.fromarray(pixels)


def plant_in_sentences(folder: Path, count: int, *, seed: int) -> Iterator[PlantedChange]:
    """Yield `count` changes of each kind; each sentence has one.

    Args:
        folder: Of the STS benchmark.
        count: Sentences of each kind.
        seed: Of the choice of sentences, places and words.
    """
    rng = np.random.default_rng(seed)
    every = list(dict.fromkeys(pair.a for pair in read_pairs(folder, "dev")))
    sentences = [s.split() for s in every if WORD_RANGE[0] <= len(s.split()) <= WORD_RANGE[1]]
    shuffled = [sentences[n] for n in rng.permutation(len(sentences))]
    content = sorted({_bare(word) for words in shuffled for word in words if _is_content(word)})
    made = dict.fromkeys(("negated", "replaced", "inserted"), 0)
    for words in shuffled:
        for kind in made:
            change = _change_words(kind, words, content, rng) if made[kind] < count else None
            if change is not None:
                made[kind] += 1
                yield change
                break
    if min(made.values()) < count:
        raise InputError(f"{folder}: too few sentences for {count} changes of each kind")


def _bare(word: str) -> str:
    return re.sub(r"\W", "", word).lower()


def _is_content(word: str) -> bool:
    return bool(re.fullmatch(r"[a-z]{4,}[.,]?", word)) and _bare(word) not in STOP_WORDS | AUXILIARIES


def _change_words(
    kind: str, words: Sequence[str], content: Sequence[str], rng: np.random.Generator
) -> PlantedChange | None:
    """Return a sentence with one word changed, or None if it has no word for this kind of change."""
    places = [
        n
        for n, word in enumerate(words)
        if (_bare(word) in AUXILIARIES if kind == "negated" else _is_content(word))
    ]
    if not places or (kind == "negated" and {"not", "no", "never"} & {*map(_bare, words)}):
        return None
    changed, at = list(words), int(places[rng.integers(len(places))])
    if kind == "negated":
        changed.insert(at + 1, "not")
        numbers: tuple[list[int], list[int]] = [], [at + 1]
    elif kind == "inserted":
        changed.insert(at, str(rng.choice(INSERTED_WORDS)))
        numbers = [], [at]
    else:
        tail = changed[at][len(_bare(changed[at])) :]
        changed[at] = str(rng.choice([word for word in content if word != _bare(words[at])])) + tail
        numbers = [at], [at]
    return PlantedChange(
        kind, " ".join(words), " ".join(changed), words=(frozenset(numbers[0]), frozenset(numbers[1]))
    )
