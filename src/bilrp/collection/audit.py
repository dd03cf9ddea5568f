"""Audit a collection: explain near neighbours of a sample and rank image areas or phrases that look like shortcuts.

A shortcut is relevance on content that many items have in common (a stamp, a caption, a frame), or on borders and corners.
Each candidate is ranked by its share of the relevance compared with its share of the area, and tested by leaving it out.
Common content that has little relevance is a suspect too if items with it are neighbours more often than chance.
Texts are audited by `text_audit`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float

from bilrp.collection.text_audit import TextAudit, audit_texts
from bilrp.errors import InputError
from bilrp.findings.formatting import describe_position, format_percent
from bilrp.inputs import Image, Text
from bilrp.progress import progress_bar

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

GRID_SIZE = 16  # cells along each side of the grid on which images are compared
CELL_SIDE_PIXELS = 4  # pixels along each side of a cell
MAX_SAME_DIFFERENCE = 6.0  # of 255, mean: cells that differ less are equal; more than JPEG artefacts
MAX_REFERENCE_ITEMS = 128  # items that all others are compared with, cell by cell
MIN_COMMON_FRACTION = 0.1  # of the items: content shared by at least these is common
MIN_COMMON_ITEMS = 3  # content shared by fewer items is not common
# Of a region inside an area: the region belongs to the area; of items: their cells too
MIN_OVERLAP_FRACTION = 0.5
MIN_SAME_ITEMS = 0.8  # of the items that show one of two areas: they are one part
MAX_AREAS = 16  # that look the same in many items
MIN_ATTRACTION = 0.05  # of the neighbours, above chance
ATTRACTION_NEIGHBOURS = 10
MAX_ATTRACTION_ITEMS = 256  # with a part, and without it, whose neighbours are counted
MAX_CLUSTERS = 4
MAX_KMEANS_STEPS = 50


@dataclass(frozen=True, eq=False)
class Suspect:
    """An image area that may be a shortcut: it has `share` of the relevance on `area` of the image, in `pairs`.

    `carriers` are the positions of the items that show it; `changed` is the fraction of the sampled carriers whose nearest
    neighbour changes without it. `attraction` is the share of the ten nearest items of carriers that are carriers, `chance`
    that of other items.
    """

    kind: Literal["alike", "border", "corners"]
    where: str
    share: float
    area: float
    pairs: tuple[tuple[int, int], ...]
    mask: np.ndarray = field(repr=False)
    carriers: tuple[int, ...] = field(repr=False, default=())
    changed: float | None = None
    attraction: float | None = None
    chance: float | None = None

    @property
    def attracts(self) -> bool:
        """Whether items with it are neighbours more often than chance."""
        return self.gathered >= MIN_ATTRACTION * len(self.carriers)

    @property
    def gathered(self) -> float:
        """(attraction − chance) · number of carriers: the ranking of what many items have in common."""
        if self.attraction is None or self.chance is None:
            return 0.0
        return (self.attraction - self.chance) * len(self.carriers)

    @property
    def excess(self) -> float:
        """(share − area) · number of pairs: the ranking of borders and corners, and of what does not attract."""
        return (self.share - self.area) * len(self.pairs)

    def __str__(self) -> str:
        text = f"{self.where}: {format_percent(self.share)} of the relevance on {format_percent(self.area)} of the picture"
        text += f", in {len(self.pairs)} pairs" if len(self.pairs) != 1 else ", in one pair"
        if self.changed is not None:
            text += f"; without it {format_percent(self.changed)} get another nearest neighbour"
        if self.attraction is not None and self.chance is not None:
            text += f"; {format_percent(self.attraction)} of their neighbours have it too"
            text += f" ({format_percent(self.chance)} by chance)"
        return text


@dataclass(frozen=True, eq=False)
class PairCluster:
    """Pairs with similar relevance maps: their mean map, and the pairs, the most typical first."""

    pairs: tuple[tuple[int, int], ...]
    mean_map: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Audit:
    """Result of an audit: the suspects, what brings items together first and borders last, and the explained pairs."""

    suspects: tuple[Suspect, ...]
    clusters: tuple[PairCluster, ...]
    pairs: tuple[tuple[int, int], ...]
    mean_map: np.ndarray = field(repr=False)
    unattributed: float = 0.0  # mean fraction of the score


def audit_collection(
    collection: Collection,
    *,
    sample: int = 64,
    seed: int = 0,
    similarity: str | None = None,
    progress: bool = False,
) -> Audit | TextAudit:
    """Explain the similarity of sampled items with their nearest neighbours and rank possible shortcuts.

    Args:
        collection: A collection of images, or of texts.
        sample, similarity, progress: As for `Collection.audit`.
        seed: Seed of the sample and of the clustering.
    """
    if len(collection) < MIN_COMMON_ITEMS:
        raise InputError(
            f"an audit needs at least {MIN_COMMON_ITEMS} items, the collection has {len(collection)}"
        )
    positions = np.random.default_rng(seed).permutation(len(collection))[:sample].tolist()
    pairs = _find_nearest_pairs(collection, positions, similarity)
    view = collection.view(pairs[0][0])
    if isinstance(view, Text):
        return audit_texts(collection, positions, pairs, similarity=similarity, progress=progress)
    if not isinstance(view, Image):
        raise InputError("an audit needs images or texts, and these items are neither")
    grid = _RelevanceGrid(collection)
    pair_maps: list[_PairMaps] = []
    with progress_bar(progress) as bar:
        bar.start("pairs", len(pairs))
        for i, j in pairs:
            pair_maps.append(grid.pair_maps(i, j))
            bar.advance()
    candidates = [*_find_common(grid, pair_maps, similarity), *find_border(pair_maps)]
    suspected = (s for s in candidates if s.excess > 0 or s.attracts)
    ranked = sorted(
        suspected, key=lambda s: (s.kind != "alike", -s.gathered if s.attracts else 0.0, -s.excess)
    )
    suspects = tuple(_measure_change(collection, grid, suspect, positions, similarity) for suspect in ranked)
    maps = np.stack([(one.a + one.b) / 2 for one in pair_maps])
    unattributed = float(np.mean([abs(one.unattributed) for one in pair_maps]))
    return Audit(suspects, _cluster_pairs(pairs, maps, seed), tuple(pairs), maps.mean(0), unattributed)


def _find_nearest_pairs(
    collection: Collection, positions: Sequence[int], similarity: str | None
) -> list[tuple[int, int]]:
    """Pair each sampled item with its nearest neighbour; every pair once."""
    neighbours = ((i, _nearest(collection, i, None, similarity)) for i in positions)
    return list(dict.fromkeys((min(pair), max(pair)) for pair in neighbours))


@dataclass(frozen=True, eq=False)
class _PairMaps:
    """Relevance of one pair on the grid of each side, summing to one, and the unattributed fraction of the score."""

    pair: tuple[int, int]
    a: np.ndarray
    b: np.ndarray
    unattributed: float


class _RelevanceGrid:
    """Project the images of a collection to a common grid of cells."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._region_weights: dict[int, np.ndarray] = {}

    def region_weights(self, position: int) -> np.ndarray:
        """Return [regions, cells]: the fraction of each region's pixels in each cell."""
        if position not in self._region_weights:
            label_map = self.collection.decomposition(position).regions.label_map
            if label_map is None:
                raise InputError(
                    "an audit needs regions that are areas of the image, such as regions=grid(8)"
                )
            labels = label_map.numpy()
            rows = np.arange(labels.shape[0]) * GRID_SIZE // labels.shape[0]
            columns = np.arange(labels.shape[1]) * GRID_SIZE // labels.shape[1]
            cells = rows[:, None] * GRID_SIZE + columns
            count = labels.max() + 1
            sums = np.bincount(
                (labels * GRID_SIZE * GRID_SIZE + cells)[labels >= 0].ravel(),
                minlength=count * GRID_SIZE * GRID_SIZE,
            ).reshape(count, -1)
            self._region_weights[position] = sums / sums.sum(1, keepdims=True)
        return self._region_weights[position]

    def pair_maps(self, i: int, j: int) -> _PairMaps:
        """Sum |R| of a pair over each side's regions and project it to the grid."""
        relevance = self.collection.relevance(i, j).double().numpy()
        mass = np.abs(relevance)
        total = mass.sum() or 1.0
        maps = [
            (side @ self.region_weights(position)).reshape(GRID_SIZE, GRID_SIZE)
            for side, position in ((mass.sum(1) / total, i), (mass.sum(0) / total, j))
        ]
        score = float(self.collection.embedding(i) @ self.collection.embedding(j))
        return _PairMaps((i, j), maps[0], maps[1], (score - relevance.sum()) / score if score else 0.0)


