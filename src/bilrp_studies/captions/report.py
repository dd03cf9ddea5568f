"""The report of the captions study: retrieval accuracy, both games with intervals, comparisons, and example images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bilrp.explanation import explain
from bilrp.render.figure import plot
from bilrp.render.report import Picture, Report, Table
from bilrp_studies.captions.caption_model import BATCH_SCENES, CaptionModel
from bilrp_studies.captions.methods import OUR_METHOD, Method
from bilrp_studies.captions.pointing_game import CHANCE, Row, collect_values
from bilrp_studies.captions.retrieval import RetrievalResult
from bilrp_studies.captions.scenes import MAX_OBJECTS, Scene
from bilrp_studies.captions.settings import CaptionsSettings
from bilrp_studies.common.bootstrap import bootstrap_mean
from bilrp_studies.common.drawing import new_figure
from bilrp_studies.common.study_report import build_study_report, join_words, tabulate_intervals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBJECT_COUNTS = range(1, MAX_OBJECTS + 1)
GAMES = {"all named": "Scenes that show what is named", "four drawn": "Four objects drawn, some named"}
MEASURES = {"pointing": "strongest patch inside the box", "share": "positive relevance inside the box"}
MIN_INTERVAL_SCENES = 5  # a bootstrap interval over fewer scenes is meaningless
FIXLIP = "FIxLIP .83 .82 .84 .86, exCLIP .73 .88 .89 .92, Grad-ECLIP .68 .45 .33 .28"
Rows = Mapping[str, Mapping[int, Sequence[Row]]]
Values = Mapping[str, Mapping[str, Mapping[int, Mapping[str, list[float]]]]]
Means = Mapping[str, Mapping[str, Mapping[int, Mapping[str, tuple[float, float, float]]]]]


def build_report(
    settings: CaptionsSettings,
    methods: Sequence[Method],
    model: CaptionModel,
    retrieval: RetrievalResult,
    rows: Rows,
    example_scenes: Sequence[Scene],
) -> Report:
    """Build the report: tables, figures, and the numbers behind them.

    Args:
        settings: The settings of the study.
        methods: The compared methods, in the order of the tables.
        model: The explained model.
        retrieval: Its retrieval accuracy.
        rows: Scores of each scene, by game and number of named objects.
        example_scenes: Scenes whose explanations are shown.
    """
    values = _collect_values(rows)
    means = _compute_means(values, settings.seed)
    rivals = [
        row
        for measure, games in values.items()
        for game, by_count in games.items()
        for count, result in by_count.items()
        for row in compare_with_others(result, measure=measure, game=game, count=count, seed=settings.seed)
    ]
    names = [method.name for method in methods]
    sections = {
        "Has the model learnt its task?": [_describe_retrieval(retrieval), _retrieval_table(retrieval)],
        "What matched": _pictures(model, example_scenes),
        "The pointing game": [_figure(means, names), *_tables(means, names, settings)],
        "Ours against each other method, scene by scene": [_differences(rivals)],
    }
    results = {
        "retrieval": {
            "accuracy": retrieval.accuracy,
            "by_objects": retrieval.accuracy_by_objects,
            "of": retrieval.scene_count,
            "captions": retrieval.caption_count,
            "relations": retrieval.relation_accuracy,
            "learnt": retrieval.is_trained,
        },
        "means": means,
        "against": rivals,
        "values": values,
    }
    return build_study_report(
        "Captions: which words go with which region?",
        describe_results(means, rivals, retrieval),
        sections,
        settings=settings,
        results=results,
        protocol=_describe_protocol(settings, methods),
    )


def _collect_values(rows: Rows) -> Values:
    """Return the scores of each method, by measure, game and number of named objects."""
    return {
        measure: {
            game: {count: collect_values(result, which) for count, result in by_count.items()}
            for game, by_count in rows.items()
        }
        for which, measure in enumerate(MEASURES)
    }


def _compute_means(values: Values, seed: int) -> Means:
    """Return the mean of each method with its confidence interval, by measure, game and number of named objects."""
    return {
        measure: {
            game: {
                count: {name: bootstrap_mean(each, seed=seed) for name, each in result.items()}
                for count, result in by_count.items()
            }
            for game, by_count in games.items()
        }
        for measure, games in values.items()
    }


def compare_with_others(
    scores: Mapping[str, Sequence[float]], *, measure: str, game: str, count: int, seed: int
) -> list[dict[str, Any]]:
    """Return the mean paired difference between BiLRP and each other method on the same scenes, with its interval.

    Args:
        scores: One value per scene, by method.
        measure, game, count: Copied to each returned row; `count` is the number of named objects.
        seed: Seed of the bootstrap.
    """
    compared = []
    for name, theirs in scores.items():
        if name not in (OUR_METHOD, CHANCE):
            better = [x - y for x, y in zip(scores[OUR_METHOD], theirs, strict=True)]
            mean, low, high = bootstrap_mean(better, seed=seed)
            clear = len(better) >= MIN_INTERVAL_SCENES and (low > 0 or high < 0)
            compared.append(
                {"measure": measure, "game": game, "objects": count, "method": name}
                | {"better": mean, "low": low, "high": high, "clear": clear}
            )
    return compared


def describe_results(
    means: Means, comparisons: Sequence[Mapping[str, Any]], retrieval: RetrievalResult
) -> str:
    """Return a paragraph that summarises the results, wins and losses alike.

    Args:
        means: Mean and interval by measure, game, number of named objects and method.
        comparisons: Rows of `compare_with_others`.
        retrieval: Retrieval accuracy of the model; below the minimum the paragraph starts with a warning.
    """
    figures = "; ".join(
        f"{GAMES[game].lower()} {' '.join(f'{by_count[count][OUR_METHOD][0]:.2f}' for count in by_count)}"
        for game, by_count in means["pointing"].items()
    )
    warning = "" if retrieval.is_trained else f"{_describe_untrained(retrieval)} "
    return (
        f"{warning}For the words of an object, the strongest relevance of {OUR_METHOD} is in that "
        f"object's box this often, "
        f"with 1 to {MAX_OBJECTS} named objects: {figures}. {_describe_losses(comparisons)}"
    )


def _describe_losses(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Count the wins and losses of BiLRP in the pointing game; every significant loss is named."""
    played = [row for row in comparisons if row["measure"] == "pointing"]
    better = sum(row["clear"] and row["better"] > 0 for row in played)
    lost = [row for row in played if row["clear"] and row["better"] < 0]
    behind = [row for row in played if not row["clear"] and row["better"] < 0]
    by_method: dict[str, list[str]] = {}
    for row in lost:
        by_method.setdefault(row["method"], []).append(
            f"{-row['better']:.2f} ({GAMES[row['game']].lower()}, {row['objects']})"
        )
    named = "; ".join(f"{name} by {join_words(each)}" for name, each in by_method.items())
    text = f"It loses clearly to {named}." if lost else "No method is clearly better in any of them."
    ahead = sorted({row["method"] for row in behind})
    close = f" Within chance, it is behind in {len(behind)}, to {join_words(ahead)}." if behind else ""
    shares = [row for row in comparisons if row["measure"] == "share"]
    less = [row for row in shares if row["better"] < 0]
    clearly = sum(row["clear"] for row in less)
    share = (
        f" By the share of relevance in the box it is behind {join_words(sorted({row['method'] for row in less}))} in "
        f"{len(less)} of {len(shares)}, clearly in {clearly}."
        if less
        else ""
    )
    return f"Of {len(played)} comparisons with other methods it is clearly better in {better}. {text}{close}{share}"


