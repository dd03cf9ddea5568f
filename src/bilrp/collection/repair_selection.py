"""Choose a repair for a part that many items have, and measure what it costs before it is applied.

Nothing is labelled. The part is copied from carriers to items without it, whose neighbours are known from before: what a
candidate restores of these neighbours, and what it changes for the other items, is measured on these planted items. One half
of them chooses the candidate, the other half is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bilrp.collection.audit import MAX_SAME_DIFFERENCE, MIN_OVERLAP_FRACTION, Suspect, cell_pixels
from bilrp.collection.batch_encoder import MAX_BATCH_SIZE, BatchEncoder
from bilrp.collection.repair import Correction, Repair, embed_part, make_projection
from bilrp.collection.repair_report import (
    MIN_GAIN,
    Measurement,
    RepairReport,
    compute_net_gain,
    is_worth_it,
    list_missed,
)
from bilrp.collection.shortcut_part import (
    ShortcutPart,
    locate_image_part,
    locate_moving_part,
    locate_text_part,
)
from bilrp.collection.text_audit import TextSuspect
from bilrp.encoder import choose_regions, read_item
from bilrp.errors import BilrpError, InputError
from bilrp.findings.formatting import format_percent
from bilrp.inputs import Image, Item, Text
from bilrp.pipeline import prepare
from bilrp.progress import progress_bar

if TYPE_CHECKING:
    from bilrp.collection.core import Collection, Query

Method = Literal["projection", "filling", "removal"]
# In order of preference: a projection needs no list of carriers.
METHODS: tuple[Method, ...] = get_args(Method)
NEIGHBOURS = 10
MIN_CARRIERS, MIN_CLEAN_ITEMS = 3, 12
MAX_TRAINING_CARRIERS = 24
MIN_PLANTED, MAX_PLANTED = 8, 48
MAX_RELEVANCE_CARRIERS = 6
MAX_MEASURED_ITEMS = 2000
MAX_PLANTED_FRACTION = 0.4  # of the items of the measurement
RANKS, STRENGTHS = (1, 2, 4, 8), (0.5, 1.0)


class RefusedRepairError(InputError):
    """No repair does more good than harm; `report` has what was measured."""

    def __init__(self, message: str, report: RepairReport) -> None:
        super().__init__(message)
        self.report = report


def repair_collection(
    collection: Collection,
    *,
    suspect: Suspect | TextSuspect | int | None = None,
    part: Sequence[int] | None = None,
    of: Query | None = None,
    words: str | None = None,
    carriers: Sequence[int] | None = None,
    method: Method | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Repair:
    """Find the repair for a part that should not count.

    Args:
        collection: A collection whose original files or texts can be read.
        suspect: A suspect of `Collection.audit`, or its number as the audit prints it, from 1.
        part: Region numbers of the item `of`.
        of: The item that shows the part.
        words: Words of texts.
        carriers: Positions of the items that have the part; found by default.
        method: Measure this method only.
        seed: Seed of the samples.
        progress: Show a progress bar.
    """
    if method is not None and method not in METHODS:
        raise InputError(f"unknown method {method!r}: use one of {', '.join(METHODS)}")
    target = _resolve_target(collection, suspect=suspect, part=part, of=of, words=words, carriers=carriers)
    selection = Selection(collection, target, np.random.default_rng(seed), progress)
    return selection.choose(method)


@dataclass(frozen=True, eq=False)
class Target:
    """A part, the positions of the items that have it, and of those that do not."""

    part: ShortcutPart
    carriers: list[int]
    clean: list[int]


def _resolve_target(
    collection: Collection,
    *,
    suspect: Suspect | TextSuspect | int | None,
    part: Sequence[int] | None,
    of: Query | None,
    words: str | None,
    carriers: Sequence[int] | None,
) -> Target:
    given = [
        name for name, value in (("suspect", suspect), ("part", part), ("words", words)) if value is not None
    ]
    if len(given) != 1 or (part is None) != (of is None):
        raise InputError("say which part should not count: suspect=, or part= with of=, or words=")
    if isinstance(suspect, int):
        suspects = collection.audit().suspects
        if not 1 <= suspect <= len(suspects):
            raise InputError(
                f"there is no suspect {suspect}: the audit found {len(suspects)}, numbered from 1"
            )
        suspect = suspects[suspect - 1]
    if isinstance(suspect, TextSuspect):
        words = suspect.phrase
    if part is not None:
        at = None if of is None else collection.position(of)
        if at is None:
            raise InputError(f"{of!r} is not an item of {collection.path}: give a position, an id or a file")
        item = _read_original(collection, at)
        own = choose_regions(collection.encoder, item)
        if not part or not all(0 <= region < own.count for region in part):
            raise InputError(f"regions of this item are numbered 0 … {own.count - 1}, got {list(part)[:8]}")
        if isinstance(item.view, Text):
            words = _join_words(item.view, part)
        else:
            inside = torch.isin(own.labels, torch.tensor(list(part)))
            area = inside.flatten(0, -3).any(0).numpy() if inside.dim() > 2 else inside.numpy()
            if carriers is not None or area.all():
                return _make_image_target(collection, area, carriers or [at], extend=True)
            alike = _compare_cells(collection, at, area)
            positions = [p for p, share in alike.items() if share >= MIN_OVERLAP_FRACTION]
            moving = None
            if len(positions) < MIN_CARRIERS:
                moving = _make_moving_target(collection, item, area)
            return moving or _make_image_target(collection, area, positions, alike, extend=True)
    if words is not None:
        texts = collection.items.take(range(len(collection)), ["text"])["text"]
        if any(text is None for text in texts):
            raise InputError("words are a part of texts, and these items are images: give part= and of=")
        text_part = locate_text_part(words, texts)
        positions = [p for p, text in enumerate(texts) if text_part.pattern.search(text)]
        return _make_target(collection, text_part, positions if carriers is None else carriers, positions)
    assert isinstance(suspect, Suspect)
    if suspect.kind != "alike" and carriers is None:
        raise InputError(
            f"{suspect.where}: every item has it, so there are none without it to measure a repair on: "
            "give carriers= if only some do"
        )
    return _make_image_target(
        collection, suspect.mask, list(suspect.carriers if carriers is None else carriers)
    )


def _join_words(view: Text, regions: Iterable[int]) -> str:
    spans = [span for region in regions if (span := view.spans[region]) is not None]
    if not spans:
        raise InputError("these regions have no words: choose others")
    return view.text[min(start for start, _ in spans) : max(stop for _, stop in spans)]


def _compare_cells(
    collection: Collection, position: int, area: Bool[np.ndarray, "height width"]
) -> dict[int, float]:
    """Return the items whose thumbnails look like that of an item inside an area, each with the share of cells that do."""
    cells = _read_cells(collection, position)
    rows, columns = cells.shape[:2]
    high, wide = area.shape
    share = np.zeros((rows, columns))
    y, x = np.arange(high) * rows // high, np.arange(wide) * columns // wide
    np.add.at(share, (y[:, None], x[None]), area.astype(float))
    inside = share >= 0.99 * share.max()  # cells that are all inside, to keep the edge of the part out
    alike = {}
    for other in range(len(collection)):
        difference = np.abs(_read_cells(collection, other)[inside] - cells[inside]).mean(-1)
        same = float((difference < MAX_SAME_DIFFERENCE).mean())
        if same > 0:
            alike[other] = same
    return alike


def _read_cells(collection: Collection, position: int) -> Float[np.ndarray, "rows columns values"]:
    view = collection.view(position)
    if not isinstance(view, Image):
        raise InputError("items without an image cannot be compared: give carriers=")
    return cell_pixels(view)


def _make_image_target(
    collection: Collection,
    area: Bool[np.ndarray, "rows columns"],
    carriers: Sequence[int],
    candidates: Iterable[int] = (),
    *,
    extend: bool = False,
) -> Target:
    """Locate the part by the carriers; candidates that have its pixels are carriers too. What people name is extended."""
    if area.all():
        raise InputError(
            "the part is the whole picture, such as a tint: it has no surroundings to fill it in from: give a smaller one"
        )
    _check_carriers(carriers, len(collection))
    items: list[Item] = []
    for position in carriers:
        with suppress(BilrpError):
            items.append(_read_original(collection, position))
        if len(items) == MAX_TRAINING_CARRIERS:
            break
    if len(items) < MIN_CARRIERS:
        raise InputError("the files of the items that have the part cannot be read: restore them")
    part, having = locate_image_part(items, area, extend=extend), {*carriers}
    for position in set(candidates) - having:
        with suppress(BilrpError):
            if part.is_in(_read_original(collection, position)):
                having.add(position)
    return _make_target(collection, part, sorted(having), having)


def _make_moving_target(
    collection: Collection, reference: Item, area: Bool[np.ndarray, "height width"]
) -> Target | None:
    """Return the target of a part that is in different places; None if it is in no other items."""
    positions: list[int] = []
    items: list[Item] = []
    for position in range(len(collection)):
        with suppress(BilrpError):
            items.append(_read_original(collection, position))
            positions.append(position)
    located = locate_moving_part(reference, area, items)
    if located is None or len(located[1]) < MIN_CARRIERS:
        return None
    part, numbers = located
    carriers = [positions[number] for number in numbers]
    return _make_target(collection, part, carriers, carriers)


def _make_target(
    collection: Collection, part: ShortcutPart, carriers: Sequence[int], having: Iterable[int]
) -> Target:
    """Return the target; items that have the part and are not to be corrected count as neither."""
    _check_carriers(carriers, len(collection))
    excluded = {*carriers, *having}
    clean = [p for p in range(len(collection)) if p not in excluded]
    if len(clean) < MIN_CLEAN_ITEMS:
        raise InputError(
            f"a repair is measured on items without the part, at least {MIN_CLEAN_ITEMS}, and there are {len(clean)}"
        )
    return Target(part, sorted(set(carriers)), clean)


def _check_carriers(carriers: Sequence[int], count: int) -> None:
    if not all(0 <= position < count for position in carriers):
        raise InputError(f"carriers are positions 0 … {count - 1}")
    if len(set(carriers)) < MIN_CARRIERS:
        raise InputError(
            f"too few items are known to have the part: {len(set(carriers))}, a repair needs {MIN_CARRIERS}: name them, "
            "carriers= (--carriers FILE)"
        )


def _read_original(collection: Collection, position: int) -> Item:
    return read_item(collection.encoder, collection.original_input(position), quiet=True)


@dataclass(frozen=True, eq=False)
class Trial:
    """Items without the part, to some of which it was added: the neighbours of all are known.

    Args:
        clean: embeddings before the part was added.
        rows, planted: the planted rows, and their embeddings with the part.
        cosine: rank by cosine, else by dot product.
    """

    clean: Float[Tensor, "m h"]
    rows: Int[Tensor, " planted"]
    planted: Float[Tensor, "planted h"]
    cosine: bool

    @cached_property
    def truth(self) -> Int[Tensor, "m k"]:
        return find_neighbours(self.clean, cosine=self.cosine)

    @property
    def before(self) -> Float[Tensor, "m h"]:
        return self.with_rows(self.planted)

    def with_rows(self, planted: Float[Tensor, "planted h"]) -> Float[Tensor, "m h"]:
        return self.clean.index_copy(0, self.rows, planted)

    def halves(self) -> tuple[Tensor, Tensor]:
        """Return the planted rows that choose a candidate, and those that are reported."""
        return self.rows[::2], self.rows[1::2]

    def measure(
        self, method: str, embeddings: Float[Tensor, "m h"], rows: Tensor, **about: object
    ) -> Measurement:
        """Measure a candidate on some of the planted rows and on all others.

        Args:
            method: of the candidate.
            embeddings: those of all items after the repair.
            rows: planted rows to measure.
            **about: rank, strength and source of the candidate.
        """
        after = find_neighbours(embeddings, cosine=self.cosine)
        recall = (self.truth[:, :, None] == after[:, None]).any(2).double().mean(1)
        is_planted = torch.zeros(len(self.clean), dtype=torch.bool).index_fill(0, self.rows, True)
        attraction = is_planted[after].double().mean(1)
        values = (attraction[rows].mean(), recall[rows].mean(), recall[~is_planted].mean())
        return Measurement(method, *map(float, values), **about)  # type: ignore[arg-type]


def find_neighbours(embeddings: Float[Tensor, "m h"], *, cosine: bool) -> Int[Tensor, "m k"]:
    """Return the nearest other rows of each row."""
    rows = torch.nn.functional.normalize(embeddings, dim=1) if cosine else embeddings
    scores = (rows @ rows.T).fill_diagonal_(-torch.inf)
    return scores.topk(min(NEIGHBOURS, len(rows) - 1), dim=1).indices


class Selection:
    """Makes and measures the candidates for one part."""

    def __init__(
        self, collection: Collection, target: Target, rng: np.random.Generator, progress: bool
    ) -> None:
        self.collection, self.target, self.part, self.rng = collection, target, target.part, rng
        self.encoder, self.progress = collection.encoder, progress
        self.base = collection.resolve_similarity(None)
        self.share = len(target.carriers) / len(collection)
        order = rng.permutation(target.carriers).tolist()
        # at least one carrier is kept back, to measure the relevance that is left
        count = min(MAX_TRAINING_CARRIERS, max(MIN_CARRIERS - 1, len(order) * 3 // 4))
        self.training, self.kept = order[:count], order[count : count + MAX_RELEVANCE_CARRIERS]
        self.filled: dict[int, Tensor] = {}  # position → embedding with the part filled in

    def choose(self, method: Method | None) -> Repair:
        """Measure the candidates and return the first that reaches every goal, else the one that gains most."""
        trial, planted = self._plant()
        choosing, reporting = trial.halves()
        before = trial.measure("none", trial.before, choosing)
        clean_attraction = trial.measure("none", trial.clean, choosing).attraction
        measured: dict[str, tuple[Measurement, Tensor]] = {}
        measured["filling"] = self._choose_filling(trial, planted, before)
        projection = None
        if method in (None, "projection"):
            projection, one = self._choose_projection(trial, before)
            relevance_before, relevance = self._measure_relevance(projection)
            measured["projection"] = replace(one, relevance=relevance), _project(trial.before, *projection)
        else:
            relevance_before, _ = self._measure_relevance(None)
        # one push for each planted item, as much as all the rest together on MobileNetV2, where it did harm
        filling_helps = is_worth_it(measured["filling"][0], before, self.share)
        if method == "removal" or (method is None and not filling_helps):
            with suppress(InputError):  # e.g. regions so large that none is inside the part
                parts = torch.stack(
                    [embed_part(self.encoder, item, self.part)[0].float() for item in planted]
                )
                removed = trial.with_rows(trial.planted - parts.cpu())
                measured["removal"] = trial.measure("removal", removed, choosing, relevance=0.0), removed
        wanted = METHODS if method is None else (method,)
        ordered = {name: measured[name] for name in wanted if name in measured}
        if not ordered:
            raise InputError(f"no region of these items is inside the part, so {method} cannot be measured")
        goals_met = self._reaches_goals(ordered, before, clean_attraction)
        name = goals_met[0] if goals_met else max(ordered, key=lambda n: self._gain(ordered[n][0], before))
        # everything that is reported is measured on the other half
        reported = {
            n: replace(one, **_figures(trial.measure(n, rows, reporting)))
            for n, (one, rows) in measured.items()
        }
        report = RepairReport(
            part=self.part.describe(),
            items=len(self.collection),
            carriers=len(self.target.carriers),
            corrected=0,
            planted=len(trial.rows),
            area=self._measure_area(planted[0]),
            clean_attraction=trial.measure("none", trial.clean, reporting).attraction,
            before=replace(trial.measure("none", trial.before, reporting), relevance=relevance_before),
            after=reported[name],
            candidates=tuple(reported[n] for n in METHODS if n in reported),
        )
        self._check_attraction(trial, report)
        self._check_worth(report, ordered[name][0], before)
        return self._verify(self.make_repair(name, projection, report))

    def _gain(self, after: Measurement, before: Measurement) -> float:
        return compute_net_gain(after, before, self.share)

    def _reaches_goals(
        self, measured: dict[str, tuple[Measurement, Tensor]], before: Measurement, clean_attraction: float
    ) -> list[str]:
        """Return the candidates that reach every goal, in order of preference."""
        ceiling = measured["filling"][0].restored if "filling" in measured else 0.0
        return [
            name
            for name in METHODS
            if name in measured
            and not list_missed(measured[name][0], before, clean_attraction, ceiling)
            and is_worth_it(measured[name][0], before, self.share)
        ]

    def _check_attraction(self, trial: Trial, report: RepairReport) -> None:
        """Raise unless the part makes items similar: what carriers do not share is their own content."""
        clean, planted = (
            trial.measure("none", rows, trial.rows).attraction for rows in (trial.clean, trial.before)
        )
        if planted - clean < MIN_GAIN:
            raise RefusedRepairError(
                f"{report.part} decides no neighbours: {format_percent(planted)} of the neighbours of items with it have "
                f"it too, {format_percent(clean)} without it: leave the similarity as it is",
                report,
            )

    def _check_worth(self, report: RepairReport, chosen: Measurement, before: Measurement) -> None:
        """Raise unless the repair does more good than harm on both halves of the planted items."""
        for b, a in ((before, chosen), (report.before, report.after)):
            if not is_worth_it(a, b, self.share):
                raise RefusedRepairError(
                    f"no repair of {report.part} does more good than harm: the best ({a.label}) restores "
                    f"{a.restored - b.restored:+.1%} of the right neighbours of items with the part, and "
                    f"{a.others - b.others:+.1%} of those of the others: leave the similarity as it is",
                    report,
                )

    def _plant(self) -> tuple[Trial, list[Item]]:
        """Add the part to some items without it; return also these items."""
        clean = self.rng.permutation(self.target.clean)[:MAX_MEASURED_ITEMS].tolist()
        wanted = min(MAX_PLANTED, max(MIN_PLANTED, int(len(clean) * min(MAX_PLANTED_FRACTION, self.share))))
        donors = [_read_original(self.collection, p) for p in self.training[:8]]
        rows, planted = [], []
        with progress_bar(self.progress) as bar:
            bar.start("adding the part to items without it", wanted)
            for row, position in enumerate(clean):
                if len(planted) == wanted:
                    break
                with suppress(BilrpError):
                    item = _read_original(self.collection, position)
                    planted.append(self.part.add(item, donors[row % len(donors)], self.encoder))
                    rows.append(row)
                    bar.advance()
        if len(planted) < MIN_PLANTED:
            raise InputError("the files of the items without the part cannot be read: restore them")
        # as many items as keep the share of those with the part what it is in the collection
        count = max(rows[-1] + 1, min(len(clean), round(len(planted) / max(self.share, 0.02))))
        embeddings = torch.from_numpy(np.array(self.collection.items.embeddings(clean[:count])))
        planted_embeddings = self._encode(planted)
        return Trial(embeddings, torch.tensor(rows), planted_embeddings, self.base == "cosine"), planted

    def _choose_filling(
        self, trial: Trial, planted: Sequence[Item], before: Measurement
    ) -> tuple[Measurement, Tensor]:
        """Fill the part in as gains most on planted items; return the measurement, and all embeddings."""
        best: tuple[Measurement, Tensor] | None = None
        for part in self.part.list_fillings():
            rows = trial.with_rows(self._encode([part.remove(item, self.encoder) for item in planted]))
            about = {"source": part.filling, "relevance": 0.0}
            one = trial.measure("filling", rows, trial.halves()[0], **about)
            if best is None or self._gain(one, before) > self._gain(best[0], before):
                best, self.part = (one, rows), part
        assert best is not None
        return best

    def _choose_projection(
        self, trial: Trial, before: Measurement
    ) -> tuple[tuple[Tensor, Tensor], Measurement]:
        """Return the projection that gains most on planted items, and its measurement."""
        choosing = trial.halves()[0]
        positions, filled = self._encode_filled(self.training)
        effects = torch.from_numpy(np.array(self.collection.items.embeddings(positions))) - filled
        best: tuple[tuple[Tensor, Tensor], Measurement] | None = None
        for rank in (r for r in RANKS if r <= max(1, len(effects) // 2)):
            for strength in STRENGTHS:
                projection = make_projection(effects, rank, strength)
                about = {"rank": rank, "strength": strength, "source": "filling"}
                one = trial.measure("projection", _project(trial.before, *projection), choosing, **about)
                if best is None or self._gain(one, before) > self._gain(best[1], before):
                    best = projection, one
        assert best is not None
        return best

    def _measure_relevance(self, projection: tuple[Tensor, Tensor] | None) -> tuple[float, float]:
        """Return the share of |⟨P_I, v⟩| on the part of carriers that were kept back, each with its nearest carrier.

        As it is, and after a projection.
        """
        others = [p for p in self.target.carriers if p not in self.kept][:MAX_MEASURED_ITEMS]
        table = torch.from_numpy(np.array(self.collection.items.embeddings(others)))
        shares = []
        for position in self.kept:
            with suppress(InputError):
                item = _read_original(self.collection, position)
                numbers = self.part.regions(item, self.encoder)
                own = self.collection.embedding(position)
                scores = table @ own / (table.norm(dim=1) if self.base == "cosine" else 1.0)
                vector = table[int(scores.argmax())]
                vectors = [vector]
                if projection is not None:
                    directions, readouts = projection
                    moved = vector - (vector @ readouts.T) @ directions
                    vectors.append(moved - (moved @ directions.T) @ readouts)  # MᵀM φ'
                values = prepare(self.encoder, item).pull(torch.stack(vectors).to(item.x)).abs()
                shares.append(values[numbers].sum(0) / values.sum(0))
        if not shares:
            return 0.0, 0.0
        means = torch.stack(shares).mean(0).tolist()
        return means[0], means[-1]

    def _measure_area(self, item: Item) -> float:
        return len(self.part.regions(item, self.encoder)) / choose_regions(self.encoder, item).count

    def _encode(self, items: Sequence[Item]) -> Float[Tensor, "n h"]:
        embeddings = BatchEncoder(self.encoder).encode(items)
        for each in embeddings:
            if isinstance(each, str):
                raise InputError(f"an input without the part cannot be encoded: {each}")
        return torch.stack([e.float() for e in embeddings if isinstance(e, Tensor)])

    def _encode_filled(self, positions: Sequence[int]) -> tuple[list[int], Float[Tensor, "n h"]]:
        """Return those of the items that can be read, and their embeddings with the part filled in."""
        batch: list[tuple[int, Item]] = []
        missing = [p for p in positions if p not in self.filled]
        with progress_bar(self.progress) as bar:
            bar.start("filling in the part", len(missing))
            for number, position in enumerate(missing):
                with suppress(BilrpError):
                    item = _read_original(self.collection, position)
                    batch.append((position, self.part.remove(item, self.encoder)))
                if len(batch) == MAX_BATCH_SIZE or number == len(missing) - 1:
                    embeddings = self._encode([item for _, item in batch]) if batch else []
                    self.filled |= {p: e for (p, _), e in zip(batch, embeddings, strict=True)}
                    batch = []
                bar.advance()
        done = [p for p in positions if p in self.filled]
        if not done:
            raise InputError("the files of the items that have the part cannot be read: restore them")
        return done, torch.stack([self.filled[p] for p in done])

    def make_repair(
        self, method: str, projection: tuple[Tensor, Tensor] | None, report: RepairReport
    ) -> Repair:
        """Return the repair by a method.

        Args:
            method: "projection", "filling" or "removal".
            projection: directions and readouts of a projection.
            report: what was measured.
        """
        none = torch.zeros(0, self.collection.width)
        origin = dict(self.collection.description["origin"])
        if method == "projection":
            assert projection is not None
            return Repair(*projection, (), self.base, origin, (report,))
        correction = self._correct_carriers("filling" if method == "filling" else "removal")
        report = replace(report, corrected=len(correction.ids))
        return Repair(none, none, (correction,), self.base, origin, (report,))

    def _verify(self, repair: Repair) -> Repair:
        """Return the repair with what it does to the carriers themselves; raise if it brings them together.

        What is added to other items is the part as it was located. If it is larger, its rest stays in the carriers, and what
        fills the part in is one more thing that they have in common.
        """
        sample = self.rng.permutation(len(self.collection))[:MAX_MEASURED_ITEMS]
        has = torch.from_numpy(np.isin(sample, self.target.carriers))
        rows = torch.from_numpy(np.array(self.collection.items.embeddings(sample)))
        before, after = (
            float(has[find_neighbours(each, cosine=self.base == "cosine")][has].double().mean())
            for each in (rows, repair.apply(rows))
        )
        report = replace(repair.report, carriers_before=before, carriers_after=after)
        if after - before >= MIN_GAIN:
            raise RefusedRepairError(
                f"the repair of {report.part} would bring the items that have it closer together: "
                f"{format_percent(before)} → {format_percent(after)} of their neighbours have it too: they have more in "
                "common than this part: name all of it",
                report,
            )
        return replace(repair, reports=(report,))

    def _correct_carriers(self, method: Literal["filling", "removal"]) -> Correction:
        if method == "filling":
            positions, filled = self._encode_filled(self.target.carriers)
            originals = torch.from_numpy(np.array(self.collection.items.embeddings(positions)))
            removed = originals - filled
        else:
            positions, parts = [], []
            with progress_bar(self.progress) as bar:
                bar.start("removing the part", len(self.target.carriers))
                for position in self.target.carriers:
                    with suppress(InputError):
                        item = _read_original(self.collection, position)
                        parts.append(embed_part(self.encoder, item, self.part)[0].float().cpu())
                        positions.append(position)
                    bar.advance()
            originals = torch.from_numpy(np.array(self.collection.items.embeddings(positions)))
            removed = torch.stack(parts)
        entries: list[tuple[int, int]] = []
        counts: list[int] = []
        numbers: list[int] = []
        for number, position in enumerate(positions):
            if number == 0 or not self.part.in_one_place:  # images share one partition
                item = _read_original(self.collection, position)
                numbers, count = (
                    self.part.regions(item, self.encoder),
                    choose_regions(self.encoder, item).count,
                )
                counts.append(count)
            else:
                counts.append(counts[0])
            entries += [(number, region) for region in numbers]
        return Correction(
            method, self.part, tuple(self.collection.ids[p] for p in positions), originals, removed,
            torch.tensor(entries).reshape(-1, 2), torch.tensor(counts),
        )  # fmt: skip


def _figures(measurement: Measurement) -> dict[str, float]:
    return {name: getattr(measurement, name) for name in ("attraction", "restored", "others")}


def _project(rows: Tensor, directions: Tensor, readouts: Tensor) -> Tensor:
    return rows - (rows @ readouts.T) @ directions
