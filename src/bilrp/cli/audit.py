"""`bilrp audit`: find shortcuts such as watermarks or boilerplate that make neighbours similar."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import AsJson, CollectionEncoder, CollectionWeights
from bilrp.errors import InputError
from bilrp.io.files import FIGURE_SUFFIXES, NUMBER_SUFFIXES

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from bilrp.collection import Collection
    from bilrp.collection.audit import Audit, PairCluster, Suspect
    from bilrp.collection.text_audit import TextAudit, TextSuspect
    from bilrp.render.report import Report, Section

MAX_ILLUSTRATED = 3  # suspects, and clusters
MAX_EXAMPLE_PAIRS = 2


def audit(
    collection: Annotated[
        str, typer.Argument(metavar="NAME.lance", help="A collection, written by `bilrp index`.")
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the report, or one page: audit.html."),
    ] = "out/audit",
    sample: Annotated[int, typer.Option(min=3, help="Items whose nearest neighbour is explained.")] = 64,
    repairs: Annotated[
        bool, typer.Option(help="Measure the repair of each suspect, and write it next to the report.")
    ] = True,
    encoder: CollectionEncoder = None,
    weights: CollectionWeights = None,
    as_json: AsJson = False,
) -> None:
    """What makes neighbours similar: captions, borders, boilerplate, headings, names? bilrp audit photos.lance"""
    from bilrp.cli.input_hints import check_collection

    check_collection(collection)
    path = check_report_path(output)  # before torch is imported

    from bilrp.cli.repair_proposals import attach_proposals, describe_proposals, save_proposals
    from bilrp.collection import open
    from bilrp.collection.repair_proposals import propose_repairs

    opened = open(collection, encoder, weights=weights)
    result = opened.audit(sample=sample, progress=sys.stderr.isatty())
    if not as_json:
        print_safe(format_audit(opened, result))
    proposals = propose_repairs(opened, result.suspects, progress=sys.stderr.isatty()) if repairs else ()
    report = attach_proposals(build_report(opened, result, collection), proposals)
    page = report.write_page(path) if path.suffix.lower() == ".html" else report.write(path)
    saved = save_proposals(proposals, path)
    if as_json:
        from bilrp.cli import terminal

        terminal.print_json(report.results)
        return
    for line in describe_proposals(proposals, saved, collection):
        print_safe(f"  {line}")
    print_safe(f"  wrote {page}")


def check_report_path(output: str) -> Path:
    """Return where the report is written: a folder, or a page with the suffix .html; raise if it cannot be."""
    path = Path(output)
    is_page = path.suffix.lower() == ".html"
    if is_page and path.is_dir():
        raise InputError(f"--output {path}: a folder has this name")
    if is_page and not path.parent.is_dir():
        raise InputError(f"--output {path}: there is no folder {path.parent}")
    if not is_page and path.is_file():
        raise InputError(f"--output {path}: a file has this name; give a folder, or a page NAME.html")
    if path.suffix.lower() in (*FIGURE_SUFFIXES, *NUMBER_SUFFIXES, ".json", ".md"):
        raise InputError(
            f"--output {path}: a report is a folder or a page, give a name like audit or audit.html"
        )
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not os.access(existing.parent if existing.is_file() else existing, os.W_OK):
        raise InputError(f"--output {path}: the folder {existing} cannot be written to")
    return path


def format_audit(collection: Collection, result: Audit | TextAudit) -> str:
    """Format the findings of an audit, one per line."""
    from bilrp.collection.audit import Audit

    header = f"{len(result.pairs)} pairs of near neighbours, of {len(collection)} items"
    if isinstance(result, Audit):
        if not result.suspects:
            return f"{header}: no shortcut found."
        return "\n".join([f"{header}:", *(f"  {n}. {s}" for n, s in enumerate(result.suspects, 1))])
    lines = [f"{header}:" if result.suspects else f"{header}: no shortcut found."]
    lines += [f"  {n}. {s}" for n, s in enumerate(result.suspects, 1)]
    others = [phrase for phrase in result.phrases if phrase not in result.suspects]
    if others:
        lines += [
            "",
            "What also carries similarity, and is not a shortcut by this test:",
            *(f"  {s}" for s in others),
        ]
    return "\n".join([*lines, "", *_describe_words(result)])


def _describe_words(result: TextAudit) -> list[str]:
    """Return the kinds of words and the traits in which neighbours agree, one per line."""
    from bilrp.collection.text_audit import KIND_LABELS
    from bilrp.findings.formatting import format_percent

    lines = [
        f"  {KIND_LABELS[each.kind]:<15}{format_percent(each.share):>7} of the relevance on "
        f"{format_percent(each.area):>5} of the words"
        for each in result.kinds
    ]
    traits = [f"  {trait.describe()}" for trait in result.traits]
    return ["By kind of word:", *lines, *traits]


def build_report(collection: Collection, result: Audit | TextAudit, name: str) -> Report:
    """Build the report of an audit.

    Args:
        collection, result, name: the collection, its audit, and its name.
    """
    from bilrp.answers.collections import build_audit
    from bilrp.collection.audit import Audit
    from bilrp.render.report import Report

    build = _build_image_sections if isinstance(result, Audit) else _build_text_sections
    return Report(
        f"Audit of {name}",
        format_audit(collection, result),
        build(collection, result),  # type: ignore[arg-type]
        results=dict(build_audit(collection, result)),
    )


def _build_text_sections(collection: Collection, result: TextAudit) -> list[Section]:
    """Build the tables of phrases, of changed neighbours, and of kinds of words."""
    from bilrp.collection.text_audit import KIND_LABELS
    from bilrp.render import figure
    from bilrp.render.report import Paragraph, Picture, Section, Table

    header = (
        "phrase", "kind", "texts", "pairs", "share of the relevance", "share of the words",
        "nearest neighbour has it too", "… without it", "… by chance",
    )  # fmt: skip

    def row(s: TextSuspect) -> tuple[object, ...]:
        return (
            s.phrase,
            s.kind,
            len(s.carriers),
            len(s.pairs),
            s.share,
            s.area,
            s.attraction,
            s.attraction_without,
            s.chance,
        )

    sections = [
        Section(
            "Phrases that carry similarity", [Table(header, [row(s) for s in result.phrases], "First: most.")]
        )
    ]
    for number, suspect in enumerate(result.suspects[:MAX_ILLUSTRATED], 1):
        changes = [
            tuple(collection.names[p] for p in (change.item, change.before, change.after))
            for change in suspect.changes
        ]
        blocks: list[Paragraph | Table | Picture] = [Paragraph(f"{suspect}.")]
        if changes:
            blocks.append(
                Table(
                    ("text", "nearest neighbour", "nearest without the phrase"),
                    changes,
                    "Changed neighbours.",
                )
            )
        i, j = suspect.pairs[0]
        caption = f"{collection.names[i]} and {collection.names[j]}."
        blocks.append(Picture(f"suspect-{number}.png", figure.plot(collection.explain(i, j)), caption))
        sections.append(Section(f"Possible shortcut {number}: {suspect.phrase}", blocks))
    kinds = [(KIND_LABELS[each.kind], each.share, each.area) for each in result.kinds]
    traits = [Paragraph(f"{sentence[0].upper()}{sentence[1:]}.") for sentence in map(str, result.traits)]
    table = Table(("kind of word", "share of the relevance", "share of the words"), kinds, "All pairs.")
    return [*sections, Section("Kinds of words, length and language", [table, *traits])]


def _build_image_sections(collection: Collection, result: Audit) -> list[Section]:
    """Build the pictures of places, suspects and clusters."""
    from bilrp.render.report import Picture, Section, Table

    sections = [
        Section(
            "Where neighbours are similar",
            [
                Picture(
                    "places.png",
                    plot_relevance_map(collection, result.mean_map),
                    "Mean relevance of all pairs over the mean image.",
                )
            ],
        )
    ]
    rows = [(s.where, s.share, s.area, len(s.pairs), s.changed) for s in result.suspects]
    header = (
        "part",
        "share of the relevance",
        "share of the area",
        "pairs",
        "nearest neighbour changes without it",
    )
    if rows:
        sections.append(Section("Possible shortcuts", [Table(header, rows, "Worst first.")]))
    for number, suspect in enumerate(result.suspects[:MAX_ILLUSTRATED], 1):
        sections.append(_build_suspect_section(collection, suspect, number))
    for number, cluster in enumerate(result.clusters[:MAX_ILLUSTRATED], 1):
        sections.append(_build_cluster_section(collection, cluster, number))
    return sections


def _build_suspect_section(collection: Collection, suspect: Suspect, number: int) -> Section:
    """Return the section of a possible shortcut: its sentence, its region, and pairs as examples."""
    from bilrp.render import figure
    from bilrp.render.report import Paragraph, Picture, Section

    region = plot_relevance_map(collection, suspect.mask.astype(float))
    examples = [
        Picture(
            f"suspect-{number}-{example}.png",
            figure.plot(collection.explain(i, j)),
            f"{collection.names[i]} and {collection.names[j]}.",
        )
        for example, (i, j) in enumerate(suspect.pairs[:MAX_EXAMPLE_PAIRS], 1)
    ]
    blocks = [Paragraph(f"{suspect}."), Picture(f"suspect-{number}.png", region, "The region."), *examples]
    return Section(suspect.where, blocks)


def _build_cluster_section(collection: Collection, cluster: PairCluster, number: int) -> Section:
    """Return the section of pairs that match in the same regions: their mean, and the most typical pair."""
    from bilrp.render import figure
    from bilrp.render.report import Picture, Section

    i, j = cluster.pairs[0]
    blocks = [
        Picture(f"cluster-{number}.png", plot_relevance_map(collection, cluster.mean_map),
        f"The mean of {len(cluster.pairs)} pairs."),
        Picture(
            f"cluster-{number}-pair.png", figure.plot(collection.explain(i, j)),
            f"The most typical pair: {collection.names[i]} and {collection.names[j]}.",
        ),
    ]  # fmt: skip
    return Section(f"Pairs that match in the same regions, cluster {number}", blocks)


def plot_relevance_map(collection: Collection, values: np.ndarray) -> Figure:
    """Plot a relevance map over the mean image of the collection."""
    import numpy as np
    from matplotlib.figure import Figure

    from bilrp.inputs import Image

    views = [collection.view(p) for p in range(min(len(collection), 64))]
    images = [view.crop_to_input((256, 256)).mean(2) for view in views if isinstance(view, Image)]
    map_figure = Figure(figsize=(4.2, 3.6), dpi=160, layout="constrained")
    axes = map_figure.subplots()
    axes.imshow(np.mean(images, axis=0), cmap="gray", vmin=-120, vmax=300, extent=(0, 1, 1, 0))
    overlay = axes.imshow(
        values / (values.mean() or 1.0),
        cmap="Reds",
        alpha=0.6,
        vmin=0,
        extent=(0, 1, 1, 0),
        interpolation="nearest",
    )
    map_figure.colorbar(overlay, ax=axes, label="relevance / mean relevance", shrink=0.85)
    axes.set_axis_off()
    return map_figure
