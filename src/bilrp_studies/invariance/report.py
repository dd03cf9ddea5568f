"""The report of the invariance study: table, similarity matrix, figures, and the clips whose similarity is static."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.image_folders import FolderContents
from bilrp_studies.common.study_report import Block, build_study_report
from bilrp_studies.invariance import optical_flow
from bilrp_studies.invariance.explained_frames import LINK_KINDS, ExplainedFrames
from bilrp_studies.invariance.figures import plot_frames, plot_inv, plot_similarity
from bilrp_studies.invariance.inv_results import InvResults, collect_results, compute_results
from bilrp_studies.invariance.inv_score import PAPER_INV, Band, top_pairs
from bilrp_studies.invariance.settings import InvarianceSettings

MAX_CLIPS_SHOWN = 24  # in the figure of the similarity matrix
MAX_PICTURES = 6


def build_report(
    contents: FolderContents,
    settings: InvarianceSettings,
    band: Band,
    kernels: Mapping[int, np.ndarray],
    cases: Sequence[ExplainedFrames],
) -> Report:
    """Build the report of a finished study.

    Args:
        contents: The clips read, with skipped files and notes.
        settings: The settings of the study.
        band: Clip and time of each frame.
        kernels: Gram matrix of all frames, by layer.
        cases: Explained pairs of frames; may be empty.
    """
    numbers = compute_results(settings, band, kernels, cases)
    last = max(kernels)
    names = [clip.name for clip in contents.items]
    sections = {
        "The question": _question(contents, settings, len(band.clip)),
        "How much invariance": _inv_blocks(numbers, settings, kernels),
        "Where it comes from": _source_blocks(contents, band, kernels[last], numbers, last),
    }
    if cases:
        sections["What moved, what stood still"] = _motion_blocks(numbers, settings)
        sections[_ranking_title(settings)] = _clever_hans(contents, numbers, cases, last)
    return build_study_report(
        "How invariant is the similarity model?",
        _answer(numbers, settings, names, last),
        sections,
        settings=settings,
        results=collect_results(contents, settings, band, numbers),
        skipped=contents.skipped,
    )


def _question(contents: FolderContents, settings: InvarianceSettings, frames: int) -> list[Block]:
    size = f"cut to their middle square and scaled to {settings.size}×{settings.size} pixels"
    if settings.transform:
        what = (
            "A good idea of similarity should survive a change that does not matter. Here the change "
            f"is “{settings.transform}”, "
            f"applied to {len(contents.items)} still pictures ({size}). Does the model still see the likeness, and if "
            "so, did it follow the parts that moved, or did it hold on to what happened to stay in place?"
        )
    else:
        what = (
            "From one frame of a film to the next, people move and turn, but they remain who they "
            "are. A good idea of similarity "
            f"should survive that. We took {len(contents.items)} clips with {frames:,} frames in all "
            f"({size}). Does the model call "
            "neighbouring frames similar, and if so, did it follow what moved, or did it hold on to what stood still?"
        )
    return [what, *contents.notes]


def _inv_blocks(
    inv_results: InvResults, settings: InvarianceSettings, kernels: Mapping[int, np.ndarray]
) -> list[Block]:
    layers = list(kernels)
    rows: list[list[Any]] = [["INV, here", *(f"{inv_results.inv[n]:.2f}" for n in layers)]]
    if all(inv_results.inv_interval[n] for n in layers):
        rows.append(["95 % interval", *(_format_range(inv_results.inv_interval[n]) for n in layers)])
    if inv_results.clip_shares:
        rows.append(["INV of what moved", *(f"{inv_results.inv_by_kind[n]['moving']:.2f}" for n in layers)])
        rows.append(["95 % interval", *(_format_range(inv_results.moving_inv_interval[n]) for n in layers)])
    if not settings.transform:
        paper = [f"{PAPER_INV[n]:.2f}" if n in PAPER_INV else None for n in layers]
        rows.append(["INV in the paper (UCF Sports, all)", *paper])
    neighbours = (
        "a picture and its transformed self (each also with itself)"
        if settings.transform
        else f"frames of one clip at most {settings.lag} apart (a frame with itself included)"
    )
    words = (
        f"INV is the mean similarity of {neighbours}, divided by the mean similarity of all pairs: 1 means "
        "that being neighbours makes "
        "no difference. The interval comes from resampling the clips with replacement."
    )
    header = ("", *(f"layer {n}" for n in layers))
    chart = Picture("by-layer.png", plot_inv(inv_results), _bars_caption(bool(inv_results.clip_shares)))
    return [Table(header, rows), words, chart]


def _bars_caption(has_shares: bool) -> str:
    if not has_shares:
        return "INV by layer, with its interval."
    return "INV by layer, each bar split by what made neighbouring frames similar; the line is the whole bar's interval."


def _source_blocks(
    contents: FolderContents,
    band: Band,
    kernel: np.ndarray,
    inv_results: InvResults,
    top_layer: int,
) -> list[Block]:
    names = [clip.name for clip in contents.items]
    order = np.argsort(-inv_results.clip_contributions, kind="stable")
    rows = []
    local = top_pairs(kernel, band, len(names))
    best = {int(band.clip[i]): (i, j) for i, j in local}
    for c in order[:10]:
        i, j = best[int(c)]
        pair = f"{band.time[i]} and {band.time[j]}"
        share = f"{inv_results.clip_contributions[c]:.1%}"
        rows.append((names[c], share, pair, f"{kernel[i, j] / kernel.mean():.1f}"))
    header = ("clip", "share of local similarity", "most similar frames", "their similarity / mean")
    shown = np.sort(order[:MAX_CLIPS_SHOWN])
    caption = (
        f"Similarity of every two frames at layer {top_layer}, clip after clip; darker is more similar. "
        "The band outlined in black "
        "holds the local pairs that INV averages."
    )
    if len(shown) < len(names):
        caption += f" Shown are the {len(shown)} of {len(names)} clips that contribute most."
    return [
        Table(header, rows, f"The clips that contribute most to INV at layer {top_layer}."),
        Picture("similarity.png", plot_similarity(kernel, band, names, shown), caption),
    ]


def _motion_blocks(inv_results: InvResults, settings: InvarianceSettings) -> list[Block]:
    layers = list(inv_results.mean_shares)
    words = {
        "moving": "linking what moved to where it went",
        "point": "… of these, point to point",
        "static": "linking what stood still to itself",
        "rest": "other links",
        "unattributed": "not attributed (biases)",
    }
    shown = LINK_KINDS if settings.transform else ("moving", "point", *LINK_KINDS[1:])
    rows = [[words[kind], *(f"{inv_results.mean_shares[n][kind]:.0%}" for n in layers)] for kind in shown]
    if settings.transform:
        how = (
            "The transformation says exactly where each point went. A link counts as following it if "
            "it joins a region to where "
            "the region's points went (or a neighbouring region), and as standing still if it joins "
            "a place to the same place, "
            "whatever is there."
        )
    else:
        how = (
            f"Frames {settings.lag} apart in the middle of each clip were explained, and the motion between them was "
            "measured (optical flow, step by step through the frames between, there and back). What moved by "
            f"{optical_flow.MIN_MOTION_PIXELS:g} pixel or more is a moving part; a link counts as moving if it joins a "
            "part to where that "
            "part went (point to point: to the very place, or a neighbouring region), and as static if it joins what "
            "stood still to what stood still. Where the camera moves, the background moves too, and "
            "counts as moving. Anything else, such as a link from a moving part to the background, is "
            "“other”. Shares are of signed relevance: other links may sum to less than nothing. They "
            "were measured on "
            "these pairs and stand for the whole band."
        )
    return [Table(("", *(f"layer {n}" for n in layers)), rows), how]


def _ranking_title(settings: InvarianceSettings) -> str:
    return (
        "Clever Hans: what stayed in place" if settings.transform else "Clever Hans: the background does it"
    )


def _clever_hans(
    contents: FolderContents,
    inv_results: InvResults,
    cases: Sequence[ExplainedFrames],
    top_layer: int,
) -> list[Block]:
    names = [clip.name for clip in contents.items]
    split = inv_results.clip_shares[top_layer]
    rows = [
        (
            position,
            names[c],
            *(f"{split[kind][c]:.0%}" for kind in ("static", "moving", "rest")),
            f"{inv_results.clip_contributions[c]:.1%}",
        )
        for position, c in enumerate(inv_results.static_ranking, start=1)
        if not np.isnan(split["static"][c])
    ]
    header = ("", "clip", "static", "moving", "other", "share of local similarity")
    intro = (
        "A horse called Clever Hans seemed to do sums, but read the answer from his audience. A clip "
        "high in this list seems to "
        "show invariance to motion, while what matches is mostly what never moved. The pictures show "
        "the first and the last of "
        "the list."
    )
    blocks: list[Block] = [
        intro,
        Table(header, rows, f"Clips by static share at layer {top_layer}."),
    ]
    usable = [int(c) for c in inv_results.static_ranking if not np.isnan(split["static"][c])]
    ends = usable if len(usable) <= MAX_PICTURES else usable[: MAX_PICTURES - 2] + usable[-2:]
    by_clip = {}
    for case in cases:
        by_clip.setdefault(case.clip, case)
    for position, c in enumerate(ends, start=1):
        case = by_clip[c]
        share = case.shares[top_layer]
        text = (
            f"{names[c]}, frames {case.first} and {case.second}: {share.static / share.score:.0%} of "
            "the similarity of this pair "
            f"links what stood still, {share.moving / share.score:.0%} follows what moved."
        )
        blocks.append(Picture(f"clip-{position}.png", plot_frames(case, top_layer), text))
    return blocks


def _answer(
    inv_results: InvResults, settings: InvarianceSettings, names: Sequence[str], top_layer: int
) -> str:
    first = min(inv_results.inv)
    what = "a picture and its transformed self" if settings.transform else "neighbouring frames"
    text = f"At layer {top_layer}, {what} are {inv_results.inv[top_layer]:.1f} times as similar as any two pictures"
    if first != top_layer:
        rises = "up from" if inv_results.inv[top_layer] > inv_results.inv[first] else "against"
        text += f" ({rises} {inv_results.inv[first]:.1f} at layer {first})"
    if not inv_results.clip_shares:
        return f"{text}."
    share = inv_results.mean_shares[top_layer]
    text += (
        f". But not all of it is earned: {share['moving']:.0%} of that similarity follows what moved, "
        f"{share['static']:.0%} rests on what stood still. Counting only what moved, INV is "
        f"{inv_results.inv_by_kind[top_layer]['moving']:.1f}."
    )
    c = int(inv_results.static_ranking[0])
    static = inv_results.clip_shares[top_layer]["static"][c]
    if len(names) > 1 and not np.isnan(static):
        text += f" The clearest case of standing still is {names[c]} ({static:.0%})."
    return text


def _format_range(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.2f} – {interval[1]:.2f}"
