"""`bilrp index`: a folder of pictures or a file of texts, embedded once, to be asked anything."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import Encoder, Resize, Size, Weights

MAX_SHOWN_FAILURES = 20  # broken items that are listed


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="Folders of pictures, pictures, or files of texts: a .txt holds one text a line, by itself or in a folder; "
            "a .csv, .tsv or .jsonl one a row.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="NAME.lance", help="The collection.")],
    encoder: Encoder = "vgg16:31",
    parts: Annotated[
        bool, typer.Option(help="Take every item apart now; else on first use. Parts are kept once made.")
    ] = False,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a table of texts: the column that holds them.")
    ] = None,
    prune: Annotated[
        bool, typer.Option(help="Remove files, lines and rows that are gone from these sources.")
    ] = False,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Execution backend: local or ray (bilrp[ray]).")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster; default: one on this machine.")
    ] = None,
    size: Size = None,
    resize: Resize = None,
    weights: Weights = None,
) -> None:
    """Index a folder once, ask it anything: bilrp index photos -o photos.lance

    Adding again only does what is new or changed; interrupted, it goes on where it was.
    """
    from bilrp.cli import terminal
    from bilrp.collection.indexing import build_with_report
    from bilrp.errors import InputError, to_printable

    if not output.rstrip("/").endswith(".lance"):
        raise InputError(f"--output {output}: a collection is called NAME.lance")
    if address is not None and backend != "ray":
        raise InputError("--address names a Ray cluster: give --backend ray with it")
    chosen = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    asked = {
        "size": terminal.parse_size(size),
        "resize": resize,
        "weights": weights and os.path.realpath(weights),
    }
    found, report = build_with_report(
        sources if len(sources) > 1 else sources[0],
        chosen,
        output,
        parts=parts,
        progress=sys.stderr.isatty(),
        column=column,
        prune=prune,
        backend=backend,
        address=address,
        encoder_options={name: value for name, value in asked.items() if value is not None},
    )
    said = [f"{report.added} new", f"{report.unchanged} known"]
    said += [f"{report.duplicates} the same as another"] if report.duplicates else []
    said += [f"{report.removed} removed"] if report.removed else []
    said += [f"{len(report.failed)} broken"] if report.failed else []
    print_safe(f"{to_printable(output)}: {len(found)} items ({', '.join(said)}) in {report.seconds:.1f} s")
    for source, why in report.failed[:MAX_SHOWN_FAILURES]:
        print_safe(f"  broken: {to_printable(why if source in why else f'{source}: {why}')}")
    if len(report.failed) > MAX_SHOWN_FAILURES:
        print_safe(f"  … and {len(report.failed) - MAX_SHOWN_FAILURES} more")
    print_safe(f"Ask: bilrp search {to_printable(output)} {to_printable(found.names[0])!r}")
    print_safe(f"Look: bilrp serve {to_printable(output)} --open")
