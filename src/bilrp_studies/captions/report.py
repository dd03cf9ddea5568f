"""The report of the captions study: what the model has learnt, both games with intervals, losses, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bilrp.explanation import explain
from bilrp.render.figure import plot
from bilrp_studies.captions.methods import OURS, Method
from bilrp_studies.captions.caption_model import BATCH, Model
from bilrp_studies.captions.pointing_game import CHANCE, Row, gathered
from bilrp_studies.captions.retrieval import Retrieved
from bilrp_studies.captions.scenes import MOST, Scene
from bilrp_studies.captions.settings import CaptionsSettings
from bilrp_studies.common.drawing import blank
from bilrp.render.report import Picture, Report, Section, Table, Text, listed
from bilrp_studies.common.bootstrap import interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTS = range(1, MOST + 1)
GAMES = {"all named": "Scenes that show what is named", "four drawn": "Four objects drawn, some named"}
MEASURES = {"pointing": "strongest patch inside the box", "share": "positive relevance inside the box"}
FEW = 5  # scenes: a bootstrap interval over fewer says nothing
FIXLIP = "FIxLIP .83 .82 .84 .86, exCLIP .73 .88 .89 .92, Grad-ECLIP .68 .45 .33 .28"
Rows = Mapping[str, Mapping[int, Sequence[Row]]]
Means = Mapping[str, Mapping[str, Mapping[int, Mapping[str, tuple[float, float, float]]]]]


def write(
    settings: CaptionsSettings,
    compared: Sequence[Method],
    model: Model,
    learnt: Retrieved,
    rows: Rows,
    shown: Sequence[Scene],
) -> Report:
    """Tables, figures, and the numbers behind them."""
    values = {
        measure: {
            game: {count: gathered(found, which) for count, found in by_count.items()}
            for game, by_count in rows.items()
        }
        for which, measure in enumerate(MEASURES)
    }
    means = {
        measure: {
            game: {
                count: {name: interval(each, seed=settings.seed) for name, each in found.items()}
                for count, found in by_count.items()
            }
            for game, by_count in games.items()
        }
        for measure, games in values.items()
    }
    rivals = [
        row
        for measure, games in values.items()
        for game, by_count in games.items()
        for count, found in by_count.items()
        for row in against(found, measure=measure, game=game, count=count, seed=settings.seed)
    ]
    names = [method.name for method in compared]
    sections = [
        Section("Has the model learnt its task?", [Text(_learnt(learnt)), _retrieval(learnt)]),
        Section("What matched", [*_pictures(model, shown)]),
        Section("The pointing game", [_figure(means, names), *_tables(means, names, settings)]),
        Section("Ours against each other method, scene by scene", [_differences(rivals)]),
        Section("How it was done", [Text(text) for text in _method(settings, compared)]),
    ]
    results = {
        "settings": settings.decisive(),
        "retrieval": {
            "accuracy": learnt.accuracy,
            "by_objects": learnt.by_objects,
            "of": learnt.of,
            "captions": learnt.captions,
            "relations": learnt.relations,
            "learnt": learnt.learnt,
        },
        "means": means,
        "against": rivals,
        "values": values,
    }
    title = "Captions: which words go with which region?"
    return Report(title, summary(means, rivals, learnt), sections, results)


def against(
    found: Mapping[str, Sequence[float]], *, measure: str, game: str, count: int, seed: int
) -> list[dict[str, Any]]:
    """How much better ours is than each other method on the same scenes, with its interval."""
    compared = []
    for name, theirs in found.items():
        if name not in (OURS, CHANCE):
            better = [x - y for x, y in zip(found[OURS], theirs, strict=True)]
            mean, low, high = interval(better, seed=seed)
            clear = len(better) >= FEW and (low > 0 or high < 0)
            compared.append(
                {"measure": measure, "game": game, "objects": count, "method": name}
                | {"better": mean, "low": low, "high": high, "clear": clear}
            )
    return compared


def summary(means: Means, rivals: Sequence[Mapping[str, Any]], learnt: Retrieved) -> str:
    """What the numbers say, whichever way they fall."""
    figures = "; ".join(
        f"{GAMES[game].lower()} {' '.join(f'{by_count[count][OURS][0]:.2f}' for count in by_count)}"
        for game, by_count in means["pointing"].items()
    )
    warning = "" if learnt.learnt else f"{_doubt(learnt)} "
    return (
        f"{warning}For the words of an object, the strongest relevance of {OURS} lies in that object's box this often, "
        f"with 1 to {MOST} named objects: {figures}. {_losses(rivals)}"
    )


def _losses(rivals: Sequence[Mapping[str, Any]]) -> str:
    """In how many comparisons of the pointing game ours is better, worse or neither, and every clear loss by name."""
    played = [row for row in rivals if row["measure"] == "pointing"]
    better = sum(row["clear"] and row["better"] > 0 for row in played)
    lost = [row for row in played if row["clear"] and row["better"] < 0]
    behind = [row for row in played if not row["clear"] and row["better"] < 0]
    by_method: dict[str, list[str]] = {}
    for row in lost:
        by_method.setdefault(row["method"], []).append(
            f"{-row['better']:.2f} ({GAMES[row['game']].lower()}, {row['objects']})"
        )
    named = "; ".join(f"{name} by {listed(each)}" for name, each in by_method.items())
    said = f"It loses clearly to {named}." if lost else "No method is clearly better in any of them."
    ahead = sorted({row["method"] for row in behind})
    close = f" Within chance, it is behind in {len(behind)}, to {listed(ahead)}." if behind else ""
    shares = [row for row in rivals if row["measure"] == "share"]
    less = [row for row in shares if row["better"] < 0]
    clearly = sum(row["clear"] for row in less)
    share = (
        f" By the share of relevance in the box it is behind {listed(sorted({row['method'] for row in less}))} in "
        f"{len(less)} of {len(shares)}, clearly in {clearly}."
        if less
        else ""
    )
    return f"Of {len(played)} comparisons with other methods it is clearly better in {better}. {said}{close}{share}"


def _doubt(learnt: Retrieved) -> str:
    return (
        f"The model has NOT learnt its task (only {100 * learnt.accuracy:.0f} % of new scenes find their caption), so its "
        "explanations have no truth to be measured by, and the figures below say little: train for longer."
    )


def _learnt(learnt: Retrieved) -> str:
    said = (
        f"{100 * learnt.accuracy:.0f} % of {learnt.of} new scenes find their own caption among {learnt.captions} "
        f"different ones (chance: {100 / learnt.captions:.1f} %). Given a caption and the same with its relations turned "
        f"round (left for right, above for below), the model prefers the true one in {100 * learnt.relations:.0f} % "
        "(chance: 50 %)."
    )
    return said if learnt.learnt else f"{_doubt(learnt)} {said}"


def _retrieval(learnt: Retrieved) -> Table:
    header = ["objects", *map(str, range(1, len(learnt.by_objects) + 1))]
    row = ["scenes that find their caption", *(f"{100 * share:.0f} %" for share in learnt.by_objects)]
    return Table(header, [row])


def _pictures(model: Model, shown: Sequence[Scene]) -> list[Picture]:
    pictures = []
    for number, scene in enumerate(shown, 1):
        found = explain(model.towers, scene, scene.caption)
        caption = f"“{scene.caption}”: what in the scene goes with which words, by {OURS}."
        pictures.append(Picture(f"scene-{number}.png", plot(found), caption))
    return pictures


def _tables(means: Means, names: Sequence[str], settings: CaptionsSettings) -> list[Table]:
    tables = []
    for measure, about in MEASURES.items():
        for game, title in GAMES.items():
            by_count = means[measure][game]
            rows = [
                [name, *(_shown(by_count[count][name]) for count in by_count)] for name in (*names, CHANCE)
            ]
            caption = (
                f"{title}: {about}, by the number of named objects. Means over {settings.scenes} scenes each, with 95 % "
                "bootstrap intervals over scenes."
            )
            tables.append(Table(["method", *map(str, by_count)], rows, caption))
    return tables


def _shown(found: tuple[float, float, float]) -> str:
    return f"{found[0]:z.2f} ({found[1]:z.2f} to {found[2]:z.2f})"


def _differences(rivals: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            row["method"],
            GAMES[row["game"]].lower(),
            row["objects"],
            f"{row['better']:+.2f}",
            f"{row['low']:+.2f} to {row['high']:+.2f}",
            ("better" if row["better"] > 0 else "WORSE") if row["clear"] else "unclear",
        ]
        for row in rivals
        if row["measure"] == "pointing"
    ]
    header = ["against", "game", "named", "better by", "95 % interval", f"{OURS} is"]
    return Table(header, rows, "The pointing game: paired differences on the same scenes.")


def _method(settings: CaptionsSettings, compared: Sequence[Method]) -> list[str]:
    about = "; ".join(f"{method.name}: {method.about}" for method in compared)
    return [
        f"Scenes are 64×64 pixels on grey with grain; objects differ in colour and in shape within a scene, so that each of "
        f"their words goes with one of them only. The image tower is a small convolutional network that ends in 8×8 places, "
        f"the text tower two attention blocks; both are trained by symmetric cross-entropy for {settings.steps} steps of "
        f"{BATCH} new scenes, and never told where anything is. Seed {settings.seed}.",
        "The relevance of an object's words (its colour and its shape, summed) is looked at on all 64 patches. The "
        "game is won where the strongest patch has its middle in the object's box. The second measure is the share of "
        "positive relevance that lies on such patches.",
        f"Methods: {about}.",
        "In the second game four objects are always drawn and one to four of them are named, as FIxLIP has it with four "
        f"photographs. Published figures for CLIP on those photographs, 1 to 4 objects: {FIXLIP}. They are of another model "
        "and other pictures, and can't be compared with those here.",
    ]


def _figure(means: Means, names: Sequence[str]) -> Picture:
    """A panel for each game: the pointing game over the number of named objects, a line for each method."""
    figure: Figure = blank((9.2, 3.9))
    axes = figure.subplots(1, len(GAMES), sharey=True)
    shades = ("#b2182b", "#2166ac", "#1b7837", "#e08214", "#762a83", "#878787", "#bababa")
    for axis, (game, title) in zip(axes, GAMES.items(), strict=True):
        by_count = means["pointing"][game]
        for place, name in enumerate((*names, CHANCE)):
            at = [count + 0.05 * (place - len(names) / 2) for count in by_count]
            mean, low, high = zip(*(by_count[count][name] for count in by_count), strict=True)
            ours, colour = name == OURS, "#111111" if name == CHANCE else shades[place % len(shades)]
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
