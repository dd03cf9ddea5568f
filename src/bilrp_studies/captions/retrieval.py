"""Has the model learnt its task? An explanation of one that has not is worth nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bilrp_studies.captions.caption_model import Model
from bilrp_studies.captions.scenes import MOST, draw, pixels_in, reversed_relations

LEARNT = 0.5  # of new scenes find their caption: below, the report says what the other figures are worth


@dataclass(frozen=True)
class Retrieved:
    """On new scenes: how many find their own caption, among how many captions, and who tells its relations' direction."""

    accuracy: float
    by_objects: tuple[float, ...]
    of: int
    captions: int
    relations: float

    @property
    def learnt(self) -> bool:
        return self.accuracy >= LEARNT


def retrieved(model: Model, count: int, seed: int) -> Retrieved:
    """Look up `count` new scenes, of one to four objects in turn, among all their different captions."""
    generator = np.random.default_rng([seed, 3])
    numbers = [k % MOST + 1 for k in range(count)]
    scenes = [draw(generator, objects=n, named=n) for n in numbers]
    captions = list(dict.fromkeys(scene.caption for scene in scenes))
    seen, texts = model.pictures(pixels_in(scenes)), model.read(captions)
    best = (seen @ texts.T).argmax(1).tolist()
    right = [captions[place] == scene.caption for place, scene in zip(best, scenes, strict=True)]
    by_objects = tuple(
        float(np.mean([hit for hit, n in zip(right, numbers, strict=True) if n == each]))
        for each in range(1, min(MOST, count) + 1)
    )
    several = [k for k, n in enumerate(numbers) if n > 1]
    own = model.read([scenes[k].caption for k in several])
    turned = model.read([reversed_relations(scenes[k].caption) for k in several])
    told = ((own - turned) * seen[several]).sum(1) > 0
    return Retrieved(float(np.mean(right)), by_objects, count, len(captions), float(told.double().mean()))
