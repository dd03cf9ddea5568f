"""`bilrp explain`: two files in; a summary, a picture, a page or numbers out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import (
    AsJson,
    Encoders,
    LinkPreset,
    MaxRegions,
    OpenOutput,
    Output,
    Palette,
    Project,
    RegionOption,
    Resize,
    ShowPlan,
    Similarity,
    Size,
    SpecialTokens,
    Title,
    Top,
    Weights,
)
from bilrp.errors import InputError


def explain(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C …]",
            help="Image files; or texts, @FILE with a text, - for standard input. All pairs of more.",
        ),
    ],
    encoders: Encoders = None,
    regions: RegionOption = None,
    similarity: Similarity = None,
    project: Project = None,
    max_regions: MaxRegions = None,
    size: Size = None,
    resize: Resize = None,
    weights: Weights = None,
    output: Output = None,
    link_preset: LinkPreset = "auto",
    palette: Palette = "paper",
    title: Title = None,
    open_output: OpenOutput = False,
    top: Top = None,
    special_tokens: SpecialTokens = False,
    plan: ShowPlan = False,
    first: Annotated[bool, typer.Option(help="Of several, only the first against each other one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Which parts of A and B make the encoder call them similar? Two images, texts, or one of each."""
    import time

    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import check_open, write_outputs
    from bilrp.encoder import read_item, resolve_encoders, resolve_regions
    from bilrp.explanation import explain_items
    from bilrp.render import styles
    from bilrp.similarity import resolve_similarity

    if len(inputs) < 2:
        raise InputError("explain compares two or more: bilrp explain A B")
    outputs = terminal.check_outputs(output or [], inputs=inputs)
    check_open(outputs, open_output)
    for known, name in (
        (styles.resolve_style, link_preset),
        (styles.resolve_palette, palette),
        (resolve_similarity, similarity),
    ):
        known(name)  # refuse a slip before the work
    named = encoders or ["vgg16:31"]
    if len(inputs) > 2 or len(named) > 1:
        from bilrp.cli.batch import BatchOptions, explain_all, require_html_outputs

        if plan or max_regions is not None:
            raise InputError(f"--{'plan' if plan else 'max-regions'} is for two inputs and one encoder")
        require_html_outputs(outputs)
        loaded = [terminal.load_encoder(name, weights=weights, size=size, resize=resize) for name in named]
        wish = BatchOptions(similarity, regions, project, link_preset, palette, title, special_tokens)
        explain_all(loaded, inputs, outputs, wish, first=first, open_output=open_output, as_json=as_json)
        return
    a, b = inputs
    chosen = terminal.load_encoder_or_dual(named[0], weights=weights, size=size, resize=resize)
    readers = resolve_encoders(chosen, a, b)
    reading = [texts.reads_text(reader) for reader in readers]
    contents = [
        texts.read_text(thing) if text else thing for thing, text in zip(inputs, reading, strict=True)
    ]
    # both are read before the first is explained
    items = [read_item(reader, thing) for reader, thing in zip(readers, contents, strict=True)]
    wanted = texts.parse_regions_pair(regions, reading)
    if any(path.suffix.lower() == ".html" for path in outputs):
        from bilrp.render import page

        sides = zip(readers, items, wanted, strict=True)
        page.check_pair_count(*(resolve_regions(reader, item, kind)[0].count for reader, item, kind in sides))
    start = time.perf_counter()
    try:
        found = explain_items(
            readers,
            items[0],
            items[1],
            similarity=similarity,
            regions=wanted,
            project=project,
            max_regions=max_regions,
            progress=sys.stderr.isatty(),
        )
    except Exception as error:
        raise terminal.wrap_encoder_error(readers[0], items[0].x, error) from error
    left, right = (
        texts.shorten(thing) if text else thing for thing, text in zip(contents, reading, strict=True)
    )
    shown = (left, right)
    names = (left if reading[0] else found.a.name, right if reading[1] else found.b.name)
    about = terminal.collect_summary(
        found,
        names=shown,
        encoder=chosen.name,
        seconds=time.perf_counter() - start,
        top=top,
        special_tokens=special_tokens,
    )
    told = texts.highlight_words(found, special_tokens=special_tokens)
    terminal.print_summary(about, outputs, as_json=as_json, header=told, show_pairs=bool(top))
    if plan:
        print(found.a.plan, file=sys.stderr if as_json else sys.stdout)
    for doubt in terminal.collect_warnings(readers[0], found, names, inputs):
        print_safe(f"bilrp: {doubt}", file=sys.stderr)
    drawing = {
        "link_preset": link_preset,
        "palette": palette,
        "title": title,
        "special_tokens": special_tokens,
    }
    write_outputs(found, outputs, names=names, **drawing, open_output=open_output, quiet=as_json)
