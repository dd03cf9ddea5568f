"""Files of an explanation: the writer of each suffix with its options, and the tensors and metadata of a stored one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from torch import Tensor

from bilrp.decomposition import Decomposition, deserialize_decomposition, serialize_decomposition
from bilrp.io import store
from bilrp.io.files import (
    ANNOTATION_SUFFIXES,
    FIGURE_SUFFIXES,
    JSON_SUFFIX,
    NUMBER_SUFFIXES,
    PAGE_SUFFIX,
    atomic_write,
    match_suffix,
)

if TYPE_CHECKING:
    from bilrp.explanation import Explanation
    from bilrp.render.links import Style
    from bilrp.render.styles import Show

Writer = Callable[..., Path]
"""A function write(explanation, path, **options) that takes every option of `WriterOptions` and may ignore some.

The command line passes style, palette, names, title and special_tokens, and under `--show differences` also show.
"""


class PageOptions(TypedDict, total=False):
    """Options of figures and pages.

    Args:
        title: heading.
        names: names of the two inputs.
        style: name of a link style ("auto", "pascal_voc", …), or a `bilrp.render.links.Style`.
        palette: "paper" or "safe" (colour-blind safe).
        special_tokens: draw special tokens ([CLS], </s>) of texts.
        show: "matches", or "differences": what sets the two apart; pages show that first.
    """

    title: str | None
    names: tuple[str, str] | None
    style: str | Style
    palette: str
    special_tokens: bool
    show: Show


class DrawingOptions(PageOptions, total=False):
    """Options of `Explanation.plot`.

    Args:
        heatmaps: with arcs, also draw each region's share on its image.
        links: draw pairs instead of findings; default: if a style is given.
    """

    heatmaps: bool
    links: bool | None


class WriterOptions(DrawingOptions, total=False):
    """Options of `Explanation.save`; pages have no heatmaps, links and dpi, and numbers ignore all of them.

    Args:
        dpi: resolution of a .png.
    """

    dpi: int


def write_numbers(explanation: Explanation, path: str | Path, **_: Unpack[WriterOptions]) -> Path:
    """Write an explanation as .npz or .safetensors, which `Explanation.load` reads."""
    return store.write(path, *serialize_explanation(explanation))


def _write_figure(explanation: Explanation, path: str | Path, **options: Unpack[WriterOptions]) -> Path:
    from bilrp.render import figure

    return figure.write(explanation, path, **options)


def _write_page(
    explanation: Explanation,
    path: str | Path,
    *,
    heatmaps: bool = False,
    links: bool | None = None,
    dpi: int = 200,
    **options: Unpack[PageOptions],
) -> Path:
    from bilrp.render import page

    return page.write(explanation, path, **options)


def _write_json(explanation: Explanation, path: str | Path, **options: Unpack[WriterOptions]) -> Path:
    """Write what `bilrp explain --json` prints."""
    from bilrp.answers.explanations import build_explain

    answer = build_explain(
        explanation,
        names=options.get("names") or ("a", "b"),
        encoder=str(explanation.a.origin.get("encoder", "")),
        special_tokens=options.get("special_tokens", False),
    )
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(answer, allow_nan=False) + "\n", encoding="utf-8")
    return Path(path)


def _write_matches(explanation: Explanation, path: str | Path, **_: Unpack[WriterOptions]) -> Path:
    from bilrp.render import annotations

    return annotations.WRITERS[match_suffix(path, annotations.WRITERS) or ""](explanation, path)


FORMATS: Mapping[str, Writer] = {
    **dict.fromkeys(FIGURE_SUFFIXES, _write_figure),
    PAGE_SUFFIX: _write_page,
    **dict.fromkeys(NUMBER_SUFFIXES, write_numbers),
    JSON_SUFFIX: _write_json,
    **dict.fromkeys(ANNOTATION_SUFFIXES, _write_matches),
}
"""The writer of each file suffix."""


def serialize_explanation(e: Explanation) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata that `Explanation.load` reads."""
    tensors = {"relevance": e.relevance}
    metadata = {"kind": "explanation", "score": e.score.hex(), "similarity": e.similarity}
    metadata["distance"] = "yes" if e.is_distance else "no"
    for side, d in (("a", e.a), ("b", e.b)):
        side_tensors, side_metadata = serialize_decomposition(d)
        tensors |= {f"{side}.{name}": t for name, t in side_tensors.items()}
        metadata |= {f"{side}.{name}": text for name, text in side_metadata.items()}
    for name, pair_of in (("self_terms", e.self_terms), ("reference_terms", e.reference_terms)):
        tensors |= {} if pair_of is None else {f"{name}.a": pair_of[0], f"{name}.b": pair_of[1]}
    metadata |= {} if e.reference_terms is None else {"reference_score": e.reference_score.hex()}
    metadata |= {} if e.unweighted_score is None else {"unweighted_score": e.unweighted_score.hex()}
    return tensors, metadata


class ExplanationFields(TypedDict):
    """The fields of an explanation that its file has."""

    a: Decomposition
    b: Decomposition
    score: float
    relevance: Tensor
    similarity: str
    self_terms: tuple[Tensor, Tensor] | None
    is_distance: bool
    reference_terms: tuple[Tensor, Tensor] | None
    reference_score: float
    unweighted_score: float | None


def read_fields(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> ExplanationFields:
    """Return the fields of the explanation whose tensors and metadata `serialize_explanation` returned."""
    sides = [
        deserialize_decomposition(
            {n.removeprefix(f"{side}."): t for n, t in tensors.items() if n.startswith(f"{side}.")},
            {n.removeprefix(f"{side}."): t for n, t in metadata.items() if n.startswith(f"{side}.")},
        )
        for side in "ab"
    ]
    self_terms, reference_terms = (
        (tensors[f"{name}.a"], tensors[f"{name}.b"]) if f"{name}.a" in tensors else None
        for name in ("self_terms", "reference_terms")
    )
    unweighted = metadata.get("unweighted_score")
    return {
        "a": sides[0],
        "b": sides[1],
        "score": float.fromhex(metadata["score"]),
        "relevance": tensors["relevance"],
        "similarity": metadata["similarity"],
        "self_terms": self_terms,
        "is_distance": metadata["distance"] == "yes",
        "reference_terms": reference_terms,
        "reference_score": float.fromhex(metadata.get("reference_score", "0x0p+0")),
        "unweighted_score": None if unweighted is None else float.fromhex(unweighted),
    }
