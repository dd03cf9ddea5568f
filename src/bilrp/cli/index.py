"""`bilrp index`: embed a folder of images or a file of texts once and store it as a collection."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import Encoder, Resize, Size, Weights
from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER

if TYPE_CHECKING:
    from bilrp.collection.core import Collection
    from bilrp.collection.index_session import IndexReport

MAX_SHOWN_FAILURES = 20


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="Image files, folders of images, or files of texts: .txt with one text per line, alone or in a folder; "
            ".csv, .tsv, .jsonl or .parquet with one text (or image file) per row, and an id and metadata if it has them; "
            "a IIIF manifest (.json, or its address), whose images are downloaded once into NAME.images.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="NAME.lance", help="Where to write the collection.")
    ],
    encoder: Encoder = DEFAULT_IMAGE_ENCODER,
    parts: Annotated[
        bool,
        typer.Option(
            help="Compute the parts of every item now; by default they are computed on first use and stored."
        ),
    ] = False,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of a table that contains the texts.")
    ] = None,
    prune: Annotated[
        bool, typer.Option(help="Remove items whose file, line or row no longer exists in these sources.")
    ] = False,
    embeddings: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npy",
            help="Vectors that you have already, one row for each item; the first are checked.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Execution backend: local or ray (bilrp[ray]).")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster; default: start one on this machine.")
    ] = None,
    size: Size = None,
    resize: Resize = None,
    weights: Weights = None,
) -> None:
    """Index a folder for search: bilrp index photos -o photos.lance

    Run it again to add what is new or changed. An interrupted run continues where it stopped.
    """
    from bilrp.cli import terminal
    from bilrp.collection.indexing import build_with_report
    from bilrp.errors import InputError

    if not output.rstrip("/").endswith(".lance"):
        raise InputError(f"--output {output}: give a name that ends with .lance")
    if address is not None and backend != "ray":
        raise InputError("--address is for Ray clusters: add --backend ray")
    loaded = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    options = {
        "size": terminal.parse_size(size),
        "resize": resize,
        "weights": weights and os.path.realpath(weights),
    }
    collection, report = build_with_report(
        sources if len(sources) > 1 else sources[0],
        loaded,
        output,
        parts=parts,
        progress=sys.stderr.isatty(),
        column=column,
        prune=prune,
        embeddings=None if embeddings is None else _load_vectors(embeddings),
        backend=backend,
        address=address,
        encoder_options={name: value for name, value in options.items() if value is not None},
    )
    _print_report(report, collection, output)


def _print_report(report: IndexReport, collection: Collection, output: str) -> None:
    """Print how many items were added and which failed, and the commands to go on with."""
    from bilrp.collection.page_numbers import has_numbers
    from bilrp.errors import to_printable

    counts = [f"{report.added} new", f"{report.unchanged} unchanged"]
    counts += [f"{report.changed} changed"] if report.changed else []
    counts += [f"{report.duplicates} duplicates"] if report.duplicates else []
    counts += [f"{report.removed} removed"] if report.removed else []
    counts += [f"{len(report.failed)} failed"] if report.failed else []
    print_safe(
        f"{to_printable(output)}: {len(collection)} items ({', '.join(counts)}) in {report.seconds:.1f} s"
    )
    for source, reason in report.failed[:MAX_SHOWN_FAILURES]:
        print_safe(f"  failed: {to_printable(reason if source in reason else f'{source}: {reason}')}")
    if len(report.failed) > MAX_SHOWN_FAILURES:
        print_safe(f"  … and {len(report.failed) - MAX_SHOWN_FAILURES} more")
    print_safe(f"Search: bilrp search {to_printable(output)} {to_printable(collection.names[0])!r}")
    print_safe(f"Browse: bilrp serve {to_printable(output)} --open")
    if has_numbers(collection):
        print_safe(f"What do pages share? bilrp graph {to_printable(output)} -o net.html")


def _load_vectors(path: str) -> Any:
    """Return the matrix of a .npy file; files with Python objects are refused."""
    import numpy as np

    from bilrp.errors import InputError

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"--embeddings {path}: not a .npy file of numbers ({error})") from None
