"""How transferable is the similarity model? (Section 5.1 and Table 1 of the paper.)

A linear SVM on each layer says how well the layer's similarity serves another task; BiLRP on a test picture and its most
similar training picture says why: where relevance sits on a few regions, little else was kept to tell things apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from bilrp.engine.progress import Progress, tracking
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.studies.common import folders
from bilrp.studies.common.layers import Ladder, explanations, features, gram, is_kept, ladder
from bilrp.studies.common.report import Picture, Report, Section, Table, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = (5, 10, 17, 24, 31)
GRID = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 4
PAPER = {
    "UFI (paper)": (605, {5: 0.45, 10: 0.57, 17: 0.62, 24: 0.54, 31: 0.19}),
    "LFW (paper)": (61, {5: 0.78, 10: 0.86, 17: 0.92, 24: 0.89, 31: 0.75}),
    "Sphaera (paper)": (111, {5: 0.93, 10: 0.96, 17: 0.98, 24: 0.97, 31: 0.96}),
}


@dataclass(frozen=True)
class Settings:
    """What can be chosen; every figure of the study follows from it and the data."""

    layers: tuple[int, ...] = LAYERS
    size: int = 64
    crop: float = 1.0
    splits: int = 5
    seed: int = 0
    pairs: int = 6
    regions: int = 4
    project: int | None = None


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy and chosen C on each random split, for one layer."""

    values: tuple[float, ...]
    costs: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        return float(np.std(self.values))


@dataclass(frozen=True)
class Pair:
    """A test picture and its most similar training picture, by place in the list of pictures."""

    test: int
    train: int


def run(
    data: str | Path,
    out: str | Path,
    *,
    settings: Settings | None = None,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    cache: str | Path | None = None,
    progress: bool = False,
) -> Report:
    """The whole study: `data/<class>/*.jpg` in, `out/report.html` and `out/results.json` out.

    >>> run("faces", "out/transfer", settings=Settings(crop=0.6)).results["accuracy"]["17"]
    """
    wanted = settings or Settings()
    with tracking(progress) as bar:
        bar.start("reading pictures", 1)
        found = folders.classes(data, size=wanted.size, crop=wanted.crop)
        bar.advance()
        steps = ladder(
            wanted.layers,
            weights=weights,
            folder=Path(out) / "cache" if cache is None else cache,
            progress=progress,
        )
        pixels = [item.pixels for item in found.items]
        kernels = kernels_of(steps, pixels, bar)
        labels = np.unique([item.label for item in found.items], return_inverse=True)[1]
        accuracies = dict(zip(steps.layers, _accuracies(kernels, labels, wanted, bar), strict=True))
        best = max(accuracies, key=lambda layer: accuracies[layer].mean)
        chosen = choose_pairs(kernels[best], labels, count=wanted.pairs, seed=wanted.seed)
        explained = explain_pairs(steps, pixels, chosen, wanted, bar)
    report = _report(found, wanted, labels, accuracies, chosen, explained, best)
    report.write(out)
    return report


def kernels_of(steps: Ladder, pixels: Sequence[np.ndarray], bar: Progress) -> dict[int, np.ndarray]:
    """The Gram matrix of every layer: all that a linear SVM needs of 65,000-dimensional features."""
    found = features(steps, pixels, bar)
    bar.start("similarities", len(steps.layers))
    kernels = {}
    for layer in steps.layers:
        kernels[layer] = gram(steps, found, layer)
        bar.advance()
    return kernels


