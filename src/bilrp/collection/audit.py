"""Where does similarity sit? Near neighbours of a sample, explained; what looks like a shortcut is ranked and left out.

A shortcut is relevance on what most items have alike (a stamp, a caption, a frame), on borders and corners, or on nothing
(unattributed). Each is judged by its share of the relevance against its share of the area.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bilrp.errors import InputError
from bilrp.findings.formatting import describe_position, format_percent
from bilrp.inputs import Image
from bilrp.progress import progress_bar

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

GRID_SIZE = 16  # places along each side, in which items are compared with each other
CELL_SIDE_PIXELS = 4  # pixels along each side of a place
MAX_SAME_DIFFERENCE = (
    6.0  # mean difference of two places, of 255, up to which they show the same: what JPEG changes is less
)
MAX_REFERENCE_ITEMS = 128  # items that all others are compared with, place by place
MIN_COMMON_FRACTION = 0.1  # of the items: what so many have alike is common
MIN_COMMON_ITEMS = 3  # items that make something common
MIN_OVERLAP_FRACTION = 0.5  # of a region in a part: then it belongs to it
MAX_CLUSTERS = 4


@dataclass(frozen=True, eq=False)
class Suspect:
    """A part of the picture that may be a shortcut: `share` of the relevance on `area` of the picture, in `pairs` pairs.

    `carriers` are the items that have it, `changed` says how many of those looked at get another nearest neighbour
    when it is left out.
    """

    kind: str
    where: str
    share: float
    area: float
    pairs: tuple[tuple[int, int], ...]
    mask: np.ndarray = field(repr=False)
    carriers: tuple[int, ...] = field(repr=False, default=())
    changed: float | None = None

    @property
    def excess(self) -> float:
        """How much more relevance than area, weighed by how many pairs show it."""
        return (self.share - self.area) * len(self.pairs)

    def __str__(self) -> str:
        said = f"{self.where}: {format_percent(self.share)} of the relevance on {format_percent(self.area)} of the picture"
        said += f", in {len(self.pairs)} pairs" if len(self.pairs) != 1 else ", in one pair"
        without = (
            ""
            if self.changed is None
            else f"; without it {format_percent(self.changed)} get another nearest neighbour"
        )
        return f"{said}{without}"


@dataclass(frozen=True, eq=False)
class PairCluster:
    """Pairs whose similarity sits in the same places: the mean map, and its examples, the most typical first."""

    pairs: tuple[tuple[int, int], ...]
    mean_map: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Audit:
    """What the audit looked at and what it suspects, the worst first."""

    suspects: tuple[Suspect, ...]
    clusters: tuple[PairCluster, ...]
    pairs: tuple[tuple[int, int], ...]
    mean_map: np.ndarray = field(repr=False)  # the mean map
    unattributed: float = 0.0  # mean share of the score

    @property
    def findings(self) -> tuple[Suspect, ...]:
        """What is suspect, the worst first."""
        return self.suspects


def audit_collection(
    collection: Collection,
    *,
    sample: int = 64,
    seed: int = 0,
    similarity: str | None = None,
    progress: bool = False,
) -> Audit:
    """Look at the nearest neighbour of `sample` items: where does their similarity sit?"""
    if len(collection) < MIN_COMMON_ITEMS:
        raise InputError(
            f"an audit needs at least {MIN_COMMON_ITEMS} items, the collection has {len(collection)}"
        )
    positions = np.random.default_rng(seed).permutation(len(collection))[:sample].tolist()
    pairs = _find_nearest_pairs(collection, positions, similarity)
    if not isinstance(collection.view(pairs[0][0]), Image):
        raise InputError("an audit looks at pictures, and these items are texts: ask bilrp search instead")
    scene = _RelevanceGrid(collection)
    looked: list[_PairMaps] = []
    with progress_bar(progress) as bar:
        bar.start("pairs", len(pairs))
        for i, j in pairs:
            looked.append(scene.pair_maps(i, j))
            bar.advance()
    suspects = [*_find_common(scene, looked), *_find_border(looked)]
    ranked = sorted((s for s in suspects if s.excess > 0), key=lambda s: -s.excess)
    judged = tuple(_measure_change(collection, scene, suspect, positions, similarity) for suspect in ranked)
    maps = np.stack([(one.a + one.b) / 2 for one in looked])
    left = float(np.mean([abs(one.unattributed) for one in looked]))
    return Audit(judged, _cluster_pairs(pairs, maps, seed), tuple(pairs), maps.mean(0), left)


def _find_nearest_pairs(
    collection: Collection, positions: Sequence[int], similarity: str | None
) -> list[tuple[int, int]]:
    """Each sampled item with its nearest other one, every pair once."""
    chosen = {}
    for i in positions:
        j = next(n.position for n in collection.nearest(i, 2, similarity=similarity) if n.position != i)
        chosen[min(i, j), max(i, j)] = None
    return list(chosen)


@dataclass(frozen=True, eq=False)
class _PairMaps:
    """One pair: the relevance in each place of either side, summing to one, and what is unattributed of the score."""

    pair: tuple[int, int]
    a: np.ndarray
    b: np.ndarray
    unattributed: float


class _RelevanceGrid:
    """All pictures of a collection on one grid of places."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._region_weights: dict[int, np.ndarray] = {}

    def region_weights(self, position: int) -> np.ndarray:
        """[regions, places]: how a region's pixels lie in the places, each row summing to one."""
        if position not in self._region_weights:
            plane = self.collection.decomposition(position).regions.label_map
            if plane is None:
                raise InputError("an audit needs regions that are areas of the picture")
            labels = plane.numpy()
            rows = np.arange(labels.shape[0]) * GRID_SIZE // labels.shape[0]
            columns = np.arange(labels.shape[1]) * GRID_SIZE // labels.shape[1]
            places = rows[:, None] * GRID_SIZE + columns
            count = labels.max() + 1
            sums = np.bincount(
                (labels * GRID_SIZE * GRID_SIZE + places)[labels >= 0].ravel(),
                minlength=count * GRID_SIZE * GRID_SIZE,
            ).reshape(count, -1)
            self._region_weights[position] = sums / sums.sum(1, keepdims=True)
        return self._region_weights[position]

    def pair_maps(self, i: int, j: int) -> _PairMaps:
        relevance = self.collection.relevance(i, j).double().numpy()
        mass = np.abs(relevance)
        total = mass.sum() or 1.0
        maps = [
            (side @ self.region_weights(position)).reshape(GRID_SIZE, GRID_SIZE)
            for side, position in ((mass.sum(1) / total, i), (mass.sum(0) / total, j))
        ]
        a, b = self.collection.embedding(i), self.collection.embedding(j)
        score = float(a @ b)
        return _PairMaps((i, j), maps[0], maps[1], (score - relevance.sum()) / score if score else 0.0)

    @cached_property
    def common_mask(self) -> np.ndarray:
        """[items, places, places]: is what is there the same in many items?"""
        grains = np.stack([_cell_pixels(self.collection.view(p)) for p in range(len(self.collection))])
        least = max(MIN_COMMON_ITEMS, MIN_COMMON_FRACTION * len(grains))
        seen = grains[np.random.default_rng(0).permutation(len(grains))[:MAX_REFERENCE_ITEMS]]
        found = np.zeros(grains.shape[:3], dtype=bool)
        for y in range(GRID_SIZE):
            for x in range(GRID_SIZE):
                apart = np.abs(grains[:, y, x][:, None] - seen[:, y, x]).mean(2)
                same = apart < MAX_SAME_DIFFERENCE
                found[:, y, x] = same[:, same.sum(0) >= least].any(1)
        return found


