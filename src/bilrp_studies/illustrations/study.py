"""Illustrations study: two drawings whose content is equal up to a rotation have a high similarity. What carries it?

Fixed elements (border, tick marks, centre) and the ring in which something rotates are two regions, so that the relevance of
their four pairs adds up to the score. What the network itself makes of a rotation is measured on drawings of the rotating
part alone: its cosine, compared with the rotating parts of other diagrams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bilrp.encoder import Encoder, read_item
from bilrp.encoders import registry
from bilrp.explanation import explain, pair
from bilrp.pipeline import decompose_item
from bilrp.progress import Progress, progress_bar
from bilrp.regions import labels as by_labels
from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.drawing import new_figure
from bilrp_studies.common.study_report import Block, build_study_report
from bilrp_studies.illustrations.diagrams import FIXED, ROTATING, Diagram, draw_diagram, label_parts
from bilrp_studies.illustrations.settings import IllustrationsSettings

HEADER = ("encoder", "angle", "cosine", "fixed with fixed", "rotating with rotating", "one with the other",
          "cosine, rotating part alone", "other diagrams' parts", "invariance")  # fmt: skip
KEYS = ("cosine", "fixed", "rotating", "cross", "alone", "others", "invariance")


def run(settings: IllustrationsSettings) -> Report:
    """Run the whole study and return its report.

    >>> run(IllustrationsSettings()).results["rows"][0]["fixed"]  # doctest: +SKIP
    """
    diagrams = [draw_diagram(settings.seed + n) for n in range(settings.diagrams)]
    rows: list[dict[str, Any]] = []
    pictures: list[Block] = []
    names = settings.encoders.split(",")
    with progress_bar(settings.progress) as bar:
        for name in names:
            weights = str(settings.weights) if settings.weights and name.startswith("vgg16") else None
            encoder = registry.load(name, size=settings.size, weights=weights)
            bar.start(name, len(diagrams) * (len(settings.angles) + 1))
            rows += measure_encoder(name, encoder, diagrams, settings.angles, bar)
            pictures.append(_draw_pair(name, encoder, diagrams[0], settings.angles[-1]))
    table = [(row["encoder"], row["angle"], *(row[key] for key in KEYS)) for row in rows]
    curves = Picture(
        "shares.png", _plot_shares(rows), "Shares of the relevance by angle; 0 is the same drawing twice."
    )
    return build_study_report(
        "What carries the similarity of illustrations that are rotated?",
        describe_result(rows),
        {"Shares of the relevance": [curves, Table(HEADER, table)], "Pairs": pictures},
        settings=settings,
        results={"rows": rows, "fixed_area": float((label_parts(settings.size, settings.size) == FIXED).mean())},
        protocol=(
            "Regions: the ring in which something rotates, and all other pixels. Shares are of the relevance of all pairs, "
            "mean over the diagrams. Invariance: (c − o) / (1 − o) with the cosine c of the rotating part alone before and "
            "after, and the mean cosine o of the rotating parts of different diagrams; 1 is fully invariant, 0 no better "
            "than another part.",
        ),
    )  # fmt: skip


def measure_encoder(
    name: str, encoder: Encoder, diagrams: Sequence[Diagram], angles: Sequence[int], bar: Progress
) -> list[dict[str, Any]]:
    """Return one row for each angle, 0 first.

    Args:
        name: Name of the encoder.
        encoder: The encoder.
        diagrams: The diagrams.
        angles: Angles in degrees.
        bar: Progress bar.
    """
    alone = {
        angle: [_embed(encoder, each, angle) for each in diagrams] for angle in dict.fromkeys((0, *angles))
    }
    others = _mean_between(alone[0])
    shares: dict[int, list[np.ndarray]] = {angle: [] for angle in alone}
    scores: dict[int, list[float]] = {angle: [] for angle in alone}
    for diagram in diagrams:
        sides = {}
        for angle in alone:
            item = read_item(encoder, diagram.draw(angle))
            mask = torch.from_numpy(label_parts(*item.x.shape[-2:]))
            sides[angle] = decompose_item(encoder, item, regions=by_labels(mask))[None]
            bar.advance()
        for angle, side in sides.items():
            explanation = pair(sides[0], side, similarity="cosine")
            relevance = explanation.relevance.double().numpy()
            shares[angle].append(relevance / relevance.sum())
            scores[angle].append(explanation.score)
    rows = []
    for angle in alone:
        mean = np.mean(shares[angle], axis=0)
        own = float(np.mean([a @ b for a, b in zip(alone[0], alone[angle], strict=True)]))
        rows.append({
            "encoder": name, "angle": angle, "cosine": float(np.mean(scores[angle])),
            "fixed": float(mean[FIXED, FIXED]), "rotating": float(mean[ROTATING, ROTATING]),
            "cross": float(mean[FIXED, ROTATING] + mean[ROTATING, FIXED]),
            "alone": own, "others": others, "invariance": (own - others) / (1 - others) if others < 1 else 0.0,
        })  # fmt: skip
    return rows


@torch.no_grad()
def _embed(encoder: Encoder, diagram: Diagram, angle: float) -> np.ndarray:
    """Return the unit embedding of a drawing of the rotating part alone."""
    x = read_item(encoder, diagram.draw(angle, frame=False)).x
    embedding = encoder.module(x).flatten().double().numpy()
    return embedding / np.linalg.norm(embedding)


def _mean_between(units: Sequence[np.ndarray]) -> float:
    """Return the mean cosine of different diagrams."""
    products = np.array(units) @ np.array(units).T
    return float(products[~np.eye(len(units), dtype=bool)].mean())


def describe_result(rows: Sequence[dict[str, Any]]) -> str:
    """Return for each encoder how much of a rotated pair fixed elements carry, and how invariant it is."""
    sentences = []
    for name in dict.fromkeys(row["encoder"] for row in rows):
        same, *turned = [row for row in rows if row["encoder"] == name]
        mean = {key: float(np.mean([row[key] for row in turned or [same]])) for key in KEYS}
        sentences.append(
            f"{name}: cosine {mean['cosine']:.2f} after a rotation; fixed elements carry {mean['fixed']:.0%} of the "
            f"relevance (unrotated {same['fixed']:.0%}), the rotating part with itself {mean['rotating']:.0%} (unrotated "
            f"{same['rotating']:.0%}); its own invariance of the rotating part alone is {mean['invariance']:.2f}."
        )
    return " ".join(sentences).replace("%", " %")


def _draw_pair(name: str, encoder: Encoder, diagram: Diagram, angle: int) -> Picture:
    """Return the explanation of one rotated pair on the encoder's own regions."""
    explanation = explain(encoder, diagram.draw(), diagram.draw(angle), similarity="cosine")
    figure = explanation.plot(names=("drawing", f"rotated by {angle}°"), title=name)
    return Picture(
        f"{name.replace(':', '-')}.png", figure, f"{name}: a drawing and the same, its inner part rotated."
    )


def _plot_shares(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw the three shares by angle, one panel for each encoder."""
    names = list(dict.fromkeys(row["encoder"] for row in rows))
    figure = new_figure((3.2 * len(names), 3.0))
    for number, name in enumerate(names, 1):
        axes = figure.add_subplot(1, len(names), number)
        own = sorted((row for row in rows if row["encoder"] == name), key=lambda row: row["angle"])
        for key, label in (("fixed", "fixed"), ("rotating", "rotating"), ("cross", "one with the other")):
            axes.plot([row["angle"] for row in own], [row[key] for row in own], marker="o", label=label)
        axes.plot([row["angle"] for row in own], [row["cosine"] for row in own], "k:", label="cosine")
        axes.set(title=name, xlabel="angle in degrees", ylim=(-0.1, 1.05))
        axes.axhline(0, color="0.7", linewidth=0.8)
        if number == 1:
            axes.set_ylabel("share of the relevance")
            axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure
