"""`bilrp audit`: is the model matching watermarks?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import AsJson, CollectionEncoder, CollectionWeights

if TYPE_CHECKING:
    import numpy as np

    from bilrp.collection import Collection
    from bilrp.collection.audit import Audit
    from bilrp.render.report import Report

MAX_ILLUSTRATED = 3  # suspects and clusters with pictures
MAX_EXAMPLE_PAIRS = 2


def audit(
    collection: Annotated[str, typer.Argument(metavar="NAME.lance", help="What `bilrp index` made.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="Where the report goes.")
    ] = "out/audit",
    sample: Annotated[int, typer.Option(min=3, help="Items whose nearest neighbour is explained.")] = 64,
    encoder: CollectionEncoder = None,
    weights: CollectionWeights = None,
    as_json: AsJson = False,
) -> None:
    """Where does the similarity of near neighbours sit: on captions, borders, stamps? bilrp audit photos.lance"""
    from bilrp.collection import open

    found = open(collection, encoder, weights=weights)
    result = found.audit(sample=sample, progress=sys.stderr.isatty())
    if as_json:
        import json as numbers

        print(numbers.dumps(collect_results(result)))
    else:
        print_safe(format_audit(found, result))
    page = build_report(found, result, collection).write(Path(output))
    if not as_json:
        print_safe(f"  wrote {page}")


def collect_results(result: Audit) -> dict[str, Any]:
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


def format_audit(collection: Collection, result: Audit) -> str:
    """What was found, in a few lines."""
    head = f"{len(result.pairs)} pairs of near neighbours, of {len(collection)} items"
    if not result.suspects:
        return f"{head}: nothing looks like a shortcut."
    return "\n".join([f"{head}:", *(f"  {n + 1}. {s}" for n, s in enumerate(result.suspects))])


def build_report(collection: Collection, result: Audit, name: str) -> Report:
    from bilrp.render import figure
    from bilrp.render.report import Paragraph, Picture, Report, Section, Table

    sections = [
        Section(
            "Where similarity sits",
            [
                Picture(
                    "places.png",
                    plot_relevance_map(collection, result.mean_map),
                    "Relevance of all pairs, over the mean picture.",
                )
            ],
        )
    ]
    rows = [(s.where, s.share, s.area, len(s.pairs), s.changed) for s in result.suspects]
    header = ("part", "share of the relevance", "share of the area", "pairs", "other neighbour without it")
    if rows:
        sections.append(Section("What looks like a shortcut", [Table(header, rows, "The worst first.")]))
    for number, suspect in enumerate(result.suspects[:MAX_ILLUSTRATED]):
        blocks: list[Paragraph | Table | Picture] = [Paragraph(f"{suspect}.")]
        blocks.append(
            Picture(
                f"suspect-{number + 1}.png",
                plot_relevance_map(collection, suspect.mask.astype(float)),
                "The part.",
            )
        )
        for example, (i, j) in enumerate(suspect.pairs[:MAX_EXAMPLE_PAIRS]):
            drawn = figure.plot(collection.explain(i, j))
            caption = f"{collection.names[i]} and {collection.names[j]}."
            blocks.append(Picture(f"suspect-{number + 1}-{example + 1}.png", drawn, caption))
        sections.append(Section(suspect.where, blocks))
    for number, cluster in enumerate(result.clusters[:MAX_ILLUSTRATED]):
        i, j = cluster.pairs[0]
        blocks = [
            Picture(f"cluster-{number + 1}.png", plot_relevance_map(collection, cluster.mean_map),
            f"The mean of {len(cluster.pairs)} pairs."),
            Picture(
                f"cluster-{number + 1}-pair.png", figure.plot(collection.explain(i, j)),
                f"The most typical pair: {collection.names[i]} and {collection.names[j]}.",
            ),
        ]  # fmt: skip
        sections.append(Section(f"Pairs that match in the same places, group {number + 1}", blocks))
    return Report(
        f"Audit of {name}", format_audit(collection, result), sections, results=collect_results(result)
    )


def plot_relevance_map(collection: Collection, values: np.ndarray) -> Any:
    """A map of places over the mean of some pictures."""
    import numpy as np
    from matplotlib.figure import Figure

    from bilrp.inputs import Image

    views = [collection.view(p) for p in range(min(len(collection), 64))]
    seen = [view.crop_to_input((256, 256)).mean(2) for view in views if isinstance(view, Image)]
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
