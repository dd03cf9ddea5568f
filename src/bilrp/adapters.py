"""Highlights for hits of other libraries: FAISS, Chroma, Qdrant, LanceDB, SQL rows (pgvector), LangChain, LlamaIndex.

Hits are recognised by what they offer; none of these packages is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bilrp.encoder import EncoderOrPair, InputLike
from bilrp.errors import InputError
from bilrp.highlights import Highlight, highlight
from bilrp.regions import RegionSpecs
from bilrp.similarity import Similarity

Hits: TypeAlias = object
"""What a library's search returned for one query; see `read_hits`."""
Texts: TypeAlias = Sequence[str] | Mapping[Any, str]
"""The passages of an index that stores vectors only, by position or id."""

# The first of these fields that a record has is its score.
SCORE_FIELDS = ("_score", "_relevance_score", "score", "_distance", "distance")
METADATA_KEY = "highlight"  # in the metadata of documents


@dataclass(frozen=True, eq=False)
class Hit:
    """A retrieved passage: as the library gave it, and why it matches.

    Args:
        id: Its id in the library; None if it has none.
        text: The passage.
        score: The library's own number, a similarity or a distance; None if it gave none. `highlight.score` is the
            encoder's similarity.
        metadata: Its other fields.
        source: The library's own object.
        highlight: Which words of the query and of the passage make them similar; None before `highlight_hits`.
    """

    id: Any
    text: str
    score: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Any = field(default=None, repr=False)
    highlight: Highlight | None = None


def highlight_hits(
    encoder: EncoderOrPair,
    query: InputLike,
    hits: Hits,
    *,
    texts: Texts | None = None,
    text_field: str = "text",
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
) -> list[Hit]:
    """Read the hits of a library and highlight them all, in their order; passages share runs as in `bilrp.highlight`.

    Args:
        encoder: The encoder that made the vectors of the index.
        query: What was searched for.
        hits: What the library's search returned, see `read_hits`.
        texts: The passages, for an index without texts (FAISS).
        text_field: The column or payload field with the passage.
        similarity, regions: As for `bilrp.highlight`.

    >>> hits = highlight_hits(model, "a question", index.search(vector, 10), texts=passages)  # doctest: +SKIP
    >>> hits[0].highlight.passage  # doctest: +SKIP
    """
    read = read_hits(hits, texts=texts, text_field=text_field)
    highlights = highlight(encoder, query, [hit.text for hit in read], similarity=similarity, regions=regions)
    return [
        Hit(hit.id, hit.text, hit.score, hit.metadata, hit.source, each)
        for hit, each in zip(read, highlights, strict=True)
    ]


def attach_highlights(
    encoder: EncoderOrPair,
    query: InputLike,
    documents: Hits,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
) -> list[Any]:
    """Write `metadata["highlight"]` of each document of LangChain or LlamaIndex, ready for JSON, and return the documents.

    Args:
        encoder, similarity, regions: As for `highlight_hits`.
        query: What was searched for.
        documents: Documents, (document, score) pairs, or nodes with scores.

    >>> documents = attach_highlights(model, question, retriever.invoke(question))  # doctest: +SKIP
    """
    hits = highlight_hits(encoder, query, documents, similarity=similarity, regions=regions)
    for hit in hits:
        document = hit.source[0] if isinstance(hit.source, tuple) else getattr(hit.source, "node", hit.source)
        if not hasattr(document, "metadata"):
            raise InputError(
                f"{type(document).__name__} has no metadata to write to: use highlight_hits, which returns highlights"
            )
        assert hit.highlight is not None
        document.metadata[METADATA_KEY] = hit.highlight.to_dict()
    return [hit.source for hit in hits]


@dataclass(frozen=True)
class HighlightingRetriever:
    """A retriever of LangChain (`invoke`) or LlamaIndex (`retrieve`) whose documents have highlights in their metadata.

    Args:
        retriever, encoder: The library's own retriever, and the encoder that made the vectors of its index.
        similarity, regions: As for `bilrp.highlight`.

    >>> HighlightingRetriever(store.as_retriever(), model).invoke("a question")  # doctest: +SKIP
    """

    retriever: Any
    encoder: EncoderOrPair
    similarity: str | Similarity | None = None
    regions: RegionSpecs | None = None

    def invoke(self, query: str) -> list[Any]:
        """Return LangChain's documents for a query."""
        return self._attach(query, self.retriever.invoke(query))

    def retrieve(self, query: str) -> list[Any]:
        """Return LlamaIndex's nodes for a query."""
        return self._attach(query, self.retriever.retrieve(query))

    def __call__(self, query: str) -> list[Any]:
        """Return the documents or nodes for a query, so that the retriever can be part of a chain."""
        return self.retrieve(query) if hasattr(self.retriever, "retrieve") else self.invoke(query)

    def _attach(self, query: str, documents: Hits) -> list[Any]:
        return attach_highlights(
            self.encoder, query, documents, similarity=self.similarity, regions=self.regions
        )


