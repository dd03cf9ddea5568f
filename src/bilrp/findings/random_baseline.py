"""What pairs taken at random score: how much is much?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

LEVELS = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)  # per cent


class Chance(NamedTuple):
    """Cosines of pairs taken at random: how many pairs, and the quantiles at LEVELS."""

    pairs: int
    quantiles: tuple[float, ...]


def of(cosines: Sequence[float] | np.ndarray) -> Chance:
    """The chance of a reference set, from the cosines of its pairs.

    >>> of([0.1, 0.2, 0.3]).quantiles[4]
    0.2
    """
    return Chance(len(cosines), tuple(float(q) for q in np.percentile(np.asarray(cosines, float), LEVELS)))


def against(cosine: float, chance: Chance, which: str) -> str:
    """Where a cosine stands among those of chance, in words.

    >>> against(0.9, of([0.1, 0.2, 0.3]), "taken at random")
    'more than any of 3 pairs taken at random (half of them are below 0.2)'
    """
    pairs = f"{chance.pairs:,} pair{'s' if chance.pairs != 1 else ''} {which}"
    half = f"half of them are below {chance.quantiles[LEVELS.index(50)]:.2g}"
    passed = [level for level, bound in zip(LEVELS, chance.quantiles, strict=True) if cosine > bound]
    if not passed:
        return f"less than any of {pairs} ({half})"
    if passed[-1] == 100:
        return f"more than any of {pairs} ({half})"
    return f"more than {passed[-1]} % of {pairs} ({half})"


def known(origin: Mapping[str, Any], *shapes: Sequence[int]) -> Chance | None:
    """The chance that was measured for these weights, this layer and inputs of this size; None where none was.

    >>> known({"encoder": "mine", "weights": "0123456789abcdef"}, (128, 128)) is None
    True
    """
    layer = VGG16.get(str(origin.get("weights")))
    if layer is None or any(tuple(shape) != SIZE for shape in shapes):
        return None
    return PHOTOGRAPHS.get(origin.get("layer", layer))


# All 2,016 pairs of 64 photographs of Pascal VOC 2007, each as a whole at 128 × 128 pixels, by layer of VGG-16 with the
# weights of these fingerprints (of the network cut at that layer). A test measures them again.
SIZE = (128, 128)
PHOTOGRAPHS = {
    5: Chance(2016, (0.182, 0.281, 0.297, 0.321, 0.346, 0.377, 0.403, 0.423, 0.457, 0.506)),
    10: Chance(2016, (0.180, 0.252, 0.267, 0.286, 0.306, 0.327, 0.345, 0.356, 0.379, 0.439)),
    17: Chance(2016, (0.149, 0.202, 0.216, 0.233, 0.251, 0.268, 0.285, 0.294, 0.311, 0.354)),
    24: Chance(2016, (0.076, 0.125, 0.137, 0.157, 0.181, 0.207, 0.232, 0.247, 0.290, 0.424)),
    31: Chance(2016, (0.029, 0.058, 0.068, 0.090, 0.118, 0.156, 0.207, 0.251, 0.346, 0.570)),
}
VGG16 = {
    "9f969b125b349b51": 5,
    "21508dfec5228981": 10,
    "04fd0295ee7d4063": 17,
    "cc904d143701fdc9": 24,
    "c938bfd98fc4df15": 31,
}
