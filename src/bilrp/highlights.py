"""Highlights: which words of a query and of each retrieved passage make them similar, by one pull a side."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

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
    resolve_regions,
)
from bilrp.errors import InputError
from bilrp.inputs import Item, Text, split_sentences
from bilrp.pipeline import PreparedInput, check_embedding, prepare, spread_evenly
from bilrp.regions import Regions, RegionSpec, RegionSpecs, as_spec_pair, words
from bilrp.similarity import Similarity, resolve_similarity
from bilrp.trace.fingerprint import hash_weights_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Tokens of the passages of one recorded run, with padding: more needs memory and saves nothing.
MAX_RUN_TOKENS = 1024


@dataclass(frozen=True)
class Sentence(Span):
    """A sentence of a text; its weight is the sum of those of its `words`."""

    words: tuple[Span, ...] = ()


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

    def sentences(self) -> list[Sentence]:
        """Return the sentences of the passage with their words, for long passages: the best first, the rest on demand.

        Contributions add up, P_{I ∪ J} = P_I + P_J, so a sentence has the weight of its words, and nothing is run again.
        A word belongs to the sentence that it starts in.

        >>> best = max(hit.sentences(), key=lambda sentence: sentence.weight)  # doctest: +SKIP
        >>> best.text, best.words[0].text  # doctest: +SKIP
        """
        view = self.sides[1].view
        if not isinstance(view, Text):
            raise InputError("sentences are of texts, and this passage is none: use values")
        spans = split_sentences(view.text)
        starts, words = [start for start, _ in spans], [list[Span]() for _ in spans]
        for word in self.passage:
            words[max(0, bisect_right(starts, word.start) - 1)].append(word)
        return [
            Sentence(start, end, view.text[start:end], sum(word.weight for word in inside), tuple(inside))
            for (start, end), inside in zip(spans, words, strict=True)
            if inside
        ]

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

    def to_dict(self) -> dict[str, object]:
        """Return numbers, characters and texts, ready for JSON; an image has `values` in place of spans."""
        query, passage = self.sides
        row: dict[str, object] = {
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

    Each side is a `bilrp.attribute` with the other: the run of the query is recorded once for all passages. Passages of an
    encoder that takes padded batches (`encoders.sentence`) share recorded runs and pulls; others cost one of each.

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
        prepared = _prepare(reader, item, specs[0], composite)
        # By the cheaper side: the parts of the query, or one pull for each passage.
        parts = prepared.decompose().parts if matrix or len(items) > prepared.regions.count else None
        mean = prepared.mean_embedding
        results: dict[int, _Hit] = {}
        for numbers in _group_passages(reader, readers, items, specs[1], composite):
            run = _PassageRun(readers[numbers[0]], [items[n] for n in numbers], specs[1], composite, mean)
            pulled = run.pull(chosen, prepared.embeddings[None], parts if matrix else None)
            results |= zip(numbers, pulled, strict=True)
        for number in range(len(items)):
            form, attribution, relevance = results[number]
            forms.append(form)
            hits.append((attribution, relevance))
    if not forms:
        return []
    vectors = torch.cat([form.vectors(0) for form in forms])
    values = prepared.pull(vectors) if parts is None else parts @ vectors.T
    queries = [make_attribution(prepared, values[:, n], [form]) for n, form in enumerate(forms)]
    return [
        Highlight((one, other), _select(relevance, one, other))
        for one, (other, relevance) in zip(queries, hits, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class HighlightContrast:
    """Why a query is closer to the passage it got than to the one that was wanted, by words.

    score = y(query, got) − y(query, wanted)
          = Σ weights of `query` + query_unattributed
          = Σ weights of `got` + Σ weights of `wanted` + unattributed.

    A positive weight speaks for the passage that was got; weights of the wanted passage have their sign reversed.

    Args:
        toward: The highlight of the query with the passage that it got.
        against: That with the wanted passage, of the same query and regions.
    """

    toward: Highlight
    against: Highlight

    @property
    def score(self) -> float:
        """How much closer the query is to the passage that it got; negative if it is closer to the wanted one."""
        return self.toward.score - self.against.score

    @property
    def sides(self) -> tuple[Attribution, Attribution, Attribution]:
        """What each region of the query, of the passage that it got and of the wanted passage contributes to the score."""
        (query, got), (same, wanted) = self.toward.sides, self.against.sides
        return (
            replace(query, values=query.values - same.values, score=self.score),
            got,
            replace(wanted, values=-wanted.values, score=-float(wanted.score)),
        )

    @property
    def query(self) -> list[Span]:
        """The words of the query; those that speak for the wanted passage are negative."""
        return _list_spans(self.sides[0])

    @property
    def got(self) -> list[Span]:
        """The words of the passage that the query got."""
        return _list_spans(self.sides[1])

    @property
    def wanted(self) -> list[Span]:
        """The words of the wanted passage; those that make it similar to the query are negative."""
        return _list_spans(self.sides[2])

    @property
    def query_unattributed(self) -> float:
        """The score less the weights of the query."""
        return self.toward.query_unattributed - self.against.query_unattributed

    @property
    def unattributed(self) -> float:
        """The score less the weights of both passages."""
        return self.toward.unattributed - self.against.unattributed

    def to_dict(self) -> dict[str, object]:
        """Return numbers, characters and texts, ready for JSON."""
        return {
            "score": self.score,
            "scores": [self.toward.score, self.against.score],
            "similarity": self.toward.sides[0].similarity,
            "unattributed": self.unattributed,
            "query_unattributed": self.query_unattributed,
            "query": [asdict(span) for span in self.query],
            "got": [asdict(span) for span in self.got],
            "wanted": [asdict(span) for span in self.wanted],
        }

    def summary(self, k: int = 3) -> str:
        """Return in one sentence which passage is closer, and the k words of each text that decide most."""
        name = self.toward.sides[0].similarity.replace("_", " ")
        closer = "the passage that was got" if self.score > 0 else "the wanted passage"
        lists = (
            ("the query", sorted(self.query, key=lambda s: -abs(s.weight))),
            ("what was got", sorted(self.got, key=lambda s: -s.weight)),
            ("what was wanted", sorted(self.wanted, key=lambda s: s.weight)),
        )
        words = "; ".join(f"in {side}: {_list_words(spans[:k])}" for side, spans in lists if spans)
        said = f"The query is closer to {closer}" if self.score else "The query is as close to both passages"
        return (
            f"{said}: {name} {self.toward.score:.4f} against {self.against.score:.4f}. "
            f"What decides, positive for what was got, {words}."
        )

    def plot(self, *, title: str | None = None, palette: str = "paper") -> Figure:
        """Draw the query and both passages on one scale: one colour speaks for what was got, the other for what was wanted.

        Args:
            title: Heading of the figure.
            palette: "paper" or "safe".
        """
        from bilrp.render.group_views import plot_highlight_contrast

        return plot_highlight_contrast(self, title=title, palette=palette)

    def _repr_html_(self) -> str:
        return "".join(side._repr_html_() for side in self.sides)

    def __repr__(self) -> str:
        return f"HighlightContrast({self.summary()})"


def contrast_passages(
    encoder: EncoderOrPair,
    query: InputLike,
    got: InputLike,
    wanted: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    composite: CompositeLike | None = None,
) -> HighlightContrast:
    """Explain why a query is closer to one passage than to another, by one pull of each of the three inputs.

    Args:
        encoder, similarity, regions, composite: As for `bilrp.highlight`.
        query: A text, or any input of the encoder.
        got, wanted: The passage that came first, and the one that should have.

    >>> contrast_passages("minilm", "Where do cats sleep?", "Dogs sleep here.", "A kitten naps.")  # doctest: +SKIP
    """
    toward, against = highlight(
        encoder, query, [got, wanted], similarity=similarity, regions=regions, composite=composite
    )
    return HighlightContrast(toward, against)


_Hit: TypeAlias = tuple[LinearForm, Attribution, Tensor | None]


class _PassageRun:
    """One recorded run for some passages: regions of a passage contribute to its own row of the embeddings only.

    Values of one pull of the vectors of all passages, one after another, are therefore those of each passage alone.

    Args:
        encoder: reads the passages.
        items: the passages; several only if the encoder's module makes batches of them.
        spec, composite: regions and rules.
        mean: the mean embedding of the encoder, where its default rules are centered.
    """

    def __init__(
        self,
        encoder: Encoder,
        items: Sequence[Item],
        spec: RegionSpec | None,
        composite: CompositeLike | None,
        mean: Tensor | None,
    ) -> None:
        self.count, self.mean = len(items), mean
        if self.count == 1:
            self.ready = _prepare(encoder, items[0], spec, composite)
            self.sides = [(self.ready.regions, self.ready.item)]
            self.embeddings = [self.ready.embeddings[None]]
            return
        self.sides = [
            resolve_regions(encoder, item, _default_spec(item) if spec is None else spec) for item in items
        ]
        lengths = [item.x.shape[1] for item in items]
        x = items[0].x.new_zeros(1, self.count, max(lengths), items[0].x.shape[2])
        labels, start = torch.full(x.shape[1:], -1), 0
        for row, (regions, item) in enumerate(self.sides):
            x[0, row, : lengths[row]] = item.x[0]
            own = regions.labels.to(labels.device)
            labels[row, : lengths[row]] = torch.where(own < 0, own, own + start)
            start += regions.count
        # Without typical inputs the rules are not centered: `_center` does that for each passage alone.
        module = encoder.module.make_batch_module(items)  # type: ignore[attr-defined]
        batch = replace(encoder, module=module, input_layer=None, typical_inputs=(), mean_embedding=None)
        whole = Regions(labels.to(x.device), start, self.sides[0][0].kind)
        self.ready = prepare(batch, Item(x), regions=whole)
        self.embeddings = list(self.ready.embeddings[None].split(1))
        for embedding in self.embeddings:
            check_embedding(embedding)

    def pull(self, similarity: Similarity, query: Tensor, parts: Tensor | None) -> list[_Hit]:
        """Return the form, the attribution, and the relevance [query, passage] of each passage.

        Args:
            similarity: linear in each embedding.
            query: its embedding.
            parts: of the query, for the relevance of pairs; None without it.
        """
        forms = [make_form(similarity, query, embedding) for embedding in self.embeddings]
        rows = [form.vectors(1) for form in forms]
        if parts is not None:
            rows = [torch.cat([row, form.vectors(1, parts)]) for row, form in zip(rows, forms, strict=True)]
        values = self.ready.pull(torch.cat(rows, 1)).split([regions.count for regions, _ in self.sides])
        if self.mean is not None and self.count > 1:
            values = [self._center(*each) for each in zip(values, rows, range(self.count), strict=True)]
        return [
            (
                form,
                Attribution(own[:, 0], form.score, regions, form.name, item.view, item.name),
                None if parts is None else own[:, 1:].T,
            )
            for form, own, (regions, item) in zip(forms, values, self.sides, strict=True)
        ]

    def _center(self, values: Tensor, vectors: Tensor, number: int) -> Tensor:
        """Return the values [regions, n] of a passage as `composites.centered` gives them."""
        assert self.mean is not None
        embedding = self.embeddings[number].flatten()
        mean = self.mean * torch.linalg.vector_norm(embedding)
        return spread_evenly(values, self.sides[number][0], vectors @ (embedding - mean) - values.sum(0))


def _group_passages(
    query_encoder: Encoder,
    encoders: Sequence[Encoder],
    items: Sequence[Item],
    spec: RegionSpec | None,
    composite: CompositeLike | None,
) -> list[list[int]]:
    """Return the numbers of the passages of each run: of similar length, up to `MAX_RUN_TOKENS` with their padding.

    Passages are run together if the query's encoder reads them and all of their tokens are in a region, so that the mean
    embedding is known and centering needs nothing else.
    """
    if spec is not None and not isinstance(spec, str):
        return [[number] for number in range(len(items))]
    groups: list[list[int]] = []
    for number in sorted(
        range(len(items)), key=lambda n: items[n].x.shape[1] if items[n].x.dim() == 3 else 0
    ):
        item, encoder = items[number], encoders[number]
        last = groups[-1] if groups else []
        fits = bool(last) and (len(last) + 1) * item.x.shape[1] <= MAX_RUN_TOKENS
        if (
            fits
            and encoders[last[0]] is encoder is query_encoder
            and _can_batch(encoder, [items[last[0]], item], composite)
        ):
            last.append(number)
        else:
            groups.append([number])
    return groups


def _can_batch(encoder: Encoder, items: Sequence[Item], composite: CompositeLike | None) -> bool:
    """Return whether the encoder's module takes these as a padded batch, under its default rules."""
    make = getattr(encoder.module, "make_batch_module", None)
    is_default = composite is None and encoder.composite is None
    are_texts = all(item.segment is not None and item.x.dim() == 3 for item in items)
    return is_default and are_texts and make is not None and make(items) is not None


def _default_spec(item: Item) -> RegionSpec | None:
    return words(punctuation="join") if item.segment is not None else None


def _prepare(
    encoder: Encoder, item: Item, spec: RegionSpec | None, composite: CompositeLike | None
) -> PreparedInput:
    spec = _default_spec(item) if spec is None else spec
    return prepare(encoder, item, regions=spec, composite=composite)


def _list_words(spans: Sequence[Span]) -> str:
    return ", ".join(f"“{' '.join(span.text.split())}” {span.weight:+.3f}" for span in spans)


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