def find_common_areas(
    pixels: Float[np.ndarray, "items rows columns values"],
) -> list[tuple[Bool[np.ndarray, "rows columns"], Bool[np.ndarray, " items"]]]:
    """Return areas that look the same in many items, each with these items; largest first.

    Neighbouring cells belong to one area if at least half of the items that share them are the same: two backgrounds in
    different items are two areas. Areas of nearly the same items are one.
    """
    min_items = max(MIN_COMMON_ITEMS, MIN_COMMON_FRACTION * len(pixels))
    references = np.random.default_rng(0).permutation(len(pixels))[:MAX_REFERENCE_ITEMS]
    groups = [
        (y, x, members)
        for y in range(pixels.shape[1])
        for x in range(pixels.shape[2])
        for members in _group_cell(pixels[:, y, x], references, min_items)
    ]
    by_cell: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (y, x, _) in enumerate(groups):
        by_cell[y, x].append(number)
    areas, left = [], set(range(len(groups)))
    while left:
        reached = [left.pop()]
        for number in reached:  # grows while it is read
            y, x, members = groups[number]
            for cell in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                for other in left & set(by_cell.get(cell, ())):
                    theirs = groups[other][2]
                    if (members & theirs).sum() >= MIN_OVERLAP_FRACTION * (members | theirs).sum():
                        reached.append(other)
                        left.remove(other)
        mask = np.zeros(pixels.shape[1:3], dtype=bool)
        mask[[groups[n][0] for n in reached], [groups[n][1] for n in reached]] = True
        shows = np.sum([groups[n][2] for n in reached], axis=0) >= MIN_OVERLAP_FRACTION * mask.sum()
        if shows.sum() >= min_items:
            areas.append((mask, shows))
    areas = _merge_areas(areas)
    return sorted(areas, key=lambda area: -area[0].sum() * area[1].sum())[:MAX_AREAS]


