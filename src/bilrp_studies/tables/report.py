"""The report of the tables study: each finding with its figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilrp.explanation import explain
from bilrp.regions import grid
from bilrp.render import figure
from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.image_folders import SkippedFile
from bilrp_studies.common.study_report import Block, build_study_report, pluralize
from bilrp_studies.tables import bigram_agreement, figures, page_evaluation
from bilrp_studies.tables.digit_model import DigitModel, PageSplit
from bilrp_studies.tables.measurements import Measurements
from bilrp_studies.tables.page_layout import LAYOUT_SCALE
from bilrp_studies.tables.settings import TablesSettings
from bilrp_studies.tables.table_blocks import TableBlock

MAX_LINKS = 60
"""Links drawn where two blocks of 48 cells are compared."""
QUESTION = (
    "Historians look for tables that were copied from one another. A network trained on photographs calls all tables "
    "alike. Can a similarity be built for the task from a few hundred labelled digits, and can explanations of single "
    "pairs show that it looks at the numbers? Here every cell is transcribed, so the answer can be counted."
)
MODEL = "The model: ten digit maps learned from a few hundred labels, then every pair of neighbouring digits, hard-coded."


def build_report(
    split: PageSplit,
    model: DigitModel,
    measurements: Measurements,
    learning_curve: list[dict[str, Any]],
    results: dict[str, Any],
    settings: TablesSettings,
) -> Report:
    """Build the report of a finished study.

    Args:
        split: The pages.
        model: The trained digit network.
        measurements: All measurements.
        learning_curve: Rows of the learning curve; may be empty.
        results: Content of results.json.
        settings: The settings of the study.
    """
    return build_study_report(
        "Engineering an explainable similarity: tables",
        _answer(results),
        {
            "The question": [QUESTION, MODEL, _describe_pages(split, model)],
            "Reading digits": _reading_blocks(split, model, measurements, learning_curve),
            "Similarity of tables": _similarity(measurements),
            "Is the explanation right?": _explanations(measurements, results),
            "Smudged digits": _smudged(results),
            "Finding copies": _copies(measurements),
            "What must hold exactly": _checks(measurements),
            "Other kinds of pages": [_out_of_domain_table(measurements)],
        },
        settings=settings,
        results=results,
        skipped=[SkippedFile(name, reason) for name, reason in split.skipped.items()],
    )


def _answer(results: dict[str, Any]) -> str:
    """Return the findings as a paragraph with their numbers."""
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
        f"is not on digits.{against} A block photographed again is found first in "
        f"{results['copy_first']['overall']:.0%} of {results['copy_queries']} searches."
    )
    return text.replace("%", " %")


def _describe_pages(split: PageSplit, model: DigitModel) -> str:
    return (
        f"{pluralize(len(split.train), 'page')} to train on ({model.metadata.get('labels')} labelled patches and as many "
        f"negatives), {len(split.validation)} to choose the digit threshold on ({model.threshold}), "
        f"{len(split.test)} to measure on."
    )


def _reading_blocks(
    split: PageSplit, model: DigitModel, measurements: Measurements, learning_curve: list[dict[str, Any]]
) -> list[Block]:
    correlation = measurements.results["bigram_correlation"]
    digits = figures.plot_digits(model.net, split.test[0], threshold=model.threshold)
    bigrams = figures.plot_bigram_sums(measurements.scores, correlation)
    blocks: list[Block] = [
        Picture("digits.png", digits, "Above each digit, what the network reads."),
        Picture("bigrams.png", bigrams, "The 100 coordinates count bigrams."),
    ]
    if learning_curve:
        header = ("labels", "digit F1", "bigram correlation", "training, seconds")
        keys = ("labels", "digit_f1", "bigram_correlation", "seconds")
        curve = figures.plot_learning_curve(learning_curve)
        blocks.append(Picture("learning.png", curve, "How many labels it takes."))
        blocks.append(Table(header, [tuple(row[key] for key in keys) for row in learning_curve]))
    return blocks


def _similarity(measurements: Measurements) -> list[Block]:
    similarities = measurements.similarities
    rows = [(name, value, similarities.spearman_dot[name]) for name, value in similarities.spearman.items()]
    header = ("model", "Spearman, cosine", "Spearman, dot")
    drawn = figures.plot_similarities(similarities)
    return [
        Table(header, rows, "Against the transcription, all pairs of blocks"),
        Picture("similarity.png", drawn, "Each dot is a pair of blocks of 8 × 6 cells."),
        *(
            [f"There is no comparison with VGG-16: {measurements.vgg_error}"]
            if measurements.vgg_error
            else []
        ),
    ]


def _explanations(measurements: Measurements, results: dict[str, Any]) -> list[Block]:
    shares = results["relevance_shares"]
    names = ("bigram", "digit", "both", "off", "rules", "chance", "shuffled")
    header = ("model", "same bigram", "same digit", "both", "off the digits", "on rules")
    rows = [(model, *(share[name] for name in names)) for model, share in shares.items()]
    chance = ("same bigram: evenly spread", "partners shuffled")
    table = Table((*header, *chance), rows, "Shares of positive relevance")
    firsts = [pairs[0] for pairs in measurements.explanations.values()]
    pictures = [_scan_window(b) for b in firsts[0].blocks]
    caption = "The same two blocks of two pages, explained by both models: " + " and ".join(
        b.name for b in firsts[0].blocks
    )
    note = (
        "A coordinate of the bigram network stands for two digits, and min{a_j, τ(a_k)} hands its relevance to the "
        "weaker of the two: so a matched bigram also joins its first digit here with its second digit there. That is "
        "why precision is counted on bigrams; the share on equal digits is given with it."
    )
    return [
        table,
        note,
        Picture("explained.png", figures.plot_explanations(firsts, pictures), caption),
    ]


def _scan_window(block: TableBlock) -> np.ndarray:
    """Return the scan of a small block's window, contrast stretched so that paper is white."""
    window = bigram_agreement.segment_block(block, size=page_evaluation.SMALL_WINDOW_PIXELS).window
    x0, y0, x1, y1 = (LAYOUT_SCALE * edge for edge in window)
    part = bigram_agreement.crop_window(block.page.gray, (x0, y0, x1, y1), pad_mode="edge")
    low, high = np.percentile(part, [0.5, 60])
    return np.clip((part - low) / max(float(high - low), 1e-6), 0, 1)


