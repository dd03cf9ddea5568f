"""Lengths and cosines of embeddings of any size: squares of very small or very large numbers do not fit float32."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

FLOAT32_SAFE_NORMS = (
    1e-15,
    1e18,
)  # lengths whose squares, and those of their coordinates, float32 holds to its precision
FLOAT32_TINY = float(np.finfo(np.float32).tiny)


def is_float32_safe(norms: Float[np.ndarray, " some"]) -> Bool[np.ndarray, " some"]:
    """Where sums of squares in float32 can be relied on."""
    return (norms > FLOAT32_SAFE_NORMS[0]) & (norms < FLOAT32_SAFE_NORMS[1])


def row_norms(rows: Float[np.ndarray, "some h"]) -> Float[np.ndarray, " some"]:
    """‖φ‖ of each row; in float64 where that is needed.

    >>> row_norms(np.array([[3e-30, 4e-30], [3.0, 4.0]], np.float32)).tolist() == np.float32([5e-30, 5]).tolist()
    True
    """
    with np.errstate(all="ignore"):
        found = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        odd = ~is_float32_safe(found)
        if odd.any():
            found[odd] = np.linalg.norm(rows[odd].astype(np.float64), axis=1)
    return found


def vector_norm(vector: Float[np.ndarray, " h"]) -> float:
    """‖v‖, in float64."""
    return float(np.linalg.norm(vector.astype(np.float64)))


def normalize(vector: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
    """v / ‖v‖; zero stays zero."""
    return (vector.astype(np.float64) / (vector_norm(vector) or 1)).astype(np.float32)


def cosine_similarities(
    rows: Float[np.ndarray, "some h"], norms: Float[np.ndarray, " some"], vector: Float[np.ndarray, " h"]
) -> Float[np.ndarray, " some"]:
    """⟨φ / ‖φ‖, v / ‖v‖⟩ of each row, as the cosine of a pair is scored; what is zero has none, and gets 0.

    >>> small = np.array([[3e-30, 4e-30], [0.0, 0.0]], np.float32)
    >>> cosine_similarities(small, row_norms(small), np.array([6e-25, 8e-25], np.float32)).tolist()
    [1.0, 0.0]
    """
    with np.errstate(all="ignore"):
        long = np.sqrt(vector @ vector)
        fits = FLOAT32_SAFE_NORMS[0] < long < FLOAT32_SAFE_NORMS[1]  # mostly: then nothing is done in float64
        found = rows @ (vector if fits else normalize(vector)) / (norms * (long if fits else 1))
    odd = ~is_float32_safe(norms)
    if odd.any():
        wide = rows[odd].astype(np.float64)
        found[odd] = wide @ normalize(vector) / np.maximum(np.linalg.norm(wide, axis=1), FLOAT32_TINY**2)
    return found
