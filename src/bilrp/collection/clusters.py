"""`Clusters`: groups of items with similar embeddings, each explained exactly.

Let ψ(x) be the embedding, of length 1 for cosine, and m the mean of ψ over the members of a cluster. Region I of an item
contributes ⟨P_I, m⟩ to the mean similarity with the members, and ⟨P_I, m − m'⟩ to how much larger that is than the mean
similarity with the nearest other cluster, the rival, with mean m'. Both are linear in the members: they are means over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
import torch
from jaxtyping import Float, Int

from bilrp.attribution import Attribution, attribute
from bilrp.collection.embedding_norms import normalize_rows
from bilrp.errors import InputError, import_optional
from bilrp.findings.formatting import describe_location
from bilrp.findings.region_layout import compute_layout
from bilrp.inputs import Image, Text
from bilrp.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bilrp.collection.core import Collection

ClusterMethod = Literal["hdbscan", "kmeans"]
MAX_DIMENSIONS = 50  # of embeddings for HDBSCAN, by principal components: in more, densities hardly differ
MIN_CLUSTER_ITEMS = 5
CLUSTER_FRACTION = 0.02  # of the items: default smallest cluster
RESAMPLED_FRACTION = 0.8  # of the items
# Connected regions with at least this fraction of the strongest region's relevance are the example.
MIN_EXAMPLE_FRACTION = 0.5
EXAMPLE_WORDS = 3


@dataclass(frozen=True)
class Cluster:
    """A group of similar items.

    Args:
        number: Its label.
        members: Positions of its items, the most typical first.
        rival: The cluster with the most similar mean; None if there is no other.
        cohesion: Mean similarity of two different members.
        separation: Mean similarity of a member with a member of the rival; None without one.
        stability: Mean overlap (Jaccard) with the most similar cluster of resampled items: above 0.75 it is stable, below
            0.5 it dissolves (Hennig 2007); None if it was not measured.
    """

    number: int
    members: tuple[int, ...] = field(repr=False)
    rival: int | None
    cohesion: float
    separation: float | None
    stability: float | None

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Example:
    """What a member shares with its cluster: where or which words, and its box in fractions of the picture."""

    item: int
    name: str
    text: str
    box: tuple[float, float, float, float] | None


@dataclass(frozen=True, eq=False)
class ClusterExplanation:
    """What the members of a cluster share.

    Args:
        cluster: The cluster.
        items: The members that are explained, most typical first.
        shared: For each, what its regions contribute to the mean similarity with all members.
        contrasts: For each, what they contribute to the difference from the rival; empty without one.
        examples: The strongest part of each: against the rival, or of what is shared without one.
    """

    cluster: Cluster
    items: tuple[int, ...]
    shared: tuple[Attribution, ...] = field(repr=False)
    contrasts: tuple[Attribution, ...] = field(repr=False)
    examples: tuple[Example, ...]

    def plot(self) -> Figure:
        """Draw the members, what they share, and what separates them from the rival; for pictures."""
        from bilrp.render import cluster_figure

        return cluster_figure.plot(self.shared, self.contrasts, title=f"Cluster {self.cluster.number}")


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters of a collection, largest first.

    Args:
        collection: The collection.
        labels: The cluster of each item; −1 for none.
        clusters: The clusters.
        means: Mean embedding m of each.
        similarity: "cosine" (of embeddings of length 1) or "dot".
    """

    collection: Collection
    labels: Int[np.ndarray, " items"]
    clusters: tuple[Cluster, ...]
    means: Float[np.ndarray, "clusters h"] = field(repr=False)
    similarity: str = "cosine"

    def __len__(self) -> int:
        return len(self.clusters)

    def __iter__(self) -> Iterator[Cluster]:
        return iter(self.clusters)

    def __getitem__(self, number: int) -> Cluster:
        return self.clusters[number]

    def explain(self, number: int, *, members: int | Sequence[int] = 4) -> ClusterExplanation:
        """Explain a cluster on its most typical members, or on these, by one pull each.

        Args:
            number: The cluster.
            members: How many members, or their positions; any item can be compared with a cluster.
        """
        if not 0 <= number < len(self):
            raise InputError(f"there is no cluster {number}: they are 0 to {len(self) - 1}")
        cluster = self.clusters[number]
        items = cluster.members[:members] if isinstance(members, int) else tuple(members)
        vectors = [self.means[number]]
        if cluster.rival is not None:
            vectors.append(self.means[number] - self.means[cluster.rival])
        rows = [self._attribute(item, np.stack(vectors)) for item in items]
        shared = tuple(row[0] for row in rows)
        contrasts = tuple(row[1] for row in rows if len(row) > 1)
        examples = [
            find_example(item, self.collection.names[item], each)
            for item, each in zip(items, contrasts or shared, strict=True)
        ]
        return ClusterExplanation(cluster, items, shared, contrasts, tuple(examples))

    def _attribute(self, item: int, vectors: Float[np.ndarray, "n h"]) -> list[Attribution]:
        """Return ⟨P_I, v⟩ of an item for each vector, for cosine divided by ‖φ‖."""
        whole = attribute(
            self.collection.encoder,
            self.collection.read_original(item),
            torch.from_numpy(vectors).float(),
            similarity="dot",
        )
        scale = 1.0
        if self.similarity == "cosine":
            scale = float(np.linalg.norm(self.collection.items.embeddings([item])[0])) or 1.0
        scores = np.atleast_1d(np.asarray(whole.score))
        values = whole.values if whole.values.dim() == 2 else whole.values[:, None]
        return [
            replace(
                whole, values=values[:, n] / scale, score=float(scores[n]) / scale, similarity=self.similarity
            )
            for n in range(len(vectors))
        ]

    def __repr__(self) -> str:
        unassigned = int((self.labels < 0).sum())
        rest = f", {unassigned} in none" if unassigned else ""
        return f"Clusters({len(self)} of {len(self.labels)} items{rest})"