def _merge_areas(
    areas: Sequence[tuple[Bool[np.ndarray, "rows columns"], Bool[np.ndarray, " items"]]],
) -> list[tuple[Bool[np.ndarray, "rows columns"], Bool[np.ndarray, " items"]]]:
    """Join areas of nearly the same items, and leave out details: what some items of an adjoining larger area share."""
    merged: list[tuple[Bool[np.ndarray, "rows columns"], Bool[np.ndarray, " items"]]] = []
    for mask, shows in sorted(areas, key=lambda area: -area[0].sum()):
        for number, (other, theirs) in enumerate(merged):
            common = (shows & theirs).sum()
            if common >= MIN_SAME_ITEMS * (shows | theirs).sum():
                merged[number] = other | mask, theirs
                break
            if common >= MIN_SAME_ITEMS * shows.sum() and _adjoin(mask, other):
                break
        else:
            merged.append((mask, shows))
    return merged


def _adjoin(a: Bool[np.ndarray, "rows columns"], b: Bool[np.ndarray, "rows columns"]) -> bool:
    """Return whether two areas overlap or have cells beside each other."""
    beside = [a & b, a[1:] & b[:-1], a[:-1] & b[1:], a[:, 1:] & b[:, :-1], a[:, :-1] & b[:, 1:]]
    return any(each.any() for each in beside)


def _group_cell(
    pixels: Float[np.ndarray, "items values"], references: np.ndarray, min_items: float
) -> list[Bool[np.ndarray, " items"]]:
    """Return groups of items that look like one reference in a cell, the largest first; references are in one group."""
    same = np.abs(pixels[:, None] - pixels[references]).mean(2) < MAX_SAME_DIFFERENCE
    counts, groups = same.sum(0), []
    while counts.max() >= min_items:
        members = same[:, counts.argmax()]
        groups.append(members)
        counts[members[references]] = 0
    return groups


def cell_pixels(view: object) -> np.ndarray:
    """Return [rows, columns, values]: the pixels of each cell, of the image area that the model received."""
    assert isinstance(view, Image)
    side = GRID_SIZE * CELL_SIDE_PIXELS
    pixels = view.crop_to_input((side, side)).astype(np.float32)
    return (
        pixels.reshape(GRID_SIZE, CELL_SIDE_PIXELS, GRID_SIZE, CELL_SIDE_PIXELS, 3)
        .transpose(0, 2, 1, 3, 4)
        .reshape(GRID_SIZE, GRID_SIZE, -1)
    )


def _find_common(
    grid: _RelevanceGrid, pair_maps: Sequence[_PairMaps], similarity: str | None
) -> list[Suspect]:
    """Return a suspect for each connected area that looks the same in many items."""
    suspects = []
    count = len(grid.collection)
    pixels = np.stack([cell_pixels(grid.collection.view(p)) for p in range(count)])
    for area, shows in find_common_areas(pixels):
        pairs = [one for one in pair_maps if shows[one.pair[0]] and shows[one.pair[1]]]
        if pairs:
            carriers = tuple(np.flatnonzero(shows).tolist())
            where = f"the same in {len(carriers)} of {count} items, {_describe_location(area)}"
            suspect = make_suspect("alike", where, area, pairs, carriers)
            attraction, chance = _measure_attraction(grid.collection, shows, similarity)
            suspects.append(replace(suspect, attraction=attraction, chance=chance))
    return suspects


