"""The report of the photographs study: one figure per pair, layers side by side, then the stereo pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bilrp.explanation import Explanation
from bilrp.render import page
from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.image_folders import SkippedFile
from bilrp_studies.common.study_report import Block, build_study_report, join_words, pluralize
from bilrp_studies.photos.figures import plot_side_by_side
from bilrp_studies.photos.nearest_neighbours import ExplainedPair, NearestNeighbours
from bilrp_studies.photos.settings import PhotosSettings
from bilrp_studies.photos.stereo_agreement import StereoAgreement

StereoResults = Mapping[int, Mapping[str, tuple[Explanation, StereoAgreement]]]  # by layer, by method


def build_report(
    paths: Sequence[Path],
    skipped: Mapping[Path, str],
    neighbours: Mapping[int, NearestNeighbours],
    pairs: Sequence[ExplainedPair],
    stereo: StereoResults,
    settings: PhotosSettings,
) -> Report:
    """Build the report of a finished study.

    Args:
        paths: The photographs used.
        skipped: Reason for each unreadable photograph.
        neighbours: Similarities of all photographs, by layer.
        pairs: The explained pairs.
        stereo: Explanations of the stereo pair and their agreement with the true matches, by layer and method.
        settings: The settings of the study.
    """
    layers = settings.layers
    sections: dict[str, list[Block]] = {}
    attachments = {}
    for position, pair in enumerate(pairs, 1):
        sections[" and ".join(pair.names)] = [
            _pair_picture(position, pair, layers),
            _pair_table(pair, layers),
        ]
        attachments |= {
            f"pair-{position}-layer-{n}.html": page.render_html(pair.explanations[n], names=pair.names)
            for n in layers
        }
    sections["Does it match what truly corresponds?"] = _stereo_blocks(stereo, layers)
    attachments |= {f"stereo-layer-{n}.html": page.render_html(stereo[n]["BiLRP"][0]) for n in layers}
    results = {
        "images": [path.name for path in paths],
        "pairs": [_pair_results(pair, layers) for pair in pairs],
        "nearest": {n: [neighbours[n].nearest_to(i) for i in range(len(paths))] for n in layers},
        "stereo": {
            n: {
                name: asdict(agreement) | {"ratio": agreement.ratio}
                for name, (_, agreement) in methods.items()
            }
            for n, methods in stereo.items()
        },
    }
    return build_study_report(
        "Photographs: which parts match?",
        _describe_results(len(paths), len(pairs), stereo, settings),
        sections,
        settings=settings,
        results=results,
        skipped=[SkippedFile(str(path), reason) for path, reason in skipped.items()],
        attachments=attachments,
    )


def _describe_results(
    photo_count: int, pair_count: int, stereo: StereoResults, settings: PhotosSettings
) -> str:
    nearest = "The nearest pair" if pair_count == 1 else f"The {pair_count} nearest pairs"
    text = [
        f"{result.share:.0%} at layer {n} ({result.ratio:.0f} times chance)".replace("%", " %")
        for n, result in ((n, methods["BiLRP"][1]) for n, methods in stereo.items())
    ]
    return (
        f"{pluralize(photo_count, 'photograph')} at {settings.size} × {settings.size} pixels. {nearest} at layer "
        f"{max(settings.layers)} of VGG-16 (cosine, no image twice), and what "
        f"{'layer' if len(settings.layers) == 1 else 'layers'} {join_words(settings.layers)} "
        f"{'matches' if len(settings.layers) == 1 else 'match'} in {'it' if pair_count == 1 else 'them'}. "
        "Red joins regions that make the images more similar, blue those that make them less similar. On a stereo pair, "
        f"where the true matches are known, the share of positive relevance within one region of them is {join_words(text)}."
    )


def _pair_picture(number: int, pair: ExplainedPair, layers: Sequence[int]) -> Picture:
    drawn = plot_side_by_side([pair.explanations[n] for n in layers], [f"layer {n}" for n in layers])
    caption = "What each layer matches. Open the page of a layer to explore it."
    return Picture(f"pair-{number}.png", drawn, caption, link=f"pair-{number}-layer-{max(layers)}.html")


def _pair_table(pair: ExplainedPair, layers: Sequence[int]) -> Table:
    rows = []
    for n in layers:
        e = pair.explanations[n]
        mutual = "yes" if pair.is_mutual_nearest[n] else "no"
        rows.append((n, e.score, e.explained / e.score, e.unattributed / e.score, mutual))
    return Table(("layer", "cosine", "explained", "unattributed", "nearest to each other"), rows)


def _pair_results(pair: ExplainedPair, layers: Sequence[int]) -> dict[str, Any]:
    return {
        "a": pair.names[0],
        "b": pair.names[1],
        "layers": {
            n: {
                "cosine": pair.explanations[n].score,
                "unattributed": pair.explanations[n].unattributed,
                "mutual_nearest": pair.is_mutual_nearest[n],
                "top": [tuple(match) for match in pair.explanations[n].top(5)],
            }
            for n in layers
        },
    }


def _stereo_blocks(stereo: StereoResults, layers: Sequence[int]) -> list[Block]:
    rows = [
        (n, name, value.share, value.chance, value.ratio, value.signed_share, value.same_place)
        for n in layers
        for name, (_, value) in stereo[n].items()
    ]
    shares = ("share near the true match", "chance", "× chance", "signed share", "if nothing moved")
    drawn = plot_side_by_side([stereo[n]["BiLRP"][0] for n in layers], [f"layer {n}" for n in layers])
    text = (
        "Two photographs of one scene from two places: where each point went is known. The share of positive "
        "relevance that lands within one region of the true match, for BiLRP and for Hessian×Product; chance is "
        "what even spreading would give. The signed share takes off what negative relevance cancels. The last column "
        "is what matching every region to its own place would give."
    )
    picture = Picture("stereo.png", drawn, "The stereo pair.", link=f"stereo-layer-{max(layers)}.html")
    return [text, Table(("layer", "method", *shares), rows), picture]
