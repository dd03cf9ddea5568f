"""`bilrp audit`: is the model matching watermarks?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilrp.cli.options import AsJson, OwnEncoder, OwnWeights
from bilrp.cli.console import say

if TYPE_CHECKING:
    import numpy as np

    from bilrp.collection import Collection
    from bilrp.collection.audit import Audit
    from bilrp.render.report import Report

SHOWN = 3  # suspects and clusters with pictures
EXAMPLES = 2


def audit(
    collection: Annotated[str, typer.Argument(metavar="NAME.lance", help="What `bilrp index` made.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="Where the report goes.")
    ] = "out/audit",
    sample: Annotated[int, typer.Option(min=3, help="Items whose nearest neighbour is explained.")] = 64,
    encoder: OwnEncoder = None,
    weights: OwnWeights = None,
    json: AsJson = False,
) -> None:
    """Where does the similarity of near neighbours sit: on captions, borders, stamps? bilrp audit photos.lance"""
    from bilrp.collection import open

    found = open(collection, encoder, weights=weights)
    result = found.audit(sample=sample, progress=sys.stderr.isatty())
    if json:
        import json as numbers

        print(numbers.dumps(results(result)))
    else:
        say(told(found, result))
    page = report(found, result, collection).write(Path(output))
    if not json:
        say(f"  wrote {page}")


def results(result: Audit) -> dict[str, Any]:
    """The numbers of an audit."""
    return {
        "pairs": len(result.pairs),
        "unattributed": result.unattributed,
        "suspects": [
            {
                "kind": s.kind,
                "where": s.where,
                "share": s.share,
                "area": s.area,
                "pairs": len(s.pairs),
                "changed": s.changed,
            }
            for s in result.suspects
        ],
    }


def told(found: Collection, result: Audit) -> str:
    """What was found, in a few lines."""
    head = f"{len(result.pairs)} pairs of near neighbours, of {len(found)} items"
    if not result.suspects:
        return f"{head}: nothing looks like a shortcut."
    return "\n".join([f"{head}:", *(f"  {n + 1}. {s}" for n, s in enumerate(result.suspects))])


def report(found: Collection, result: Audit, name: str) -> Report:
    from bilrp.render import figure
    from bilrp.render.report import Picture, Report, Section, Table, Text

    sections = [
        Section(
            "Where similarity sits",
            [
                Picture(
                    "places.png",
                    places(found, result.places),
                    "Relevance of all pairs, over the mean picture.",
                )
            ],
        )
    ]
    rows = [(s.where, s.share, s.area, len(s.pairs), s.changed) for s in result.suspects]
    header = ("part", "share of the relevance", "share of the area", "pairs", "other neighbour without it")
    if rows:
        sections.append(Section("What looks like a shortcut", [Table(header, rows, "The worst first.")]))
    for number, suspect in enumerate(result.suspects[:SHOWN]):
        blocks: list[Text | Table | Picture] = [Text(f"{suspect}.")]
        blocks.append(
            Picture(f"suspect-{number + 1}.png", places(found, suspect.mask.astype(float)), "The part.")
        )
        for example, (i, j) in enumerate(suspect.pairs[:EXAMPLES]):
            drawn = figure.plot(found.explain(i, j, similarity="cosine"))
            caption = f"{found.names[i]} and {found.names[j]}."
            blocks.append(Picture(f"suspect-{number + 1}-{example + 1}.png", drawn, caption))
        sections.append(Section(suspect.where, blocks))
    for number, cluster in enumerate(result.clusters[:SHOWN]):
        i, j = cluster.pairs[0]
        blocks = [
            Picture(f"cluster-{number + 1}.png", places(found, cluster.places), f"The mean of {len(cluster.pairs)} pairs."),
            Picture(
                f"cluster-{number + 1}-pair.png", figure.plot(found.explain(i, j, similarity="cosine")),
                f"The most typical pair: {found.names[i]} and {found.names[j]}.",
            ),
        ]  # fmt: skip
        sections.append(Section(f"Pairs that match in the same places, group {number + 1}", blocks))
    return Report(f"Audit of {name}", told(found, result), sections, results=results(result))


def places(found: Collection, values: np.ndarray) -> Any:
    """A map of places over the mean of some pictures."""
    import numpy as np
    from matplotlib.figure import Figure

    from bilrp.inputs import Image

    views = [found.view(p) for p in range(min(len(found), 64))]
    seen = [view.seen((256, 256)).mean(2) for view in views if isinstance(view, Image)]
    drawn = Figure(figsize=(4.2, 3.6), dpi=160, layout="constrained")
    axes = drawn.subplots()
    axes.imshow(np.mean(seen, axis=0), cmap="gray", vmin=-120, vmax=300, extent=(0, 1, 1, 0))
    shown = axes.imshow(
        values / (values.mean() or 1.0),
        cmap="Reds",
        alpha=0.6,
        vmin=0,
        extent=(0, 1, 1, 0),
        interpolation="nearest",
    )
    drawn.colorbar(shown, ax=axes, label="× the mean of all places", shrink=0.85)
    axes.set_axis_off()
    return drawn
