"""Bootstrap confidence intervals of means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def bootstrap_mean(
    values: list[float], *, seed: int = 0, resamples: int = 2000
) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval (percentile) over pairs or scenes.

    Args:
        values: One value per pair or scene.
        seed: Seed of the resampling.
        resamples: Number of bootstrap samples.

    >>> bootstrap_mean([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    """
    result = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    means = result[torch.randint(len(result), (resamples, len(result)), generator=generator)].mean(1)
    return float(result.mean()), *percentile_interval(means.numpy())


def block_bootstrap_mean(
    values: Sequence[float], *, block: int = 1, resamples: int = 2000, seed: int = 0
) -> dict[str, float]:
    """Return the mean and its 95 % percentile interval by the circular block bootstrap (Politis and Romano 1992).

    Resampling blocks of consecutive values preserves the dependence between neighbours.

    Args:
        values: One value per pair, in an order in which dependent values are neighbours.
        block: Number of consecutive values resampled together.
        resamples: Number of bootstrap samples.
        seed: Seed of the resampling.

    >>> block_bootstrap_mean([1.0, 1.0, 1.0])
    {'mean': 1.0, 'low': 1.0, 'high': 1.0}
    """
    array = np.asarray(values, dtype=float)
    count = len(array)
    starts = np.random.default_rng(seed).integers(count, size=(resamples, -(-count // block), 1))
    drawn = ((starts + np.arange(block)) % count).reshape(resamples, -1)[:, :count]
    low, high = percentile_interval(array[drawn].mean(1))
    return {"mean": float(array.mean()), "low": low, "high": high}


def percentile_interval(samples: np.ndarray, *, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval that contains the central `level` of the samples.

    >>> percentile_interval(np.arange(101.0))
    (2.5, 97.5)
    """
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
