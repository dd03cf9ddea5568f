"""The invariance study as a page: table, similarity matrix, pictures, and the clips whose invariance stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.studies.common.folders import Found
from bilrp.studies.common.report import Picture, Report, Section, Table, Text
from bilrp.studies.invariance import flow
from bilrp.studies.invariance import study as work
from bilrp.studies.invariance.study import KINDS, Band, Case, Settings
from bilrp.studies.transfer.study import blank, unused

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# told apart under colour blindness (Okabe and Ito)
COLOURS = {"moving": "#0072b2", "static": "#e69f00", "rest": "#b0b0b0", "unattributed": "#e4e4e4"}
MOST_CLIPS = 24  # in the picture of the similarity matrix
MOST_PICTURES = 6


@dataclass(frozen=True, eq=False)
class Numbers:
    """Everything the report says in figures, by layer."""

    inv: Mapping[int, float]
    interval: Mapping[int, tuple[float, float] | None]
    shares: Mapping[int, Mapping[str, np.ndarray]]
    share: Mapping[int, Mapping[str, float]]
    restricted: Mapping[int, Mapping[str, float]]
    restricted_interval: Mapping[int, tuple[float, float] | None]
    contribution: np.ndarray
    ranking: np.ndarray


def write(
    found: Found,
    settings: Settings,
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
    sections += [Section("The answer", [Text(answer)]), *unused(found)]
    return Report(
        "How invariant is the similarity model?", answer, sections, _results(found, settings, band, numbers)
    )


def measure(
    settings: Settings, band: Band, kernels: Mapping[int, np.ndarray], cases: Sequence[Case]
) -> Numbers:
    """INV, its interval and its split, for every layer."""
    count = int(band.clip.max()) + 1
    options: dict[str, Any] = {"resamples": settings.resamples, "seed": settings.seed}
    shares = {layer: work.clip_shares(cases, layer, count) for layer in kernels} if cases else {}
    filled = {layer: _filled(by_kind) for layer, by_kind in shares.items()}
    last = max(kernels)
    restricted = {
        layer: {kind: work.restricted(kernels[layer], band, values) for kind, values in filled[layer].items()}
        for layer in filled
    }
    inv = {layer: work.inv(kernel, band) for layer, kernel in kernels.items()}
    static = shares[last]["static"] if shares else np.zeros(0)
    return Numbers(
        inv=inv,
        interval={layer: work.interval(kernel, band, **options) for layer, kernel in kernels.items()},
        shares=shares,
        share={n: {kind: v / inv[n] for kind, v in restricted[n].items()} for n in restricted},
        restricted=restricted,
        restricted_interval={
            n: work.interval(kernels[n], band, share=filled[n]["moving"], **options) for n in filled
        },
        contribution=work.contributions(kernels[last], band),
        ranking=np.argsort(-np.nan_to_num(static, nan=-np.inf), kind="stable"),
    )


def _filled(by_kind: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A clip whose frames share nothing at this layer has no split: it adds nothing to any kind but the last."""
    return {
        kind: np.where(np.isnan(values), float(kind == "unattributed"), values)
        for kind, values in by_kind.items()
    }


def _results(found: Found, settings: Settings, band: Band, numbers: Numbers) -> dict[str, Any]:
    names = [clip.name for clip in found.items]
    last = max(numbers.inv)
    results: dict[str, Any] = {
        "inv": {str(n): value for n, value in numbers.inv.items()},
        "frames": len(band.clip),
        "clips": len(names),
        "inv_interval": {str(n): value for n, value in numbers.interval.items()},
        "contribution": dict(zip(names, numbers.contribution.tolist(), strict=True)),
    }
    if numbers.shares:
        for kind in KINDS:
            results[f"{kind}_share"] = {str(n): numbers.share[n][kind] for n in numbers.share}
        results["moving_point_share"] = {str(n): numbers.share[n]["point"] for n in numbers.share}
        results["inv_moving"] = {str(n): v["moving"] for n, v in numbers.restricted.items()}
        results["inv_static"] = {str(n): v["static"] for n, v in numbers.restricted.items()}
        results["inv_moving_interval"] = {str(n): v for n, v in numbers.restricted_interval.items()}
        results["by_clip"] = {
            name: {kind: {str(n): numbers.shares[n][kind][c] for n in numbers.shares} for kind in KINDS}
            for c, name in enumerate(names)
        }
        results["clever_hans"] = [
            {"clip": names[c], "static_share": numbers.shares[last]["static"][c]}
            | {"moving_share": numbers.shares[last]["moving"][c], "contribution": numbers.contribution[c]}
            for c in numbers.ranking
        ]
    return results | {
        "settings": work.settings_of(settings),
        "skipped": [{"file": item.file, "reason": item.reason} for item in found.skipped],
        "notes": found.notes,
    }


