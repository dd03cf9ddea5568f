"""Views of contrasts and of comparisons of sets: rows of tinted inputs, and the explanations behind them."""

from __future__ import annotations

import html as _html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bilrp.findings.formatting import format_number
from bilrp.inputs import Text
from bilrp.io import files
from bilrp.render import figure, gallery
from bilrp.render.gallery import GalleryEntry
from bilrp.render.strips import Legend, Strip, StripItem, draw_strips, serialize_strips
from bilrp.render.typesetting import shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bilrp.groups import Contrast
    from bilrp.highlights import HighlightContrast
    from bilrp.set_comparison import SetComparison

MAX_NAME_LENGTH = 60


@dataclass(frozen=True)
class GroupView:
    """What a page or a figure of several inputs shows.

    Args:
        title: Heading, unless another one is given.
        lead: The sentence below it.
        strips: Rows of tinted inputs.
        legend: Their scale of colours.
        entries: Explanations below them, on the page.
        examples: Rows that show these explanations in a figure.
        note: A further sentence of the figure.
        columns: 2 puts consecutive explanations side by side on wide screens.
    """

    title: str
    lead: str
    strips: Sequence[Strip]
    legend: Legend
    entries: Sequence[GalleryEntry]
    examples: Sequence[Strip] = ()
    note: str = ""
    columns: int = 1

    def plot(self, *, title: str | None = None, palette: str = "paper") -> Figure:
        """Draw the rows with one scale of colours."""
        sentences = f"{self.lead} {self.note}".strip()
        rows = [*self.strips, *self.examples]
        return draw_strips(rows, self.legend, title=title or self.title, sentences=sentences, palette=palette)

    def render_html(
        self, *, title: str | None = None, style: str | None = None, palette: str = "paper"
    ) -> str:
        """Return a page: the rows, then the explanations.

        Args:
            title: Title of the page.
            style: Link style of the explanations.
            palette: "paper" or "safe".
        """
        return gallery.render_html(
            self.entries,
            title=title or self.title,
            lead=self.lead,
            columns=self.columns,
            style=None if style == "auto" else style,
            palette=palette,
            strips=serialize_strips(self.strips, self.legend),
        )

    def write(
        self, path: Path, *, title: str | None = None, style: str | None = None, palette: str = "paper"
    ) -> Path:
        """Write a page (.html) or a figure (.png, .svg, .pdf) atomically.

        Args:
            path: The file; its suffix selects the format.
            title, style, palette: As for `render_html`.
        """
        if path.suffix.lower() == files.PAGE_SUFFIX:
            page = self.render_html(title=title, style=style, palette=palette)
            return files.write_bytes(path, page.encode("utf-8"))
        with files.atomic_write(path) as temporary:
            figure.save_figure(self.plot(title=title, palette=palette), temporary)
        return path

    def embed(self, *, height: int = 860) -> str:
        """Return the page in a sandboxed iframe, for notebooks; `height` in pixels."""
        return (
            f'<iframe srcdoc="{_html.escape(self.render_html(), quote=True)}" sandbox="allow-scripts allow-downloads" '
            f'title="{_html.escape(self.title, quote=True)}" loading="lazy" width="100%" height="{int(height)}" '
            'style="border:0;width:100%;resize:vertical;color-scheme:normal"></iframe>'
        )


def name_contrast(contrast: Contrast, names: Sequence[str] | None) -> tuple[str, str, str]:
    """Return the names of a, b and c: those given, else those of the inputs, else their letters."""
    sides = (contrast.toward.a, contrast.toward.b, contrast.against.b)
    labels = names or [side.name or letter for side, letter in zip(sides, "ABC", strict=True)]
    a, b, c = (
        f"“{shorten(label, MAX_NAME_LENGTH)}”"
        if isinstance(side.view, Text)
        else shorten(label, MAX_NAME_LENGTH)
        for side, label in zip(sides, labels, strict=True)
    )
    return a, b, c


def describe_contrast(contrast: Contrast, names: Sequence[str] | None = None) -> str:
    """Return which of b and c is closer to a, and by how much."""
    a, b, c = name_contrast(contrast, names)
    closer, other = (b, c) if contrast.score >= 0 else (c, b)
    scores = sorted((contrast.toward.score, contrast.against.score), reverse=True)
    similarity = contrast.toward.similarity.replace("_", " ")
    return (
        f"{a} is closer to {closer} than to {other}: {similarity} {format_number(scores[0])} "
        f"against {format_number(scores[1])}, by {format_number(abs(contrast.score))}."
    )


def contrast_strips(contrast: Contrast, names: Sequence[str] | None = None) -> tuple[list[Strip], Legend]:
    """Return a, b and c, each region tinted by what it contributes to the difference of the two scores.

    The contributions of the regions of a add up to the difference, and so do those of b and c together; both without
    what is unattributed.
    """
    a, b, c = name_contrast(contrast, names)
    values = [value.detach().cpu().double().numpy() for value in contrast.marginals()]
    sides = (contrast.toward.a, contrast.toward.b, contrast.against.b)
    toward, against = (format_number(e.score) for e in (contrast.toward, contrast.against))
    similarity = contrast.toward.similarity.replace("_", " ")
    notes = ("", f"{similarity} {toward}", f"{similarity} {against}")
    items = [
        StripItem(side, value, label, note)
        for side, value, label, note in zip(sides, values, (a, b, c), notes, strict=True)
    ]
    return [Strip("", items)], Legend(f"closer to {b}", f"closer to {c}", similarity)


