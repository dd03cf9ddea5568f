"""`bilrp graph`: the items of a collection as a network whose edges have reasons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import CollectionEncoder, CollectionWeights, complete_from
from bilrp.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bilrp.collection.graph import Graph
    from bilrp.collection.spread import Spread

BASES = ("embedding", "numbers")
SUFFIXES = (".html", ".json", ".graphml", ".gexf")
MAX_SHOWN_PARTS = 10


def graph(
    collection: Annotated[str, typer.Argument(metavar="NAME.lance", help="A collection made by bilrp index.")],
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A page (.html), or data (.json .graphml .gexf); may be repeated."
        ),
    ] = None,
    neighbours: Annotated[
        int | None,
        typer.Option(
            "--neighbours", "-k", min=1, help="Nearest items that an item is joined with.",
            show_default="10; for numbers all",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Smallest score of an edge; for tables, numbers that are together on both pages.",
                     show_default="none; for numbers 5"),
    ] = None,
    all_neighbours: Annotated[
        bool, typer.Option("--all-neighbours", help="Also join items of which only one is near the other.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", autocompletion=complete_from(*BASES),
            help="embedding, or numbers: blocks of numbers on both pages.",
            show_default="numbers for scanned tables",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the metadata that orders items: who had a shared part first."),
    ] = None,
    place: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the metadata that says where items are from.")
    ] = None,
    reasons: Annotated[
        int, typer.Option(min=0, help="Edges to explain, strongest first; edges by numbers always have a reason.")
    ] = 50,
    encoder: CollectionEncoder = None,
    weights: CollectionWeights = None,
) -> None:  # fmt: skip
    """Which items are alike, why, and who had it first? bilrp graph tables.lance -o net.html --time year"""
    from bilrp.cli.input_hints import check_collection

    check_collection(collection)
    paths = [_check_output(name) for name in output or []]
    if by is not None and by not in BASES:
        raise InputError(f"--by {by}: give one of {', '.join(BASES)}")

    from bilrp.collection import open
    from bilrp.collection.spread import check_column

    opened, is_shown = open(collection, encoder, weights=weights), sys.stderr.isatty()
    for column in filter(None, (time, place)):
        check_column(opened, column)  # before minutes of work
    network = opened.graph(
        neighbours,
        threshold=threshold,
        mutual=not all_neighbours,
        by=by,
        progress=is_shown,  # type: ignore[arg-type]
    )
    _explain_edges(network, reasons, progress=is_shown)
    print_safe(describe_graph(network, time=time, place=place))
    for path in paths:
        network.save(path, time=time, place=place)
        print_safe(f"  wrote {path}")


def _check_output(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--output {name}: a graph is written as {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InputError(f"--output {name}: there is no folder {path.parent}")
    return path


def _explain_edges(network: Graph, count: int, *, progress: bool) -> None:
    """Explain the strongest edges, so that pages and files have their reasons."""
    from bilrp.progress import progress_bar

    if network.by == "numbers":
        return
    edges = network.edges[:count]
    with progress_bar(progress) as bar:
        bar.start("explaining edges", len(edges))
        for i, j, _ in edges:
            network.explain_edge(i, j)
            bar.advance()


def describe_graph(network: Graph, *, time: str | None = None, place: str | None = None) -> str:
    """Return what a graph shows: its size, and the parts that most items share, or its strongest edges.

    Args:
        network: The graph.
        time, place: Columns of the metadata: what orders items, and where they are from.
    """
    names, lines = network.collection.names, []
    if time is not None:
        for spread in network.spread(time, place=place)[:MAX_SHOWN_PARTS]:
            lines += _describe_spread(spread, names)
    elif network.by == "numbers":
        for part in network.shared_parts()[:MAX_SHOWN_PARTS]:
            variants = f"; {len(part.variants)} differ" if part.variants else ""
            lines.append(f"  {len(part.items)} items share {part.text}{variants}")
    else:
        for i, j, score in network.edges[:MAX_SHOWN_PARTS]:
            reason = network.known_reason(i, j)
            lines.append(f"  {score:.3f} {names[i]} ↔ {names[j]}" + (f": {reason.text}" if reason else ""))
    head = f"{network.network.number_of_nodes()} items, {network.network.number_of_edges()} edges by {network.by}"
    return "\n".join([f"{head}:" if lines else f"{head}.", *lines])


def _describe_spread(spread: Spread, names: Sequence[str]) -> list[str]:
    """Return who had a part first, who later and from whom, and what was changed."""
    from bilrp.collection.spread import format_time

    lines = [f"  {len(spread.carriers)} items share {spread.part.text}"]
    for number, carrier in enumerate(spread.carriers[:MAX_SHOWN_PARTS]):
        about = ", ".join(filter(None, (format_time(carrier.time), carrier.place)))
        source = "" if carrier.source is None else f" from {names[carrier.source]}"
        changed = ", ".join(f"{a} → {b}" for a, b in carrier.changed)
        lines.append(
            f"    {'then' if number else 'first'}: {carrier.name} ({about}){source}"
            + (f"; changed: {changed}" if changed else "")
        )
    more = len(spread.carriers) - MAX_SHOWN_PARTS
    return [*lines, f"    … and {more} more"] if more > 0 else lines
