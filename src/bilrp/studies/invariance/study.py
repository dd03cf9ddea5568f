"""How invariant is the similarity model, and is its invariance real? (Section 5.2 and Table 2 of the paper.)

INV says how much more similar neighbouring frames are than any two frames. BiLRP says what makes them so, and the motion
between the frames splits that into what followed a moving part, what stood still, and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bilrp.engine.progress import Progress, tracking
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.studies.common import folders
from bilrp.studies.common.folders import Clip
from bilrp.studies.common.layers import Ladder, explanations, features, gram, is_kept, ladder
from bilrp.studies.common.report import Report
from bilrp.studies.invariance import flow
from bilrp.studies.invariance.flow import Motion

LAYERS = (5, 10, 17, 24, 31)
PAPER = {5: 2.30, 10: 2.31, 17: 2.43, 24: 2.87, 31: 4.00}
TOLERANCE = 1  # regions; a match that lands in a neighbouring region still counts
STOOD = -1
KINDS = ("moving", "static", "rest", "unattributed")


@dataclass(frozen=True)
class Settings:
    """What can be chosen; every figure of the study follows from it and the data."""

    layers: tuple[int, ...] = LAYERS
    size: int = 128
    crop: float = 1.0
    lag: int = 5
    pairs: int = 1
    regions: int = 8
    resamples: int = 2000
    seed: int = 0
    frames: int = 100
    transform: str | None = None
    project: int | None = None


@dataclass(frozen=True)
class Band:
    """Which pairs are local: frames of one clip at most `lag` apart. `clip` and `time` have one entry a frame."""

    clip: np.ndarray
    time: np.ndarray
    lag: int

    def local(self) -> np.ndarray:
        """[frames, frames] True for local pairs, a frame with itself included (Δt = 0 ≤ lag)."""
        same = self.clip[:, None] == self.clip
        return same & (np.abs(self.time[:, None] - self.time) <= self.lag)


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


def run(
    data: str | Path,
    out: str | Path,
    *,
    settings: Settings | None = None,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
) -> Report:
    """The whole study: `data/<action>/<clip>/*.jpg` (or videos, or stills with a transform) in, a report out.

    >>> run("sports", "out/invariance").results["inv"]["31"]
    """
    from bilrp.studies.invariance import report as invariance_report

    wanted = settings or Settings()
    change = flow.parse(wanted.transform) if wanted.transform else None
    with tracking(progress) as bar:
        bar.start("reading frames", 1)
        found = _stills(data, wanted, change) if change else _clips(data, wanted)
        bar.advance()
        kept = Path(out) / "cache" if cache is None else cache
        steps = ladder(wanted.layers, weights=weights, folder=kept, progress=progress)
        band = band_of(found.items, wanted.lag)
        frames = [frame for clip in found.items for frame in clip.frames]
        kernels = kernels_of(steps, frames, bar)
        cases = explain_cases(steps, found.items, wanted, change, bar)
    report = invariance_report.write(found, wanted, band, kernels, cases)
    report.write(out)
    return report


def _clips(data: str | Path, settings: Settings) -> folders.Found:
    return folders.clips(data, size=settings.size, crop=settings.crop, most=settings.frames)


def _stills(data: str | Path, settings: Settings, change: flow.Transform) -> folders.Found:
    """Each still picture and its transformed self as a clip of two frames."""
    found = folders.stills(data, size=settings.size, crop=settings.crop)
    clips = tuple(
        Clip(item.name, np.stack([item.pixels, change.apply(item.pixels)]), (item.name, change.name))
        for item in found.items
    )
    return folders.Found(clips, found.skipped, found.notes)


def band_of(clips: Sequence[Clip], lag: int) -> Band:
    """The band of local pairs for frames listed clip after clip."""
    clip = np.concatenate([np.full(len(c.frames), i) for i, c in enumerate(clips)])
    time = np.concatenate([np.arange(len(c.frames)) for c in clips])
    return Band(clip, time, lag)


def kernels_of(steps: Ladder, frames: Sequence[np.ndarray], bar: Progress) -> dict[int, np.ndarray]:
    """y(x, x') of all frames at every layer."""
    found = features(steps, frames, bar)
    bar.start("similarities", len(steps.layers))
    kernels = {}
    for layer in steps.layers:
        kernels[layer] = gram(steps, found, layer)
        bar.advance()
    return kernels


def inv(kernel: np.ndarray, band: Band) -> float:
    """INV = ⟨y⟩_local / ⟨y⟩_global: mean similarity of local pairs over that of all pairs.

    >>> inv(np.ones((4, 4)), Band(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 5))
    1.0
    """
    overall = float(kernel.mean())
    if overall == 0:
        raise InputError("all features are zero, so INV is not defined: check the pictures and the weights")
    return float(kernel[band.local()].mean()) / overall


def interval(
    kernel: np.ndarray,
    band: Band,
    *,
    resamples: int,
    seed: int,
    share: np.ndarray | None = None,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """A bootstrap interval of INV over clips (frames of one clip are no independent witnesses); None for one clip.

    With w_c the times clip c was drawn, ⟨y⟩_local = Σ w_c L_c / Σ w_c n_c, and ⟨y⟩_global takes two different draws
    for pairs between clips (w_c w_d) and one for pairs within (w_c), so a clip drawn twice is not a pair of twins.
    `share` weighs each clip's local sum (for INV restricted to a share of the relevance).
    """
    count = int(band.clip.max()) + 1
    if count < 2:
        return None
    local, local_pairs, total, pairs = _sums(kernel, band)
    if share is not None:
        local = local * share
    draw = np.random.default_rng(seed)
    drawn = draw.multinomial(count, np.full(count, 1 / count), size=resamples).astype(float)
    between, between_pairs = total - np.diag(np.diag(total)), pairs - np.diag(np.diag(pairs))
    numerator = (drawn @ local) / (drawn @ local_pairs)
    over = np.einsum("rc,cd,rd->r", drawn, between, drawn) + drawn @ np.diag(total)
    under = np.einsum("rc,cd,rd->r", drawn, between_pairs, drawn) + drawn @ np.diag(pairs)
    values = numerator / (over / under)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _sums(kernel: np.ndarray, band: Band) -> tuple[np.ndarray, ...]:
    """Local sums and counts by clip, and sums and counts of all pairs by pair of clips."""
    count = int(band.clip.max()) + 1
    member = np.eye(count)[band.clip]
    near = band.local()
    local = np.diag(member.T @ (kernel * near) @ member).copy()
    local_pairs = np.diag(member.T @ near.astype(float) @ member).copy()
    lengths = member.sum(0)
    return local, local_pairs, member.T @ kernel @ member, np.outer(lengths, lengths)


def contributions(kernel: np.ndarray, band: Band) -> np.ndarray:
    """Each clip's part of ⟨y⟩_local; they sum to 1."""
    local = _sums(kernel, band)[0]
    return local / local.sum()


def top_pairs(kernel: np.ndarray, band: Band, count: int) -> list[tuple[int, int]]:
    """The local pairs of different frames with the highest similarity, best of each clip, best first."""
    near = np.triu(band.local(), k=1)
    best = []
    for clip in np.unique(band.clip):
        members = np.flatnonzero(band.clip == clip)
        block = np.where(near[np.ix_(members, members)], kernel[np.ix_(members, members)], -np.inf)
        i, j = np.unravel_index(np.argmax(block), block.shape)
        best.append((float(block[i, j]), int(members[i]), int(members[j])))
    return [(i, j) for _, i, j in sorted(best, reverse=True)[:count]]


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
    settings: Settings,
    change: flow.Transform | None,
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
            change.motion(frames.shape[1:3]) if change else flow.between(frames[i : j + 1], cache=steps.cache)
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


def part_weights(motion: Motion, size: int) -> tuple[np.ndarray, np.ndarray]:
    """How far each pair of regions links a moving part to where it went, and the still background to itself: [n, n] twice.

    A part s is a connected set of pixels that moved; f_s(I) is the share of region I's pixels in it, f'_s(I') of those that
    came from it, and moving[I, I'] = Σ_s min(f_s(I), f'_s(I')). static[I, I'] = min(f_0(I), f'_0(I')) with the pixels that
    stood still. The part, not the point, is what must be found again: high layers cannot tell points apart. A pixel
    without a partner (hidden, or out of the picture) belongs to the background, moving or not.
    """
    parts, came = moving_parts(motion)
    static = np.minimum.outer(pooled(parts == STOOD, size), pooled(came == STOOD, size))
    moving = np.zeros_like(static)
    for part in range(int(parts.max()) + 1):
        moving += np.minimum.outer(pooled(parts == part, size), pooled(came == part, size))
    return moving, static


def moving_parts(motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """The moving part each pixel of a belongs to, and the one each pixel of b came from; STOOD where nothing moved.

    Parts that move alike (a scene behind a pole) are one. Where the background moves it is the largest part, number 0.
    """
    from scipy.ndimage import label

    found, count = label(motion.moved[0], structure=np.ones((3, 3)))  # type: ignore[misc]
    parts: np.ndarray = np.asarray(found, dtype=int) - 1
    sizes = np.bincount(parts[parts >= 0], minlength=count)
    means = [motion.there[:, parts == part].mean(1) for part in range(count)]
    number = np.arange(count)
    order = np.argsort(-sizes, kind="stable")
    for rank, part in enumerate(order.tolist()):
        alike = (p for p in order[:rank].tolist() if _alike(means[p], means[part]))
        number[part] = number[next(alike, part)]
    names = {old: new for new, old in enumerate(dict.fromkeys(number[order].tolist()))}
    renamed = np.array([*(names[old] for old in number.tolist()), STOOD], dtype=int)
    parts = np.take(renamed, parts, mode="wrap")  # -1 picks the last entry
    rows, columns = np.rint(np.indices(parts.shape) + motion.back).astype(int)
    source = parts[rows.clip(0, parts.shape[0] - 1), columns.clip(0, parts.shape[1] - 1)]
    came = np.where(motion.moved[1], source, STOOD)
    background = 0 if motion.background_moves and count else STOOD
    lost = [~(moved | stood) for moved, stood in zip(motion.moved, motion.stood, strict=True)]
    return np.where(lost[0], background, parts), np.where(lost[1], background, came)


def _alike(motion: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.hypot(*(motion - other)) <= 1 + 0.25 * np.hypot(*motion))


def pooled(mask: np.ndarray, size: int) -> np.ndarray:
    """The share of each region's pixels that a mask holds, row by row."""
    index, count = _regions(mask.shape, size)
    return np.bincount(index.ravel(), mask.ravel().astype(float), count) / np.bincount(index.ravel())


def point_weights(
    motion: Motion, size: int, *, tolerance: int = TOLERANCE, anything_still: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The same, point by point: a link must end where its region's points went, or at most `tolerance` regions from there.

    moving[I, I'] = min(share of I's pixels that moved to I', share of I''s pixels that came from I). With `anything_still`
    (known transformations of stills: everything is meant to move) a link from a place to the same place is static,
    whatever was there.
    """
    ways = (motion.there, motion.back)
    moving = [_landing(way, mask, size, tolerance) for way, mask in zip(ways, motion.moved, strict=True)]
    followed = np.minimum(moving[0], moving[1].T)
    if anything_still:
        shape = motion.there.shape[1:]
        static = _landing(np.zeros((2, *shape)), np.ones(shape, dtype=bool), size, tolerance)
        return np.minimum(followed, 1 - static), static
    still = [_landing(way, mask, size, tolerance) for way, mask in zip(ways, motion.stood, strict=True)]
    return followed, np.minimum(still[0], still[1].T)


def _landing(displacement: np.ndarray, chosen: np.ndarray, size: int, tolerance: int) -> np.ndarray:
    """[I, J]: share of region I's pixels that are chosen and land in J or at most `tolerance` regions from it."""
    height, width = displacement.shape[1:]
    start, _ = _regions((height, width), size)
    high, wide = -(-height // size), -(-width // size)
    rows, columns = np.rint(np.indices((height, width)) + displacement).astype(int)
    row, column = rows.clip(0, height - 1) // size, columns.clip(0, width - 1) // size
    counts = np.zeros((high * wide, high, wide))
    np.add.at(counts, (start[chosen], row[chosen], column[chosen]), 1.0)
    reach = np.zeros_like(counts)
    steps = range(-tolerance, tolerance + 1)
    for down, right in ((d, r) for d in steps for r in steps):
        into = (slice(max(0, down), high + min(0, down)), slice(max(0, right), wide + min(0, right)))
        out = (slice(max(0, -down), high + min(0, -down)), slice(max(0, -right), wide + min(0, -right)))
        reach[:, *into] += counts[:, *out]
    return reach.reshape(high * wide, -1) / np.bincount(start.ravel())[:, None]


def _regions(shape: tuple[int, ...], size: int) -> tuple[np.ndarray, int]:
    """Each pixel's region in the grid, and how many there are."""
    rows, columns = np.indices(shape)
    wide = -(-shape[1] // size)
    return rows // size * wide + columns // size, wide * -(-shape[0] // size)


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


def restricted(kernel: np.ndarray, band: Band, share: np.ndarray) -> float:
    """INV of one kind of link: ⟨y · share⟩_local / ⟨y⟩_global; over all kinds these sum to INV."""
    local, local_pairs, _, _ = _sums(kernel, band)
    return float((local * share).sum() / local_pairs.sum() / kernel.mean())


def settings_of(settings: Settings) -> dict[str, Any]:
    """The settings as plain values."""
    return asdict(settings)