def _cell_pixels(view: object) -> np.ndarray:
    """[places, places, numbers] of a picture as the model saw it."""
    assert isinstance(view, Image)
    side = GRID_SIZE * CELL_SIDE_PIXELS
    pixels = view.crop_to_input((side, side)).astype(np.float32)
    return (
        pixels.reshape(GRID_SIZE, CELL_SIDE_PIXELS, GRID_SIZE, CELL_SIDE_PIXELS, 3)
        .transpose(0, 2, 1, 3, 4)
        .reshape(GRID_SIZE, GRID_SIZE, -1)
    )


def _find_common(grid: _RelevanceGrid, pair_maps: Sequence[_PairMaps]) -> list[Suspect]:
    """What many items have alike at one place, each connected part by itself."""
    often = grid.common_mask.mean(0) >= MIN_COMMON_FRACTION
    found = []
    for part in _connected_components(often):
        has = (grid.common_mask[:, part].mean(1)) >= MIN_OVERLAP_FRACTION
        carriers = tuple(np.flatnonzero(has).tolist())
        pairs = [one for one in pair_maps if has[one.pair[0]] and has[one.pair[1]]]
        if not pairs:
            continue
        share = float(np.mean([(one.a[part].sum() + one.b[part].sum()) / 2 for one in pairs]))
        where = f"the same in {len(carriers)} of {len(grid.collection)} items, {_describe_location(part)}"
        found.append(
            Suspect(
                "alike", where, share, float(part.mean()), tuple(one.pair for one in pairs), part, carriers
            )
        )
    return found


