"""`Collection`: search, explain, contrast and audit stored embeddings and parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.collection import iiif, packed_parts, parts_table, tables, thumbnails
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.description import (
    Description,
    check_encoder,
    check_origin,
    load_encoder,
    read_description,
)
from bilrp.collection.items_table import ItemsTable
from bilrp.collection.neighbours import ItemRow, MeanContrast, Neighbour, Query, check_count
from bilrp.collection.originals import find_original, read_first_original
from bilrp.collection.packed_parts import PackedParts
from bilrp.collection.parts_table import PartsRow, PartsTable
from bilrp.collection.search import (
    compute_mean,
    contrast_means,
    find_nearest,
    find_nearest_many,
    share_with_items,
)
from bilrp.collection.table_rows import Scalar
from bilrp.decomposition import Decomposition
from bilrp.encoder import Encoder, EncoderLike, InputLike, as_encoder, read_item
from bilrp.errors import BilrpError, InputError, MismatchError, wrap_errors
from bilrp.explanation import Explanation, pair
from bilrp.highlights import Highlight, highlight
from bilrp.inputs import Image, Item, View
from bilrp.pipeline import decompose_item
from bilrp.progress import progress_bar
from bilrp.regions import RegionSpecs
from bilrp.similarity import Similarity, resolve_similarity
from bilrp.sparse_parts import SparseParts

if TYPE_CHECKING:
    from lance import LanceDataset

    from bilrp.app.widgets import SelectionWidget
    from bilrp.collection.audit import Audit, Suspect
    from bilrp.collection.clusters import ClusterMethod, Clusters
    from bilrp.collection.graph import Graph, GraphBasis
    from bilrp.collection.repair import Repair
    from bilrp.collection.repair_selection import Method
    from bilrp.collection.text_audit import TextAudit, TextSuspect

PARTS_PER_COMMIT = 8  # decompositions per commit


def open(
    path: str | Path, encoder: EncoderLike | str | None = None, *, weights: str | Path | None = None
) -> Collection:
    """Open a collection made by `build` or `bilrp index`.

    The collection is not trusted: no code or weight file that it names is loaded.

    Args:
        path: The collection, NAME.lance.
        encoder: The encoder that made it; by default the built-in encoder with the stored name.
        weights: The weight file of the encoder; a path stored in a collection is never followed.

    >>> open("photographs.lance").nearest("cat.jpg", k=3)  # doctest: +SKIP
    """
    dataset = tables.open_verified(str(path), tables.ITEMS_TABLE)
    if dataset is None:
        raise InputError(f"{path}: no collection there; build one with bilrp index or bilrp.collection.build")
    encoder = encoder if encoder is None or isinstance(encoder, str) else as_encoder(encoder)
    return Collection(str(path), dataset, read_description(str(path), dataset), encoder, weights)


class Collection:
    """Items with their embeddings, and the parts computed so far; see `open` and `bilrp.collection.build`.

    A query is a position, an id, a path, anything the encoder reads, or a `Decomposition`, which saves computing it again
    for several calls.
    """

    def __init__(
        self,
        path: str,
        dataset: LanceDataset,
        description: Description,
        encoder: Encoder | str | None,
        weights: str | Path | None = None,
    ) -> None:
        self.path, self.description, self.weights = path, description, weights
        self.items, self.parts = ItemsTable(dataset, self.width), PartsTable(path, self.width)
        self._given_encoder, self._encoder_checked, self._parts_lock = encoder, False, threading.Lock()

    # ------------------------------------------------------------ items

    def __len__(self) -> int:
        return len(self.items)

    @property
    def ids(self) -> list[str]:
        """The id of each item, in the order of positions."""
        return self.items.ids

    @property
    def names(self) -> list[str]:
        """The name of each item, in the order of positions."""
        return self.items.names

    @property
    def failed(self) -> list[tuple[str, str]]:
        """(source, error) of each input that could not be indexed."""
        return self.items.failed

    def groups(self) -> dict[str, list[int]]:
        """Return the positions of each group's items; a group is a folder or a value of the column `group`."""
        return self.items.groups()

    @property
    def width(self) -> int:
        """Number of coordinates of an embedding."""
        return self.description["width"]

    @property
    def columns(self) -> dict[str, str]:
        """{column: type} of the metadata."""
        return dict(self.description.get("columns") or {})

    @property
    def metadata(self) -> list[dict[str, Scalar]]:
        """The metadata of every item, in order."""
        rows = self.items.columns(list(self.columns))
        return [dict(zip(self.columns, values, strict=True)) for values in rows]

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder passed to `open`, or the built-in encoder with the stored name."""
        return load_encoder(self.path, self.description, self._given_encoder, self.weights)

    @property
    def embeddings(self) -> Float[np.ndarray, "items h"]:
        """φ of every item, in order."""
        if self.items.fits_in_memory:
            return self.items.resident
        return np.concatenate(list(self.items.iter_blocks()))

    # ------------------------------------------------------------ one item

    def position(self, query: Query) -> int | None:
        """Return the position of a query in the collection; None if it is not an item of it."""
        if isinstance(query, int | np.integer):
            if not -len(self) <= query < len(self):
                raise InputError(f"item {query} does not exist: the collection has {len(self)} items")
            return int(query) % len(self)
        return self.items.position(query) if isinstance(query, str | os.PathLike) else None

    def embedding(self, query: Query) -> Float[Tensor, " h"]:
        """Return φ of a query: the stored embedding, or one forward pass."""
        at = self.position(query)
        if at is None:
            return self._embed_query(query)
        return torch.from_numpy(self.items.embeddings([at])[0])

    def _embed_query(self, query: Query) -> Tensor:
        """Compute φ of an input that is not in the collection."""
        if isinstance(query, Decomposition):
            return self.decomposition(query).embedding.float()
        (embedding,) = self.embed_inputs([query])
        if isinstance(embedding, str):
            raise InputError(embedding)
        return embedding.float()

    def embed_inputs(self, inputs: Sequence[InputLike]) -> list[Tensor | str]:
        """Return φ of inputs that are not in the collection, encoded in batches, or the error message of each failure."""
        items = [self._read_query(each) for each in inputs]
        for item in items[:1]:
            self._check_encoder(item)
        return BatchEncoder(self.encoder).encode(items)

    def _read_query(self, query: Query) -> Item:
        """Read an input that is not in the collection."""
        assert not isinstance(query, int | Decomposition)
        return read_item(self.encoder, query)

    def view(self, query: Query, *, full: bool = False) -> View | None:
        """Return the image or text of a query; of an item, the stored thumbnail or text.

        Args:
            query: An item or any input.
            full: Read the image of an item from its file, if that is unchanged.
        """
        at = self.position(query)
        if at is None:
            return query.view if isinstance(query, Decomposition) else self._read_query(query).view
        row = self.items.take([at], ["thumbnail", "text", "view"])
        view = self._read_full_view(at) if full and row["thumbnail"][0] else None
        if view is None:
            with wrap_errors(f"{self.path}: the thumbnail or text of {self.names[at]} is damaged"):
                view = thumbnails.from_row(row["thumbnail"][0], row["text"][0], row["view"][0])
        if iiif.CANVAS_COLUMN in self.columns and isinstance(view, Image):
            (canvas,) = self.items.take([at], [iiif.CANVAS_COLUMN])[iiif.CANVAS_COLUMN]
            return replace(view, canvas=iiif.find_canvas({iiif.CANVAS_COLUMN: canvas}))
        return view

    def _read_full_view(self, position: int) -> View | None:
        """Return the image of an item's file; None if the file is missing, has changed, or cannot be read any more."""
        with suppress(InputError):
            return read_item(self.encoder, self.original_input(position)).view
        return None

    def decomposition(self, query: Query) -> Decomposition:
        """Return the decomposition of an item, with stored parts (computed on first use), or of any other query, exact."""
        at = self.position(query)
        if at is None:
            if not isinstance(query, Decomposition):
                return self._decompose_checked(self._read_query(query))
            check_origin(self.path, self.description, query.origin)
            return query
        return self._restore_decomposition(at, self._load_or_make_parts([at])[0])

    def _restore_decomposition(self, position: int, packed: PackedParts) -> Decomposition:
        """Build the decomposition of an item from its stored parts."""
        self._check_given_encoder()
        with wrap_errors(f"the parts of {self.names[position]} in {self.path} are damaged"):
            frame = self.parts.read_frame(self.ids[position])
            decomposition = parts_table.restore_decomposition(packed, frame, self.embedding(position))
        return replace(decomposition, view=self.view(position), name=self.names[position])

    def relevance(self, i: Query, j: Query) -> Float[Tensor, "regions_a regions_b"]:
        """Return R = P P'ᵀ; of two items from their stored parts."""
        at = [p for p in (self.position(i), self.position(j)) if p is not None]
        if len(at) < 2:
            return self.explain(i, j).relevance
        return packed_parts.compute_relevance(*self._load_or_make_parts(at))

    def make_parts(
        self, positions: Iterable[int] | None = None, *, progress: bool = False
    ) -> list[tuple[str, str]]:
        """Compute and store missing parts of these items, or of all; return (source, error) of each failure."""
        missing, failed = self.positions_without_parts(positions), []
        with progress_bar(progress) as bar:
            bar.start("parts", len(missing))
            for start in range(0, len(missing), PARTS_PER_COMMIT):
                batch = missing[start : start + PARTS_PER_COMMIT]
                rows, failures = self.make_part_rows(batch)
                self.parts.add(rows)
                failed += failures
                bar.advance(len(batch))
        return failed

    def make_part_rows(self, positions: Sequence[int]) -> tuple[list[PartsRow], list[tuple[str, str]]]:
        """Compute rows of the parts table from the original files or texts; also return (source, error) of each failure."""
        rows, failed = [], []
        for position in positions:
            try:
                rows.append(parts_table.to_row(self.ids[position], self._decompose_original(position)))
            except MismatchError:
                raise
            except BilrpError as error:
                failed.append((self.items.sources[position] or self.names[position], str(error)))
        return rows, failed

    def positions_without_parts(self, positions: Iterable[int] | None = None) -> list[int]:
        """Return those of these items, or of all, whose parts are not stored yet."""
        stored = self.parts.ids
        candidates = range(len(self)) if positions is None else positions
        return [p for p in dict.fromkeys(candidates) if self.ids[p] not in stored]

    def _load_or_make_parts(self, positions: Sequence[int]) -> list[PackedParts]:
        """Return the stored parts of these items; missing ones are computed first, by one thread at a time."""
        keys = [self.ids[p] for p in positions]
        parts = self.parts.read_parts(keys)
        if None in parts:
            with self._parts_lock:
                rows, failed = self.make_part_rows(self.positions_without_parts(positions))
                self.parts.add_or_cache(rows)
            if failed:
                raise InputError(failed[0][1])
            parts = self.parts.read_parts(keys)
        return [packed for packed in parts if packed is not None]

    def _decompose_original(self, position: int) -> Decomposition:
        """Decompose an item from its file or text."""
        return self._decompose_checked(read_item(self.encoder, self.original_input(position)))

    def read_original(self, position: int) -> Item:
        """Read an item from its file or text, as the encoder of the collection reads it."""
        item = read_item(self.encoder, self.original_input(position))
        self._check_encoder(item)
        return item

    def _decompose_checked(self, item: Item) -> Decomposition:
        decomposition = decompose_item(self.encoder, item)[None]
        self._check_encoder(item, decomposition.origin)
        return decomposition

    def original_input(self, position: int) -> str | Path:
        """Return what the encoder reads: the stored text, or the path of the original file, if it is unchanged."""
        return find_original(self.path, self.items, position)

    def _check_given_encoder(self) -> None:
        """Check once that an encoder passed to `open` is the collection's, on the first item that can be read."""
        if self._given_encoder is not None and not self._encoder_checked:
            item = self._first_readable
            if item is not None:
                self._check_encoder(item)
            else:  # compare the names now, the weights when the encoder first runs
                origin = self.description["origin"] | {"encoder": self.encoder.name}
                check_origin(self.path, self.description, origin)

    @cached_property
    def _first_readable(self) -> Item | None:
        """The first item whose original can be read, if any."""
        return read_first_original(self.path, self.items, self.encoder)

    def _check_encoder(self, item: Item, origin: Mapping[str, object] | None = None) -> None:
        """Raise `MismatchError` if the encoder is not the collection's; checked on one item only."""
        if not self._encoder_checked:
            check_encoder(self.path, self.description, self.encoder, item, origin)
            self._encoder_checked = True

    # ------------------------------------------------------------ search and explain

    def nearest(
        self,
        query: Query,
        k: int = 10,
        *,
        part: Sequence[int] | None = None,
        without: Sequence[int] | None = None,
        similarity: str | None = None,
        approximate: bool = False,
        where: str | None = None,
    ) -> list[Neighbour]:
        """Return the k items with the largest ⟨v, φ(x')⟩ or cosine, where v is φ(x), the vector of a part of x, or given.

        Args:
            query: An item, any input, or a vector v [h].
            k: Number of neighbours.
            part: Regions of the query to search by: v = Σ_{I ∈ part} P_I.
            without: Regions of the query to leave out: v = φ − Σ_{I ∈ without} P_I.
            similarity: "dot" or "cosine"; the encoder's own by default.
            approximate: Use an approximate index if the collection exceeds memory; see `recall`.
            where: Only items that match this SQL condition on their metadata, such as "lang = 'en' AND year > 2019";
                the search is then exact.
        """
        check_count(k)
        similarity = self.resolve_similarity(similarity)
        return find_nearest(
            self, query, k, self._sparse_parts, part=part, without=without, similarity=similarity,
            approximate=approximate, where=where,
        )  # fmt: skip

    def nearest_many(
        self,
        queries: Sequence[Query] | Float[np.ndarray, "n h"],
        k: int = 10,
        *,
        similarity: str | None = None,
        where: str | None = None,
    ) -> list[list[Neighbour]]:
        """Return `nearest` of each query: inputs are encoded in batches, and the items are read once for all of them.

        Args:
            queries: Items, inputs or vectors [h]; or an array or tensor [n, h].
            k: Number of neighbours of each.
            similarity: "dot" or "cosine"; the encoder's own by default.
            where: Only items that match this SQL condition, as for `nearest`.

        >>> [hits[0].name for hits in collection.nearest_many(["one question", "another"])]  # doctest: +SKIP
        """
        similarity = self.resolve_similarity(similarity)
        return find_nearest_many(self, queries, k, self._sparse_parts, similarity=similarity, where=where)

    def read_rows(self, positions: Sequence[int]) -> list[ItemRow]:
        """Return text, group and metadata of some items."""
        if not positions:
            return []
        columns = self.items.take(positions, ["text", "group", *self.columns])
        return [
            ItemRow(text, group, dict(zip(self.columns, values, strict=True)))
            for text, group, *values in zip(*columns.values(), strict=True)
        ]

    def resolve_similarity(self, similarity: str | None) -> Literal["dot", "cosine"]:
        """Return "dot" or "cosine", by which items are ranked; None is the similarity of the collection's encoder."""
        name = resolve_similarity(similarity, self.description["origin"].get("similarity")).name
        if name not in ("dot", "cosine"):
            raise InputError(f"neighbours are ranked by dot or cosine, got {name!r}: give similarity=")
        return name

    def recall(self, similarity: str | None = None) -> float:
        """Return the measured fraction of an item's ten nearest that `approximate` returns; 1 if the search is exact."""
        index = self.items.index(self.resolve_similarity(similarity))
        return 1.0 if index is None else index.recall

    def _sparse_parts(self, query: Query) -> SparseParts:
        """Return the parts of a query on the coordinates where they are not zero."""
        at = self.position(query)
        if at is None:
            return SparseParts.from_dense(self.decomposition(query).parts.float())
        self._check_given_encoder()
        return self._load_or_make_parts([at])[0].unpack()

    def share(
        self,
        query: Query,
        against: Sequence[int | str] | int | str | None = None,
        *,
        similarity: str | None = None,
    ) -> Float[Tensor, "regions items"]:
        """Return ⟨P_I, φ(x')⟩ of each region of the query with each item; for cosine divided by ‖φ(x)‖‖φ(x')‖.

        Args:
            query: An item or any input.
            against: Items to compare with, by positions or ids, or the name of a group; None for all.
            similarity: "dot" or "cosine"; the encoder's own by default.
        """
        is_cosine = self.resolve_similarity(similarity) == "cosine"
        parts = self._sparse_parts(query)  # first: its run also tells whether the encoder is the collection's
        norm = float(self.embedding(query).norm()) or 1.0 if is_cosine else None
        return share_with_items(self, parts, norm, against)

    def explain(self, i: Query, j: Query, *, similarity: str | Similarity | None = None) -> Explanation:
        """Explain the similarity of two inputs; of items from stored parts, with `storage_error` in each side.

        Args:
            i: An item or any input.
            j: An item or any input.
            similarity: "dot", "cosine" or a `Similarity`; the encoder's own by default.
        """
        at = [p for p in (self.position(i), self.position(j)) if p is not None]
        similarity = resolve_similarity(similarity, self.description["origin"].get("similarity"))
        if len(at) < 2 or similarity.name not in ("dot", "cosine"):
            return pair(self.decomposition(i), self.decomposition(j), similarity=similarity)
        packed = self._load_or_make_parts(at)
        sides = [self._restore_decomposition(*each) for each in zip(at, packed, strict=True)]
        common = torch.from_numpy(packed_parts.intersect_columns(*packed)[0]).long()
        return pair(*sides, similarity=similarity, coordinates=common)

    def highlight(
        self,
        query: Query,
        hits: Sequence[Neighbour | int | str],
        *,
        similarity: str | Similarity | None = None,
        regions: RegionSpecs | None = None,
        matrix: bool = False,
    ) -> list[Highlight]:
        """Weigh the words or regions of a query and of its hits by what they contribute, without stored parts.

        Args:
            query: An item or any input.
            hits: The result of `nearest`, or positions or ids of items.
            similarity: "dot", "cosine" or a `Similarity`; the encoder's own by default.
            regions: As for `bilrp.highlight`.
            matrix: Also compute the relevance of each pair of words.

        >>> collection.highlight("Where do cats sleep?", collection.nearest("Where do cats sleep?", 5))  # doctest: +SKIP
        """
        positions = [
            self._require_position(hit.position if isinstance(hit, Neighbour) else hit) for hit in hits
        ]
        if isinstance(query, Decomposition):
            raise InputError("highlight runs the encoder on the query: give the input, not its decomposition")
        at = self.position(query)
        item = self._read_query(query if at is None else self.original_input(at))
        self._check_encoder(item)
        passages = [self._read_query(self.original_input(p)) for p in positions]
        chosen = resolve_similarity(similarity, self.description["origin"].get("similarity"))
        return highlight(self.encoder, item, passages, similarity=chosen, regions=regions, matrix=matrix)

    def mean(self, group: str | Sequence[int]) -> Float[Tensor, " h"]:
        """Return the mean embedding m of a group, given by name or positions."""
        return compute_mean(self, group)

    def contrast(
        self, g: str | Sequence[int], h: str | Sequence[int], *, similarity: str | None = None
    ) -> MeanContrast:
        """Contrast group g with group h: `share` of the result weights regions by ⟨P_I, m_g − m_h⟩.

        Args:
            g: The first group, by name or positions.
            h: The second group.
            similarity: "cosine" divides the means by their norms and P by ‖φ(x)‖; the encoder's own by default.
        """
        return contrast_means(self, g, h, cosine=self.resolve_similarity(similarity) == "cosine")

    def audit(
        self, *, sample: int = 64, seed: int = 0, similarity: str | None = None, progress: bool = False
    ) -> Audit | TextAudit:
        """Explain sampled nearest neighbours and rank image areas, or phrases of texts, that look like shortcuts.

        Args:
            sample: Number of items whose nearest neighbour is explained.
            seed: Seed of the sample.
            similarity: "dot" or "cosine"; the encoder's own by default.
            progress: Show a progress bar.
        """
        from bilrp.collection.audit import audit_collection

        return audit_collection(self, sample=sample, seed=seed, similarity=similarity, progress=progress)

    def repair(
        self,
        *,
        suspect: Suspect | TextSuspect | int | None = None,
        part: Sequence[int] | None = None,
        of: Query | None = None,
        words: str | None = None,
        carriers: Sequence[int] | None = None,
        method: Method | None = None,
        progress: bool = False,
    ) -> Repair:
        """Return a similarity without a part that should not count, and what that costs, measured beforehand.

        Args:
            suspect: A suspect of `audit`, or its number as the audit prints it, from 1.
            part: Region numbers of the item `of` that shows the part.
            of: That item.
            words: Words of texts that should not count.
            carriers: Positions of the items that have the part; found by default.
            method: "projection", "filling" or "removal"; the first that reaches the goals by default.
            progress: Show progress bars.
        """
        from bilrp.collection.repair_selection import repair_collection

        options = {"suspect": suspect, "part": part, "of": of, "words": words, "carriers": carriers}
        return repair_collection(self, **options, method=method, progress=progress)  # type: ignore[arg-type]

    def graph(
        self,
        k: int | None = None,
        *,
        threshold: float | None = None,
        mutual: bool = True,
        by: GraphBasis | None = None,
        similarity: str | None = None,
        progress: bool = False,
    ) -> Graph:
        """Return a network of the items: each is joined with items like it, and every edge has its reason.

        Args:
            k: Number of nearest items that an item is joined with; by default 10, and for numbers all.
            threshold: Smallest score of an edge; for numbers, how many of them are neighbours on both pages (5 by default).
            mutual: Keep an edge only if each of its items is among the k nearest of the other.
            by: "embedding", or "numbers" for scanned tables: pages with blocks of numbers in common. By default numbers
                where the encoder reads them.
            similarity: "dot" or "cosine", of embeddings; the encoder's own by default.
            progress: Show progress bars.

        >>> graph = collection.graph(k=5)  # doctest: +SKIP
        >>> graph.explain_edge(0, 1).text  # doctest: +SKIP
        """
        from bilrp.collection.graph import build_graph

        options = {"k": k, "threshold": threshold, "mutual": mutual, "by": by, "similarity": similarity}
        return build_graph(self, **options, progress=progress)  # type: ignore[arg-type]

    def clusters(
        self,
        k: int | None = None,
        *,
        method: ClusterMethod | None = None,
        min_size: int | None = None,
        similarity: str | None = None,
        resamples: int = 10,
        seed: int = 0,
        progress: bool = False,
    ) -> Clusters:
        """Cluster the items by their embeddings; each cluster says what its members share and how stable it is.

        Args:
            k: Number of clusters for k-means; None: HDBSCAN finds it, and leaves items out that are in none (label −1).
            method: "kmeans" or "hdbscan"; by default k-means if k is given.
            min_size: Smallest cluster of HDBSCAN; by default one in fifty items, and at least 5.
            similarity: "dot" or "cosine" (embeddings of length 1); the encoder's own by default.
            resamples: How often the items are resampled to measure stability; 0: not measured.
            seed: Seed of k-means and of the resamples.
            progress: Show a progress bar.

        >>> collection.clusters(8).explain(0).examples  # doctest: +SKIP
        """
        from bilrp.collection.clusters import cluster_collection

        options = {"method": method, "min_size": min_size, "similarity": similarity, "resamples": resamples}
        return cluster_collection(self, k, **options, seed=seed, progress=progress)  # type: ignore[arg-type]

    def widget(self) -> SelectionWidget:
        """Return a notebook widget (`bilrp[notebook]`) of the collection; `widget.selected` is {id, part, without}."""
        from bilrp.app import widgets

        return widgets.make_collection_widget(self)

    def remove(self, queries: Sequence[Query]) -> int:
        """Remove items with their parts and return their number; raises before removing if a query is not an item."""
        positions = {self._require_position(query) for query in queries}
        for key in {self.ids[p] for p in positions}:
            for name in (tables.ITEMS_TABLE, *tables.DERIVED_TABLES):
                tables.delete_rows(self.path, name, key)
        dataset = tables.open_verified(self.path, tables.ITEMS_TABLE)
        self.items, self.parts = ItemsTable(dataset, self.width), PartsTable(self.path, self.width)
        return len(positions)

    def _require_position(self, query: Query) -> int:
        """Return the position of an item; a name is not accepted, because several items may have it."""
        at = self.position(query)
        if at is None:
            same = [p for p, name in enumerate(self.names) if name == query]
            hint = f"; ids with that name: {', '.join(self.ids[p] for p in same[:3])}" if same else ""
            raise InputError(f"{query} is not an item of {self.path}: give a position, an id or a file{hint}")
        return at

    def __repr__(self) -> str:
        return f"Collection({len(self)} items, {self.width} coordinates, {self.description['encoder']})"
