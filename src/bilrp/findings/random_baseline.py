"""Similarities of random pairs, as a baseline that a score is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

QUANTILE_PERCENTS = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)


RANDOM_PAIRS = "random pairs"
PHOTOGRAPHS = "random pairs of everyday photographs"
SENTENCES = "pairs of unrelated sentences"
PARAGRAPHS = "pairs of unrelated paragraphs"
SENTENCE_AND_PARAGRAPH = "pairs of a sentence and an unrelated paragraph"
TABLES = "pairs of monthly pages of one barometer table"
# The word for a cosine above this percentile of the random pairs.
VERDICTS = {99: "Very similar", 95: "Similar", 75: "Slightly similar"}
NOT_SIMILAR = "Not similar"


class RandomBaseline(NamedTuple):
    """Cosines of random pairs: their number, their quantiles at QUANTILE_PERCENTS, and what they are pairs of."""

    pair_count: int
    quantiles: tuple[float, ...]
    pairs: str = RANDOM_PAIRS

    def find_percentile(self, cosine: float) -> int | None:
        """Return the largest of QUANTILE_PERCENTS whose quantile is below the cosine; None if it is below all.

        >>> compute_baseline([0.1, 0.2, 0.3]).find_percentile(0.25)
        50
        """
        quantiles = zip(QUANTILE_PERCENTS, self.quantiles, strict=True)
        return max((percent for percent, quantile in quantiles if cosine > quantile), default=None)


def compute_baseline(cosines: Sequence[float] | np.ndarray, *, pairs: str = RANDOM_PAIRS) -> RandomBaseline:
    """Return the baseline of a reference set from the cosines of its pairs."""
    quantiles = np.percentile(np.asarray(cosines, float), QUANTILE_PERCENTS)
    return RandomBaseline(len(cosines), tuple(float(q) for q in quantiles), pairs)


def judge(cosine: float, baseline: RandomBaseline) -> tuple[str, str]:
    """Return a verdict on a cosine in words, and the comparison with random pairs that it rests on.

    >>> judge(0.9, compute_baseline([0.1, 0.2, 0.3]))
    ('Very similar', 'more than any of 3 random pairs')
    >>> judge(0.2, compute_baseline([0.1, 0.2, 0.3]))
    ('Not similar', 'no more than usual among 3 random pairs')
    """
    percent = baseline.find_percentile(cosine)
    pairs = f"{baseline.pair_count:,} {baseline.pairs}"
    pairs = pairs.replace(" pairs", " pair") if baseline.pair_count == 1 else pairs
    verdict = next((word for least, word in VERDICTS.items() if (percent or 0) >= least), NOT_SIMILAR)
    if percent is None:
        return verdict, f"less than any of {pairs}"
    if verdict == NOT_SIMILAR:
        return verdict, f"no more than usual among {pairs}"
    return verdict, f"more than {'any' if percent == 100 else f'{percent} %'} of {pairs}"


def look_up_baseline(origin: Mapping[str, Any], *shapes: Sequence[int]) -> RandomBaseline | None:
    """Return the baseline measured for these weights, this layer and images of these sizes (texts have any), or None."""
    weights, measured = str(origin.get("weights")), _read_measured(origin.get("random_cosines"))
    if measured is not None:
        return measured
    if weights in TEXT_BASELINES:
        return TEXT_BASELINES[weights]
    if weights in TABLE_BASELINES:
        are_pages = all(int(np.prod(shape)) >= MIN_PAGE_PIXELS for shape in shapes)
        return TABLE_BASELINES[weights] if are_pages else None
    layer = VGG16_LAYER_BY_WEIGHTS.get(weights)
    side = VGG16_SIDE_PIXELS if layer is not None else MOBILE_SIDE_PIXELS
    if any(tuple(shape) != (side, side) for shape in shapes):
        return None
    return (
        PHOTOGRAPH_BASELINES.get(weights)
        if layer is None
        else VGG16_BASELINES.get(origin.get("layer", layer))
    )


def look_up_long_baseline(origin: Mapping[str, object], long_texts: int) -> RandomBaseline | None:
    """Return the baseline of texts of which one or both are long, or None if it was not measured for these weights."""
    measured = {1: SENTENCE_AND_PARAGRAPH_BASELINES, 2: PARAGRAPH_BASELINES}[long_texts]
    return measured.get(str(origin.get("weights")))


def _read_measured(stored: Any) -> RandomBaseline | None:
    """Return the baseline that was measured with the encoder's typical inputs; None for anything else."""
    try:
        quantiles = tuple(float(stored["quantiles"][str(percent)]) for percent in QUANTILE_PERCENTS)
        return RandomBaseline(int(stored["pairs"]), quantiles, SENTENCES)
    except (KeyError, TypeError, ValueError):  # stored files may hold anything
        return None