def _find_border(pair_maps: Sequence[_PairMaps]) -> list[Suspect]:
    """The outermost ring, and the corners."""
    ring = np.ones((GRID_SIZE, GRID_SIZE), dtype=bool)
    ring[1:-1, 1:-1] = False
    corners = np.zeros_like(ring)
    size = GRID_SIZE // 8
    for y in (slice(None, size), slice(-size, None)):
        for x in (slice(None, size), slice(-size, None)):
            corners[y, x] = True
    everywhere = tuple(sorted({p for one in pair_maps for p in one.pair}))
    return [
        Suspect(
            kind, where, float(np.mean([(one.a[mask].sum() + one.b[mask].sum()) / 2 for one in pair_maps])),
            float(mask.mean()), tuple(one.pair for one in pair_maps), mask, everywhere,
        )
        for kind, where, mask in (("border", "the border", ring), ("corners", "the corners", corners))
    ]  # fmt: skip


def _measure_change(
    collection: Collection,
    grid: _RelevanceGrid,
    suspect: Suspect,
    positions: Sequence[int],
    similarity: str | None,
) -> Suspect:
    """How many of the sampled carriers get another nearest neighbour without it: ranked anew, nothing is trained."""
    carriers = [p for p in positions if p in set(suspect.carriers)]
    changed = 0
    for position in carriers:
        inside = (
            (grid.region_weights(position)[:, suspect.mask.ravel()].sum(1) > MIN_OVERLAP_FRACTION)
            .nonzero()[0]
            .tolist()
        )
        before, after = (_nearest(collection, position, without, similarity) for without in (None, inside))
        changed += before != after
    return replace(suspect, changed=changed / len(carriers) if carriers else None)


def _nearest(collection: Collection, position: int, without: list[int] | None, similarity: str | None) -> int:
    near = collection.nearest(position, 2, without=without, similarity=similarity)
    return next(n.position for n in near if n.position != position)


def _connected_components(mask: np.ndarray) -> list[np.ndarray]:
    """The connected parts of a mask, largest first."""
    left, parts = mask.copy(), []
    while left.any():
        part = np.zeros_like(left)
        part[tuple(np.argwhere(left)[0])] = True
        while True:
            grown = part.copy()
            grown[1:] |= part[:-1]
            grown[:-1] |= part[1:]
            grown[:, 1:] |= part[:, :-1]
            grown[:, :-1] |= part[:, 1:]
            grown &= left
            if (grown == part).all():
                break
            part = grown
        parts.append(part)
        left &= ~part
    return sorted(parts, key=lambda part: -part.sum())


def _describe_location(mask: np.ndarray) -> str:
    y, x = np.nonzero(mask)
    box = float(x.min()), float(y.min()), float(x.max() + 1), float(y.max() + 1)
    return describe_position(box, (float(GRID_SIZE), float(GRID_SIZE)))


def _cluster_pairs(pairs: Sequence[tuple[int, int]], maps: np.ndarray, seed: int) -> tuple[PairCluster, ...]:
    """Pairs by where their similarity sits: k-means on the maps, begun from maps far from each other."""
    flat, rng = maps.reshape(len(maps), -1), np.random.default_rng(seed)
    count = min(MAX_CLUSTERS, len(flat))
    centres = flat[[int(rng.integers(len(flat)))]]
    while len(centres) < count:
        far = _distances(flat, centres).min(1)
        centres = np.vstack([centres, flat[int(far.argmax())]])
    own = _distances(flat, centres).argmin(1)
    for _ in range(50):
        centres = np.stack([flat[own == k].mean(0) if (own == k).any() else centres[k] for k in range(count)])
        new = _distances(flat, centres).argmin(1)
        if (new == own).all():
            break
        own = new
    distance: Callable[[int], float] = lambda n: float(((flat[n] - centres[own[n]]) ** 2).sum())  # noqa: E731
    found = []
    for k in np.argsort(-np.bincount(own, minlength=count)).tolist():
        members = sorted(np.flatnonzero(own == k).tolist(), key=distance)
        if members:
            found.append(PairCluster(tuple(pairs[n] for n in members), centres[k].reshape(maps.shape[1:])))
    return tuple(found)


def _distances(flat: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return ((flat[:, None] - centres) ** 2).sum(2)