def _question(found: Found, settings: Settings, frames: int) -> list[str]:
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
    numbers: Numbers, settings: Settings, kernels: Mapping[int, np.ndarray], cases: Sequence[Case]
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
        paper = [f"{work.PAPER[n]:.2f}" if n in work.PAPER else None for n in layers]
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
    found: Found, settings: Settings, band: Band, kernel: np.ndarray, numbers: Numbers, last: int
) -> list[Any]:
    names = [clip.name for clip in found.items]
    order = np.argsort(-numbers.contribution, kind="stable")
    rows = []
    local = work.top_pairs(kernel, band, len(names))
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


def _kinds(numbers: Numbers, settings: Settings) -> list[Any]:
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
            f"{flow.STILL:g} pixel or more is a moving part; a link counts as moving if it joins a "
            "part to where that "
            "part went (point to point: to the very place, or a neighbouring region), and as static if it joins what "
            "stood still to what stood still. Where the camera moves, the background moves too, and "
            "counts as moving. Anything else, such as a link from a moving part to the background, is "
            "“other”. Shares are of signed relevance: other links may sum to less than nothing. They "
            "were measured on "
            "these pairs and stand for the whole band."
        )
    return [Table(("", *(f"layer {n}" for n in layers)), rows), Text(how)]


def _ranking_title(settings: Settings) -> str:
    return (
        "Clever Hans: what stayed in place" if settings.transform else "Clever Hans: the background does it"
    )


