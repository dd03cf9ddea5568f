"""INV: similarity of neighbouring frames relative to that of all pairs, with its interval, and by clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bilrp.errors import InputError
from bilrp_studies.common.bootstrap import percentile_interval
from bilrp_studies.common.image_folders import Clip

PAPER_INV = {5: 2.30, 10: 2.31, 17: 2.43, 24: 2.87, 31: 4.00}


@dataclass(frozen=True)
class Band:
    """The local pairs: frames of one clip at most `lag` apart. `clip` and `time` have one entry per frame."""

    clip: np.ndarray
    time: np.ndarray
    lag: int

    def local_mask(self) -> np.ndarray:
        """Return the mask [frames, frames] of local pairs, each frame with itself included (Δt = 0 ≤ lag)."""
        same = self.clip[:, None] == self.clip
        return same & (np.abs(self.time[:, None] - self.time) <= self.lag)


def make_band(clips: Sequence[Clip], lag: int) -> Band:
    """Return the band of local pairs for frames listed clip by clip."""
    clip = np.concatenate([np.full(len(c.frames), i) for i, c in enumerate(clips)])
    time = np.concatenate([np.arange(len(c.frames)) for c in clips])
    return Band(clip, time, lag)


def compute_inv(kernel: np.ndarray, band: Band) -> float:
    """INV = ⟨y⟩_local / ⟨y⟩_global: mean similarity of local pairs over that of all pairs.

    >>> compute_inv(np.ones((4, 4)), Band(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 5))
    1.0
    """
    overall = float(kernel.mean())
    if overall == 0:
        raise InputError("all features are zero, so INV is not defined: check the pictures and the weights")
    return float(kernel[band.local_mask()].mean()) / overall


def bootstrap_inv(
    kernel: np.ndarray,
    band: Band,
    *,
    resamples: int,
    seed: int,
    share: np.ndarray | None = None,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Return a bootstrap interval of INV over clips, since frames of one clip are not independent; None for one clip.

    With w_c the number of times clip c was drawn, ⟨y⟩_local = Σ w_c L_c / Σ w_c n_c. ⟨y⟩_global weights pairs between
    clips by w_c w_d and pairs within a clip by w_c, so that a clip drawn twice is not compared with its own copy.

    Args:
        kernel: Similarity of all frames, [frames, frames].
        band: Clip and time of each frame.
        resamples: Number of bootstrap samples.
        seed: Seed of the resampling.
        share: Weight of each clip's local sum, for INV restricted to a share of the relevance.
        level: Coverage of the interval.
    """
    count = int(band.clip.max()) + 1
    if count < 2:
        return None
    local, local_pairs, total, pairs = _clip_sums(kernel, band)
    if share is not None:
        local = local * share
    draw = np.random.default_rng(seed)
    drawn = draw.multinomial(count, np.full(count, 1 / count), size=resamples).astype(float)
    between, between_pairs = total - np.diag(np.diag(total)), pairs - np.diag(np.diag(pairs))
    numerator = (drawn @ local) / (drawn @ local_pairs)
    over = np.einsum("rc,cd,rd->r", drawn, between, drawn) + drawn @ np.diag(total)
    under = np.einsum("rc,cd,rd->r", drawn, between_pairs, drawn) + drawn @ np.diag(pairs)
    return percentile_interval(numerator / (over / under), level=level)


def _clip_sums(kernel: np.ndarray, band: Band) -> tuple[np.ndarray, ...]:
    """Return local sums and counts by clip, and sums and counts of all pairs by pair of clips."""
    count = int(band.clip.max()) + 1
    member = np.eye(count)[band.clip]
    neighbours = band.local_mask()
    local = np.diag(member.T @ (kernel * neighbours) @ member).copy()
    local_pairs = np.diag(member.T @ neighbours.astype(float) @ member).copy()
    lengths = member.sum(0)
    return local, local_pairs, member.T @ kernel @ member, np.outer(lengths, lengths)


def clip_contributions(kernel: np.ndarray, band: Band) -> np.ndarray:
    """Return each clip's share of ⟨y⟩_local; the shares sum to 1."""
    local = _clip_sums(kernel, band)[0]
    return local / local.sum()


def top_pairs(kernel: np.ndarray, band: Band, count: int) -> list[tuple[int, int]]:
    """Return the most similar local pair of different frames of each clip, the best first.

    Args:
        kernel: Similarity of all frames, [frames, frames].
        band: Clip and time of each frame.
        count: Maximum number of pairs.
    """
    neighbours = np.triu(band.local_mask(), k=1)
    best = []
    for clip in np.unique(band.clip):
        members = np.flatnonzero(band.clip == clip)
        block = np.where(neighbours[np.ix_(members, members)], kernel[np.ix_(members, members)], -np.inf)
        i, j = np.unravel_index(np.argmax(block), block.shape)
        best.append((float(block[i, j]), int(members[i]), int(members[j])))
    return [(i, j) for _, i, j in sorted(best, reverse=True)[:count]]


def compute_kind_inv(kernel: np.ndarray, band: Band, share: np.ndarray) -> float:
    """INV of one kind of link: ⟨y · share⟩_local / ⟨y⟩_global; over all kinds these sum to INV.

    Args:
        kernel: Similarity of all frames, [frames, frames].
        band: Clip and time of each frame.
        share: Share of the similarity that is of this kind, by clip.
    """
    local, local_pairs, _, _ = _clip_sums(kernel, band)
    return float((local * share).sum() / local_pairs.sum() / kernel.mean())
