"""Whether inputs are like the photographs that a random baseline was measured on.

Two faces have a larger cosine than any two everyday photographs, whoever they show: a comparison with photographs would
call all of them very similar. So the mean embedding of the photographs is stored, and a pair whose embeddings are less
like it than those of 95 % of the pairs of photographs is called alike in kind only. With VGG-16 this notices all pairs of
drawings and pages, no pair of video frames of sports, and of faces all pairs of the 20 people with whom the number of
groups was chosen, but only 68 % of the pairs of 12 others.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# An embedding is compared by the means of this many groups of consecutive coordinates; with fewer it is not judged.
POOLED_COORDINATES = 256
FALSE_ALARM_FRACTION = 0.05  # of the pairs of photographs, which are below the threshold too


class PooledPhotographMean(NamedTuple):
    """The mean of the pooled embeddings of photographs, and the least likeness of a pair to be compared.

    Args:
        encoded_mean: Its coordinates in 256 levels, one byte each, in base 64.
        threshold: The least mean cosine of a pair of embeddings with it.
    """

    encoded_mean: str
    threshold: float

    def decode(self) -> np.ndarray:
        """Return the mean, of length one."""
        values = np.frombuffer(base64.b64decode(self.encoded_mean), dtype=np.uint8).astype(np.float64)
        return values / np.linalg.norm(values)


def pool_embedding(embedding: np.ndarray) -> np.ndarray | None:
    """Return the means of groups of coordinates, of length one; None if the embedding cannot be divided into groups."""
    if embedding.size % POOLED_COORDINATES or not np.any(embedding):
        return None
    pooled = embedding.astype(np.float64).reshape(POOLED_COORDINATES, -1).mean(1)
    return pooled / np.linalg.norm(pooled)


def is_like_photographs(embeddings: Sequence[np.ndarray], mean: PooledPhotographMean) -> bool:
    """Return whether a pair of embeddings is like those of photographs: by its mean cosine with their mean."""
    pooled = [pool_embedding(embedding) for embedding in embeddings]
    known = [each for each in pooled if each is not None]
    if len(known) < len(pooled):
        return True  # nothing speaks against it
    return float(np.mean([each @ mean.decode() for each in known])) >= mean.threshold


def measure_mean(embeddings: Sequence[np.ndarray]) -> PooledPhotographMean:
    """Return the mean of a reference set, with the threshold that its own pairs give, each without itself in the mean.

    Args:
        embeddings: Of the photographs; all coordinates must be positive or zero.
    """
    pooled = np.stack([each for each in map(pool_embedding, embeddings) if each is not None])
    total = pooled.sum(0)
    others = total - pooled
    own = (others * pooled).sum(1) / np.linalg.norm(others, axis=1)
    pairs = (own[:, None] + own)[np.triu_indices(len(own), 1)] / 2
    levels = np.round(255 * total / total.max()).astype(np.uint8)
    threshold = round(float(np.quantile(pairs, FALSE_ALARM_FRACTION)), 3)
    return PooledPhotographMean(base64.b64encode(levels.tobytes()).decode("ascii"), threshold)
