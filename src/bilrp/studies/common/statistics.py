"""What figures of several studies share: a mean with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def interval(values: list[float], *, seed: int = 0, draws: int = 2000) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval (percentile) over pairs or scenes.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0, 1.0)
    """
    found = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    means = found[torch.randint(len(found), (draws, len(found)), generator=generator)].mean(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(found.mean()), low, high


def over_blocks(
    values: Sequence[float], *, block: int = 1, resamples: int = 2000, seed: int = 0
) -> dict[str, float]:
    """Mean and its 95 % bootstrap interval (percentile), resampling `block` neighbours at a time around the circle.

    Blocks keep what neighbours have in common together (the circular block bootstrap of Politis and Romano 1992).

    >>> over_blocks([1.0, 1.0, 1.0])
    {'mean': 1.0, 'low': 1.0, 'high': 1.0}
    """
    array = np.asarray(values, dtype=float)
    count = len(array)
    starts = np.random.default_rng(seed).integers(count, size=(resamples, -(-count // block), 1))
    drawn = ((starts + np.arange(block)) % count).reshape(resamples, -1)[:, :count]
    low, high = np.quantile(array[drawn].mean(1), [0.025, 0.975])
    return {"mean": float(array.mean()), "low": float(low), "high": float(high)}
