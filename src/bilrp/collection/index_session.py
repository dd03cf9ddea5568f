"""What a collection holds while it is indexed, and the one place where batches are committed to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bilrp.collection import tables
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.description import check_encoder, check_origin, describe, read_description
from bilrp.collection.ingest import Batch, Outcome, ReadResult, embed, label_columns, read_source_item
from bilrp.collection.sources import SourceItem
from bilrp.encoder import Encoder


@dataclass
class Tally:
    """What indexing did so far: how many are new, were there before, are the same as another; which are broken, and why."""

    added: int = 0
    unchanged: int = 0
    duplicates: int = 0
    removed: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # texts of which a reader noted something, by kind


@dataclass
class IndexSession:
    """What the collection says of itself, whose embeddings it has, what is broken, and when each file was last changed."""

    path: str
    encoder_options: Mapping[str, Any]
    description: dict[str, Any] | None = None
    ids: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # place → id
    stamps: dict[str, tuple[str, str]] = field(default_factory=dict)  # place → (stamp, id)
    ids_without_source: set[str] = field(default_factory=set)  # ids from no file, there before
    duplicate_paths: dict[str, set[str]] = field(default_factory=dict)  # id → other places with that content
    orphaned_paths: set[str] = field(default_factory=set)  # twins of what has changed since
    tally: Tally = field(default_factory=Tally)
    described: bool = False
    _pending_failures: list[dict[str, Any]] = field(
        default_factory=list
    )  # broken, before anything told the width

    @staticmethod
    def open(path: str, encoder_options: Mapping[str, Any]) -> IndexSession:
        dataset = tables.open_table(path, tables.ITEMS_TABLE)
        if dataset is None:
            return IndexSession(path, encoder_options)
        found = IndexSession(path, encoder_options, read_description(path, dataset))
        rows = tables.read_columns(dataset, ["id", "source", "stamp", "failed"])
        for key, place, stamp, failed in zip(*rows.values(), strict=True):
            if failed is not None:
                found.failed[place] = key
            else:
                found.ids.add(key)
                if place:  # what came from no file replaces nothing
                    found.stamps[place] = stamp, key
                else:
                    found.ids_without_source.add(key)
        return found

    @property
    def width(self) -> int | None:
        return None if self.description is None else self.description["width"]

    def is_known(self, source_item: SourceItem) -> bool:
        """Is it there, and unchanged since? Then it is not read again."""
        stamp = source_item.stamp
        known = bool(stamp) and self.stamps.get(source_item.encoded_path, ("", ""))[0] == stamp
        self.tally.unchanged += known
        return known

    def check_encoder_name(self, encoder: Encoder) -> None:
        """Refuse an encoder of another name, before anything is read."""
        if self.description is not None:
            check_origin(self.path, self.description, self.description["origin"] | {"encoder": encoder.name})

    def describe(self, encoder: Encoder, results: Sequence[ReadResult], batch_encoder: BatchEncoder) -> None:
        """Once: what a new collection will say of itself, or whether this encoder is the one that made it.

        What is known already is read all the same: another encoder must be noticed where nothing is new.
        """
        for each in () if self.described else results:
            item = (
                each.item
                if each.failed is not None or each.item
                else read_source_item(encoder, each.source_item).item
            )
            found = None if item is None else batch_encoder.encode([item])[0]
            if item is None or found is None or isinstance(found, str):
                continue
            self.described = True
            if self.description is not None:
                check_encoder(self.path, self.description, encoder, item)
            else:
                self.description = describe(encoder, item, width=found.numel(), options=self.encoder_options)
            return

    def embed(self, results: Sequence[ReadResult], batch_encoder: BatchEncoder) -> Batch:
        """What came of these, seen from here."""
        return embed(results, batch_encoder, known_ids=self.ids, failed_paths=self.failed, width=self.width)

    @property
    def schema(self) -> Any:
        assert self.description is not None
        return tables.items_schema(self.description["width"], self.description)

    def commit(self, batch: Batch, fragments: Sequence[str] | None = None) -> None:
        """Append a batch as one commit: its rows, or the fragments that hold them already."""
        self._count_outcomes(batch.outcomes)
        rows = [*self._pending_failures, *batch.rows]
        if self.description is None:
            self._pending_failures = rows
            return
        self._delete_replaced(batch)
        if fragments is not None:
            tables.commit_fragments(self.path, tables.ITEMS_TABLE, fragments)
        elif rows:
            tables.append_rows(self.path, tables.ITEMS_TABLE, rows, self.schema)
        self._pending_failures = []
        self.ids |= batch.ids
        # what was read before an item with its content was taken out
        self.orphaned_paths |= {
            each.encoded_path for each in batch.outcomes if each.is_duplicate and each.id not in self.ids
        }

    def apply_renames(self, source_items: Mapping[str, SourceItem], is_gone: Callable[[str], bool]) -> None:
        """An item whose file is gone, and whose content lies elsewhere, goes by that file: it was renamed."""
        rows = {}
        for place, (_, key) in self.stamps.items():
            there = sorted((self.duplicate_paths.get(key, set()) & source_items.keys()) - self.stamps.keys())
            if there and key in self.ids and is_gone(place):
                rows[key] = {"id": key, "stamp": source_items[there[0]].stamp} | label_columns(
                    source_items[there[0]]
                )
        tables.update_rows(self.path, tables.ITEMS_TABLE, list(rows.values()))
        self.tally.duplicates, self.tally.unchanged = (
            self.tally.duplicates - len(rows),
            self.tally.unchanged + len(rows),
        )

    def _count_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            self.tally.notes.update(each.notes)
            if each.failed is not None:
                self.tally.failed.append((each.source, each.failed))
            elif each.is_duplicate:
                self.duplicate_paths.setdefault(each.id, set()).add(each.encoded_path)
                known = each.id in self.ids_without_source
                if each.encoded_path in self.stamps:
                    stamp, key = self.stamps[each.encoded_path]
                    known = key == each.id or not stamp
                self.tally.unchanged += known
                self.tally.duplicates += not known
            else:
                self.tally.added += 1

    def _delete_replaced(self, batch: Batch) -> None:
        """Take out what these rows replace: an earlier content of the same file, and that it was broken."""
        good = [each for each in batch.outcomes if each.failed is None]
        changed = {
            self.stamps.pop(each.encoded_path)[1] for each in good if self._is_replacement(each)
        } - batch.ids
        mended = {self.failed.pop(each.encoded_path) for each in good if each.encoded_path in self.failed}
        for key in sorted(changed | mended):
            for name in (tables.ITEMS_TABLE, tables.PARTS_TABLE):
                tables.delete_rows(self.path, name, key)
        self.ids -= changed
        self.orphaned_paths |= {place for key in changed for place in self.duplicate_paths.pop(key, ())}

    def _is_replacement(self, outcome: Outcome) -> bool:
        """Had its file another content before? A line of a text that has moved to another has not."""
        stamp, key = self.stamps.get(outcome.encoded_path, ("", outcome.id))
        return key != outcome.id and (bool(stamp) or not outcome.is_duplicate)
