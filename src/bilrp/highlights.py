"""Highlights: which words of a query and of each retrieved passage make them similar, by one pull a side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.attribution import Attribution, LinearForm, Span, make_attribution, make_form
from bilrp.encoder import (
    CompositeLike,
    Encoder,
    EncoderOrPair,
    InputLike,
    load_named,
    read_item,
    resolve_encoders,
)
from bilrp.errors import InputError
from bilrp.inputs import Item, Text
from bilrp.pipeline import PreparedInput, prepare
from bilrp.regions import RegionSpec, RegionSpecs, as_spec_pair, words
from bilrp.similarity import Similarity, resolve_similarity
from bilrp.trace.fingerprint import hash_weights_once


@dataclass(frozen=True, eq=False)
class Highlight:
    """A query and one passage, each with what its words contribute to their similarity.

    score = Σ weights of `passage` + unattributed = Σ weights of `query` + query_unattributed. What special tokens of a text
    ([CLS], a prompt) contribute is unattributed here, because they have no characters.

    Args:
        sides: the attributions of the query and of the passage, with the values of every region.
        matrix: [query, passage], the relevance of each pair of spans, if it was asked for.
    """

    sides: tuple[Attribution, Attribution]
    matrix: Float[Tensor, "query passage"] | None = field(default=None, repr=False)

    @property
    def score(self) -> float:
        """The similarity of the query and the passage."""
        return float(self.sides[0].score)

    @property
    def query(self) -> list[Span]:
        """The words of the query; empty for an image."""
        return _list_spans(self.sides[0])

    @property
    def passage(self) -> list[Span]:
        """The words of the passage; empty for an image."""
        return _list_spans(self.sides[1])

    @property
    def values(self) -> Float[Tensor, " regions"]:
        """What each region of the passage contributes: the heat map of an image."""
        return self.sides[1].values

    @property
    def unattributed(self) -> float:
        """The score less the weights of the passage: biases, constants, special tokens."""
        return _unattributed(self.sides[1])

    @property
    def query_unattributed(self) -> float:
        """The score less the weights of the query."""
        return _unattributed(self.sides[0])

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, characters and texts, ready for JSON; an image has `values` in place of spans."""
        query, passage = self.sides
        row = {
            "score": self.score,
            "similarity": query.similarity,
            "unattributed": self.unattributed,
            "query_unattributed": self.query_unattributed,
            "query": [asdict(span) for span in self.query],
            "passage": [asdict(span) for span in self.passage],
        }
        row |= {} if isinstance(query.view, Text) else {"query_values": query.values.tolist()}
        row |= {} if isinstance(passage.view, Text) else {"values": passage.values.tolist()}
        return row if self.matrix is None else row | {"matrix": self.matrix.tolist()}

    def __repr__(self) -> str:
        best = sorted(self.passage, key=lambda span: -span.weight)[:3]
        return f"Highlight({self.score:.4g}: {', '.join(repr(span.text) for span in best)})"


def highlight(
    encoder: EncoderOrPair,
    query: InputLike,
    passages: Sequence[InputLike],
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    composite: CompositeLike | None = None,
    matrix: bool = False,
) -> list[Highlight]:
    """Weigh the words of a query and of each passage by what they contribute to their similarity.

    Each side is a `bilrp.attribute` with the other: the run of the query is recorded once for all passages, and each
    passage costs its own recorded run and one pull.

    Args:
        encoder: as for `bilrp.explain`; of a tuple of two, the second reads the passages.
        query: a text, or any input of the encoder.
        passages: a list of texts or inputs.
        similarity: a name or a Similarity that is linear in each embedding; None is the encoder's own, else cosine.
        regions: one spec, or a tuple (query, passages); None is words with their punctuation, and for images the
            encoder's default. `bilrp.regions.sentences()` suits long passages.
        composite: the rules; None is the encoder's default.
        matrix: also compute the relevance of each word of the query with each word of the passage.

    >>> [hit.passage[0].text for hit in highlight("minilm", "Where do cats sleep?", ["Cats sleep anywhere."])]
    ... # doctest: +SKIP
    ['Cats']
    """
    if isinstance(passages, str | Tensor) or not isinstance(passages, Sequence):
        raise InputError("passages must be a list of texts or inputs: highlight(encoder, query, [passage])")
    loaded = load_named(encoder)
    reader, specs = resolve_encoders(loaded, query, query)[0], as_spec_pair(regions)
    # Read everything before the first run, so that errors come early.
    item = read_item(reader, query)
    readers = [resolve_encoders(loaded, item, passage)[1] for passage in passages]
    items = [read_item(each, passage) for each, passage in zip(readers, passages, strict=True)]
    chosen = resolve_similarity(similarity, *(each.similarity for each in (reader, *readers)))
    forms: list[LinearForm] = []
    hits: list[tuple[Attribution, Tensor | None]] = []
    with hash_weights_once():
        asked = _prepare(reader, item, specs[0], composite)
        # By the cheaper side: the parts of the query, or one pull for each passage.
        parts = asked.decompose().parts if matrix or len(items) > asked.regions.count else None
        for each, passage in zip(readers, items, strict=True):
            ready = _prepare(each, passage, specs[1], composite)
            form = make_form(chosen, asked.embeddings[None], ready.embeddings[None])
            vectors = form.vectors(1)
            if matrix:
                vectors = torch.cat([vectors, form.vectors(1, parts)])
            values = ready.pull(vectors)
            forms.append(form)
            hits.append((make_attribution(ready, values[:, 0], [form]), values[:, 1:].T if matrix else None))
    if not forms:
        return []
    vectors = torch.cat([form.vectors(0) for form in forms])
    values = asked.pull(vectors) if parts is None else parts @ vectors.T
    queries = [make_attribution(asked, values[:, n], [form]) for n, form in enumerate(forms)]
    return [
        Highlight((one, other), _select(relevance, one, other))
        for one, (other, relevance) in zip(queries, hits, strict=True)
    ]


def _prepare(
    encoder: Encoder, item: Item, spec: RegionSpec | None, composite: CompositeLike | None
) -> PreparedInput:
    if spec is None and item.segment is not None:
        spec = words(punctuation="join")
    return prepare(encoder, item, regions=spec, composite=composite)


def _list_spans(side: Attribution) -> list[Span]:
    return side.spans() if isinstance(side.view, Text) else []


def _unattributed(side: Attribution) -> float:
    values = side.values[side.span_regions] if isinstance(side.view, Text) else side.values
    return float(side.score) - float(values.double().sum())


def _select(relevance: Tensor | None, query: Attribution, passage: Attribution) -> Tensor | None:
    """Return the pairs of regions that have spans; all regions of images."""
    if relevance is None:
        return None
    rows, columns = (
        side.span_regions if isinstance(side.view, Text) else list(range(side.regions.count))
        for side in (query, passage)
    )
    return relevance[rows][:, columns]
