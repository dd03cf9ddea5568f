"""Some pairs of frames of every clip, explained and split by motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilrp.progress import Progress
from bilrp.explanation import Explanation
from bilrp_studies.common.image_folders import Clip
from bilrp_studies.common.vgg_layers import Ladder, explanations, is_kept
from bilrp_studies.invariance import optical_flow
from bilrp_studies.invariance.motion_weights import part_weights, point_weights
from bilrp_studies.invariance.settings import InvarianceSettings

KINDS = ("moving", "static", "rest", "unattributed")


@dataclass(frozen=True)
class Share:
    """One explained pair at one layer, split: moving + static + rest + unattributed = score.

    `point` is the part of `moving` whose links end at the very place (± one region) where the points went.
    """

    score: float
    moving: float
    static: float
    rest: float
    unattributed: float
    point: float


@dataclass(frozen=True, eq=False)
class Case:
    """Two frames of one clip, explained at every layer and split by motion."""

    clip: int
    first: int
    second: int
    explained: Mapping[int, Explanation]
    weights: tuple[np.ndarray, np.ndarray]
    shares: Mapping[int, Share]


def frames_to_explain(length: int, lag: int, pairs: int) -> list[tuple[int, int]]:
    """Pairs of frames `lag` apart in the middle of a clip, each beginning where the one before ended.

    >>> frames_to_explain(24, 5, 2)
    [(6, 11), (11, 16)]
    """
    lag = min(lag, length - 1)
    pairs = min(pairs, (length - 1) // lag)
    start = (length - 1 - lag * pairs) // 2
    return [(start + lag * k, start + lag * (k + 1)) for k in range(pairs)]


def explain_cases(
    steps: Ladder,
    clips: Sequence[Clip],
    settings: InvarianceSettings,
    change: optical_flow.Transform | None,
    bar: Progress,
) -> list[Case]:
    """BiLRP and motion for some pairs of every clip; what is on disk is read, not made."""
    wanted = [
        (c, i, j)
        for c, clip in enumerate(clips)
        for i, j in frames_to_explain(len(clip.frames), settings.lag, settings.pairs)
    ]
    options: dict[str, Any] = {"regions": settings.regions, "project": settings.project}
    new = {(c, t) for c, i, j in wanted for t in (i, j) if not is_kept(steps, clips[c].frames[t], **options)}
    bar.start(f"explanations ({len(new)} frames to decompose)", len(wanted))
    cases = []
    for c, i, j in wanted:
        frames = clips[c].frames
        explained = explanations(steps, frames[i], frames[j], **options)
        motion = (
            change.motion(frames.shape[1:3]) if change else optical_flow.between(frames[i : j + 1], cache=steps.cache)
        )
        points = point_weights(motion, settings.regions, anything_still=change is not None)
        weights = points if change else part_weights(motion, settings.regions)
        shares = {layer: split(explained[layer], *weights, points[0]) for layer in steps.layers}
        cases.append(Case(c, i, j, explained, weights, shares))
        bar.advance()
    return cases


def split(explanation: Explanation, moving: np.ndarray, static: np.ndarray, point: np.ndarray) -> Share:
    """The pair relevance by kind of link; moving, static, rest and unattributed sum to the score exactly."""
    relevance = explanation.relevance.double().numpy()
    moved, stood = float((relevance * moving).sum()), float((relevance * static).sum())
    rest = float(relevance.sum()) - moved - stood
    exact = float((relevance * point).sum())
    return Share(float(explanation.score), moved, stood, rest, float(explanation.unattributed), exact)


def clip_shares(cases: Sequence[Case], layer: int, clips: int) -> dict[str, np.ndarray]:
    """For each clip, what share of its explained similarity is of each kind; NaN where none was explained."""
    total = np.zeros(clips)
    sums = {kind: np.zeros(clips) for kind in (*KINDS, "point")}
    for case in cases:
        share = case.shares[layer]
        total[case.clip] += share.score
        for kind, values in sums.items():
            values[case.clip] += getattr(share, kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {kind: np.where(total != 0, values / total, np.nan) for kind, values in sums.items()}