def halves(labels: np.ndarray, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random half of every class for training, the other for testing; an odd one goes to either by chance.

    >>> train, test = halves(np.array([0, 0, 1, 1]), seed=0)
    >>> sorted(labels[train])
    [0, 1]
    """
    draw = np.random.default_rng(seed)
    train = []
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        half = len(members) // 2 + (len(members) % 2 and draw.integers(2))
        train.append(members[:half])
    chosen = np.sort(np.concatenate(train))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)


def folds(labels: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """A fold for every item, each class dealt out as evenly as it goes (also classes smaller than `count`)."""
    draw = np.random.default_rng(seed)
    fold, dealt = np.empty(len(labels), dtype=int), 0
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        fold[members] = (dealt + np.arange(len(members))) % count
        dealt += len(members)
    return fold


def svm_accuracy(
    kernel: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray, *, seed: int = 0
) -> tuple[float, float]:
    """(test accuracy, C) of a linear SVM, C by 4-fold grid search on the training half.

    The kernel is divided by its mean diagonal on the training half, so that one C means the same at every layer.
    """
    scale = float(np.mean(np.diag(kernel)[train]))
    scaled = kernel / (scale if scale > 0 else 1.0)
    part = folds(labels[train], FOLDS, seed=seed)
    scores = []
    for cost in GRID:
        right = [
            _right(scaled, labels, train[part != k], train[part == k], cost)
            for k in range(FOLDS)
            if (part == k).any() and len(np.unique(labels[train[part != k]])) > 1
        ]
        scores.append(sum(right))
    cost = GRID[int(np.argmax(scores))]
    return _right(scaled, labels, train, test, cost) / len(test), cost


def _right(kernel: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray, cost: float) -> int:
    """How many of `test` an SVM trained on `train` names rightly."""
    from sklearn.svm import SVC

    machine = SVC(C=cost, kernel="precomputed").fit(kernel[np.ix_(train, train)], labels[train])
    return int((machine.predict(kernel[np.ix_(test, train)]) == labels[test]).sum())


def _accuracies(
    kernels: Mapping[int, np.ndarray], labels: np.ndarray, settings: Settings, bar: Progress
) -> list[Accuracy]:
    bar.start("support vector machines", len(kernels) * settings.splits)
    found = []
    for kernel in kernels.values():
        rows = []
        for split in range(settings.splits):
            train, test = halves(labels, seed=settings.seed + split)
            rows.append(svm_accuracy(kernel, labels, train, test, seed=settings.seed + split))
            bar.advance()
        found.append(Accuracy(*(tuple(column) for column in zip(*rows, strict=True))))
    return found


def choose_pairs(kernel: np.ndarray, labels: np.ndarray, *, count: int, seed: int) -> list[Pair]:
    """Test pictures of as many classes as possible, each with the training picture of highest cosine.

    The cosine, not the dot product: else a few training pictures with long features win every comparison.
    """
    train, test = halves(labels, seed=seed)
    draw = np.random.default_rng(seed)
    order = draw.permutation(test)
    # the first picture of every class, then the second …: no class twice before all have had their turn
    seen: dict[int, int] = {}
    turn = []
    for label in labels[order].tolist():
        seen[label] = seen.get(label, -1) + 1
        turn.append(seen[label])
    chosen = order[np.argsort(turn, kind="stable")][:count]
    length = np.sqrt(np.maximum(np.diag(kernel), np.finfo(float).tiny))
    cosine = kernel / length[:, None] / length
    return [Pair(int(i), int(train[np.argmax(cosine[i, train])])) for i in chosen]


def explain_pairs(
    steps: Ladder, pixels: Sequence[np.ndarray], chosen: Sequence[Pair], settings: Settings, bar: Progress
) -> list[dict[int, Explanation]]:
    """Every pair at every layer; decompositions already on disk are read, not made."""
    options: dict[str, Any] = {"regions": settings.regions, "project": settings.project}
    new = {i for pair in chosen for i in (pair.test, pair.train) if not is_kept(steps, pixels[i], **options)}
    bar.start(f"explanations ({len(new)} pictures to decompose)", len(chosen))
    found = []
    for pair in chosen:
        found.append(explanations(steps, pixels[pair.test], pixels[pair.train], **options))
        bar.advance()
    return found


def effective_regions(relevance: Tensor | np.ndarray) -> float:
    """On how many regions does the relevance sit? exp(H) of what each region adds to the score, mean of both sides.

    p_I = max(0, Σ_I' R_II') / Σ_I max(0, Σ_I' R_II'), n = exp(−Σ_I p_I log p_I): k regions with equal shares give k.

    >>> effective_regions(np.diag([1.0, 1.0, 0.0, 0.0]))
    2.0
    """
    values = np.asarray(relevance, dtype=float)
    return float(np.mean([_spread(values.sum(axis)) for axis in (1, 0)]))


def _spread(marginal: np.ndarray) -> float:
    positive = np.maximum(marginal, 0)
    if positive.sum() == 0:
        return 0.0
    share = positive[positive > 0] / positive.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def _report(
    found: folders.Found,
    settings: Settings,
    labels: np.ndarray,
    accuracies: Mapping[int, Accuracy],
    chosen: Sequence[Pair],
    explained: Sequence[Mapping[int, Explanation]],
    best: int,
) -> Report:
    spread = {layer: [effective_regions(pair[layer].relevance) for pair in explained] for layer in accuracies}
    names = [item.name for item in found.items]
    results = _results(found, settings, labels, accuracies, chosen, spread, names)
    last = max(accuracies)
    total = _region_count(explained)
    title = "How transferable is the similarity model?"
    sections = [
        Section("The question", [Text(text) for text in _question(found, labels, settings)]),
        Section("The table", [_table(accuracies, labels, spread), Text(_reading(settings))]),
        Section("By layer", [Picture("by-layer.png", chart(accuracies, spread, total), _chart_caption())]),
        Section("What the layers look at", _pictures(found, chosen, explained, best, last)),
        Section("The answer", [Text(_answer(accuracies, spread, best, last, total))]),
        *unused(found),
    ]
    return Report(title, _answer(accuracies, spread, best, last, total), sections, results)


def _results(
    found: folders.Found,
    settings: Settings,
    labels: np.ndarray,
    accuracies: Mapping[int, Accuracy],
    chosen: Sequence[Pair],
    spread: Mapping[int, Sequence[float]],
    names: Sequence[str],
) -> dict[str, Any]:
    mean = {layer: float(np.mean(values)) if len(values) else None for layer, values in spread.items()}
    return {
        "accuracy": {str(layer): a.mean for layer, a in accuracies.items()},
        "accuracy_std": {str(layer): a.std for layer, a in accuracies.items()},
        "classes": len(np.unique(labels)),
        "effective_regions": {str(layer): value for layer, value in mean.items()},
        "effective_regions_std": {str(n): float(np.std(v)) if len(v) else None for n, v in spread.items()},
        "images": len(names),
        "accuracy_by_split": {str(layer): a.values for layer, a in accuracies.items()},
        "cost_by_split": {str(layer): a.costs for layer, a in accuracies.items()},
        "pairs": [
            {"test": names[pair.test], "train": names[pair.train]}
            | {"effective_regions": {str(layer): spread[layer][k] for layer in spread}}
            for k, pair in enumerate(chosen)
        ],
        "settings": asdict(settings),
        "skipped": [asdict(item) for item in found.skipped],
        "notes": found.notes,
    }


def _question(found: folders.Found, labels: np.ndarray, settings: Settings) -> list[str]:
    count = len(np.unique(labels))
    return [
        "A network trained to name objects in photographs is asked for something else: who, or what, is in these "
        f"{len(found.items):,} pictures of {count} classes? Each of its layers gives another idea of "
        "“similar”. Which layer's idea carries over to this task, and can one see why?",
        f"Pictures were cut to {_crop_words(settings.crop)} and scaled to {settings.size}×{settings.size} pixels. "
        f"For each layer a linear classifier (a support vector machine) learned from a random half of every class and was "
        f"tested on the other half, {settings.splits} times with other halves.",
        *found.notes,
    ]


def _crop_words(crop: float) -> str:
    if crop == 1:
        return "their middle square"
    return f"the middle {crop:.0%}" if crop < 1 else f"the middle {crop:g} pixels"


def _table(
    accuracies: Mapping[int, Accuracy], labels: np.ndarray, spread: Mapping[int, Sequence[float]]
) -> Table:
    layers = list(accuracies)
    best = max(accuracies, key=lambda layer: accuracies[layer].mean)
    mark = {layer: "*" if layer == best else "" for layer in layers}
    rows: list[list[Any]] = [
        ["these pictures", len(np.unique(labels))]
        + [f"{accuracies[n].mean:.2f}\u00a0±\u00a0{accuracies[n].std:.2f}{mark[n]}" for n in layers]
    ]
    for name, (count, values) in PAPER.items():
        rows.append([name, count] + [f"{values[n]:.2f}" if n in values else None for n in layers])
    effective = [f"{np.mean(spread[n]):.0f}" if len(spread[n]) else None for n in layers]
    rows.append(["effective regions", None, *effective])
    header = ("accuracy", "classes", *(f"layer {layer}" for layer in layers))
    caption = "Share of test pictures named rightly (mean ± standard deviation over splits; * best layer)."
    return Table(header, rows, caption)


def _reading(settings: Settings) -> str:
    return (
        "Effective regions: on how many of the picture's regions "
        f"({settings.regions}×{settings.regions} pixels each) the explanation of one similarity sits. If k regions share "
        "it equally the number is k. It is the exponential of the entropy of the regions' positive shares, averaged over "
        "both pictures of a pair and over all pairs explained."
    )


def _chart_caption() -> str:
    return (
        "Above: accuracy of the classifier on each layer, with its spread over splits; the paper's LFW row in grey. "
        "Below: effective regions of the explanations, one dot a pair."
    )


def _answer(
    accuracies: Mapping[int, Accuracy],
    spread: Mapping[int, Sequence[float]],
    best: int,
    last: int,
    total: int,
) -> str:
    top, end = accuracies[best], accuracies[last]
    if best == last:
        text = f"The highest layer, {last}, serves this task best: {top.mean:.0%} of the test pictures are named rightly."
    else:
        text = (
            f"Layer {best} serves this task best: {top.mean:.0%} of the test pictures are named rightly, against "
            f"{end.mean:.0%} with the highest layer, {last}."
        )
    if not spread[best]:
        return text
    wide, narrow = float(np.mean(spread[best])), float(np.mean(spread[last]))
    if best == last:
        return f"{text} Its explanations rest on {wide:.0f} of {total} regions."
    if wide > narrow:
        return (
            f"{text} The explanations show a reason: similarity at layer {best} rests on about {wide:.0f} of {total} "
            f"regions of a picture, at layer {last} on about {narrow:.0f}. The highest layer has specialised on a few "
            "features and no longer keeps what would be needed elsewhere."
        )
    return (
        f"{text} The explanations do not show concentration as the reason here: they rest on about {wide:.0f} of {total} "
        f"regions at layer {best} and {narrow:.0f} at layer {last}."
    )


def _region_count(explained: Sequence[Mapping[int, Explanation]]) -> int:
    return next((e.relevance.shape[0] for pair in explained for e in pair.values()), 0)


def _pictures(
    found: folders.Found,
    chosen: Sequence[Pair],
    explained: Sequence[Mapping[int, Explanation]],
    best: int,
    last: int,
    most: int = 6,
) -> list[Text | Picture]:
    if not chosen:
        return [Text("No pairs were explained (--pairs 0).")]
    shown = (17, 31) if explained and {17, 31} <= set(explained[0]) else (best, last)
    shown = tuple(dict.fromkeys(shown))
    blocks: list[Text | Picture] = [
        Text(
            "Each line joins a region of a test picture (left) to a region of its most similar training picture (right): "
            "red where the match makes the two more similar, blue where it makes them less similar, stronger where it "
            "weighs more."
        )
    ]
    items = found.items
    for number, (pair, found_pair) in enumerate(list(zip(chosen, explained, strict=True))[:most], start=1):
        test, train = items[pair.test], items[pair.train]
        same = "the same class" if test.label == train.label else "another class"
        caption = (
            f"{_words(test.label)} and the most similar training picture, {_words(train.label)} ({same})."
        )
        figure = side_by_side([found_pair[layer] for layer in shown], [f"layer {n}" for n in shown])
        blocks.append(Picture(f"pair-{number}.png", figure, caption))
    return blocks


def _words(label: str) -> str:
    return label.replace("_", " ")


def side_by_side(explained: Sequence[Explanation], titles: Sequence[str], *, style: str = "faces") -> Figure:
    """The paper's figure: one pair, its arcs at several layers beside each other, and how wide each spreads."""
    from bilrp.render import figure as render
    from bilrp.render import links

    canvas = blank((5.2 * len(explained), 2.75))
    for place, (explanation, title) in enumerate(zip(explained, titles, strict=True)):
        axes = canvas.add_axes((place / len(explained) + 0.01, 0.02, 1 / len(explained) - 0.02, 0.84))
        made = links.links(explanation.relevance, style, faintest=render.FAINTEST)
        a, b = explanation.a, explanation.b
        assert a.picture is not None and b.picture is not None
        assert a.regions.boxes is not None and b.regions.boxes is not None
        boxes = a.regions.boxes, b.regions.boxes
        render.arcs(axes, (a.picture, b.picture), boxes, made, render.palette("paper"))
        text = f"{title}: {effective_regions(explanation.relevance):.0f} effective regions"
        axes.set_title(text, fontsize=11, color=render.INK)
    return canvas


def chart(accuracies: Mapping[int, Accuracy], spread: Mapping[int, Sequence[float]], total: int) -> Figure:
    """Accuracy and effective regions over the layers."""
    canvas = blank((6.4, 4.6))
    above, below = canvas.subplots(2, 1, sharex=True)
    layers = list(accuracies)
    places = np.arange(len(layers))
    paper = PAPER["LFW (paper)"][1]
    if all(layer in paper for layer in layers):
        above.plot(places, [paper[n] for n in layers], "o--", color="#a0a0a0", label="LFW in the paper")
    means, stds = [accuracies[n].mean for n in layers], [accuracies[n].std for n in layers]
    above.errorbar(places, means, yerr=stds, fmt="o-", color="#d7191c", capsize=3, label="these pictures")
    above.set(ylabel="accuracy", ylim=(0, 1.02))
    above.legend(frameon=False, fontsize=9, loc="lower left")
    for place, layer in zip(places, layers, strict=True):
        jitter = np.linspace(-0.08, 0.08, len(spread[layer])) if spread[layer] else []
        below.plot(place + np.asarray(jitter), spread[layer], "o", color="#2166d1", alpha=0.35, ms=4, mew=0)
    if all(spread.values()):
        below.plot(places, [np.mean(spread[n]) for n in layers], "o-", color="#2166d1")
    below.set(ylabel="effective regions", ylim=(0, max(1, total) * 1.02), xlabel="layer of VGG-16")
    below.set_xticks(places, [str(layer) for layer in layers])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.tight_layout()
    return canvas


def blank(size: tuple[float, float]) -> Figure:
    """An empty figure outside pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=size, facecolor="white", dpi=130)
    FigureCanvasAgg(canvas)
    return canvas


def unused(found: folders.Found) -> list[Section]:
    """What was skipped, with reasons; nothing, if nothing was."""
    if not found.skipped:
        return []
    rows = [(item.file, item.reason) for item in found.skipped]
    caption = f"{len(rows)} files or folders could not be used; everything else was."
    return [Section("What was left out", [Table(("file", "reason"), rows, caption)])]


def parse_layers(text: str) -> tuple[int, ...]:
    """'5,10,17' as numbers.

    >>> parse_layers("17, 31")
    (17, 31)
    """
    try:
        return tuple(sorted({int(piece) for piece in text.split(",")}))
    except ValueError:
        raise InputError(
            f"layers are numbers with commas between, for example 5,10,17, got {text!r}"
        ) from None