def _smudged(results: dict[str, Any]) -> list[Block]:
    header = (
        "pages",
        "matches",
        "precision",
        "weighted by reliability",
        "not marked",
        "true matches not marked",
    )
    keys = ("matches", "precision", "weighted_precision", "reliable_precision", "reliable_recall")
    rows = [(kind, *(values[key] for key in keys)) for kind, values in results["number_matches"].items()]
    note = (
        "Equal numbers of at least three digits on two pages, judged by the transcriptions; a tenth of the digits is "
        "blurred, faded or blotted. A smudged digit is often not read at all, so the reliability of a number is its least "
        'certain digit, less the unread ink next to it (`reliability="own"`); below 0.5 a match is marked.'
    )
    return [note, Table(header, rows, "Precision of number matches, with and without weights")]


def _copies(measurements: Measurements) -> list[Block]:
    drawn = figures.plot_copies(measurements.search)
    blocks: list[Block] = [
        Picture("copies.png", drawn, "Blocks moved, scaled, turned, blurred, noisy, yellowed.")
    ]
    for i, (query, hit, picture, _) in enumerate(measurements.search.hits[:2]):
        why = explain(measurements.encoder, picture, hit.crop_scan(), similarity="cosine", regions=grid(16))
        shown = figures.strongest_links_style(why.relevance, MAX_LINKS)
        drawn = figure.plot(why, style=shown, heatmaps=False, names=("photographed again", hit.name))
        verdict = "the true copy" if hit is query else f"a miss: the query was {query.name}"
        text = (
            f"Query under all distortions, best hit {hit.name}: {verdict}. The {MAX_LINKS} strongest links."
        )
        blocks.append(Picture(f"hit-{i + 1}.png", drawn, text))
    return blocks


def _checks(measurements: Measurements) -> list[Block]:
    checks = measurements.checks
    size = "×".join(map(str, checks.page_size))
    rows = [
        ("largest unattributed share of a coordinate, whole page, float32", checks.unattributed),
        ("largest difference of push and pull, float64, relative", checks.push_pull_gap),
        (f"seconds to decompose a page of {size} px", checks.page_seconds),
    ]
    return [Table(("check", "value"), rows)]


def _out_of_domain_table(measurements: Measurements) -> Table:
    rows = [(s.kind, s.message, s.bigrams, s.cosine) for s in measurements.out_of_domain]
    header = ("picture", "layout", "bigrams per million px", "cosine with a real page")
    return Table(header, rows, caption="What the network was not made for")
