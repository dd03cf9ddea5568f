"""The invariance study as a page: table, similarity matrix, pictures, and the clips whose invariance stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bilrp_studies.common.image_folders import Found
from bilrp.render.report import Picture, Report, Section, Table, Text, left_out
from bilrp_studies.invariance import optical_flow
from bilrp_studies.invariance.explained_frames import KINDS, Case
from bilrp_studies.invariance.figures import bars, case_figure, matrix
from bilrp_studies.invariance.inv_results import Numbers, measure, results
from bilrp_studies.invariance.settings import InvarianceSettings
from bilrp_studies.invariance.inv_score import PAPER, Band, top_pairs

MOST_CLIPS = 24  # in the picture of the similarity matrix
MOST_PICTURES = 6


def write(
    found: Found,
    settings: InvarianceSettings,
    band: Band,
    kernels: Mapping[int, np.ndarray],
    cases: Sequence[Case],
) -> Report:
    """The report of a finished study."""
    numbers = measure(settings, band, kernels, cases)
    last = max(kernels)
    names = [clip.name for clip in found.items]
    sections = [
        Section("The question", [Text(text) for text in _question(found, settings, len(band.clip))]),
        Section("How much invariance", _how_much(numbers, settings, kernels, cases)),
        Section("Where it comes from", _where(found, settings, band, kernels[last], numbers, last)),
    ]
    if cases:
        sections += [
            Section("What moved, what stood still", _kinds(numbers, settings)),
            Section(_ranking_title(settings), _clever_hans(found, settings, numbers, cases, last)),
        ]
    answer = _answer(numbers, settings, names, last)
    sections += [Section("The answer", [Text(answer)]), *left_out(found.skipped)]
    return Report(
        "How invariant is the similarity model?", answer, sections, results(found, settings, band, numbers)
    )


def _question(found: Found, settings: InvarianceSettings, frames: int) -> list[str]:
    size = f"cut to their middle square and scaled to {settings.size}×{settings.size} pixels"
    if settings.transform:
        what = (
            "A good idea of similarity should survive a change that does not matter. Here the change "
            f"is “{settings.transform}”, "
            f"applied to {len(found.items)} still pictures ({size}). Does the model still see the likeness, and if "
            "so, did it follow the parts that moved, or did it hold on to what happened to stay in place?"
        )
    else:
        what = (
            "From one frame of a film to the next, people move and turn, but they remain who they "
            "are. A good idea of similarity "
            f"should survive that. We took {len(found.items)} clips with {frames:,} frames in all "
            f"({size}). Does the model call "
            "neighbouring frames similar, and if so, did it follow what moved, or did it hold on to what stood still?"
        )
    return [what, *found.notes]


def _how_much(
    numbers: Numbers, settings: InvarianceSettings, kernels: Mapping[int, np.ndarray], cases: Sequence[Case]
) -> list[Any]:
    layers = list(kernels)
    rows: list[list[Any]] = [["INV, here", *(f"{numbers.inv[n]:.2f}" for n in layers)]]
    if all(numbers.interval[n] for n in layers):
        rows.append(["95 % interval", *(_range(numbers.interval[n]) for n in layers)])
    if numbers.shares:
        rows.append(
            ["INV of what moved", *(f"{numbers.restricted[n]['moving']:.2f}" for n in layers)],
        )
        rows.append(["95 % interval", *(_range(numbers.restricted_interval[n]) for n in layers)])
    if not settings.transform:
        paper = [f"{PAPER[n]:.2f}" if n in PAPER else None for n in layers]
        rows.append(["INV in the paper (UCF Sports, all)", *paper])
    near = (
        "a picture and its transformed self (each also with itself)"
        if settings.transform
        else f"frames of one clip at most {settings.lag} apart (a frame with itself included)"
    )
    words = (
        f"INV is the mean similarity of {near}, divided by the mean similarity of all pairs: 1 means "
        "that being neighbours makes "
        "no difference. The interval comes from drawing the clips anew with replacement."
    )
    header = ("", *(f"layer {n}" for n in layers))
    chart = Picture("by-layer.png", bars(numbers), _bars_caption(bool(numbers.shares)))
    return [Table(header, rows), Text(words), chart]


def _bars_caption(has_shares: bool) -> str:
    if not has_shares:
        return "INV by layer, with its interval."
    return "INV by layer, each bar split by what made neighbouring frames similar; the line is the whole bar's interval."


def _where(
    found: Found, settings: InvarianceSettings, band: Band, kernel: np.ndarray, numbers: Numbers, last: int
) -> list[Any]:
    names = [clip.name for clip in found.items]
    order = np.argsort(-numbers.contribution, kind="stable")
    rows = []
    local = top_pairs(kernel, band, len(names))
    best = {int(band.clip[i]): (i, j) for i, j in local}
    for c in order[:10]:
        i, j = best[int(c)]
        pair = f"{band.time[i]} and {band.time[j]}"
        rows.append((names[c], f"{numbers.contribution[c]:.1%}", pair, f"{kernel[i, j] / kernel.mean():.1f}"))
    header = ("clip", "share of local similarity", "most similar frames", "their similarity / mean")
    shown = np.sort(order[:MOST_CLIPS])
    caption = (
        f"Similarity of every two frames at layer {last}, clip after clip; darker is more similar. "
        "The band outlined in black "
        "holds the local pairs that INV averages."
    )
    if len(shown) < len(names):
        caption += f" Shown are the {len(shown)} of {len(names)} clips that contribute most."
    return [
        Table(header, rows, f"The clips that contribute most to INV at layer {last}."),
        Picture("similarity.png", matrix(kernel, band, names, shown), caption),
    ]


def _kinds(numbers: Numbers, settings: InvarianceSettings) -> list[Any]:
    layers = list(numbers.share)
    words = {
        "moving": "linking what moved to where it went",
        "point": "… of these, point to point",
        "static": "linking what stood still to itself",
        "rest": "other links",
        "unattributed": "not attributed (biases)",
    }
    shown = KINDS if settings.transform else ("moving", "point", *KINDS[1:])
    rows = [[words[kind], *(f"{numbers.share[n][kind]:.0%}" for n in layers)] for kind in shown]
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
            f"{optical_flow.STILL:g} pixel or more is a moving part; a link counts as moving if it joins a "
            "part to where that "
            "part went (point to point: to the very place, or a neighbouring region), and as static if it joins what "
            "stood still to what stood still. Where the camera moves, the background moves too, and "
            "counts as moving. Anything else, such as a link from a moving part to the background, is "
            "“other”. Shares are of signed relevance: other links may sum to less than nothing. They "
            "were measured on "
            "these pairs and stand for the whole band."
        )
    return [Table(("", *(f"layer {n}" for n in layers)), rows), Text(how)]


def _ranking_title(settings: InvarianceSettings) -> str:
    return (
        "Clever Hans: what stayed in place" if settings.transform else "Clever Hans: the background does it"
    )


def _clever_hans(
    found: Found, settings: InvarianceSettings, numbers: Numbers, cases: Sequence[Case], last: int
) -> list[Any]:
    names = [clip.name for clip in found.items]
    split = numbers.shares[last]
    rows = [
        (
            place,
            names[c],
            *(f"{split[kind][c]:.0%}" for kind in ("static", "moving", "rest")),
            f"{numbers.contribution[c]:.1%}",
        )
        for place, c in enumerate(numbers.ranking, start=1)
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
    blocks: list[Any] = [Text(intro), Table(header, rows, f"Clips by static share at layer {last}.")]
    usable = [int(c) for c in numbers.ranking if not np.isnan(split["static"][c])]
    ends = usable if len(usable) <= MOST_PICTURES else usable[: MOST_PICTURES - 2] + usable[-2:]
    by_clip = {}
    for case in cases:
        by_clip.setdefault(case.clip, case)
    for place, c in enumerate(ends, start=1):
        case = by_clip[c]
        share = case.shares[last]
        text = (
            f"{names[c]}, frames {case.first} and {case.second}: {share.static / share.score:.0%} of "
            "the similarity of this pair "
            f"links what stood still, {share.moving / share.score:.0%} follows what moved."
        )
        blocks.append(Picture(f"clip-{place}.png", case_figure(case, last), text))
    return blocks


def _answer(numbers: Numbers, settings: InvarianceSettings, names: Sequence[str], last: int) -> str:
    first = min(numbers.inv)
    what = "a picture and its transformed self" if settings.transform else "neighbouring frames"
    text = f"At layer {last}, {what} are {numbers.inv[last]:.1f} times as similar as any two pictures"
    if first != last:
        rises = "up from" if numbers.inv[last] > numbers.inv[first] else "against"
        text += f" ({rises} {numbers.inv[first]:.1f} at layer {first})"
    if not numbers.shares:
        return f"{text}."
    share = numbers.share[last]
    text += (
        f". But not all of it is earned: {share['moving']:.0%} of that similarity follows what moved, "
        f"{share['static']:.0%} rests on what stood still. Counting only what moved, INV is "
        f"{numbers.restricted[last]['moving']:.1f}."
    )
    c = int(numbers.ranking[0])
    static = numbers.shares[last]["static"][c]
    if len(names) > 1 and not np.isnan(static):
        text += f" The clearest case of standing still is {names[c]} ({static:.0%})."
    return text


def _range(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.2f} – {interval[1]:.2f}"