def _describe_untrained(retrieval: RetrievalResult) -> str:
    return (
        f"The model has NOT learnt its task (only {100 * retrieval.accuracy:.0f} % of new scenes find their "
        f"caption), so its "
        "explanations have no truth to be measured by, and the figures below say little: train for longer."
    )


def _describe_retrieval(retrieval: RetrievalResult) -> str:
    text = (
        f"{100 * retrieval.accuracy:.0f} % of {retrieval.scene_count} new scenes find their own caption "
        f"among {retrieval.caption_count} "
        f"different ones (chance: {100 / retrieval.caption_count:.1f} %). Given a caption and the same with "
        f"its relations turned "
        f"round (left for right, above for below), the model prefers the true one in "
        f"{100 * retrieval.relation_accuracy:.0f} % "
        "(chance: 50 %)."
    )
    return text if retrieval.is_trained else f"{_describe_untrained(retrieval)} {text}"


def _retrieval_table(retrieval: RetrievalResult) -> Table:
    header = ["objects", *map(str, range(1, len(retrieval.accuracy_by_objects) + 1))]
    row = [
        "scenes that find their caption",
        *(f"{100 * share:.0f} %" for share in retrieval.accuracy_by_objects),
    ]
    return Table(header, [row])


def _pictures(model: CaptionModel, scenes: Sequence[Scene]) -> list[Picture]:
    pictures = []
    for number, scene in enumerate(scenes, 1):
        explanation = explain(model.dual_encoder, scene, scene.caption, similarity="dot")
        caption = f"“{scene.caption}”: what in the scene goes with which words, by {OUR_METHOD}."
        pictures.append(Picture(f"scene-{number}.png", plot(explanation), caption))
    return pictures


