"""The report of the arena: where the default is behind, then every method on every ground truth with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bilrp.render.report import Report, Table
from bilrp_studies.arena.methods import OUR_METHOD, RANKING_METHODS
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.truth import COVER_MEASURES
from bilrp_studies.common.bootstrap import block_bootstrap_mean
from bilrp_studies.common.study_report import (
    Block,
    build_study_report,
    format_interval,
    pluralize,
    tabulate_intervals,
)

Row = Mapping[str, Any]
Values = dict[tuple[str, str], dict[str, dict[str, dict[int, list[float]]]]]
"""(encoder, truth) → measure → method → group → one value per pair."""

MATCH_MEASURES = ("× chance", "signed", "hit", "AUC")
ONLY_DEFAULT_CHECKED = ", only the default checked"
CHECKED = ", checked"
COMPARISONS = {  # of what is covered: the default's measure, that of the others
    "": ("fall", "fall"),
    ", by region": ("fall by region", "fall by region"),
    ONLY_DEFAULT_CHECKED: ("fall, checked", "fall"),
    CHECKED: ("fall, checked", "fall, checked"),
}
VERDICTS = ("behind", "lower", "unclear", "higher", "ahead")
MIN_GROUPS = 5  # with fewer independent pairs the bootstrap says nothing
EQUAL_FALL = 1e-6  # falls that differ by less are the same
MEANINGS = {
    "× chance": "positive relevance on true matches, as a multiple of what constant relevance has",
    "signed": "relevance on true matches over the sum of absolute relevance; noise that cancels has 0",
    "hit": "how often the strongest partner of a region (of a chunk, of a word) is a true match",
    "AUC": "how often a true match has more relevance than another pair",
    "fall": "by how much the score falls when the first findings are covered, an eighth of the regions of one side at a "
    "time (at least three), the same number for every method",
    "fall by region": "the same, with the regions that have the most relevance in sum, whatever they match",
    "fall, checked": "the same, with regions that were chosen with the model (`Explanation.find_needed_regions`): the first "
    "of the findings, those with the most relevance, or those of that half that lower the score most when covered alone",
    "unattributed": "share of the score that no pair of regions has: what any two inputs share, biases and constants; not "
    "compared",
}


def build_report(rows: Sequence[Row], settings: ArenaSettings) -> Report:
    """Build the report from the measures of every method on every pair."""
    values = collect_values(rows)
    table = summarize_values(values, settings)
    comparisons = compare_methods(values, settings)
    by_kind = {kind: compare_covering(rows, settings, *measures) for kind, measures in COMPARISONS.items()}
    covering = {f"{encoder}{kind}": by for kind, each in by_kind.items() for encoder, by in each.items()}
    results = {
        "table": {f"{encoder} | {truth}": by for (encoder, truth), by in table.items()},
        "comparisons": comparisons,
        "covering": covering,
        "rows": list(rows),
    }
    lower = [_comparison_table(comparisons, verdict) for verdict in VERDICTS[:3]]
    sections = {
        "The default and the best other method, losses first": [_overview_table(comparisons, table)],
        "Where the default is behind": lower,
        "Covering the first findings": [_covering_table(covering)] if covering else [],
        **{f"{encoder}: {truth}": [_truth_table(by)] for (encoder, truth), by in table.items()},
    }
    counts = {verdict: sum(each["verdict"] == verdict for each in comparisons) for verdict in VERDICTS}
    summary = (
        f"The default is behind another method in {pluralize(counts['behind'], 'comparison')}, ahead in {counts['ahead']}, "
        f"not told apart in {counts['unclear']} (95 % bootstrap intervals of the difference); with too few pairs to tell, "
        f"lower in {counts['lower']} and higher in {counts['higher']}."
    )
    if covering:
        held = [
            ", ".join(f"{encoder} {by['every other']['mean']:.0%}" for encoder, by in by_kind[kind].items())
            for kind in ("", ONLY_DEFAULT_CHECKED, CHECKED)
        ]
        summary += (
            f" Without the regions of its first findings the score falls as far as under every other's on {held[0]} "
            f"of the pairs. If the model chooses among the regions with the most relevance, for the default alone, on "
            f"{held[1]}; for every method, on {held[2]}."
        )
    return build_study_report(
        "Which method finds what is known to match?",
        summary,
        sections,
        settings=settings,
        results=results,
        protocol=[f"{name}: {text}." for name, text in MEANINGS.items()],
    )


def collect_values(rows: Iterable[Row]) -> Values:
    """Return the values by encoder and truth; warps of all kinds together and apart."""
    values: Values = {}
    for row in rows:
        truths = [row["truth"], "warp"] if row["truth"].startswith("warp: ") else [row["truth"]]
        for truth in truths:
            by = values.setdefault((row["encoder"], truth), {})
            for method, measures in row["methods"].items():
                for measure, value in measures.items():
                    if measure == "unattributed" and method in RANKING_METHODS:
                        continue
                    groups = by.setdefault(measure, {}).setdefault(method, {})
                    groups.setdefault(row["group"], []).append(value)
    return values


def summarize_values(values: Values, settings: ArenaSettings) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(encoder, truth): {method: {measure: {"mean", "low", "high", "pairs"}}}}; groups are resampled."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for key, by_measure in values.items():
        for measure, by_method in by_measure.items():
            for method, groups in by_method.items():
                interval = _interval(group_means(groups), settings) | {
                    "pairs": sum(map(len, groups.values()))
                }
                table.setdefault(key, {}).setdefault(method, {})[measure] = interval
    return table


def compare_methods(values: Values, settings: ArenaSettings) -> list[dict[str, Any]]:
    """Return the difference default − other with its interval, for every truth, measure and method: losses first."""
    items = []
    for (encoder, truth), by_measure in values.items():
        if truth.startswith("warp: "):
            continue
        for measure in (*MATCH_MEASURES, *COVER_MEASURES):
            by_method = by_measure.get(measure, {})
            ours = by_method.get(OUR_METHOD)
            for method, groups in by_method.items():
                if ours is None or method == OUR_METHOD:
                    continue
                both = zip(group_means(ours), group_means(groups), strict=True)
                difference = _interval([x - y for x, y in both], settings)
                verdict = judge_difference(difference, len(ours))
                means = [sum(group_means(each)) / len(each) for each in (ours, groups)]
                items.append(
                    {
                        "encoder": encoder, "truth": truth, "measure": measure, "other": method, "verdict": verdict,
                        "ours": means[0], "theirs": means[1], "difference": difference,
                    }
                )  # fmt: skip
    return sorted(items, key=lambda each: (VERDICTS.index(each["verdict"]), each["difference"]["mean"]))


def judge_difference(difference: Mapping[str, float], groups: int) -> str:
    """Return "behind" or "ahead" if 0 is outside of the interval, "lower" or "higher" with too few groups to tell.

    Args:
        difference: default − other, with "mean", "low" and "high".
        groups: number of independent pairs or photographs behind it.

    >>> judge_difference({"mean": -0.2, "low": -0.3, "high": -0.1}, 20)
    'behind'
    """
    if groups < MIN_GROUPS and difference["mean"] != 0:
        return "lower" if difference["mean"] < 0 else "higher"
    return "behind" if difference["high"] < 0 else "ahead" if difference["low"] > 0 else "unclear"


def compare_covering(
    rows: Iterable[Row], settings: ArenaSettings, measure: str = "fall", others: str = "fall"
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by encoder and other method, the share of pairs whose score falls more without the default's regions.

    Equal falls count half: methods that find the same regions have the same. "every other" is the share of pairs where
    the default's fall is at least that of all others at once, "more than every other" where it is more. Pairs without a
    score under cover are left out. Each has "mean", "low", "high" and "pairs".

    Args:
        rows: the measures of every method on every pair.
        settings: the settings of the study.
        measure: the default's measure, one of COVER_MEASURES.
        others: the measure of the other methods.
    """
    held: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        falls = {name: each[others] for name, each in row["methods"].items() if others in each}
        falls.pop(OUR_METHOD, None)
        ours = row["methods"].get(OUR_METHOD, {}).get(measure)
        if ours is None or not falls or not all(map(math.isfinite, (ours, *falls.values()))):
            continue
        by, best = held.setdefault(row["encoder"], {}), max(falls.values())
        for name, fall in falls.items():
            by.setdefault(name, []).append(0.5 if abs(ours - fall) <= EQUAL_FALL else float(ours > fall))
        by.setdefault("every other", []).append(float(ours >= best - EQUAL_FALL))
        by.setdefault("more than every other", []).append(float(ours > best + EQUAL_FALL))
    return {
        encoder: {name: _interval(each, settings) | {"pairs": len(each)} for name, each in by.items()}
        for encoder, by in held.items()
    }


