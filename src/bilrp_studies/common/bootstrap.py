"""What figures of several studies share: a mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def bootstrap_mean(
    values: list[float], *, seed: int = 0, resamples: int = 2000
) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval (percentile) over pairs or scenes.

    >>> bootstrap_mean([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    """
    found = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    means = found[torch.randint(len(found), (resamples, len(found)), generator=generator)].mean(1)
    return float(found.mean()), *percentile_interval(means.numpy())


def block_bootstrap_mean(
    values: Sequence[float], *, block: int = 1, resamples: int = 2000, seed: int = 0
) -> dict[str, float]:
    """Mean and its 95 % bootstrap interval (percentile), resampling `block` neighbours at a time around the circle.

    Blocks keep what neighbours have in common together (the circular block bootstrap of Politis and Romano 1992).

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
    """Where the middle `level` of what was drawn again and again begins and ends: its percentile interval.

    >>> percentile_interval(np.arange(101.0))
    (2.5, 97.5)
    """
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