def _measure_attraction(
    collection: Collection, shows: np.ndarray, similarity: str | None
) -> tuple[float | None, float | None]:
    """Return the share of carriers among the nearest items of carriers, and of other items; None where there are none."""
    name, rng = collection.resolve_similarity(similarity), np.random.default_rng(0)
    shares: list[float | None] = []
    for positions in (np.flatnonzero(shows), np.flatnonzero(~shows)):
        sample = rng.permutation(positions)[:MAX_ATTRACTION_ITEMS]
        vectors = list(collection.items.embeddings(sample))
        ranked = collection.items.top_k_many(vectors, ATTRACTION_NEIGHBOURS + 1, name)
        near = [
            shows[order[order != own][:ATTRACTION_NEIGHBOURS]]
            for own, (order, _) in zip(sample, ranked, strict=True)
        ]
        shares.append(float(np.concatenate(near).mean()) if near else None)
    return shares[0], shares[1]


def find_border(pair_maps: Sequence[_PairMaps]) -> list[Suspect]:
    """Return the outermost ring of cells and the corners as suspects."""
    ring = np.ones((GRID_SIZE, GRID_SIZE), dtype=bool)
    ring[1:-1, 1:-1] = False
    corners = np.zeros_like(ring)
    size = GRID_SIZE // 8
    for y in (slice(None, size), slice(-size, None)):
        for x in (slice(None, size), slice(-size, None)):
            corners[y, x] = True
    carriers = tuple(sorted({p for one in pair_maps for p in one.pair}))
    return [
        make_suspect("border", "the border", ring, pair_maps, carriers),
        make_suspect("corners", "the corners", corners, pair_maps, carriers),
    ]


def make_suspect(
    kind: Literal["alike", "border", "corners"],
    where: str,
    mask: np.ndarray,
    pair_maps: Sequence[_PairMaps],
    carriers: tuple[int, ...],
) -> Suspect:
    """Return the suspect in an area of near neighbours, with its mean share of their relevance.

    Args:
        kind, where: what the area is, and where, in words.
        mask: its cells.
        pair_maps: the relevance of the pairs.
        carriers: positions of the items that have it.
    """
    share = float(np.mean([(one.a[mask].sum() + one.b[mask].sum()) / 2 for one in pair_maps]))
    pairs = tuple(one.pair for one in pair_maps)
    return Suspect(kind, where, share, float(mask.mean()), pairs, mask, carriers)


def _measure_change(
    collection: Collection,
    grid: _RelevanceGrid,
    suspect: Suspect,
    positions: Sequence[int],
    similarity: str | None,
) -> Suspect:
    """Set `changed`: the fraction of sampled carriers whose nearest neighbour changes without the suspect's regions."""
    carriers = [p for p in positions if p in set(suspect.carriers)]
    changed = 0
    for position in carriers:
        overlap = grid.region_weights(position)[:, suspect.mask.ravel()].sum(1)
        regions = np.flatnonzero(overlap > MIN_OVERLAP_FRACTION).tolist()
        before, after = (_nearest(collection, position, without, similarity) for without in (None, regions))
        changed += before != after
    return replace(suspect, changed=changed / len(carriers) if carriers else None)


def _nearest(collection: Collection, position: int, without: list[int] | None, similarity: str | None) -> int:
    """Return the position of the nearest other item."""
    neighbours = collection.nearest(position, 2, without=without, similarity=similarity)
    return next(n.position for n in neighbours if n.position != position)


def _describe_location(mask: np.ndarray) -> str:
    y, x = np.nonzero(mask)
    box = float(x.min()), float(y.min()), float(x.max() + 1), float(y.max() + 1)
    return describe_position(box, (float(GRID_SIZE), float(GRID_SIZE)))


def _cluster_pairs(pairs: Sequence[tuple[int, int]], maps: np.ndarray, seed: int) -> tuple[PairCluster, ...]:
    """Cluster pairs by their relevance maps: k-means, initialized with maps that are far apart."""
    flat, rng = maps.reshape(len(maps), -1), np.random.default_rng(seed)
    count = min(MAX_CLUSTERS, len(flat))
    centres = flat[[int(rng.integers(len(flat)))]]
    while len(centres) < count:
        far = _distances(flat, centres).min(1)
        centres = np.vstack([centres, flat[int(far.argmax())]])
    own = _distances(flat, centres).argmin(1)
    for _ in range(MAX_KMEANS_STEPS):
        centres = np.stack([flat[own == k].mean(0) if (own == k).any() else centres[k] for k in range(count)])
        new = _distances(flat, centres).argmin(1)
        if (new == own).all():
            break
        own = new
    distance: Callable[[int], float] = lambda n: float(((flat[n] - centres[own[n]]) ** 2).sum())  # noqa: E731
    clusters = []
    for k in np.argsort(-np.bincount(own, minlength=count)).tolist():
        members = sorted(np.flatnonzero(own == k).tolist(), key=distance)
        if members:
            clusters.append(PairCluster(tuple(pairs[n] for n in members), centres[k].reshape(maps.shape[1:])))
    return tuple(clusters)


def _distances(flat: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return ((flat[:, None] - centres) ** 2).sum(2)
