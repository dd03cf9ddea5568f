"""`bilrp explain`: explain the similarity of two or more inputs as a summary, figure, page or file of numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

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
    Reliability,
    Resize,
    Show,
    ShowPlan,
    Similarity,
    Size,
    SpecialTokens,
    Title,
    Top,
    Weights,
)
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.encoder import DualEncoder
    from bilrp.encoder import Encoder as LoadedEncoder
    from bilrp.explanation import Explanation
    from bilrp.inputs import Item
    from bilrp.regions import RegionSpec


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
    reliability: Reliability = None,
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
    show: Show = "matches",
    plan: ShowPlan = False,
    first: Annotated[
        bool, typer.Option(help="Compare only the first input with each of the others.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Which parts of A and B make the encoder call them similar? Two images, texts, or one of each."""
    from bilrp.cli.input_hints import check_inputs, choose_encoders

    if len(inputs) < 2:
        raise InputError("explain needs two or more inputs: bilrp explain A B")
    encoder_names = choose_encoders(inputs, encoders)
    check_inputs(inputs, encoder_names)  # before torch is imported

    from bilrp.answers.explanations import build_explain
    from bilrp.cli import terminal, texts
    from bilrp.cli.outputs import DrawOptions, check_outputs, write_outputs
    from bilrp.explanation import FORMATS
    from bilrp.similarity import resolve_similarity

    several = len(inputs) > 2 or len(encoder_names) > 1
    if several and (plan or max_regions is not None or reliability):
        option = "plan" if plan else "reliability" if reliability else "max-regions"
        raise InputError(f"--{option} is for two inputs and one encoder")
    if reliability and len(reliability) > 2:
        raise InputError("--reliability: give it once for both inputs, or once for each")
    outputs = check_outputs(
        output or [], formats=FORMATS, inputs=inputs, open_output=open_output, page_only=several
    )
    draw = DrawOptions(link_preset, palette, title, special_tokens, show)
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
    encoder = terminal.load_encoder_or_dual(encoder_names[0], weights=weights, size=size, resize=resize)
    pair = _read_pair(encoder, inputs, regions)
    if any(path.suffix.lower() == ".html" for path in outputs):
        pair.check_page_size()
    start = time.perf_counter()
    explanation = pair.explain(similarity, project=project, max_regions=max_regions, reliability=reliability)
    seconds = time.perf_counter() - start
    summary = build_explain(
        explanation, names=pair.shown, encoder=encoder.name, seconds=seconds, top=top, special_tokens=special_tokens
    )  # fmt: skip
    header = texts.highlight_words(explanation, special_tokens=special_tokens)
    terminal.print_summary(summary, outputs, as_json=as_json, header=header, show_pairs=bool(top))
    if plan:
        print(explanation.a.plan, file=sys.stderr if as_json else sys.stdout)
    names = pair.names(explanation)
    for warning in terminal.collect_warnings(pair.readers[0], explanation, names, inputs):
        print_safe(f"bilrp: {warning}", file=sys.stderr)
    write_outputs(explanation, outputs, draw, names=names, open_output=open_output, quiet=as_json)


@dataclass(frozen=True)
class _PairInputs:
    """Two inputs that were read, each with its encoder, its regions, and what the terminal shows of it."""

    readers: tuple[LoadedEncoder, LoadedEncoder]
    items: tuple[Item, Item]
    specs: tuple[RegionSpec | None, RegionSpec | None]
    are_texts: tuple[bool, bool]
    shown: tuple[str, str]

    def names(self, explanation: Explanation) -> tuple[str, str]:
        """Return the names for figures and pages: texts in short, images as their decomposition names them."""
        (left, right), (a_is_text, b_is_text) = self.shown, self.are_texts
        return left if a_is_text else explanation.a.name, right if b_is_text else explanation.b.name

    def check_page_size(self) -> None:
        """Raise InputError if there are too many pairs of regions for a page."""
        from bilrp.encoder import resolve_regions
        from bilrp.render import page

        sides = zip(self.readers, self.items, self.specs, strict=True)
        page.check_pair_count(*(resolve_regions(reader, item, spec)[0].count for reader, item, spec in sides))

    def explain(
        self, similarity: str | None, *, project: int | None, max_regions: int | None, reliability: list[str] | None
    ) -> Explanation:  # fmt: skip
        """Explain the pair with a progress bar; errors of the model name the encoder.

        Args:
            similarity, project, max_regions, reliability: The options.
        """
        from bilrp.cli import terminal
        from bilrp.explanation import explain_items

        weights = (
            None
            if not reliability
            else reliability[0]
            if len(reliability) == 1
            else (reliability[0], reliability[1])
        )
        try:
            return explain_items(
                self.readers, *self.items, similarity=similarity, regions=self.specs, project=project,
                max_regions=max_regions, progress=sys.stderr.isatty(), reliability=weights, keep_parts=True,
            )  # fmt: skip
        except Exception as error:
            raise terminal.wrap_encoder_error(self.readers[0], self.items[0].x, error) from error


def _read_pair(
    encoder: LoadedEncoder | DualEncoder, inputs: Sequence[str], regions: str | None
) -> _PairInputs:
    """Read both inputs before the first is decomposed, so that an unreadable one fails at once."""
    from bilrp.cli import texts
    from bilrp.encoder import read_item, resolve_encoders

    readers = resolve_encoders(encoder, *inputs)
    a_is_text, b_is_text = (texts.reads_text(reader) for reader in readers)
    a, b = (
        texts.read_text(argument) if is_text else argument
        for argument, is_text in zip(inputs, (a_is_text, b_is_text), strict=True)
    )
    return _PairInputs(
        readers,
        (read_item(readers[0], a), read_item(readers[1], b)),
        texts.parse_regions_pair(regions, [a_is_text, b_is_text]),
        (a_is_text, b_is_text),
        (texts.shorten(a) if a_is_text else a, texts.shorten(b) if b_is_text else b),
    )