def group_means(groups: Mapping[int, Sequence[float]]) -> list[float]:
    """Return the mean of each group.

    >>> group_means({0: [1.0, 3.0], 1: [5.0]})
    [2.0, 5.0]
    """
    return [sum(values) / len(values) for _, values in sorted(groups.items())]


def _interval(values: Sequence[float], settings: ArenaSettings) -> dict[str, float]:
    return block_bootstrap_mean(values, resamples=settings.resamples, seed=settings.seed)


def choose_best_others(comparisons: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return, for each encoder, truth and measure, the comparison with the best other method: losses first."""
    best: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for each in comparisons:
        key = each["encoder"], each["truth"], each["measure"]
        if key not in best or each["theirs"] > best[key]["theirs"]:
            best[key] = each
    return [each for each in comparisons if any(each is chosen for chosen in best.values())]


def _overview_table(
    comparisons: Sequence[Mapping[str, Any]], table: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Table:
    rows = []
    for each in choose_best_others(comparisons):
        by_method = table[each["encoder"], each["truth"]]
        both = [format_interval(by_method[name][each["measure"]]) for name in (OUR_METHOD, each["other"])]
        where = (each["encoder"], each["truth"], each["measure"])
        rows.append((*where, both[0], each["other"], both[1], each["verdict"]))
    caption = "Mean and 95 % interval. The verdict is by the interval of the difference on the same pairs."
    return Table(
        ("encoder", "truth", "measure", "default", "best other", "its value", "default is"), rows, caption
    )


def _comparison_table(comparisons: Sequence[Mapping[str, Any]], verdict: str) -> Block:
    chosen = [each for each in comparisons if each["verdict"] == verdict and each["difference"]["mean"] < 0]
    if not chosen:
        return f"{verdict}: in no comparison."
    rows = [
        (
            each["encoder"], each["truth"], each["measure"], each["other"], each["ours"], each["theirs"],
            format_interval(each["difference"]),
        )
        for each in chosen
    ]  # fmt: skip
    caption = {
        "behind": "The interval of the difference is below 0.",
        "lower": f"Lower, with fewer than {MIN_GROUPS} independent pairs.",
        "unclear": "Lower, but within chance.",
    }[verdict]
    return Table(
        ("encoder", "truth", "measure", "other method", "default", "other", "difference"), rows, caption
    )


def _covering_table(covering: Mapping[str, Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for by in covering.values() for name in by))
    rows = [
        (encoder, *(format_interval(by[name]) if name in by else None for name in names))
        for encoder, by in covering.items()
    ]
    caption = (
        "Share of pairs whose score falls more without the default's regions than without another's, equal falls count "
        "half; every method covers the same number of regions. What is covered is said behind the encoder: by default the "
        "first findings, else see the measures."
    )
    return Table(("encoder", *names), rows, caption)


def _truth_table(by_method: Mapping[str, Mapping[str, Any]]) -> Table:
    measures = [name for name in MEANINGS if any(name in each for each in by_method.values())]
    pairs = next(iter(next(iter(by_method.values())).values()))["pairs"]
    caption = f"Mean and 95 % interval over {pluralize(pairs, 'pair')}."
    return tabulate_intervals(("method", *measures), by_method, measures, caption)