# Photographs: all 2,016 pairs of 64 uncropped images of Pascal VOC 2007, at 128 × 128 pixels
# (VGG-16) and 224 × 224 (MobileNetV2, EfficientNet-Lite0). Sentences: all 1,770 pairs of the 60 everyday sentences of
# encoders/text, paragraphs all 190 pairs of the 20 there. Tables: all 276 pairs of 24 scanned pages. Measured
# with benchmarks/random_pairs.py; tests measure some of them again. Hashes are of the weights, for
# VGG-16 of the network up to that layer.
VGG16_SIDE_PIXELS, MOBILE_SIDE_PIXELS = 128, 224
MAX_BASELINE_WORDS = 30  # of a text: the sentences have 5 to 12 words, and long texts have larger cosines
VGG16_BASELINES = {
    5: RandomBaseline(
        2016, (0.182, 0.281, 0.297, 0.321, 0.346, 0.377, 0.403, 0.423, 0.457, 0.506), PHOTOGRAPHS
    ),
    10: RandomBaseline(
        2016, (0.180, 0.252, 0.267, 0.286, 0.306, 0.327, 0.345, 0.356, 0.379, 0.439), PHOTOGRAPHS
    ),
    17: RandomBaseline(
        2016, (0.149, 0.202, 0.216, 0.233, 0.251, 0.268, 0.285, 0.294, 0.311, 0.354), PHOTOGRAPHS
    ),
    24: RandomBaseline(
        2016, (0.076, 0.125, 0.137, 0.157, 0.181, 0.207, 0.232, 0.247, 0.290, 0.424), PHOTOGRAPHS
    ),
    31: RandomBaseline(
        2016, (0.029, 0.058, 0.068, 0.090, 0.118, 0.156, 0.207, 0.251, 0.346, 0.570), PHOTOGRAPHS
    ),
}
VGG16_LAYER_BY_WEIGHTS = {
    "9f969b125b349b51": 5,
    "21508dfec5228981": 10,
    "04fd0295ee7d4063": 17,
    "cc904d143701fdc9": 24,
    "c938bfd98fc4df15": 31,
}
PHOTOGRAPH_BASELINES = {
    # MobileNetV2
    "e76d44c581ecd5fe": RandomBaseline(
        2016, (0.351, 0.435, 0.457, 0.493, 0.535, 0.574, 0.612, 0.644, 0.693, 0.827), PHOTOGRAPHS
    ),
    # ResNet-50 (transformers)
    "f578c122ee43e28b": RandomBaseline(
        2016, (0.128, 0.220, 0.238, 0.276, 0.323, 0.381, 0.441, 0.497, 0.602, 0.770), PHOTOGRAPHS
    ),
    # EfficientNet-Lite0
    "f37680e4ac58d067": RandomBaseline(
        2016, (0.104, 0.158, 0.174, 0.211, 0.254, 0.301, 0.353, 0.407, 0.515, 0.642), PHOTOGRAPHS
    ),
}
TEXT_BASELINES = {
    # MiniLM
    "f575070ab52cf231": RandomBaseline(
        1770, (-0.186, -0.063, -0.038, 0.002, 0.047, 0.105, 0.168, 0.203, 0.284, 0.373), SENTENCES
    ),
}
PARAGRAPH_BASELINES = {
    # MiniLM
    "f575070ab52cf231": RandomBaseline(
        190, (-0.124, -0.066, -0.037, 0.008, 0.068, 0.135, 0.203, 0.241, 0.315, 0.359), PARAGRAPHS
    ),
}
SENTENCE_AND_PARAGRAPH_BASELINES = {
    # MiniLM
    "f575070ab52cf231": RandomBaseline(
        1200,
        (-0.194, -0.073, -0.049, -0.006, 0.045, 0.113, 0.179, 0.244, 0.358, 0.568),
        SENTENCE_AND_PARAGRAPH,
    ),
}
MIN_PAGE_PIXELS = 500_000  # of a scanned page at the network's scale; parts of a page have other cosines
TABLE_BASELINES = {
    # bigram
    "105d4c439be6640a": RandomBaseline(
        276, (0.591, 0.698, 0.730, 0.787, 0.847, 0.881, 0.909, 0.928, 0.959, 0.962), TABLES
    ),
}
