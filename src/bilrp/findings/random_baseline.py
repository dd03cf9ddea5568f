"""Similarities of random pairs, as a baseline that a score is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

QUANTILE_PERCENTS = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)


class RandomBaseline(NamedTuple):
    """Cosines of random pairs: their number, and their quantiles at QUANTILE_PERCENTS."""

    pair_count: int
    quantiles: tuple[float, ...]


def compute_baseline(cosines: Sequence[float] | np.ndarray) -> RandomBaseline:
    """Return the baseline of a reference set from the cosines of its pairs.

    >>> compute_baseline([0.1, 0.2, 0.3]).quantiles[4]
    0.2
    """
    return RandomBaseline(
        len(cosines), tuple(float(q) for q in np.percentile(np.asarray(cosines, float), QUANTILE_PERCENTS))
    )


def compare_with_baseline(cosine: float, baseline: RandomBaseline, pair_description: str) -> str:
    """Describe a cosine relative to the random pairs.

    Args:
        cosine: The cosine to describe.
        baseline: Cosines of random pairs.
        pair_description: Which pairs these are, for the sentence.

    >>> compare_with_baseline(0.9, compute_baseline([0.1, 0.2, 0.3]), "taken at random")
    'more than any of 3 pairs taken at random (half of them are below 0.2)'
    """
    pairs = f"{baseline.pair_count:,} pair{'s' if baseline.pair_count != 1 else ''} {pair_description}"
    half = f"half of them are below {baseline.quantiles[QUANTILE_PERCENTS.index(50)]:.2g}"
    quantiles = zip(QUANTILE_PERCENTS, baseline.quantiles, strict=True)
    percent = max((percent for percent, quantile in quantiles if cosine > quantile), default=None)
    if percent is None:
        return f"less than any of {pairs} ({half})"
    if percent == 100:
        return f"more than any of {pairs} ({half})"
    return f"more than {percent} % of {pairs} ({half})"


def look_up_baseline(origin: Mapping[str, Any], *shapes: Sequence[int]) -> RandomBaseline | None:
    """Return the baseline measured for these weights, this layer and inputs of these sizes, or None.

    >>> look_up_baseline({"encoder": "mine", "weights": "0123456789abcdef"}, (128, 128)) is None
    True
    """
    layer = VGG16_LAYER_BY_WEIGHTS.get(str(origin.get("weights")))
    if layer is None or any(tuple(shape) != BASELINE_IMAGE_SIZE_PIXELS for shape in shapes):
        return None
    return VGG16_BASELINES.get(origin.get("layer", layer))


# All 2,016 pairs of 64 images of Pascal VOC 2007 at 128 × 128 pixels, uncropped, by layer of VGG-16. The hashes are of the
# weights of the network up to that layer. A test measures the quantiles again.
BASELINE_IMAGE_SIZE_PIXELS = (128, 128)
VGG16_BASELINES = {
    5: RandomBaseline(2016, (0.182, 0.281, 0.297, 0.321, 0.346, 0.377, 0.403, 0.423, 0.457, 0.506)),
    10: RandomBaseline(2016, (0.180, 0.252, 0.267, 0.286, 0.306, 0.327, 0.345, 0.356, 0.379, 0.439)),
    17: RandomBaseline(2016, (0.149, 0.202, 0.216, 0.233, 0.251, 0.268, 0.285, 0.294, 0.311, 0.354)),
    24: RandomBaseline(2016, (0.076, 0.125, 0.137, 0.157, 0.181, 0.207, 0.232, 0.247, 0.290, 0.424)),
    31: RandomBaseline(2016, (0.029, 0.058, 0.068, 0.090, 0.118, 0.156, 0.207, 0.251, 0.346, 0.570)),
}
VGG16_LAYER_BY_WEIGHTS = {
    "9f969b125b349b51": 5,
    "21508dfec5228981": 10,
    "04fd0295ee7d4063": 17,
    "cc904d143701fdc9": 24,
    "c938bfd98fc4df15": 31,
}
