"""The report of the faithfulness study: one table, one figure, and the comparisons that BiLRP does not win."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.image_folders import FolderContents
from bilrp_studies.common.study_report import (
    Block,
    build_study_report,
    join_words,
    pluralize,
    tabulate_intervals,
)
from bilrp_studies.common.warps import WARPS
from bilrp_studies.faithfulness.aggregation import BLOCK_PAIRS, MEASURES, Measure, collect_results
from bilrp_studies.faithfulness.figures import measure_label, method_titles, plot_results
from bilrp_studies.faithfulness.methods import METHODS
from bilrp_studies.faithfulness.settings import FaithfulnessSettings

RANGE_SEPARATOR = "…\u2060"  # ellipsis with a word joiner, which prevents a line break within an interval


def build_report(
    rows: Sequence[Mapping[str, Any]], settings: FaithfulnessSettings, photographs: FolderContents
) -> Report:
    """Build the report from the measures of every pair.

    Args:
        rows: Output of `measure_pair` for each pair.
        settings: The settings of the study.
        photographs: The photographs read, with skipped files and notes.
    """
    results = collect_results(rows, settings)
    caption = f"Means, 95 % intervals over {pluralize(len(rows), 'pair')}; arrows say which way is better. Dotted: chance."
    picture = Picture("faithfulness.png", plot_results(results, settings), caption)
    return build_study_report(
        "Are the explanations true to the model?",
        describe_results(results, settings),
        {
            "The suite": [picture, _table(results, settings)],
            "Where BiLRP does not win": [tabulate_misses(results, settings)],
            "By kind of warp": [_warps(results, settings)],
            "Random weights from the top down": [_cascade(results, settings)] if results["cascade"] else [],
        },
        settings=settings,
        results=results,
        protocol=_protocol(results, settings, photographs),
        skipped=photographs.skipped,
    )


def describe_results(results: Mapping[str, Any], settings: FaithfulnessSettings) -> str:
    """Return a paragraph: how often BiLRP wins, and to which methods it loses."""
    counts = {"wins": 0, "loses": 0, "no clear difference": 0}
    lost: dict[str, int] = {}
    for _, _, method, result in iterate_comparisons(results):
        counts[result["verdict"]] += 1
        if result["verdict"] == "loses":
            lost[method] = lost.get(method, 0) + 1
    names = method_titles(settings)
    losses = ", ".join(f"{names[m]} ({n})" for m, n in sorted(lost.items(), key=lambda e: -e[1]))
    layers = f"{'layer' if len(settings.layers) == 1 else 'layers'} {join_words(settings.layers)}"
    return (
        f"Over {pluralize(results['pairs'], 'pair')} of photographs, VGG-16 {layers}: BiLRP with the "
        f"paper's rules is better "
        f"than another method in {counts['wins']} comparisons of measure, layer and method, worse in {counts['loses']}"
        f"{f' (against {losses})' if losses else ''}, and not clearly different in {counts['no clear difference']}."
        f"{describe_insensitivity(results, settings)}{_small_sample_note(results)}"
    )


def tabulate_misses(results: Mapping[str, Any], settings: FaithfulnessSettings) -> Block:
    """Return a table of the comparisons that BiLRP does not win."""
    names = method_titles(settings)
    rows = [
        (measure_label(measure), layer, names[method], c["verdict"], *_format_difference(c))
        for layer, measure, method, c in iterate_comparisons(results)
        if c["verdict"] != "wins"
    ]
    if not rows:
        return "Nowhere: it wins every comparison."
    caption = "BiLRP with the paper's rules minus the other method, pair by pair."
    return Table(["measure", "layer", "against", "BiLRP", "difference", "95 % interval"], rows, caption)


def _format_difference(cell: Mapping[str, float]) -> tuple[str, str]:
    return f"{cell['mean']:+.3f}", f"{cell['low']:+.3f}{RANGE_SEPARATOR}{cell['high']:+.3f}"


def describe_insensitivity(results: Mapping[str, Any], settings: FaithfulnessSettings) -> str:
    """Return a sentence for each layer whose explanations hardly change when all weights are randomised."""
    result = {
        layer: results["table"][str(layer)]["bilrp"]["randomisation"]["mean"] for layer in settings.layers
    }
    return "".join(
        f" At layer {layer} its explanations keep a rank correlation of {value:.2f} when all weights are random: most of "
        "their order shows where things are, not what the network has learned."
        for layer, value in result.items()
        if value > 0.5
    )


def iterate_comparisons(results: Mapping[str, Any]) -> Iterator[tuple[str, Measure, str, Mapping[str, Any]]]:
    """Yield (layer, measure, other method, difference) for every comparison of BiLRP."""
    by_key = {m.key: m for m in MEASURES}
    for layer, measures in results["bilrp_against"].items():
        for key, methods in measures.items():
            for method, result in methods.items():
                if result is not None:
                    yield layer, by_key[key], method, result


def _table(results: Mapping[str, Any], settings: FaithfulnessSettings) -> Table:
    names = method_titles(settings)
    rows = {
        (measure_label(measure), layer): {
            method: results["table"][str(layer)][method][measure.key] for method in METHODS
        }
        for layer in settings.layers
        for measure in MEASURES
    }
    caption = (
        f"Mean and 95 % bootstrap interval over {pluralize(results['pairs'], 'pair')}. ↑ more is better, ↓ less is better. "
        f"Chance for the positive share is {results['chance']['warp']:.3f} (warp) and {results['chance']['planted']:.4f} "
        "(planted); 0 for the signed shares."
    )
    return tabulate_intervals(
        ["measure", "layer", *(names[m] for m in METHODS)], rows, list(METHODS), caption, digits=3
    )


def _warps(results: Mapping[str, Any], settings: FaithfulnessSettings) -> Table:
    names = method_titles(settings)
    rows = [
        (kind, layer, *(_format_shares(results["warps"][kind][str(layer)][method]) for method in METHODS))
        for kind, _ in WARPS
        if kind in results["warps"]
        for layer in settings.layers
    ]
    header = ["warp", "layer", *(names[m] for m in METHODS)]
    return Table(header, rows, "Positive / signed share on true matches, mean over pairs.")


def _cascade(results: Mapping[str, Any], settings: FaithfulnessSettings) -> Table:
    names = method_titles(settings)
    rows = {
        (f"block {block}" + ("" if block == top else f" to {top}"), layer): {
            method: results["cascade"][layer][method][block] for method in METHODS
        }
        for layer in results["cascade"]
        for top in [next(iter(results["cascade"][layer]["bilrp"]))]
        for block in results["cascade"][layer]["bilrp"]
    }
    caption = (
        f"Absolute rank correlation with the explanation of the network whose blocks of convolutions, from the top "
        f"down, hold random weights: mean and 95 % interval over "
        f"{pluralize(results['cascade_pairs'], 'pair')} that share no "
        "picture."
    )
    return tabulate_intervals(
        ["random", "layer", *(names[m] for m in METHODS)], rows, list(METHODS), caption, digits=3
    )


def _format_shares(cell: Mapping[str, float]) -> str:
    return f"{cell['warp_positive']:.3f} / {cell['warp_signed']:+.3f}"


def _small_sample_note(results: Mapping[str, Any]) -> str:
    return (
        ""
        if results["pairs"] >= 40
        else f" Only {pluralize(results['pairs'], 'pair')}: too few to rest a conclusion on."
    )


def _protocol(
    results: Mapping[str, Any], settings: FaithfulnessSettings, photographs: FolderContents
) -> list[str]:
    exact = "exactly" if settings.project is None else f"through a random projection to {settings.project}"
    return [
        f"{len(photographs.items)} photographs at {settings.size}×{settings.size} pixels, regions of "
        f"{settings.regions}×{settings.regions}, decomposed {exact}. Pairs are neighbours in a chain of similar "
        "pictures (cosine at the highest layer). Two pairs in a row share a picture, so the intervals resample blocks of "
        f"{BLOCK_PAIRS} neighbours, each of which holds every kind of warp once. They are not corrected for the number of "
        "comparisons: of twenty that mean nothing, one looks as if it did.",
        f"Deletion and insertion: {pluralize(settings.steps, 'step')}, both pictures at once, towards a blur; area in units "
        "of the similarity of the whole pictures. Regions go (or come) in the order in which the explanation's own account "
        "of what is left falls (or rises) fastest. The edges of what was blurred are features too, and are on the same "
        "grid in both pictures: an order that scatters regions makes more of them and raises the similarity, which "
        "favours it in insertion and not in deletion. So the random order stands for chance, not the height ½.",
        "Known warps, in turn: shift by an eighth, flip, rotation by 20°, crop to 80 %; a match counts within one "
        "region. These models compare place with place: where a warp moves things further than a layer's features "
        "reach, as a flip does, the model itself does not see the match, and no explanation of it can. Planted: a patch "
        "of about a third of the width, cut from one picture and pasted into the other in the same place.",
        "Random weights: every layer redrawn with its own mean and spread; the absolute rank correlation of the two "
        "explanations. A layer whose features are local relates neighbouring places whatever its weights are, and an "
        "explanation that says so keeps its order; one that is mostly noise loses it. Noise: normal, "
        f"{settings.noise:g} × the spread of the picture, on both. Saliency looks at pixels only: it cannot notice "
        "random weights, and noise hardly moves it.",
        *photographs.notes,
    ]