def read_hits(hits: Hits, *, texts: Texts | None = None, text_field: str = "text") -> list[Hit]:
    """Return the hits of one query: id, text, score and metadata of each.

    Args:
        hits: FAISS: (distances, ids) of `index.search`. Chroma: the result of `collection.query` or `get`. Qdrant: the
            result of `client.query_points`, or a list of its points. LanceDB: `search(…).to_list()`, `to_arrow()` or
            `to_pandas()`. SQL: rows as dictionaries. LangChain: documents or (document, score) pairs. LlamaIndex: nodes
            with scores. Or neighbours of a `bilrp.collection`.
        texts: The passages by position or id, where hits have none.
        text_field: The column or payload field with the passage.

    >>> [hit.text for hit in read_hits([{"id": 1, "text": "Cats sleep.", "_distance": 0.2}])]
    ['Cats sleep.']
    """
    if isinstance(hits, tuple) and len(hits) == 2 and all(hasattr(each, "ndim") for each in hits):
        return _read_arrays(hits[0], hits[1], texts)
    if isinstance(hits, Mapping) and "ids" in hits and "documents" in hits:
        return _read_columns(hits)
    rows: Any = getattr(hits, "points", hits)
    if hasattr(rows, "to_pylist"):  # an Arrow table
        rows = rows.to_pylist()
    elif hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a data frame
        rows = rows.to_dict("records")
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise InputError(
            f"{type(hits).__name__} is not a list of hits: pass what the search of FAISS, Chroma, Qdrant, LanceDB, "
            "LangChain or LlamaIndex returned, or a list of dictionaries"
        )
    return [_read_hit(row, texts, text_field) for row in rows]


def _read_arrays(scores: Any, ids: Any, texts: Texts | None) -> list[Hit]:
    """Read distances and ids [queries, k] of FAISS; an id of −1 means no hit."""
    if texts is None:
        raise InputError("FAISS stores vectors only: give the passages by position or id, texts=[…]")
    if ids.ndim == 2 and len(ids) != 1:
        raise InputError(
            f"these are hits of {len(ids)} queries: highlight one at a time, (distances[n], ids[n])"
        )
    if scores.size != ids.size:
        raise InputError(
            f"there are {scores.size} distances and {ids.size} ids: give one of each for each hit"
        )
    pairs = zip(scores.reshape(-1).tolist(), ids.reshape(-1).tolist(), strict=True)
    return [
        Hit(number, _find_text(texts, number), score, source=number)
        for score, number in pairs
        if number != -1
    ]


def _read_columns(result: Mapping[str, Any]) -> list[Hit]:
    """Read a result of Chroma: lists of ids, documents, metadatas and distances, one of each for each query."""
    columns: dict[str, Any] = {
        name: result.get(name) for name in ("ids", "documents", "metadatas", "distances")
    }
    if columns["documents"] is None:
        raise InputError("these hits have no documents: query with include=['documents', 'distances']")
    ids = columns["ids"] or []
    if ids and isinstance(ids[0], list):
        if len(ids) != 1:
            raise InputError(
                f"these are hits of {len(ids)} queries: query with one text or embedding at a time"
            )
        columns = {name: None if each is None else each[0] for name, each in columns.items()}
    lengths = {name: len(each) for name, each in columns.items() if each is not None}
    if columns["ids"] is None or len(set(lengths.values())) > 1:
        raise InputError(f"a hit has one of each, and these lists have different lengths: {lengths}")
    count = lengths["ids"]
    rows: Any = zip(*([None] * count if each is None else each for each in columns.values()), strict=True)
    return [
        Hit(key, document, distance, dict(metadata or {}), key) for key, document, metadata, distance in rows
    ]


def _read_hit(hit: Any, texts: Texts | None, text_field: str) -> Hit:
    """Read one hit of a list."""
    document: Any = hit
    score: Any = getattr(hit, "score", None)
    if isinstance(hit, tuple) and len(hit) == 2:
        document, score = hit
    if hasattr(document, "page_content"):  # LangChain
        return Hit(getattr(document, "id", None), document.page_content, score, document.metadata, hit)
    if hasattr(document, "node") and hasattr(document.node, "get_content"):  # LlamaIndex
        node = document.node
        return Hit(node.node_id, node.get_content(), score, node.metadata, hit)
    if hasattr(document, "payload"):  # Qdrant
        payload = dict(document.payload or {})
        return Hit(document.id, _take_text(payload, document.id, texts, text_field), score, payload, hit)
    if isinstance(document, Mapping):
        fields = dict(document)
        number = fields.pop("id", None)
        text = _take_text(fields, number, texts, text_field)
        name = next((each for each in SCORE_FIELDS if each in fields), None)
        return Hit(number, text, None if name is None else fields.pop(name), fields, hit)
    if isinstance(getattr(document, "text", None), str) and hasattr(document, "id"):  # of a bilrp.collection
        return Hit(document.id, document.text, score, document.metadata, hit)
    raise InputError(
        f"a hit of type {type(hit).__name__} has no text in a known field: pass dictionaries with '{text_field}', for SQL "
        "rows psycopg.connect(…, row_factory=psycopg.rows.dict_row)"
    )


def _take_text(fields: dict[str, Any], number: Any, texts: Texts | None, text_field: str) -> str:
    """Remove the text from the fields of a record and return it; of a record without one, that with its id in `texts`."""
    if text_field not in fields and texts is not None:
        return _find_text(texts, number)
    if not isinstance(fields.get(text_field), str):
        names = ", ".join(map(str, fields)) or "no fields"
        raise InputError(
            f"hit {number} has no text in '{text_field}' ({names}): say where it is, text_field=…"
        )
    return fields.pop(text_field)


def _find_text(texts: Texts, number: Any) -> str:
    try:
        if isinstance(number, int) and number < 0 and not isinstance(texts, Mapping):
            raise IndexError  # Python would count from the end
        return str(texts[number])
    except (KeyError, IndexError, TypeError):
        raise InputError(f"hit {number} is not in texts: give the passages of the whole index") from None
