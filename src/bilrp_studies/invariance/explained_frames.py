"""Pairs of frames of every clip, explained, with the relevance split by motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilrp.explanation import Explanation
from bilrp.progress import Progress
from bilrp_studies.common.image_folders import Clip
from bilrp_studies.common.vgg_layers import LayeredVGG, explain_layers, is_cached
from bilrp_studies.invariance import optical_flow
from bilrp_studies.invariance.motion_weights import moving_part_weights, point_weights
from bilrp_studies.invariance.settings import InvarianceSettings

LINK_KINDS = ("moving", "static", "rest", "unattributed")


@dataclass(frozen=True)
class RelevanceSplit:
    """Relevance of one pair at one layer, split by motion: moving + static + rest + unattributed = score.

    `point` is the part of `moving` on links that end where the region's points went, ± one region.
    """

    score: float
    moving: float
    static: float
    rest: float
    unattributed: float
    point: float


@dataclass(frozen=True, eq=False)
class ExplainedFrames:
    """Two frames of one clip, explained at every layer, with the relevance split by motion."""

    clip: int
    first: int
    second: int
    explanations: Mapping[int, Explanation]
    weights: tuple[np.ndarray, np.ndarray]
    shares: Mapping[int, RelevanceSplit]


def choose_frames(length: int, lag: int, pairs: int) -> list[tuple[int, int]]:
    """Return pairs of frames `lag` apart in the middle of a clip, each starting where the previous one ended.

    Args:
        length: Number of frames of the clip.
        lag: Distance of the two frames, reduced for short clips.
        pairs: Maximum number of pairs.

    >>> choose_frames(24, 5, 2)
    [(6, 11), (11, 16)]
    """
    lag = min(lag, length - 1)
    pairs = min(pairs, (length - 1) // lag)
    start = (length - 1 - lag * pairs) // 2
    return [(start + lag * k, start + lag * (k + 1)) for k in range(pairs)]


def explain_frames(
    model: LayeredVGG,
    clips: Sequence[Clip],
    settings: InvarianceSettings,
    transform: optical_flow.Transform | None,
    bar: Progress,
) -> list[ExplainedFrames]:
    """Explain some pairs of every clip and split the relevance by motion; cached decompositions are loaded.

    Args:
        model: The layers, and the cache.
        clips: The clips.
        settings: Pairs, lag, regions and projection.
        transform: The known transform between frames; None estimates optical flow.
        bar: Progress bar, advanced once per pair.
    """
    expected = [
        (c, i, j)
        for c, clip in enumerate(clips)
        for i, j in choose_frames(len(clip.frames), settings.lag, settings.pairs)
    ]
    options: dict[str, Any] = {"regions": settings.regions, "project": settings.project}
    new = {
        (c, t) for c, i, j in expected for t in (i, j) if not is_cached(model, clips[c].frames[t], **options)
    }
    bar.start(f"explanations ({len(new)} frames to decompose)", len(expected))
    cases = []
    for c, i, j in expected:
        frames = clips[c].frames
        explained = explain_layers(model, frames[i], frames[j], **options)
        motion = (
            transform.motion(frames.shape[1:3])
            if transform
            else optical_flow.estimate_motion(frames[i : j + 1], cache=model.cache)
        )
        points = point_weights(motion, settings.regions, static_if_same_place=transform is not None)
        weights = points if transform else moving_part_weights(motion, settings.regions)
        shares = {layer: split_relevance(explained[layer], *weights, points[0]) for layer in model.layers}
        cases.append(ExplainedFrames(c, i, j, explained, weights, shares))
        bar.advance()
    return cases


def split_relevance(
    explanation: Explanation, moving: np.ndarray, static: np.ndarray, point: np.ndarray
) -> RelevanceSplit:
    """Split the relevance of a pair by kind of link; moving, static, rest and unattributed sum to the score exactly.

    Args:
        explanation: The explanation of the pair.
        moving: Weights [regions_a, regions_b] of links between moving regions.
        static: Weights of links between static regions.
        point: Weights of links that follow a moving point.
    """
    relevance = explanation.relevance.double().numpy()
    moved, stood = float((relevance * moving).sum()), float((relevance * static).sum())
    rest = float(relevance.sum()) - moved - stood
    exact = float((relevance * point).sum())
    return RelevanceSplit(
        float(explanation.score), moved, stood, rest, float(explanation.unattributed), exact
    )


def compute_clip_shares(cases: Sequence[ExplainedFrames], layer: int, clips: int) -> dict[str, np.ndarray]:
    """Return for each clip the share of its similarity by kind of link; NaN for clips without explained pairs.

    Args:
        cases: The explained pairs of all clips.
        layer: The layer.
        clips: Number of clips.
    """
    total = np.zeros(clips)
    sums = {kind: np.zeros(clips) for kind in (*LINK_KINDS, "point")}
    for case in cases:
        share = case.shares[layer]
        total[case.clip] += share.score
        for kind, values in sums.items():
            values[case.clip] += getattr(share, kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {kind: np.where(total != 0, values / total, np.nan) for kind, values in sums.items()}
