"""What figures of several studies share: a mean with its interval."""

from __future__ import annotations

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
