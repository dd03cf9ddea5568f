"""Section 6: a bigram network for scanned tables, learned from few labels, validated through explanations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bilrp.encoder import Encoder
from bilrp.encoders.bigram import DigitNet, encoder_of, load_weights, save_weights
from bilrp.engine.progress import tracking
from bilrp.errors import BilrpError, InputError
from bilrp.studies.common.report import Picture, Report, Section, Table, Text
from bilrp.studies.tables import evaluate, figures, matching
from bilrp.studies.tables.blocks import Block, cut_blocks
from bilrp.studies.tables.layout import ZOOM
from bilrp.studies.tables.pages import Page, find_pages, read_page
from bilrp.studies.tables.patches import (
    Patches,
    digit_patches,
    join,
    negative_patches,
    picture_negatives,
)
from bilrp.studies.tables.training import Recipe, train

LABELS = 1000
CURVE = (100, 200, 500)
RANDOM = "bigram, random pairs"
LINKS = 60
"""Links drawn where two blocks of 48 cells are compared."""


@dataclass(frozen=True)
class Split:
    """Pages to train on, to choose a threshold on, and to measure on; and the ones that could not be used."""

    train: list[Page]
    validation: list[Page]
    test: list[Page]
    skipped: dict[str, str]


@dataclass(frozen=True)
class Model:
    """Part one of the network, what it was trained on, and the digit threshold that goes with it."""

    net: DigitNet
    about: dict[str, Any]
    threshold: float
    seconds: float | None


def run(
    data: str | Path,
    out: str | Path,
    *,
    weights: str | Path | None = None,
    vgg: str | Path | None = None,
    seed: int = 0,
    steps: int | None = None,
    curve: Sequence[int] = CURVE,
    pairs: int = 8,
    progress: bool = False,
    say: Callable[[str], None] = lambda _text: None,
) -> Path:
    """Train unless weights are given, measure on pages never trained on, and write the report.

    >>> run("historic_tables", "out/tables")
    PosixPath('out/tables/report.html')
    """
    start = time.perf_counter()
    track = _tracker(progress)
    split = split_pages(Path(data), weights=weights, seed=seed, track=track, say=say)
    recipe = Recipe(seed=seed) if steps is None else Recipe(seed=seed, steps=steps)
    model = obtain(split, Path(out), weights=weights, recipe=recipe, progress=progress)
    say(f"digit threshold {model.threshold}, trained on {model.about.get('labels')} labelled patches")
    rows = [] if weights else learn_curve(split, model, recipe, curve, progress=progress)
    found = measure(split, model, vgg=vgg, pairs=pairs, seed=seed, track=track, say=say)
    results = {**found.results, "learning_curve": rows, "train_seconds": model.seconds}
    results["study_seconds"] = time.perf_counter() - start
    page = report(split, model, found, rows, results).write(out)
    say(f"study took {results['study_seconds']:.0f} s")
    return page


def _tracker(progress: bool) -> evaluate.Track:
    """Progress bars on stderr, if wanted."""
    if not progress:
        return evaluate.quiet
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True)
    return lambda items, what: bar(list(items), description=what, console=console, transient=True)


def split_pages(
    data: Path,
    *,
    weights: str | Path | None,
    seed: int,
    track: evaluate.Track,
    say: Callable[[str], None],
) -> Split:
    """Read all pages; a page whose table cannot be found is reported and skipped.

    With weights, the pages they were trained or tuned on are known by their content and kept out of the test.
    """
    known = load_weights(weights)[1] if weights else None
    pages, skipped = [], {}
    for image, text in track(find_pages(data), "reading pages"):
        try:
            pages.append(read_page(image, text))
        except InputError as error:
            skipped[image.stem] = str(error)
            say(f"skipped {image.stem}: {error}")
    if known is not None:
        used = {*known.get("train_pages", []), *known.get("validation_pages", [])}
        parts = [[p for p in pages if (p.digest in used) == seen] for seen in (True, False)]
        split = Split(parts[0], [], parts[1], skipped)
    else:
        order = np.random.default_rng(seed).permutation(len(pages))
        few = max(1, len(pages) // 6)
        picks = [[pages[i] for i in part] for part in np.split(order, [few, 2 * few])]
        split = Split(picks[0], picks[1], picks[2], skipped)
    if len(split.test) < 2:
        raise InputError(f"{len(split.test)} pages are left to measure on: give at least 4 pages with tables")
    return split


def obtain(
    split: Split, out: Path, *, weights: str | Path | None, recipe: Recipe, progress: bool = False
) -> Model:
    """The network: from the weights given, else trained and written beside the report."""
    if weights:
        net, about = load_weights(weights)
        return Model(net, about, float(about.get("threshold", 0.4)), None)
    net, count, seconds = fit(split.train, LABELS, recipe, progress=progress)
    threshold = evaluate.choose_threshold(net, split.validation)
    about = {
        "labels": count,
        "threshold": threshold,
        "train_pages": [p.digest for p in split.train],
        "validation_pages": [p.digest for p in split.validation],
        "recipe": asdict(recipe),
    }
    save_weights(net, out / "bigram.safetensors", about)
    return Model(net, about, threshold, seconds)


def fit(
    pages: Sequence[Page], labels: int, recipe: Recipe, *, progress: bool = False
) -> tuple[DigitNet, int, float]:
    """Train on about `labels` digits and as many negatives, evenly from all pages: (net, labels used, seconds)."""
    start = time.perf_counter()
    patches = labelled(pages, labels, seed=recipe.seed)
    with tracking(progress) as bar:
        bar.start(f"training on {labels} labels", recipe.steps)
        net = train(patches, recipe, progress=lambda _step, _loss: bar.advance())
    return net, int((patches.label >= 0).sum()), time.perf_counter() - start


def labelled(pages: Sequence[Page], labels: int, *, seed: int) -> Patches:
    """The same number of labelled digits from each page, never more than `labels` in all, and negatives."""
    each = labels // len(pages)
    parts = [digit_patches(p, each, seed=seed + i) for i, p in enumerate(pages)]
    parts += [negative_patches(p, round(0.8 * each), seed=seed + i) for i, p in enumerate(pages)]
    return join([*parts, picture_negatives(labels // 5, seed=seed)])


def learn_curve(
    split: Split, model: Model, recipe: Recipe, curve: Sequence[int], *, progress: bool = False
) -> list[dict[str, Any]]:
    """The same training from fewer labels, measured on the same pages."""
    rows = []
    for labels in (*curve, LABELS):
        if labels == LABELS:
            net, count, seconds = model.net, model.about["labels"], model.seconds
        else:
            net, count, seconds = fit(split.train, labels, recipe, progress=progress)
        scores = evaluate.score_pages(net, split.test, threshold=model.threshold)
        rows.append(
            {
                "labels": count,
                "digit_f1": evaluate.digit_f1(scores),
                "bigram_correlation": evaluate.bigram_correlation(scores),
                "seconds": seconds,
            }
        )
    return rows


@dataclass(frozen=True)
class Found:
    """Everything measured, as numbers for results.json and as objects to draw."""

    results: dict[str, Any]
    scores: list[evaluate.PageScore]
    similar: evaluate.Similarities
    explained: dict[str, list[evaluate.PairExplained]]
    search: evaluate.Search
    checks: evaluate.Checks
    strangers: list[evaluate.Stranger]
    encoder: Encoder


def measure(
    split: Split,
    model: Model,
    *,
    vgg: str | Path | None,
    pairs: int,
    seed: int,
    track: evaluate.Track,
    say: Callable[[str], None],
) -> Found:
    """All measurements on the test pages."""
    encoder = encoder_of(model.net)
    scores = evaluate.score_pages(model.net, split.test, threshold=model.threshold, track=track)
    say(f"digit F1 {evaluate.digit_f1(scores):.4f}")
    whole, small = vgg_encoders(vgg, say=say)
    every = _blocks([*split.train, *split.validation, *split.test])
    tests = _blocks(split.test)
    rng = np.random.default_rng(seed)
    compared = [tests[i] for i in rng.permutation(len(tests))[:96]]
    similar = evaluate.compare_blocks({"bigram": encoder, **whole}, compared, track=track)
    say(f"similarity {similar.spearman}")
    explained = explain_all(
        {"bigram": encoder, **small}, evaluate.similar_pairs(split.test, pairs), track=track
    )
    unlike = explain_all(
        {"bigram": encoder}, evaluate.random_pairs(split.test, pairs, seed=seed), track=track
    )
    shares = {
        name: matching.mean_agreement([p.agreement for p in some])
        for name, some in {**explained, RANDOM: unlike["bigram"]}.items()
    }
    test = {id(page) for page in split.test}
    queries = [b for b in every if id(b.page) in test]
    queries = [queries[i] for i in rng.permutation(len(queries))[:40]]
    search = evaluate.find_copies(encoder, every, queries, seed=seed, track=track)
    say(f"true copy first in {search.overall:.1%} of {search.queries} queries")
    page = split.test[0]
    checks = evaluate.check_encoder(model.net, page, cut_blocks(page, rows=5, columns=3)[0])
    strange = evaluate.strangers(encoder, page)
    results = numbers(split, model, scores, similar, shares, search, checks, strange)
    return Found(results, scores, similar, explained, search, checks, strange, encoder)


def _blocks(pages: Sequence[Page]) -> list[Block]:
    return [b for p in pages for b in cut_blocks(p, rows=evaluate.BLOCK[0], columns=evaluate.BLOCK[1])]


def vgg_encoders(
    vgg: str | Path | None, *, say: Callable[[str], None]
) -> tuple[dict[str, Encoder], dict[str, Encoder]]:
    """VGG-16 at layer 17 for blocks of one size and for small windows; nothing where its weights are missing."""
    from bilrp.encoders.vgg import vgg16

    try:
        whole = vgg16(17, weights=vgg, size=(136, 288), fit="stretch")
        return {"vgg17": whole}, {"vgg17": vgg16(17, weights=vgg, size=None)}
    except BilrpError as error:
        say(f"no comparison with VGG-16: {error}")
        return {}, {}


def explain_all(
    encoders: dict[str, Encoder], pairs: Sequence[tuple[Block, Block]], *, track: evaluate.Track
) -> dict[str, list[evaluate.PairExplained]]:
    """Every pair of small blocks explained by every model."""
    return {
        name: [evaluate.explain_pair(name, e, p) for p in track(pairs, f"explaining with {name}")]
        for name, e in encoders.items()
    }


def numbers(
    split: Split,
    model: Model,
    scores: list[evaluate.PageScore],
    similar: evaluate.Similarities,
    shares: dict[str, dict[str, float]],
    search: evaluate.Search,
    checks: evaluate.Checks,
    strange: list[evaluate.Stranger],
) -> dict[str, Any]:
    """What results.json holds."""
    precision = {name: s["bigram"] for name, s in shares.items() if name != RANDOM}
    return {
        "digit_f1": evaluate.digit_f1(scores),
        "bigram_correlation": evaluate.bigram_correlation(scores),
        "similarity_spearman": {"vgg17": None, **similar.spearman},
        "digit_pair_precision": {"vgg17": None, **precision, "chance": shares["bigram"]["chance"]},
        "pages": {
            "train": [p.name for p in split.train],
            "validation": [p.name for p in split.validation],
            "test": [p.name for p in split.test],
            "skipped": split.skipped,
        },
        "train_patches": model.about.get("labels"),
        "similarity_spearman_dot": similar.spearman_dot,
        "relevance_shares": shares,
        "copy_first": {**search.first, "overall": search.overall},
        "copy_queries": search.queries,
        "conservation": {"unattributed": checks.unattributed, "push_minus_pull": checks.push_pull},
        "page_seconds": checks.page_seconds,
        "threshold": model.threshold,
        "strangers": [asdict(s) for s in strange],
        "digit_f1_by_page": {s.name: s.digits.f1 for s in scores},
    }


def report(
    split: Split, model: Model, found: Found, rows: list[dict[str, Any]], results: dict[str, Any]
) -> Report:
    """The report: what was asked for against what was measured, then each finding with its picture."""
    sections = [
        Section("The question", [Text(QUESTION), Text(_about_pages(split, model))]),
        Section("In short", [Text(_answer(results)), _verdict(results)]),
        Section("Reading digits", _reading(split, model, found, rows)),
        Section("Similarity of tables", _similarity(found, results)),
        Section("Is the explanation right?", _explanations(found, results)),
        Section("Finding copies", _copies(found)),
        Section("What must hold exactly", _checks(found)),
        Section("Other kinds of pages", [_strangers(found)]),
    ]
    summary = (
        "A similarity model for scanned tables: ten digit maps learned from a few hundred labels, then every pair "
        "of neighbouring digits, hard-coded. The transcription of every cell says whether its explanations are right."
    )
    return Report("Engineering an explainable similarity: tables", summary, sections, results)


QUESTION = (
    "Historians look for tables that were copied from one another. A network trained on photographs calls all tables "
    "alike. Can a similarity be built for the task from a few hundred labelled digits, and can explanations of single "
    "pairs show that it looks at the numbers? Here every cell is transcribed, so the answer can be counted."
)


def _answer(results: dict[str, Any]) -> str:
    """The findings in words, with their figures."""
    similar, precise = results["similarity_spearman"], results["digit_pair_precision"]
    spread = results["relevance_shares"]["bigram"]
    against = (
        ""
        if similar["vgg17"] is None
        else f" VGG-16 at layer 17 reaches {similar['vgg17']:.2f} and {precise['vgg17']:.0%}."
    )
    text = (
        f"The bigram network reads digits with F1 {results['digit_f1']:.3f} from {results['train_patches']} labels and "
        f"ranks pairs of blocks as their transcription does (Spearman {similar['bigram']:.2f}); {precise['bigram']:.0%} of "
        f"its positive relevance joins the same bigram, {precise['chance']:.0%} would by chance, and {spread['off']:.1%} "
        f"lies off the digits.{against} A block photographed again is found first in "
        f"{results['copy_first']['overall']:.0%} of {results['copy_queries']} searches."
    )
    return text.replace("%", " %")


def _verdict(results: dict[str, Any]) -> Table:
    """Each requirement with its figure; a miss is shown as a miss."""
    similar, precise = results["similarity_spearman"], results["digit_pair_precision"]
    lead = None if similar["vgg17"] is None else similar["bigram"] - similar["vgg17"]
    ahead = None if precise["vgg17"] is None else precise["bigram"] - precise["vgg17"]
    lines = [
        ("digit F1", results["digit_f1"], 0.90, 1),
        ("bigram correlation", results["bigram_correlation"], 0.90, 1),
        ("similarity Spearman above VGG-16", lead, 0.2, 1),
        ("digit-pair precision", precise["bigram"], 0.80, 1),
        ("digit-pair precision above VGG-16", ahead, 0.3, 1),
        ("true copy first", results["copy_first"]["overall"], 0.95, 1),
        ("labelled patches", results["train_patches"], 1000, -1),
        ("training, seconds", results["train_seconds"], 600, -1),
        ("whole study, seconds", results["study_seconds"], 1500, -1),
        ("page of 1359×855 decomposed, seconds", results["page_seconds"], 20, -1),
    ]
    table = []
    for name, value, bound, sign in lines:
        holds = "–" if value is None else ("yes" if sign * value >= sign * bound else "NO")
        table.append((name, value, f"{'≥' if sign > 0 else '≤'} {bound}", holds))
    return Table(("", "measured", "wanted", "holds"), table, caption="On pages never trained on")


def _about_pages(split: Split, model: Model) -> str:
    skipped = "; ".join(f"{name}: {why}" for name, why in split.skipped.items()) or "none"
    return (
        f"{len(split.train)} pages to train on ({model.about.get('labels')} labelled patches and as many negatives), "
        f"{len(split.validation)} to choose the digit threshold on ({model.threshold}), "
        f"{len(split.test)} to measure on. Skipped: {skipped}."
    )


def _reading(
    split: Split, model: Model, found: Found, rows: list[dict[str, Any]]
) -> list[Text | Table | Picture]:
    correlation = found.results["bigram_correlation"]
    blocks: list[Text | Table | Picture] = [
        Picture(
            "digits.png",
            figures.digits_found(model.net, split.test[0], threshold=model.threshold),
            "Above each digit, what the network reads.",
        ),
        Picture(
            "bigrams.png",
            figures.sums_and_counts(found.scores, correlation),
            "The 100 coordinates count bigrams.",
        ),
    ]
    if rows:
        header = ("labels", "digit F1", "bigram correlation", "training, seconds")
        table = [tuple(r[k] for k in ("labels", "digit_f1", "bigram_correlation", "seconds")) for r in rows]
        blocks += [
            Picture("learning.png", figures.learning_curve(rows), "How many labels it takes."),
            Table(header, table),
        ]
    return blocks


def _similarity(found: Found, results: dict[str, Any]) -> list[Text | Table | Picture]:
    rows = [
        (name, found.similar.spearman[name], found.similar.spearman_dot[name])
        for name in found.similar.spearman
    ]
    return [
        Table(
            ("model", "Spearman, cosine", "Spearman, dot"),
            rows,
            caption="Against the transcription, all pairs of blocks",
        ),
        Picture(
            "similarity.png",
            figures.similarities(found.similar),
            "Each dot is a pair of blocks of 8 × 6 cells.",
        ),
    ]


def _explanations(found: Found, results: dict[str, Any]) -> list[Text | Table | Picture]:
    shares = results["relevance_shares"]
    names = ("bigram", "digit", "both", "off", "rules", "chance", "shuffled")
    header = (
        "model",
        "same bigram",
        "same digit",
        "both",
        "off the digits",
        "on rules",
        "same bigram: evenly spread",
        "partners shuffled",
    )
    table = Table(
        header, [(m, *(shares[m][n] for n in names)) for m in shares], caption="Shares of positive relevance"
    )
    firsts = [pairs[0] for pairs in found.explained.values()]
    pictures = [_gray(b) for b in firsts[0].blocks]
    caption = "The same two blocks of two pages, explained by both models: " + " and ".join(
        b.name for b in firsts[0].blocks
    )
    note = (
        "A coordinate of the bigram network stands for two digits, and min{a_j, τ(a_k)} hands its relevance to the "
        "weaker of the two: so a matched bigram also joins its first digit here with its second digit there. That is "
        "why precision is counted on bigrams; the share on equal digits is given beside it."
    )
    return [table, Text(note), Picture("explained.png", figures.side_by_side(firsts, pictures), caption)]


def _gray(block: Block) -> np.ndarray:
    """The scan behind a small block's window, paper made white."""
    window = matching.places(block, size=evaluate.WINDOW).window
    x0, y0, x1, y1 = (ZOOM * edge for edge in window)
    part = matching.crop(block.page.gray, (x0, y0, x1, y1), outside="edge")
    low, high = np.percentile(part, [0.5, 60])
    return np.clip((part - low) / max(float(high - low), 1e-6), 0, 1)


