"""Retrieval accuracy of the caption model: explanations of a model that has not learned its task are worthless."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bilrp_studies.captions.caption_model import CaptionModel
from bilrp_studies.captions.scenes import MAX_OBJECTS, draw_scene, reverse_relations, stack_pixels

# Fraction of new scenes that retrieve their caption; below it the report starts with a warning.
MIN_ACCURACY = 0.5


@dataclass(frozen=True)
class RetrievalResult:
    """Accuracy on new scenes: retrieval of their own caption, and preference for a caption over its reversed relations."""

    accuracy: float
    accuracy_by_objects: tuple[float, ...]
    scene_count: int
    caption_count: int
    relation_accuracy: float

    @property
    def is_trained(self) -> bool:
        return self.accuracy >= MIN_ACCURACY


def evaluate_retrieval(model: CaptionModel, count: int, seed: int) -> RetrievalResult:
    """Retrieve the captions of `count` new scenes among all their distinct captions.

    Args:
        model: The model to evaluate.
        count: Number of scenes, cycling through one to four objects.
        seed: Determines the scenes.
    """
    generator = np.random.default_rng([seed, 3])
    numbers = [k % MAX_OBJECTS + 1 for k in range(count)]
    scenes = [draw_scene(generator, object_count=n, named_count=n) for n in numbers]
    captions = list(dict.fromkeys(scene.caption for scene in scenes))
    seen, texts = model.image_encoder(stack_pixels(scenes)), model.embed_captions(captions)
    best = (seen @ texts.T).argmax(1).tolist()
    right = [captions[position] == scene.caption for position, scene in zip(best, scenes, strict=True)]
    by_objects = tuple(
        float(np.mean([hit for hit, n in zip(right, numbers, strict=True) if n == each]))
        for each in range(1, min(MAX_OBJECTS, count) + 1)
    )
    several = [k for k, n in enumerate(numbers) if n > 1]
    own = model.embed_captions([scenes[k].caption for k in several])
    turned = model.embed_captions([reverse_relations(scenes[k].caption) for k in several])
    caption = ((own - turned) * seen[several]).sum(1) > 0
    return RetrievalResult(
        float(np.mean(right)), by_objects, count, len(captions), float(caption.double().mean())
    )
