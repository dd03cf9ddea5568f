"""`bilrp sets`: explain the similarity of two sets of images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import typer

from bilrp.cli.console import print_safe
from bilrp.cli.options import (
    AsJson,
    Encoder,
    LinkPreset,
    OpenOutput,
    Output,
    Palette,
    RegionOption,
    Resize,
    Similarity,
    Size,
    Title,
    Top,
    Weights,
)
from bilrp.encoders.registry import DEFAULT_IMAGE_ENCODER, input_kind
from bilrp.errors import InputError, to_printable

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.set_comparison import SetComparison

MAX_KEPT = 32  # decompositions in memory; others are computed again where they are shown


def sets(
    a: Annotated[str, typer.Argument(metavar="A", help="A folder of images, or an image.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another folder or image.")],
    encoder: Encoder = DEFAULT_IMAGE_ENCODER,
    regions: RegionOption = None,
    similarity: Similarity = None,
    size: Size = None,
    resize: Resize = None,
    weights: Weights = None,
    output: Output = None,
    link_preset: LinkPreset = "auto",
    palette: Palette = "paper",
    title: Title = None,
    open_output: OpenOutput = False,
    top: Top = 5,
    as_json: AsJson = False,
) -> None:
    """What do two sets of images share on average, and which pairs are most similar? bilrp sets cats dogs -o why.html"""
    from bilrp.cli.input_hints import check_inputs

    check_inputs((a, b), [encoder])  # before torch is imported
    if input_kind(encoder) == "texts":
        raise InputError(
            f"sets compares images, and {encoder} reads texts: use -e {DEFAULT_IMAGE_ENCODER}; for two texts, bilrp explain"
        )

    from bilrp import compare_sets, groups
    from bilrp.cli import batch, terminal
    from bilrp.cli.outputs import DrawOptions, check_outputs, write_each
    from bilrp.encoders import images
    from bilrp.progress import progress_bar
    from bilrp.similarity import resolve_similarity

    outputs = check_outputs(
        output or [], formats=groups.GROUP_SUFFIXES, inputs=(a, b), open_output=open_output
    )
    draw = DrawOptions(link_preset, palette, title)
    resolve_similarity(similarity)  # rejects an unknown name before the work
    files = [images.list_images(side) if Path(side).is_dir() else [Path(side)] for side in (a, b)]
    loaded = terminal.load_encoder(encoder, weights=weights, size=size, resize=resize)
    with progress_bar(sys.stderr.isatty()) as bar:
        bar.start("images", sum(map(len, files)))

        @lru_cache(maxsize=MAX_KEPT)
        def decompose(path: Path) -> Decomposition:
            bar.advance()
            return batch.decompose_input(loaded, str(path), regions=regions)

        sides = [LazySequence(paths, decompose) for paths in files]
        comparison = compare_sets(sides[0], sides[1], similarity=similarity)
    names = (Path(a).name or a, Path(b).name or b)
    counted = (f"{a} ({len(files[0])})", f"{b} ({len(files[1])})")
    if as_json:
        _print_json(comparison, counted, loaded.name, outputs, top=top)
    else:
        _print_text(comparison, counted, names, loaded.name)
    write_each(
        lambda path: comparison.save(
            path, names=names, title=draw.title, palette=draw.palette, style=draw.link_preset
        ),
        outputs,
        open_output=open_output,
        quiet=as_json,
    )


class LazySequence(Sequence["Decomposition"]):
    """Decompositions of files, each computed when it is read: a large folder does not fit the memory."""

    def __init__(self, paths: Sequence[Path], decompose: Callable[[Path], Decomposition]) -> None:
        self.paths, self.decompose = paths, decompose

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Decomposition: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Decomposition]: ...
    def __getitem__(self, index: int | slice) -> Decomposition | Sequence[Decomposition]:
        if isinstance(index, slice):
            return LazySequence(self.paths[index], self.decompose)
        return self.decompose(self.paths[index])


def _print_text(
    comparison: SetComparison, counted: Sequence[str], names: Sequence[str], encoder: str
) -> None:
    """Print the mean similarity of the pairs, and the most similar pairs with what they share."""
    from bilrp.cli import batch, terminal
    from bilrp.findings.formatting import format_number

    print_safe(to_printable(f"{counted[0]}  and  {counted[1]}"))
    print_safe(f"{encoder}, {comparison.similarity}\n")
    print_safe(terminal.wrap(comparison.summary(names)))
    for number, example in enumerate(comparison.examples, 1):
        score = f"{comparison.similarity.replace('_', ' ')} {format_number(example.score)}"
        heading = f"similar pair {number}: {example.a.name} and {example.b.name}, {score}"
        print_safe(f"\n  {to_printable(heading)}\n{terminal.wrap(example.summary(), indent='    ')}")
        batch.print_named_findings(example)
    print_safe("")


def _print_json(
    comparison: SetComparison, counted: tuple[str, str], encoder: str, outputs: Sequence[Path], *, top: int | None
) -> None:  # fmt: skip
    """Print the comparison as JSON: the sum over all pairs, all scores, and the most similar pairs."""
    from bilrp.answers.explanations import build_sets
    from bilrp.cli import terminal

    answer = build_sets(comparison, names=counted, encoder=encoder, top=top)
    terminal.print_json({**answer, "outputs": [str(path) for path in outputs]})