def _copies(found: Found) -> list[Text | Table | Picture]:
    from bilrp.explanation import explain
    from bilrp.regions import grid
    from bilrp.render import figure

    blocks: list[Text | Table | Picture] = [
        Picture(
            "copies.png",
            figures.copies(found.search),
            "Blocks moved, scaled, turned, blurred, noisy, yellowed.",
        )
    ]
    for i, (query, hit, picture, _) in enumerate(found.search.hits[:2]):
        why = explain(found.encoder, picture, hit.photograph(), similarity="cosine", regions=grid(16))
        shown = figures.strongest(why.relevance, LINKS)
        drawn = figure.plot(why, style=shown, heat=False, names=("photographed again", hit.name))
        verdict = "the true copy" if hit is query else f"a miss: the query was {query.name}"
        blocks.append(
            Picture(
                f"hit-{i + 1}.png",
                drawn,
                f"Query under all distortions, best hit {hit.name}: {verdict}. The {LINKS} strongest links.",
            )
        )
    return blocks


def _checks(found: Found) -> list[Text | Table | Picture]:
    checks = found.checks
    rows = [
        ("largest unattributed share of a coordinate, whole page, float32", checks.unattributed),
        ("largest difference of push and pull, float64, relative", checks.push_pull),
        (
            f"seconds to decompose a page of {checks.page_size[0]}×{checks.page_size[1]} px",
            checks.page_seconds,
        ),
    ]
    return [Table(("check", "value"), rows)]


def _strangers(found: Found) -> Table:
    rows = [(s.kind, s.message, s.bigrams, s.cosine) for s in found.strangers]
    header = ("picture", "layout", "bigrams per million px", "cosine with a real page")
    return Table(header, rows, caption="What the network was not made for")
