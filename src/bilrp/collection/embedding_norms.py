"""Norms and cosine similarities of embeddings whose squares may overflow or underflow in float32."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

FLOAT32_SAFE_NORMS = (1e-15, 1e18)  # norms whose squares float32 represents with full precision
FLOAT32_TINY = float(np.finfo(np.float32).tiny)


def is_float32_safe(norms: Float[np.ndarray, " some"]) -> Bool[np.ndarray, " some"]:
    """Return where sums of squares in float32 are accurate."""
    return (norms > FLOAT32_SAFE_NORMS[0]) & (norms < FLOAT32_SAFE_NORMS[1])


def row_norms(rows: Float[np.ndarray, "some h"]) -> Float[np.ndarray, " some"]:
    """Return ‖φ‖ of each row, computed in float64 where float32 is not accurate."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        unsafe = ~is_float32_safe(norms)
        if unsafe.any():
            norms[unsafe] = np.linalg.norm(rows[unsafe].astype(np.float64), axis=1)
    return norms


def vector_norm(vector: Float[np.ndarray, " h"]) -> float:
    """Return ‖v‖, computed in float64."""
    return float(np.linalg.norm(vector.astype(np.float64)))


def normalize(vector: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
    """Return v / ‖v‖; zero stays zero."""
    return (vector.astype(np.float64) / (vector_norm(vector) or 1)).astype(np.float32)


def normalize_rows(rows: Float[np.ndarray, "some h"]) -> Float[np.ndarray, "some h"]:
    """Return φ / ‖φ‖ of each row; zero stays zero."""
    norms = row_norms(rows)[:, None]
    return rows / np.where(norms > 0, norms, 1)


def cosine_similarities(
    rows: Float[np.ndarray, "some h"], norms: Float[np.ndarray, " some"], vector: Float[np.ndarray, " h"]
) -> Float[np.ndarray, " some"]:
    """Return ⟨φ / ‖φ‖, v / ‖v‖⟩ of each row; rows that are zero score 0.

    Args:
        rows, norms: Embeddings, and their norms, see `row_norms`.
        vector: The query.
    """
    with np.errstate(all="ignore"):
        norm = np.sqrt(vector @ vector)
        safe = FLOAT32_SAFE_NORMS[0] < norm < FLOAT32_SAFE_NORMS[1]  # the usual case: no float64 needed
        scores = rows @ (vector if safe else normalize(vector)) / (norms * (norm if safe else 1))
    unsafe = ~is_float32_safe(norms)
    if unsafe.any():
        wide = rows[unsafe].astype(np.float64)
        scores[unsafe] = wide @ normalize(vector) / np.maximum(np.linalg.norm(wide, axis=1), FLOAT32_TINY**2)
    return scores