def view_contrast(contrast: Contrast, names: Sequence[str] | None = None) -> GroupView:
    """Return the difference, then the explanations of a with b and of a with c."""
    a, b, c = name_contrast(contrast, names)
    return GroupView(
        f"Why closer to {b if contrast.score >= 0 else c}?",
        describe_contrast(contrast, names),
        *contrast_strips(contrast, names),
        entries=[
            GalleryEntry(contrast.toward, f"What makes it similar to {b}", (a, b)),
            GalleryEntry(contrast.against, f"What makes it similar to {c}", (a, c)),
        ],
        note=f"{format_number(contrast.unattributed)} of the difference is unattributed.",
        columns=2,
    )


def plot_highlight_contrast(
    contrast: HighlightContrast, *, title: str | None = None, palette: str = "paper"
) -> Figure:
    """Draw a query and two passages, each word tinted by what it contributes to the difference of their scores.

    Args:
        contrast: What to draw.
        title: Heading of the figure.
        palette: "paper" or "safe".
    """
    query, got, wanted = contrast.sides
    similarity = query.similarity.replace("_", " ")
    scores = (contrast.toward.score, contrast.against.score)
    notes = (
        "query",
        *(
            f"{name}: {similarity} {format_number(score)}"
            for name, score in zip(("got", "wanted"), scores, strict=True)
        ),
    )
    items = [
        StripItem(side, side.values.detach().cpu().double().numpy(), side.name, note)
        for side, note in zip((query, got, wanted), notes, strict=True)
    ]
    closer = "the passage that was got" if contrast.score >= 0 else "the wanted passage"
    sentence = (
        f"The query is closer to {closer}, by {format_number(abs(contrast.score))}; "
        f"{format_number(contrast.query_unattributed)} of the difference is unattributed."
    )
    legend = Legend("for what was got", "for what was wanted", similarity)
    heading = title or "Why this passage, and why not the other?"
    return draw_strips([Strip("", items)], legend, title=heading, sentences=sentence, palette=palette)


def describe_sets(comparison: SetComparison, names: Sequence[str] | None = None) -> str:
    """Return the mean of the similarities of all pairs, and their range."""
    rows, columns = comparison.scores.shape
    scores, similarity = comparison.scores.double(), comparison.similarity.replace("_", " ")
    a, b = names or ("A", "B")
    count = f"{rows} × {columns} pair{'s' if rows * columns > 1 else ''}"
    return (
        f"{similarity[0].upper()}{similarity[1:]} {format_number(comparison.mean)} on average over {count} of {a} and {b}, "
        f"from {format_number(float(scores.min()))} to {format_number(float(scores.max()))}."
    )


def set_strips(comparison: SetComparison, names: Sequence[str] | None = None) -> tuple[list[Strip], Legend]:
    """Return members of both sets, each region tinted by what it contributes to the mean similarity with the other set."""
    strips = []
    labels = names or ("A", "B")
    for members, count, name, other in zip(
        (comparison.members_a, comparison.members_b), comparison.scores.shape, labels, labels[::-1], strict=True
    ):  # fmt: skip
        items = [
            StripItem(
                m.side,
                m.values.detach().cpu().double().numpy(),
                shorten(m.side.name or f"input {m.number + 1}", MAX_NAME_LENGTH),
                f"mean with {other} {format_number(m.mean)}",
            )
            for m in members
        ]
        which = f", the {len(members)} of {count} most similar to {other}" if len(members) < count else ""
        strips.append(Strip(f"{name}{which}", items))
    similarity = comparison.similarity.replace("_", " ")
    return strips, Legend("shared with the other set", "unlike the other set", similarity)


def view_sets(comparison: SetComparison, names: Sequence[str] | None = None) -> GroupView:
    """Return members of both sets with what they share, then the most similar pairs."""
    entries, examples = [], []
    for number, example in enumerate(comparison.examples, 1):
        pair = (example.a.name or "A", example.b.name or "B")
        entries.append(GalleryEntry(example, f"Similar pair {number}: {pair[0]} and {pair[1]}", pair))
        items = [
            StripItem(side, value.detach().cpu().double().numpy(), name, "")
            for side, value, name in zip((example.a, example.b), example.marginals(), pair, strict=True)
        ]
        score = f"{comparison.similarity.replace('_', ' ')} {format_number(example.score)}"
        examples.append(Strip(f"Similar pair {number}: {score}", items))
    return GroupView(
        "What do the two sets share?",
        describe_sets(comparison, names),
        *set_strips(comparison, names),
        entries=entries,
        examples=examples,
    )