def cluster_collection(
    collection: Collection,
    k: int | None = None,
    *,
    method: ClusterMethod | None = None,
    min_size: int | None = None,
    similarity: str | None = None,
    resamples: int = 10,
    seed: int = 0,
    progress: bool = False,
) -> Clusters:
    """Cluster the items of a collection.

    Args:
        collection: The collection.
        k, method, min_size, similarity, resamples, seed, progress: As for `Collection.clusters`.
    """
    method = method or ("hdbscan" if k is None else "kmeans")
    if method not in ("hdbscan", "kmeans"):
        raise InputError(f'method must be "kmeans" or "hdbscan", got {method!r}')
    if method == "kmeans" and (k is None or not 2 <= k <= len(collection)):
        raise InputError(f"k-means needs the number of clusters, 2 to {len(collection)}: k={k}")
    similarity = collection.resolve_similarity(similarity)
    rows = np.asarray(collection.embeddings, dtype=np.float64)
    if similarity == "cosine":
        rows = normalize_rows(rows)
    least = max(MIN_CLUSTER_ITEMS, round(CLUSTER_FRACTION * len(rows))) if min_size is None else min_size
    options = LabelOptions(k=k, method=method, min_size=least)
    labels = sort_labels(label_rows(rows, **options, seed=seed))
    count = int(labels.max(initial=-1)) + 1
    if not count:
        raise InputError("no cluster was found: give the number of clusters k, or a smaller min_size")
    stability = (
        measure_stability(rows, labels, options, resamples, seed, progress=progress) if resamples else None
    )
    means = np.stack([rows[labels == n].mean(0) for n in range(count)])
    clusters = tuple(
        _describe_cluster(n, rows, labels, means, None if stability is None else stability[n])
        for n in range(count)
    )
    return Clusters(collection, labels, clusters, means, similarity)


class LabelOptions(TypedDict):
    """How rows are labelled; as for `Collection.clusters`."""

    k: int | None
    method: ClusterMethod
    min_size: int


def label_rows(
    rows: Float[np.ndarray, "n h"], *, k: int | None, method: ClusterMethod, min_size: int, seed: int
) -> Int[np.ndarray, " n"]:
    """Return the cluster of each row, by scikit-learn; −1 for none.

    Args:
        rows: Embeddings.
        k, method, min_size, seed: As for `Collection.clusters`.
    """
    cluster = import_optional("sklearn.cluster", "clusters", "clusters")
    if method == "kmeans":
        return cluster.KMeans(k, n_init=4, random_state=seed).fit_predict(rows)
    if rows.shape[1] > MAX_DIMENSIONS and len(rows) > MAX_DIMENSIONS:
        decomposition = import_optional("sklearn.decomposition", "clusters", "clusters")
        rows = decomposition.PCA(MAX_DIMENSIONS, random_state=seed).fit_transform(rows)
    if len(rows) < min_size:
        return np.full(len(rows), -1)  # HDBSCAN refuses them
    return cluster.HDBSCAN(min_cluster_size=max(2, min_size), copy=True).fit_predict(rows)


