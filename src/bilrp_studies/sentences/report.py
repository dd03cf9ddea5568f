"""The report of the sentences study: every measure with its interval, wins and losses, unattributed shares, examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.bootstrap import bootstrap_mean
from bilrp_studies.common.study_report import build_study_report, tabulate_intervals
from bilrp_studies.sentences.methods import OUR_METHOD, Method
from bilrp_studies.sentences.settings import SentencesSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# {measure: (description, whether higher is better)}
MEASURES = {
    "Shapley": ("correlation with exact Shapley values of word pairs", True),
    "selections": ("correlation with the similarity of random selections of words", True),
    "deletion": (
        "area under the similarity while the most relevant words of one sentence are deleted",
        False,
    ),
    "planted word": ("share of a planted word with itself, of all that speaks for the score", True),
    "planted synonym": ("share of a planted word with its synonym", True),
    "noun matching": ("cosine with the true pairs, encoder trained to count common nouns (ACS)", True),
    "selections, long": ("the same as selections, sentences of 18 to 32 words", True),
    "deletion, long": ("the same as deletion, sentences of 18 to 32 words", False),
}
# shares of the score: on pairs of words, on pairs with a special token, the rest
SCORE_PARTS = ("words", "special tokens", "unattributed")
MIN_EXPLAINED_VARIANCE = 0.4  # on new pairs; below it noun matching has no reliable ground truth
MIN_INTERVAL_PAIRS = 5  # a bootstrap interval over fewer pairs is meaningless
REFERENCE_NAMES = ("Shapley", "random order", "chance")  # reference values, not competing methods
Values = Mapping[str, Mapping[str, Sequence[float]]]


def build_report(
    settings: SentencesSettings,
    methods: Sequence[Method],
    values: Values,
    *,
    passes_per_token: Mapping[str, float],
    explained_variance: float | None,
    examples: Sequence[Sequence[Any]],
) -> Report:
    """Build the report: tables, a figure, and the numbers behind them.

    Args:
        settings: The settings of the study.
        methods: The compared methods, in the order of the tables.
        values: {measure: {method: one value per pair}}.
        passes_per_token: Cost of a decomposition in forward passes per token, by method.
        explained_variance: Explained variance of the noun matcher; None if it was not trained.
        examples: Rows of the table of examples.
    """
    requested = {name: about for name, about in MEASURES.items() if name in values}
    means = {
        measure: {
            name: bootstrap_mean(list(result), seed=settings.seed) for name, result in values[measure].items()
        }
        for measure in requested
    }
    left = {
        method: {part: sum(values[part][method]) / len(values[part][method]) for part in SCORE_PARTS}
        for method in values[SCORE_PARTS[0]]
    }
    rivals = {
        measure: compare_with_others(values[measure], requested[measure][1], settings.seed)
        for measure in requested
    }
    sections = {
        "Every method under every measure": [_figure(means, methods), *_tables(means, methods, values)],
        "Ours against each other method, pair by pair": [_differences(rivals)],
        "What adds up to the score, and what it costs": [_score_table(left, passes_per_token)],
        "Positions: constants, or a part of their word?": [_describe_positions(means, left)],
        "Eight pairs": [_examples(examples)],
    }
    results = {
        "encoder": settings.encoder,
        "means": means,
        "against": rivals,
        "left_over": left,
        "passes_per_token": passes_per_token,
        "noun_matching_fit": explained_variance,
        "values": values,
    }
    return build_study_report(
        "Sentences: which rules tell the truth?",
        describe_results(means, rivals, passes_per_token),
        sections,
        settings=settings,
        results=results,
        protocol=_describe_protocol(settings, explained_variance),
    )


def compare_with_others(
    values: Mapping[str, Sequence[float]], higher_is_better: bool, seed: int
) -> dict[str, dict[str, Any]]:
    """Return the mean paired difference between ours and each other method, with its interval and number of wins.

    Args:
        values: One value per pair, by method.
        higher_is_better: Direction of the measure; positive differences always favour ours.
        seed: Seed of the bootstrap.
    """
    ours = values.get(OUR_METHOD, ())
    sign = 1 if higher_is_better else -1
    compared = {}
    for name, theirs in values.items():
        if name == OUR_METHOD or len(theirs) != len(ours):
            continue
        better = [sign * (x - y) for x, y in zip(ours, theirs, strict=True)]
        mean, low, high = bootstrap_mean(better, seed=seed)
        wins = sum(value > 0 for value in better)
        compared[name] = {"better": mean, "low": low, "high": high, "wins": wins, "of": len(better)}
    return compared


def describe_results(
    means: Mapping[str, Any], comparisons: Mapping[str, Any], passes_per_token: Mapping[str, float]
) -> str:
    text = ", ".join(f"{name} {result[OUR_METHOD][0]:.2f}" for name, result in means.items())
    clearly, perhaps = (
        "; ".join(
            f"{name} on {measure} by {-row['better']:.3f}"
            for measure, rows in comparisons.items()
            for name, row in rows.items()
            if name not in REFERENCE_NAMES and row["better"] < 0 and _is_significant(row) == clear
        )
        for clear in (True, False)
    )
    losses = f"It loses clearly to {clearly}." if clearly else "No method is clearly better on any measure."
    close = f" Ahead of it within chance: {perhaps}." if perhaps else ""
    return (
        f"{OUR_METHOD}: {text}, at {passes_per_token.get(OUR_METHOD, 0):.2f} passes a token. {losses}{close}"
    )


def _is_significant(row: Mapping[str, Any]) -> bool:
    """Return whether the interval of the difference excludes zero and is based on enough pairs."""
    return row["of"] >= MIN_INTERVAL_PAIRS and (row["high"] < 0 or row["low"] > 0)


def _tables(means: Mapping[str, Any], methods: Sequence[Method], values: Values) -> list[Table]:
    known = [method.name for method in methods]
    others = sorted({name for result in means.values() for name in result} - set(known))
    tables = []
    for group in (
        ("Shapley", "selections", "deletion"),
        ("planted word", "planted synonym", "noun matching"),
        ("selections, long", "deletion, long"),
    ):
        here = [measure for measure in group if measure in means]
        rows = {
            name: {measure: means[measure][name] for measure in here if name in means[measure]}
            for name in (*known, *others)
            if any(name in means[measure] for measure in here)
        }
        pairs = ", ".join(
            f"{len(next(iter(values[measure].values())))} pairs for {measure}" for measure in here
        )
        arrows = [f"{measure} {'↑' if MEASURES[measure][1] else '↓'}" for measure in here]
        what = "; ".join(f"{measure}: {MEASURES[measure][0]}" for measure in here)
        if here:
            caption = f"Mean and 95 % bootstrap interval; {pairs}. {what}."
            tables.append(tabulate_intervals(["method", *arrows], rows, here, caption, digits=3))
    return tables


def _differences(comparisons: Mapping[str, Any]) -> Table:
    rows = [
        [
            measure,
            name,
            row["better"],
            f"{row['low']:.3f} to {row['high']:.3f}",
            f"{row['wins']} of {row['of']}",
        ]
        for measure, others in comparisons.items()
        for name, row in others.items()
    ]
    header = ["measure", "against", "better by", "95 % interval", "pairs won"]
    return Table(header, rows, f"Paired differences, positive where {OUR_METHOD} is better.")


def _score_table(
    score_shares: Mapping[str, Mapping[str, float]], passes_per_token: Mapping[str, float]
) -> Table:
    rows = [
        [name, *(f"{100 * result[part]:.1f} %" for part in SCORE_PARTS), passes_per_token[name]]
        for name, result in score_shares.items()
    ]
    return Table(
        ["rules", "on pairs of words", "with special tokens", "unattributed", "passes a token"],
        rows,
        "Shares of the score, means over the short pairs. Work is counted in multiplications of the whole decomposition, "
        "divided by those of running the sentence once, divided by its tokens.",
    )


def _describe_positions(means: Mapping[str, Any], score_shares: Mapping[str, Mapping[str, float]]) -> str:
    summed = f"{OUR_METHOD}, sum"
    both = [
        f"{measure} {result[OUR_METHOD][0]:.3f} and {result[summed][0]:.3f}"
        for measure, result in means.items()
        if summed in result
    ]
    return (
        "Position and token type vectors are the same for every text. Left out of the input, what they contribute is "
        f"unattributed ({100 * score_shares[OUR_METHOD]['unattributed']:.1f} % of the score together with "
        f"the biases); counted with "
        f"their token, {100 * score_shares[summed]['unattributed']:.1f} % is. In the same order: {'; '.join(both)}. "
        'The default, features="word", says what a word does by being this word.'
    )


def _examples(rows: Sequence[Sequence[Any]]) -> Table:
    strongest = "strongest pairs of words, share of the score"
    return Table(["first sentence", "second sentence", "cosine", strongest], rows)


def _describe_protocol(settings: SentencesSettings, explained_variance: float | None) -> list[str]:
    texts = [
        f"The encoder is {settings.encoder}; scores are dot products of its embeddings (cosines where it normalises). Pairs "
        "come from the STS benchmark's dev file, rated 2 or more by people, no sentence twice. Words that are left out "
        "are deleted: masked words resemble each other by their masks.",
        "The similarity is bilinear, so the product of two sentences' Shapley values (every coordinate, all selections of "
        "words) is the exact value of each pair of words.",
    ]
    if explained_variance is not None:
        texts.append(
            f"Noun matching: the upper half of the layers and a linear head were trained for {settings.steps} steps to "
            f"make the dot product count the nouns two sentences share; on new pairs it explains "
            f"{100 * explained_variance:.0f} % of "
            "their variance. The relevance should be on equal nouns."
            + (
                " It has not learnt that well, so this measure says little: train for longer."
                if explained_variance < MIN_EXPLAINED_VARIANCE
                else ""
            )
        )
    return texts


def _figure(means: Mapping[str, Any], methods: Sequence[Method]) -> Picture:
    """Plot one panel per measure, one row per method, a marker with its interval."""
    from matplotlib.figure import Figure

    names = [method.name for method in methods][::-1]
    across = min(4, len(means))
    down = -(-len(means) // across)
    figure: Figure = Figure(figsize=(2.6 * across + 1.4, 2.5 * down), layout="constrained")
    axes = figure.subplots(down, across, sharey=True, squeeze=False)
    for axis in axes.flat[len(means) :]:
        axis.set_visible(False)
    for axis, (measure, result) in zip(axes.flat, means.items(), strict=False):
        for position, name in enumerate(names):
            if name in result:
                mean, low, high = result[name]
                colour = "#b2182b" if name == OUR_METHOD else "#4d4d4d"
                axis.plot([low, high], [position, position], color=colour, linewidth=1.5)
                axis.plot(mean, position, "o", color=colour, markersize=4.5)
        axis.set_title(f"{measure} {'→ better' if MEASURES[measure][1] else '← better'}", fontsize=9)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.tick_params(axis="x", labelsize=8)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right", "left"]].set_visible(False)
    return Picture("measures.png", figure, "Means and 95 % intervals over pairs; ours in red.")
