"""`Graph`: the items of a collection as a network whose edges have reasons.

Edges come from the embeddings (the k nearest of each item) or, for scanned tables, from blocks of numbers that two pages
have in common. Reasons of embeddings are findings of the explanation of the pair, computed when asked for.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from bilrp.collection import edge_reasons, page_numbers, spread
from bilrp.collection.edge_reasons import EdgeReason, SharedPart
from bilrp.collection.embedding_norms import normalize_rows
from bilrp.collection.neighbours import check_count
from bilrp.collection.spread import Spread
from bilrp.errors import InputError, import_optional
from bilrp.findings.number_copies import CopiedBlock, PageNumbers, find_copies
from bilrp.progress import progress_bar

if TYPE_CHECKING:
    import networkx

    from bilrp.collection.core import Collection, Query

GraphBasis = Literal["embedding", "numbers"]
DEFAULT_NEIGHBOURS = 10
BLOCK_ITEMS = 1024  # compared with all others at once
MIN_SHARED_NUMBERS = 5  # default threshold of tables: pages of one kind share fewer by chance
MAX_RUN_PAGES = 200  # a run of two numbers on more pages than these does not make two pages candidates
MIN_SHARED_RUNS = 3  # of two pages to be compared number by number


@dataclass(frozen=True, eq=False)
class Graph:
    """A network of the items of a collection.

    Args:
        collection: The collection.
        network: `networkx.Graph`: its nodes are positions of items with `name`, `id`, `group` and metadata, its edges have
            a `score`.
        by: What edges are made of: "embedding", or "numbers".
        pages: The numbers of each page; empty for embeddings.
        blocks: The blocks that two pages (i, j), i < j, have in common; empty for embeddings.
    """

    collection: Collection
    network: networkx.Graph
    by: GraphBasis
    pages: Sequence[PageNumbers] = field(default=(), repr=False)
    blocks: Mapping[tuple[int, int], Sequence[CopiedBlock]] = field(default_factory=dict, repr=False)

    @property
    def edges(self) -> list[tuple[int, int, float]]:
        """(i, j, score) of each edge, i < j, strongest first."""
        rows = ((min(i, j), max(i, j), score) for i, j, score in self.network.edges.data("score"))
        return sorted(rows, key=lambda row: (-row[2], row[:2]))

    def explain_edge(self, i: Query, j: Query) -> EdgeReason:
        """Return why two items are joined: findings of their explanation, or the blocks of numbers on both pages.

        Args:
            i, j: Two items that are joined.
        """
        a, b = self.collection.position(i), self.collection.position(j)
        if a is None or b is None or not self.network.has_edge(a, b):
            raise InputError(f"{i} and {j} are not joined in this graph: give two items of one of its edges")
        if (a, b) not in self._reasons:
            self._reasons[a, b] = self._make_reason(a, b)
        return self._reasons[a, b]

    def _make_reason(self, a: int, b: int) -> EdgeReason:
        if self.by == "embedding":
            return edge_reasons.explain_findings(self.collection, a, b, self.network.edges[a, b]["score"])
        return edge_reasons.explain_blocks(a, b, self.pages[a], self.pages[b], self.find_blocks(a, b))

    def find_blocks(self, a: int, b: int) -> list[CopiedBlock]:
        """Return the blocks that two pages have in common, seen from the first; empty for embeddings.

        Args:
            a, b: Positions of the pages.
        """
        blocks = self.blocks.get((min(a, b), max(a, b)), ())
        return [block if a < b else block.swap() for block in blocks]

    def known_reason(self, i: int, j: int) -> EdgeReason | None:
        """Return the reason of an edge if it was computed before or needs no explanation; else None.

        Args:
            i, j: Positions of two items that are joined.
        """
        a, b = min(i, j), max(i, j)
        return self.explain_edge(a, b) if self.by == "numbers" or (a, b) in self._reasons else None

    @cached_property
    def _reasons(self) -> dict[tuple[int, int], EdgeReason]:
        return {}

    def shared_parts(self, *, progress: bool = False) -> list[SharedPart]:
        """Return the parts that several items have in common, grouped over edges, those with most items first.

        For embeddings this explains every edge.

        Args:
            progress: Show a progress bar.
        """
        if self.by == "numbers":
            return edge_reasons.group_blocks(self.pages, self.blocks)
        with progress_bar(progress) as bar:
            bar.start("explaining edges", self.network.number_of_edges())
            reasons = []
            for i, j, _ in self.edges:
                reasons.append(self.explain_edge(i, j))
                bar.advance()
        return edge_reasons.group_findings(reasons)

    def spread(self, time: str, *, place: str | None = None, progress: bool = False) -> list[Spread]:
        """Return how each shared part spread: its earliest carrier and the later ones, each with its likely source.

        The source of a later item is the earlier item that agrees with it most: for numbers the one with the most equal
        numbers and the fewest that differ, for embeddings the one with the highest score.

        Args:
            time: Column of the metadata that orders the items, for example "year".
            place: Column of the metadata that names where they are from.
            progress: Show a progress bar.
        """
        return spread.trace_parts(self, self.shared_parts(progress=progress), time=time, place=place)

    def sources(self, time: str) -> networkx.DiGraph:
        """Return who copied from whom: an edge from each source to its copy, with `numbers`, `errors` and `certain`.

        Args:
            time: Column of the metadata that orders the items.
        """
        return spread.find_sources(self, time)

    def to_dict(self) -> dict[str, object]:
        """Return the network JSON-ready: nodes with metadata, edges with score, and the reasons computed so far."""
        nodes = [{"position": n, **data} for n, data in self.network.nodes(data=True)]
        edges = []
        for i, j, score in self.edges:
            reason = self.known_reason(i, j)
            edges.append({"a": i, "b": j, "score": score, "reason": reason and reason.to_dict()})
        return {"by": self.by, "nodes": nodes, "edges": edges}

    def save(
        self, path: str | os.PathLike[str], *, time: str | None = None, place: str | None = None
    ) -> Path:
        """Write the network as a page (.html) or as data (.json, .graphml, .gexf), and return its path.

        Args:
            path: The file to write.
            time: Column of the metadata that orders items, for how shared parts spread (.html, .json).
            place: Column of the metadata that names where they are from.
        """
        from bilrp.collection.graph_files import write_graph

        return write_graph(self, Path(path), time=time, place=place)

    def __repr__(self) -> str:
        return f"Graph({self.network.number_of_nodes()} items, {self.network.number_of_edges()} edges, by {self.by})"


def build_graph(
    collection: Collection,
    *,
    k: int | None = None,
    threshold: float | None = None,
    mutual: bool = True,
    by: GraphBasis | None = None,
    similarity: str | None = None,
    progress: bool = False,
) -> Graph:
    """Build the graph of a collection.

    Args:
        collection: The collection.
        k, threshold, mutual, by, similarity, progress: As for `Collection.graph`.
    """
    if k is not None:
        check_count(k)
    if threshold is not None and not (isinstance(threshold, int | float) and threshold == threshold):
        raise InputError(f"threshold must be a number, got {threshold!r}")
    if by not in (None, "embedding", "numbers"):
        raise InputError(f'by must be "embedding" or "numbers", got {by!r}')
    by = by or ("numbers" if page_numbers.has_numbers(collection) else "embedding")
    if by == "numbers":
        pages = page_numbers.read_numbers(collection, progress=progress)
        least = MIN_SHARED_NUMBERS if threshold is None else threshold
        blocks = find_shared_blocks(pages, min_numbers=max(2, int(np.ceil(least))), progress=progress)
        counts = {pair: float(sum(len(each.pairs) for each in some)) for pair, some in blocks.items()}
        scores = counts if k is None else select_nearest(counts, k, mutual=mutual)
        blocks = {pair: blocks[pair] for pair in scores}
        return Graph(collection, _make_network(collection, scores), by, pages, blocks)
    cosine = collection.resolve_similarity(similarity) == "cosine"
    near = DEFAULT_NEIGHBOURS if k is None else k
    scores = find_nearest_pairs(
        collection.embeddings, near, cosine=cosine, mutual=mutual, threshold=threshold
    )
    return Graph(collection, _make_network(collection, scores), by)


def _make_network(collection: Collection, scores: Mapping[tuple[int, int], float]) -> networkx.Graph:
    networkx = import_optional("networkx", "collection", "graphs of collections")
    network = networkx.Graph()
    groups = collection.items.label_values("group")
    rows = zip(collection.names, collection.ids, groups, collection.metadata, strict=True)
    for position, (name, key, group, metadata) in enumerate(rows):
        network.add_node(position, **{**metadata, "name": name, "id": key, "group": group})
    network.add_edges_from((i, j, {"score": score}) for (i, j), score in scores.items())
    return network


def find_nearest_pairs(
    embeddings: np.ndarray,
    k: int,
    *,
    cosine: bool = True,
    mutual: bool = True,
    threshold: float | None = None,
) -> dict[tuple[int, int], float]:
    """Return the scores of pairs (i, j), i < j, of near embeddings, comparing blocks of items with all.

    Args:
        embeddings: φ of each item.
        k, mutual, threshold: As for `Collection.graph`.
        cosine: Cosine, else the dot product.
    """
    rows = np.asarray(embeddings, dtype=np.float32)
    if cosine:
        rows = normalize_rows(rows)
    seen: Counter[tuple[int, int]] = Counter()
    scores: dict[tuple[int, int], float] = {}
    for start in range(0, len(rows), BLOCK_ITEMS):
        block = rows[start : start + BLOCK_ITEMS] @ rows.T
        block[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
        count = min(k, len(rows) - 1)
        best = np.argpartition(-block, max(count - 1, 0), axis=1)[:, :count]
        for i, near in enumerate(best, start):
            for j in near.tolist():
                score = float(block[i - start, j])
                if threshold is None or score >= threshold:
                    pair = (min(i, j), max(i, j))
                    seen[pair] += 1
                    scores[pair] = score
    return {pair: score for pair, score in sorted(scores.items()) if seen[pair] == 2 or not mutual}


def select_nearest(
    scores: Mapping[tuple[int, int], float], k: int, *, mutual: bool
) -> dict[tuple[int, int], float]:
    """Return the pairs among the k best of both of their items, or of either; ties are all kept.

    Args:
        scores: The score of each pair.
        k: Number of neighbours of an item.
        mutual: Keep pairs that are among the k best of both.
    """
    by_item: dict[int, list[float]] = defaultdict(list)
    for pair, score in scores.items():
        for item in pair:
            by_item[item].append(score)
    least = {item: sorted(values, reverse=True)[:k][-1] for item, values in by_item.items()}
    needed = 2 if mutual else 1
    return {
        pair: score for pair, score in scores.items() if sum(score >= least[item] for item in pair) >= needed
    }


def find_shared_blocks(
    pages: Sequence[PageNumbers], *, min_numbers: int = MIN_SHARED_NUMBERS, progress: bool = False
) -> dict[tuple[int, int], list[CopiedBlock]]:
    """Return the blocks that two pages have in common, for every pair of pages that has some.

    Pages are compared number by number if they share `MIN_SHARED_RUNS` runs of two neighbouring numbers.

    Args:
        pages: The numbers of each page.
        min_numbers: Smallest number of equal numbers of a block.
        progress: Show a progress bar.
    """
    carriers: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for n, page in enumerate(pages):
        for run in set(page.list_runs()):
            carriers[run].append(n)
    shared: Counter[tuple[int, int]] = Counter()
    for some in carriers.values():
        if 2 <= len(some) <= MAX_RUN_PAGES:
            shared.update((i, j) for n, i in enumerate(some) for j in some[n + 1 :])
    least = min(MIN_SHARED_RUNS, min_numbers - 1)
    candidates = sorted(pair for pair, count in shared.items() if count >= least)
    blocks = {}
    with progress_bar(progress) as bar:
        bar.start("comparing pages", len(candidates))
        for i, j in candidates:
            if copies := find_copies(pages[i], pages[j], min_numbers=min_numbers):
                blocks[i, j] = copies
            bar.advance()
    return blocks
