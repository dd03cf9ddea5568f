"""The study of photographs as a page: a picture for each pair, layers side by side, then the stereo pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilrp.explanation import Explanation
from bilrp.render import figure, page
from bilrp.render.report import Picture, Report, Section, Table, Text, counted, listed
from bilrp_studies.photos.nearest_neighbours import Neighbours, Pair
from bilrp_studies.photos.settings import PhotosSettings
from bilrp_studies.photos.stereo_agreement import Agreement

Stereo = Mapping[int, Mapping[str, tuple[Explanation, Agreement]]]  # by layer, by method


def write(
    paths: Sequence[Path],
    skipped: Mapping[Path, str],
    neighbours: Mapping[int, Neighbours],
    pairs: Sequence[Pair],
    stereo: Stereo,
    settings: PhotosSettings,
) -> Report:
    """The report of a finished study."""
    layers = settings.layers
    sections, attachments = [], {}
    for place, pair in enumerate(pairs, 1):
        blocks: list[Any] = [_pair_picture(place, pair, layers), _pair_table(pair, layers)]
        sections.append(Section(f"{pair.names[0]} and {pair.names[1]}", blocks))
        attachments |= {
            f"pair-{place}-layer-{n}.html": page.html(pair.explained[n], names=pair.names) for n in layers
        }
    sections.append(_stereo_section(stereo, layers))
    attachments |= {f"stereo-layer-{n}.html": page.html(stereo[n]["BiLRP"][0]) for n in layers}
    results = {
        "images": [path.name for path in paths],
        "layers": list(layers),
        "size": settings.size,
        "pairs": [_pair_numbers(pair, layers) for pair in pairs],
        "nearest": {n: [neighbours[n].of(i) for i in range(len(paths))] for n in layers},
        "stereo": {
            n: {name: _numbers(agreement) for name, (_, agreement) in methods.items()}
            for n, methods in stereo.items()
        },
        "skipped": [{"file": str(path), "reason": reason} for path, reason in skipped.items()],
    }
    title = "Photographs: which parts match?"
    return Report(title, _summary(len(paths), len(pairs), stereo, settings), sections, results, attachments)


def _summary(photographs: int, pairs: int, stereo: Stereo, settings: PhotosSettings) -> str:
    nearest = "The nearest pair" if pairs == 1 else f"The {pairs} nearest pairs"
    said = [
        f"{found.share:.0%} at layer {n} ({found.ratio:.0f} times chance)".replace("%", " %")
        for n, found in ((n, methods["BiLRP"][1]) for n, methods in stereo.items())
    ]
    return (
        f"{counted(photographs, 'photograph')} at {settings.size} × {settings.size} pixels. {nearest} at layer "
        f"{max(settings.layers)} of VGG-16 (cosine, no image twice), and what "
        f"{'layer' if len(settings.layers) == 1 else 'layers'} {listed(settings.layers)} "
        f"{'matches' if len(settings.layers) == 1 else 'match'} in {'it' if pairs == 1 else 'them'}. "
        "Red joins regions that make the images more similar, blue those that make them less similar. On a stereo pair, "
        f"where the true matches are known, the share of positive relevance within one region of them is {listed(said)}."
    )


def _pair_picture(place: int, pair: Pair, layers: Sequence[int]) -> Picture:
    drawn = figure.panels([pair.explained[n] for n in layers], [f"layer {n}" for n in layers])
    caption = "What each layer matches. Open the page of a layer to explore it."
    return Picture(f"pair-{place}.png", drawn, caption, link=f"pair-{place}-layer-{max(layers)}.html")


def _pair_table(pair: Pair, layers: Sequence[int]) -> Table:
    rows = []
    for n in layers:
        e = pair.explained[n]
        mutual = "yes" if pair.mutual[n] else "no"
        rows.append((n, e.score, e.explained / e.score, e.unattributed / e.score, mutual))
    return Table(("layer", "cosine", "explained", "unattributed", "nearest to each other"), rows)


def _pair_numbers(pair: Pair, layers: Sequence[int]) -> dict[str, Any]:
    return {
        "a": pair.names[0],
        "b": pair.names[1],
        "layers": {
            n: {
                "cosine": pair.explained[n].score,
                "unattributed": pair.explained[n].unattributed,
                "mutual_nearest": pair.mutual[n],
                "top": [tuple(match) for match in pair.explained[n].top(5)],
            }
            for n in layers
        },
    }


def _stereo_section(stereo: Stereo, layers: Sequence[int]) -> Section:
    rows = [
        (n, name, value.share, value.chance, value.ratio, value.signed, value.same_place)
        for n in layers
        for name, (_, value) in stereo[n].items()
    ]
    header = (
        "layer",
        "method",
        "share near the true match",
        "chance",
        "× chance",
        "signed share",
        "if nothing moved",
    )
    drawn = figure.panels([stereo[n]["BiLRP"][0] for n in layers], [f"layer {n}" for n in layers])
    text = (
        "Two photographs of one scene from two places: where each point went is known. The share of positive "
        "relevance that lands within one region of the true match, for BiLRP and for Hessian×Product; chance is "
        "what even spreading would give. The signed share takes off what negative relevance cancels. The last column "
        "is what matching every region to its own place would give."
    )
    picture = Picture("stereo.png", drawn, "The stereo pair.", link=f"stereo-layer-{max(layers)}.html")
    return Section("Does it match what truly corresponds?", (Text(text), Table(header, rows), picture))


def _numbers(value: Agreement) -> dict[str, float]:
    return {
        "share": value.share,
        "signed": value.signed,
        "chance": value.chance,
        "times_chance": value.ratio,
        "same_place": value.same_place,
    }