def _tables(means: Means, names: Sequence[str], settings: CaptionsSettings) -> list[Table]:
    tables = []
    for measure, about in MEASURES.items():
        for game, title in GAMES.items():
            by_count = means[measure][game]
            rows = {name: {count: by_count[count][name] for count in by_count} for name in (*names, CHANCE)}
            caption = (
                f"{title}: {about}, by the number of named objects. Means over {settings.scenes} scenes each, with 95 % "
                "bootstrap intervals over scenes."
            )
            tables.append(tabulate_intervals(["method", *map(str, by_count)], rows, list(by_count), caption))
    return tables


def _differences(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            row["method"],
            GAMES[row["game"]].lower(),
            row["objects"],
            f"{row['better']:+.2f}",
            f"{row['low']:+.2f} to {row['high']:+.2f}",
            ("better" if row["better"] > 0 else "WORSE") if row["clear"] else "unclear",
        ]
        for row in comparisons
        if row["measure"] == "pointing"
    ]
    header = ["against", "game", "named", "better by", "95 % interval", f"{OUR_METHOD} is"]
    return Table(header, rows, "The pointing game: paired differences on the same scenes.")


def _describe_protocol(settings: CaptionsSettings, methods: Sequence[Method]) -> list[str]:
    about = "; ".join(f"{method.name}: {method.description}" for method in methods)
    return [
        f"Scenes are 64×64 pixels on grey with grain; objects differ in colour and in shape within a scene, so that each of "
        f"their words goes with one of them only. The image tower is a small convolutional network that ends in 8×8 places, "
        f"the text tower two attention blocks; both are trained by symmetric cross-entropy for {settings.steps} steps of "
        f"{BATCH_SCENES} new scenes, and never told where anything is. Seed {settings.seed}.",
        "The relevance of an object's words (its colour and its shape, summed) is looked at on all 64 patches. The "
        "game is won where the strongest patch has its middle in the object's box. The second measure is the share of "
        "positive relevance on such patches.",
        f"Methods: {about}.",
        "In the second game four objects are always drawn and one to four of them are named, as FIxLIP has it with four "
        f"photographs. Published figures for CLIP on those photographs, 1 to 4 objects: {FIXLIP}. They are of another model "
        "and other pictures, and can't be compared with those here.",
    ]


def _figure(means: Means, names: Sequence[str]) -> Picture:
    """Plot the pointing game over the number of named objects: one panel per game, one line per method."""
    figure: Figure = new_figure((9.2, 3.9))
    axes = figure.subplots(1, len(GAMES), sharey=True)
    shades = ("#b2182b", "#2166ac", "#1b7837", "#e08214", "#762a83", "#878787", "#bababa")
    for axis, (game, title) in zip(axes, GAMES.items(), strict=True):
        by_count = means["pointing"][game]
        for position, name in enumerate((*names, CHANCE)):
            at = [count + 0.05 * (position - len(names) / 2) for count in by_count]
            mean, low, high = zip(*(by_count[count][name] for count in by_count), strict=True)
            ours, colour = name == OUR_METHOD, "#111111" if name == CHANCE else shades[position % len(shades)]
            axis.plot(
                at, mean, ":" if name == CHANCE else "-", color=colour, lw=2.2 if ours else 1.1, label=name
            )
            if name != CHANCE:
                axis.vlines(at, low, high, color=colour, lw=2.2 if ours else 1.1)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("named objects", fontsize=9)
        axis.set_xticks(list(by_count))
        axis.set_ylim(-0.02, 1.02)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(MEASURES["pointing"], fontsize=9)
    figure.subplots_adjust(left=0.07, right=0.80, bottom=0.13, top=0.92, wspace=0.06)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right", frameon=False, fontsize=8.5)
    return Picture("pointing.png", figure, "Means and 95 % intervals over scenes; ours in red.")