def _clever_hans(
    found: Found, settings: Settings, numbers: Numbers, cases: Sequence[Case], last: int
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


def _answer(numbers: Numbers, settings: Settings, names: Sequence[str], last: int) -> str:
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


def bars(numbers: Numbers) -> Figure:
    """INV by layer, stacked by kind of link."""
    canvas = blank((7.4, 3.4))
    axes = canvas.add_subplot()
    layers = list(numbers.inv)
    places = np.arange(len(layers))
    if numbers.shares:
        bottom, below = np.zeros(len(layers)), np.zeros(len(layers))
        for kind in KINDS:
            values = np.array([numbers.restricted[n][kind] for n in layers])
            base = np.where(values >= 0, bottom, below)
            axes.bar(places, values, 0.62, bottom=base, color=COLOURS[kind], label=kind)
            bottom, below = bottom + np.maximum(values, 0), below + np.minimum(values, 0)
    else:
        axes.bar(places, [numbers.inv[n] for n in layers], 0.62, color=COLOURS["rest"])
    middle = np.array([numbers.inv[n] for n in layers])
    axes.plot(places, middle, "_", color="#222222", ms=16, mew=1.6)
    for place, n in zip(places, layers, strict=True):
        ends = numbers.interval[n]
        if ends is not None:
            axes.plot([place, place], ends, color="#222222", lw=1.2)
    axes.axhline(1, color="#888888", lw=0.8, ls=":")
    axes.set_xticks(places, [str(n) for n in layers])
    axes.set(xlabel="layer of VGG-16", ylabel="INV")
    axes.spines[["top", "right"]].set_visible(False)
    if numbers.shares:
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
    canvas.tight_layout()
    return canvas


def matrix(kernel: np.ndarray, band: Band, names: Sequence[str], shown: np.ndarray) -> Figure:
    """The similarity matrix of some clips, with the diagonal band of local pairs drawn."""
    canvas = blank((8.0, 6.6))
    canvas.set_layout_engine("compressed")
    axes = canvas.add_subplot()
    frames = np.concatenate([np.flatnonzero(band.clip == c) for c in shown])
    values = kernel[np.ix_(frames, frames)] / kernel.mean()
    axes.imshow(
        values, cmap="YlOrRd", vmin=0, vmax=float(np.quantile(values, 0.985)), interpolation="nearest"
    )
    edges, ticks = [0], []
    for c in shown:
        length = int((band.clip == c).sum())
        _outline(axes, edges[-1], length, band.lag)
        ticks.append(edges[-1] + length / 2 - 0.5)
        edges.append(edges[-1] + length)
    for edge in edges[1:-1]:
        axes.axhline(edge - 0.5, color="white", lw=0.5)
        axes.axvline(edge - 0.5, color="white", lw=0.5)
    small = 7 if len(shown) > 14 else 8.5
    axes.set_yticks(ticks, [_short(names[int(c)]) for c in shown], fontsize=small)
    axes.set_xticks([])
    axes.tick_params(length=0)
    bar = canvas.colorbar(axes.images[0], ax=axes, fraction=0.04, pad=0.02)
    bar.set_label("similarity / mean similarity", fontsize=9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    for spine in axes.spines.values():
        spine.set_visible(False)
    return canvas


def _outline(axes: Axes, start: int, length: int, lag: int) -> None:
    """The border of |i − j| ≤ lag within one clip's block, as a staircase around whole cells."""
    reach = min(lag, length - 1)
    upper, lower = [], []
    for i in range(length):
        right, left = min(i + reach, length - 1) + 0.5, max(i - reach, 0) - 0.5
        upper += [(right, i - 0.5), (right, i + 0.5)]
        lower += [(left, i - 0.5), (left, i + 0.5)]
    points = np.array(upper + lower[::-1] + upper[:1]) + start
    axes.plot(points[:, 0], points[:, 1], color="black", lw=0.9, solid_joinstyle="miter")


def case_figure(case: Case, layer: int) -> Figure:
    """One pair: its arcs, and both frames tinted by what moved and what stood still."""
    from bilrp.render import figure as render
    from bilrp.render import links

    explanation = case.explained[layer]
    a, b = explanation.a, explanation.b
    assert a.picture is not None and b.picture is not None
    assert a.regions.boxes is not None and b.regions.boxes is not None
    canvas = blank((10.4, 2.6))
    left, right = (canvas.add_axes((x, 0.02, 0.48, 0.86)) for x in (0.01, 0.51))
    made = links.links(explanation.relevance, "ucf", faintest=render.FAINTEST)
    boxes = a.regions.boxes, b.regions.boxes
    render.arcs(left, (a.picture, b.picture), boxes, made, render.palette("paper"))
    left.set_title(f"what matches, layer {layer}", fontsize=10, color=render.INK)
    moving, static = case.weights
    relevance = explanation.relevance.double().numpy()
    sides = []
    for picture, box, axis in ((a.picture, boxes[0], 1), (b.picture, boxes[1], 0)):
        kinds = [np.maximum((relevance * w).sum(axis), 0) for w in (moving, static)]
        sides.append((picture, box, kinds))
    top = max(float(values.max()) for _, _, kinds in sides for values in kinds) or 1.0
    shift = a.picture.shape[1] * 1.3
    for place, (picture, box, kinds) in enumerate(sides):
        x = place * shift
        extent = (x, x + picture.shape[1], picture.shape[0], 0)
        right.imshow(_tinted(picture, box.numpy(), [k / top for k in kinds]), extent=extent)
    right.set(
        xlim=(-0.5, shift + b.picture.shape[1] + 0.5),
        ylim=(a.picture.shape[0] + 0.5, -0.06 * a.picture.shape[0]),
        aspect="equal",
    )
    right.set_axis_off()
    right.set_title("follows what moved (blue), stood still (orange)", fontsize=10, color=render.INK)
    return canvas


def _tinted(picture: np.ndarray, boxes: np.ndarray, kinds: Sequence[np.ndarray]) -> np.ndarray:
    """The picture in grey, each region tinted with the colours of its kinds."""
    from matplotlib.colors import to_rgb

    grey = picture.astype(float) @ [0.299, 0.587, 0.114] / 255
    found = np.repeat((0.35 + 0.65 * grey)[..., None], 3, axis=2)
    for region, (up, left, down, right) in enumerate(boxes):
        strengths = [0.85 * min(1.0, float(values[region])) ** 0.6 for values in kinds]
        total = max(1.0, sum(strengths) / 0.85)
        for kind, strength in zip(("moving", "static"), strengths, strict=True):
            patch = found[up:down, left:right]
            weight = strength / total
            found[up:down, left:right] = patch * (1 - weight) + np.array(to_rgb(COLOURS[kind])) * weight
    return found


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else f"…{name[-most + 1 :]}"
