"""What a collection holds while it is indexed, and the one place where batches are committed to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bilrp.collection import tables
from bilrp.collection.description import check_encoder, check_origin, describe, read_description
from bilrp.collection.batch_encoder import Forward
from bilrp.collection.ingest import Batch, Outcome, Read, embedded, named, read
from bilrp.collection.sources import Thing
from bilrp.encoder import Encoder


@dataclass
class Tally:
    """What indexing did so far: how many are new, were there before, are the same as another; which are broken, and why."""

    added: int = 0
    known: int = 0
    same: int = 0
    removed: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # texts of which a reader noted something, by kind


@dataclass
class State:
    """What the collection says of itself, whose embeddings it has, what is broken, and when each file was last changed."""

    path: str
    asked: Mapping[str, Any]
    about: dict[str, Any] | None = None
    ids: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # place → id
    stamps: dict[str, tuple[str, str]] = field(default_factory=dict)  # place → (stamp, id)
    unplaced: set[str] = field(default_factory=set)  # ids from no file, there before
    twins: dict[str, set[str]] = field(default_factory=dict)  # id → other places with that content
    orphans: set[str] = field(default_factory=set)  # twins of what has changed since
    tally: Tally = field(default_factory=Tally)
    described: bool = False
    _early: list[dict[str, Any]] = field(default_factory=list)  # broken, before anything told the width

    @staticmethod
    def of(path: str, asked: Mapping[str, Any]) -> State:
        dataset = tables.opened(path, tables.ITEMS)
        if dataset is None:
            return State(path, asked)
        found = State(path, asked, read_description(path, dataset))
        rows = tables.columns(dataset, ["id", "source", "stamp", "failed"])
        for key, place, stamp, failed in zip(*rows.values(), strict=True):
            if failed is not None:
                found.failed[place] = key
            else:
                found.ids.add(key)
                if place:  # what came from no file replaces nothing
                    found.stamps[place] = stamp, key
                else:
                    found.unplaced.add(key)
        return found

    @property
    def width(self) -> int | None:
        return None if self.about is None else self.about["width"]

    def knows(self, thing: Thing) -> bool:
        """Is it there, and unchanged since? Then it is not read again."""
        stamp = thing.stamp
        known = bool(stamp) and self.stamps.get(thing.place, ("", ""))[0] == stamp
        self.tally.known += known
        return known

    def check_name(self, encoder: Encoder) -> None:
        """Refuse an encoder of another name, before anything is read."""
        if self.about is not None:
            check_origin(self.path, self.about, self.about["origin"] | {"encoder": encoder.name})

    def describe(self, encoder: Encoder, reads: Sequence[Read], forward: Forward) -> None:
        """Once: what a new collection will say of itself, or whether this encoder is the one that made it.

        What is known already is read all the same: another encoder must be noticed where nothing is new.
        """
        for each in () if self.described else reads:
            item = each.item if each.failed is not None or each.item else read(encoder, each.thing).item
            found = None if item is None else forward.run([item])[0]
            if item is None or found is None or isinstance(found, str):
                continue
            self.described = True
            if self.about is not None:
                check_encoder(self.path, self.about, encoder, item)
            else:
                self.about = describe(encoder, item, width=found.numel(), options=self.asked)
            return

    def embedded(self, reads: Sequence[Read], forward: Forward) -> Batch:
        """What came of these, seen from here."""
        return embedded(reads, forward, known=self.ids, broken=self.failed, width=self.width)

    @property
    def schema(self) -> Any:
        assert self.about is not None
        return tables.items_schema(self.about["width"], self.about)

    def commit(self, batch: Batch, fragments: Sequence[str] | None = None) -> None:
        """Append a batch as one commit: its rows, or the fragments that hold them already."""
        self._count(batch.outcomes)
        rows = [*self._early, *batch.rows]
        if self.about is None:
            self._early = rows
            return
        self._clear(batch)
        if fragments is not None:
            tables.committed(self.path, tables.ITEMS, fragments)
        elif rows:
            tables.appended(self.path, tables.ITEMS, rows, self.schema)
        self._early = []
        self.ids |= batch.ids
        # what was read before an item with its content was taken out
        self.orphans |= {each.place for each in batch.outcomes if each.same and each.id not in self.ids}

    def move(self, things: Mapping[str, Thing], gone: Callable[[str], bool]) -> None:
        """An item whose file is gone, and whose content lies elsewhere, goes by that file: it was renamed."""
        rows = {}
        for place, (_, key) in self.stamps.items():
            there = sorted((self.twins.get(key, set()) & things.keys()) - self.stamps.keys())
            if there and key in self.ids and gone(place):
                rows[key] = {"id": key, "stamp": things[there[0]].stamp} | named(things[there[0]])
        tables.replaced(self.path, tables.ITEMS, list(rows.values()))
        self.tally.same, self.tally.known = self.tally.same - len(rows), self.tally.known + len(rows)

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            self.tally.notes.update(each.notes)
            if each.failed is not None:
                self.tally.failed.append((each.source, each.failed))
            elif each.same:
                self.twins.setdefault(each.id, set()).add(each.place)
                known = each.id in self.unplaced
                if each.place in self.stamps:
                    stamp, key = self.stamps[each.place]
                    known = key == each.id or not stamp
                self.tally.known += known
                self.tally.same += not known
            else:
                self.tally.added += 1

    def _clear(self, batch: Batch) -> None:
        """Take out what these rows replace: an earlier content of the same file, and that it was broken."""
        good = [each for each in batch.outcomes if each.failed is None]
        changed = {self.stamps.pop(each.place)[1] for each in good if self._replaces(each)} - batch.ids
        mended = {self.failed.pop(each.place) for each in good if each.place in self.failed}
        for key in sorted(changed | mended):
            for name in (tables.ITEMS, tables.PARTS):
                tables.deleted(self.path, name, key)
        self.ids -= changed
        self.orphans |= {place for key in changed for place in self.twins.pop(key, ())}

    def _replaces(self, outcome: Outcome) -> bool:
        """Had its file another content before? A line of a text that has moved to another has not."""
        stamp, key = self.stamps.get(outcome.place, ("", outcome.id))
        return key != outcome.id and (bool(stamp) or not outcome.same)