def sort_labels(labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Number clusters from the largest to the smallest; −1 stays.

    >>> sort_labels(np.array([0, 1, 1, -1, 1, 0, 2])).tolist()
    [1, 0, 0, -1, 0, 1, 2]
    """
    names, counts = np.unique(labels[labels >= 0], return_counts=True)
    order = {int(name): n for n, name in enumerate(names[np.argsort(-counts, kind="stable")])}
    return np.array([order.get(int(label), -1) for label in labels])


def measure_stability(
    rows: Float[np.ndarray, "n h"],
    labels: Int[np.ndarray, " n"],
    options: LabelOptions,
    resamples: int,
    seed: int,
    *,
    progress: bool = False,
) -> Float[np.ndarray, " clusters"]:
    """Return for each cluster its mean overlap (Jaccard) with the most similar cluster of resampled items.

    Args:
        rows, labels: Embeddings, and the cluster of each.
        options: Of `label_rows`.
        resamples: How often to cluster 80 % of the items.
        seed: Of the resamples.
        progress: Show a progress bar.
    """
    rng, count = np.random.default_rng(seed), int(labels.max()) + 1
    overlaps = np.zeros(count)
    size = max(2, int(RESAMPLED_FRACTION * len(rows)), min(options["k"] or 2, len(rows)))
    with progress_bar(progress) as bar:
        bar.start("resampling", resamples)
        for number in range(resamples):
            some = np.sort(rng.choice(len(rows), size, replace=False))
            again = label_rows(rows[some], **options, seed=seed + 1 + number)
            for n in range(count):
                here = labels[some] == n
                others = [again == m for m in range(int(again.max(initial=-1)) + 1)]
                best = [(here & other).sum() / max((here | other).sum(), 1) for other in others]
                overlaps[n] += max(best, default=0.0)
            bar.advance()
    return overlaps / resamples


def _describe_cluster(
    number: int, rows: np.ndarray, labels: np.ndarray, means: np.ndarray, stability: float | None
) -> Cluster:
    members = np.flatnonzero(labels == number)
    typical = members[np.argsort(-(rows[members] @ means[number]), kind="stable")]
    others = [n for n in range(len(means)) if n != number]
    rival = min(others, key=lambda n: float(np.linalg.norm(means[n] - means[number])), default=None)
    size = len(members)
    own = float((rows[members] ** 2).sum())
    cohesion = (size**2 * float(means[number] @ means[number]) - own) / max(size * (size - 1), 1)
    return Cluster(
        number=number,
        members=tuple(int(n) for n in typical),
        rival=rival,
        cohesion=cohesion,
        separation=None if rival is None else float(means[number] @ means[rival]),
        stability=None if stability is None else float(stability),
    )


def find_example(item: int, name: str, attribution: Attribution) -> Example:
    """Return the strongest part of an item: a region and what touches it, or the strongest words.

    Args:
        item, name: Its position and its name.
        attribution: The values of its regions.
    """
    values = attribution.values.double().numpy()
    if isinstance(attribution.view, Text):
        texts = attribution.view.region_texts
        words = [n for n, text in enumerate(texts) if any(map(str.isalnum, text))]
        best = sorted(words, key=lambda n: -values[n])[:EXAMPLE_WORDS]
        return Example(
            item, name, describe_location(attribution.regions, attribution.view, sorted(best)), None
        )
    bounds = attribution.regions.bounds
    if bounds is None or not isinstance(attribution.view, Image):
        return Example(item, name, f"region {int(values.argmax())}", None)
    boxes = bounds.double().numpy()
    strong = values >= MIN_EXAMPLE_FRACTION * values.max()
    component = compute_layout(attribution.regions).select_connected(strong, int(values.argmax()))
    chosen = np.flatnonzero(component).tolist()
    high, wide = attribution.regions.labels.shape[-2:]
    top, left = boxes[chosen, :2].min(0)
    bottom, right = boxes[chosen, 2:].max(0)
    box = attribution.view.map_to_view((top, left, bottom, right), (int(high), int(wide)))
    across, down = attribution.view.size
    fractions = (box[0] / across, box[1] / down, box[2] / across, box[3] / down)
    clipped = tuple(round(min(1.0, max(0.0, float(v))), 4) for v in fractions)
    text = describe_location(attribution.regions, attribution.view, chosen)
    return Example(item, name, text, (clipped[0], clipped[1], clipped[2], clipped[3]))
