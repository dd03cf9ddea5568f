"""Which encoder serves photographs? python benchmarks/photograph_encoders.py DATA [COUNT [ENCODER …]]

DATA has pascal_voc (images, annotations). For each encoder a row of a table:

- **retrieval**: mean average precision over all photographs; a photograph with an object of one class is right;
- **moved object**: an object cut out of a photograph in opposite corners of two blurred ones: is the first finding object
  with object, and the cosine of the two pictures (COUNT pairs);
- **time**: CPU time of explaining a pair, and of one forward pass.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

import bilrp
from bilrp.encoder import Encoder, read_tensor
from bilrp_studies.arena import photo_truths
from bilrp_studies.arena.settings import ArenaSettings

ENCODERS = ("efficientnet", "mobilenet", "vgg16:31")


def measure_retrieval(encoder: Encoder, paths: list[Path]) -> float:
    """Return the mean average precision of finding photographs with an object of one class.

    Args:
        encoder: the encoder.
        paths: the photographs.
    """
    with torch.no_grad():
        rows = [encoder.forward_fn(None)(read_tensor(encoder, path)).flatten().double() for path in paths]
    unit = torch.nn.functional.normalize(torch.stack(rows))
    cosines = (unit @ unit.T).numpy()
    classes = [{name for name, _ in photo_truths.read_annotation(path)[1]} for path in paths]
    precisions = []
    for i, own in enumerate(classes):
        order = [j for j in np.argsort(-cosines[i]) if j != i]
        right = np.array([bool(own & classes[j]) for j in order])
        if right.any():
            precisions.append((np.cumsum(right) / np.arange(1, len(right) + 1))[right].mean())
    return float(np.mean(precisions))


def measure_moved_objects(encoder: Encoder, settings: ArenaSettings) -> tuple[int, int, float]:
    """Return (first findings that are object with object, pairs, mean cosine).

    Args:
        encoder: the encoder.
        settings: data and number of photographs.
    """
    right, cosines = 0, []
    for case in photo_truths.object_cases(encoder, settings):
        side = photo_truths.region_side(settings, case.a)
        explanation = bilrp.explain(encoder, case.a, case.b, regions=side, similarity="cosine")
        first = next(each for each in explanation.findings(100) if each.relevance > 0)
        inside = case.match.any(1)[list(first.a)], case.match.any(0)[list(first.b)]
        right += all(float(each.float().mean()) > 0.5 for each in inside)
        cosines.append(explanation.score)
    return right, len(cosines), float(np.mean(cosines))


def measure_time(encoder: Encoder, paths: list[Path]) -> tuple[float, float]:
    """Return CPU seconds of an explained pair (the second one) and of a forward pass.

    Args:
        encoder: the encoder.
        paths: two photographs.
    """
    seconds = []
    for _ in range(2):
        start = time.process_time()
        bilrp.explain(encoder, *paths)
        seconds.append(time.process_time() - start)
    x = read_tensor(encoder, paths[0])
    start = time.process_time()
    with torch.no_grad():
        for _ in range(5):
            encoder.forward_fn(None)(x)
    return seconds[-1], (time.process_time() - start) / 5


def main(data: str, count: str = "12", *names: str) -> None:
    for name in names or ENCODERS:
        encoder = bilrp.encoders.load(name)
        paths = sorted((Path(data) / "pascal_voc" / "images").glob("*.jpg"))
        side = read_tensor(encoder, paths[0]).shape[-1]
        settings = ArenaSettings(data=Path(data), photographs=int(count), size=side, regions=side // 7)
        right, pairs, cosine = measure_moved_objects(encoder, settings)
        pair, forward = measure_time(encoder, paths[:2])
        cells = (
            Path(name).name, f"{measure_retrieval(encoder, paths):.3f}", f"{right} of {pairs}", f"{cosine:.2f}",
            f"{pair:.2f} s", f"{forward:.3f} s",
        )  # fmt: skip
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
