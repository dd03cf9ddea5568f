"""`bilrp explain`: explain the similarity of two or more inputs as a summary, figure, page or file of numbers."""

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
            help="Image files; or texts, @FILE with a text, - for standard input. With more than two inputs every pair is "
            "explained.",
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
    first: Annotated[
        bool, typer.Option(help="Compare only the first input with each of the others.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Which parts of A and B make the encoder call them similar? Two images, texts, or one of each."""
    import time

    from bilrp.cli.input_hints import check_inputs, choose_encoders

    if len(inputs) < 2:
        raise InputError("explain needs two or more inputs: bilrp explain A B")
    encoder_names = choose_encoders(inputs, encoders)
    check_inputs(inputs, encoder_names)  # before torch is imported

    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import DrawOptions, check_outputs, write_outputs
    from bilrp.encoder import read_item, resolve_encoders, resolve_regions
    from bilrp.explanation import explain_items
    from bilrp.similarity import resolve_similarity

    several = len(inputs) > 2 or len(encoder_names) > 1
    if several and (plan or max_regions is not None):
        raise InputError(f"--{'plan' if plan else 'max-regions'} is for two inputs and one encoder")
    outputs = check_outputs(output or [], inputs=inputs, open_output=open_output, page_only=several)
    draw = DrawOptions(link_preset, palette, title, special_tokens)
    resolve_similarity(similarity)  # rejects an unknown name before the work
    if several:
        from bilrp.cli.batch import explain_all

        loaded = [
            terminal.load_encoder(name, weights=weights, size=size, resize=resize) for name in encoder_names
        ]
        explain_all(
            loaded, inputs, outputs, draw, similarity=similarity, regions=regions, project=project, first=first,
            open_output=open_output, as_json=as_json,
        )  # fmt: skip
        return
    a, b = inputs
    encoder = terminal.load_encoder_or_dual(encoder_names[0], weights=weights, size=size, resize=resize)
    readers = resolve_encoders(encoder, a, b)
    are_texts = [texts.reads_text(reader) for reader in readers]
    contents = [
        texts.read_text(argument) if is_text else argument
        for argument, is_text in zip(inputs, are_texts, strict=True)
    ]
    # read both before the first is decomposed: an unreadable input fails at once
    items = [read_item(reader, content) for reader, content in zip(readers, contents, strict=True)]
    region_specs = texts.parse_regions_pair(regions, are_texts)
    if any(path.suffix.lower() == ".html" for path in outputs):
        from bilrp.render import page

        sides = zip(readers, items, region_specs, strict=True)
        page.check_pair_count(*(resolve_regions(reader, item, spec)[0].count for reader, item, spec in sides))
    start = time.perf_counter()
    try:
        explanation = explain_items(
            readers,
            items[0],
            items[1],
            similarity=similarity,
            regions=region_specs,
            project=project,
            max_regions=max_regions,
            progress=sys.stderr.isatty(),
        )
    except Exception as error:
        raise terminal.wrap_encoder_error(readers[0], items[0].x, error) from error
    seconds = time.perf_counter() - start
    left, right = (
        texts.shorten(content) if is_text else content
        for content, is_text in zip(contents, are_texts, strict=True)
    )
    names = (left if are_texts[0] else explanation.a.name, right if are_texts[1] else explanation.b.name)
    summary = terminal.collect_summary(
        explanation,
        names=(left, right),
        encoder=encoder.name,
        seconds=seconds,
        top=top,
        special_tokens=special_tokens,
    )
    header = texts.highlight_words(explanation, special_tokens=special_tokens)
    terminal.print_summary(summary, outputs, as_json=as_json, header=header, show_pairs=bool(top))
    if plan:
        print(explanation.a.plan, file=sys.stderr if as_json else sys.stdout)
    for warning in terminal.collect_warnings(readers[0], explanation, names, inputs):
        print_safe(f"bilrp: {warning}", file=sys.stderr)
    write_outputs(explanation, outputs, draw, names=names, open_output=open_output, quiet=as_json)
