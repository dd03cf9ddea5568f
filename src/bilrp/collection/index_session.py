"""State of an indexing run: known items, and the commits of new batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bilrp.collection import tables
from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.description import Description, check_encoder, check_origin, describe, read_description
from bilrp.collection.ingest import Batch, Outcome, ReadResult, embed, label_columns, read_source_item
from bilrp.collection.records import convert_metadata, infer_columns
from bilrp.collection.sources import RECORD_STAMP, SourceItem
from bilrp.collection.tables import Row
from bilrp.encoder import Encoder

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class IndexReport:
    """Counts of an indexing run: new, changed, unchanged, duplicate and removed items; `failed` has (source, error)."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    duplicates: int = 0
    removed: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # kind of a reader's note → number of texts
    seconds: float = 0.0

    @property
    def truncated(self) -> int:
        """Number of new texts that are longer than the encoder reads."""
        return self.notes["truncated"]


@dataclass
class IndexSession:
    """A collection during indexing. Paths are encoded paths, see `sources.encode_path`."""

    path: str
    encoder_options: Mapping[str, object]
    description: Description | None = None
    ids: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # path → id
    stamps: dict[str, tuple[str, str]] = field(default_factory=dict)  # path → (stamp, id)
    ids_without_source: set[str] = field(default_factory=set)  # ids that did not come from a file
    duplicate_paths: dict[str, set[str]] = field(default_factory=dict)  # id → other paths with that content
    orphaned_paths: set[str] = field(default_factory=set)  # duplicates of content that has changed
    record_stamps: dict[str, str] = field(default_factory=dict)  # id → stamp of a record
    changed_ids: set[str] = field(default_factory=set)  # of records that will be replaced
    columns: Mapping[str, str] = field(default_factory=dict)  # of metadata, for a new collection
    report: IndexReport = field(default_factory=IndexReport)
    described: bool = False
    _pending_failures: list[Row] = field(default_factory=list)  # until the width is known

    @staticmethod
    def open(path: str, encoder_options: Mapping[str, object]) -> IndexSession:
        """Read the state of a collection; it is empty if there is none at `path`."""
        dataset = tables.open_table(path, tables.ITEMS_TABLE)
        if dataset is None:
            return IndexSession(path, encoder_options)
        session = IndexSession(path, encoder_options, read_description(path, dataset))
        rows = tables.read_columns(dataset, ["id", "source", "stamp", "failed"])
        for key, source, stamp, failed in zip(*rows.values(), strict=True):
            if failed is not None:
                session.failed[source] = key
                continue
            session.ids.add(key)
            if (stamp or "").startswith(f"{RECORD_STAMP} "):
                session.record_stamps[key], stamp = stamp, ""
            if source:
                session.stamps[source] = stamp, key
            else:
                session.ids_without_source.add(key)
        return session

    def convert_metadata(self, source_items: Sequence[SourceItem]) -> list[SourceItem]:
        """Return the inputs with metadata in the types of the columns: the collection's, or of these inputs if it is new."""
        if self.description is None:
            self.columns = infer_columns(source_items)
        columns = self.columns if self.description is None else self.description.get("columns") or {}
        return [
            replace(each, metadata=convert_metadata(each.metadata, columns, self.path))
            if each.metadata
            else each
            for each in source_items
        ]

    @property
    def width(self) -> int | None:
        return None if self.description is None else self.description["width"]

    def is_known(self, source_item: SourceItem) -> bool:
        """Return whether an input is indexed and its file unchanged, so that it need not be read again."""
        stamp, path = source_item.stamp, source_item.encoded_path
        known = bool(stamp) and self.stamps.get(path, ("", ""))[0] == stamp
        if source_item.is_record and stamp:
            key = source_item.content_id()
            is_same = self.record_stamps.get(key) == stamp
            known = is_same and (not path or self.stamps.get(path, ("", ""))[1] == key)
            if key in self.ids and not is_same:
                self.changed_ids.add(key)
        self.report.unchanged += known
        return known

    def check_encoder_name(self, encoder: Encoder) -> None:
        """Raise `MismatchError` for an encoder of another name, before anything is read."""
        if self.description is not None:
            check_origin(self.path, self.description, self.description["origin"] | {"encoder": encoder.name})

    def describe(self, encoder: Encoder, results: Sequence[ReadResult], batch_encoder: BatchEncoder) -> None:
        """Describe a new collection, or check that the encoder is the collection's; once, on the first usable input.

        Inputs that are already indexed are read for this too, to detect another encoder when nothing is new.

        Args:
            encoder: The encoder of this run.
            results: Inputs as read.
            batch_encoder: Embeds the first usable input.
        """
        for each in () if self.described else results:
            item = each.item
            if item is None and each.failed is None:
                item = read_source_item(encoder, each.source_item).item
            embedding = None if item is None else batch_encoder.encode([item])[0]
            if item is None or embedding is None or isinstance(embedding, str):
                continue
            self.described = True
            if self.description is not None:
                check_encoder(self.path, self.description, encoder, item)
            else:
                self.description = describe(
                    encoder, item, width=embedding.numel(), options=self.encoder_options, columns=self.columns
                )
            return

    def embed(self, results: Sequence[ReadResult], batch_encoder: BatchEncoder) -> Batch:
        """Embed new inputs; see `ingest.embed`."""
        return embed(
            results, batch_encoder, known_ids=self.indexed_ids, failed_paths=self.failed, width=self.width
        )

    @property
    def indexed_ids(self) -> set[str]:
        """Ids that need not be read again."""
        return self.ids - self.changed_ids

    @property
    def schema(self) -> pa.Schema:
        assert self.description is not None
        return tables.items_schema(self.description["width"], self.description)

    def commit(self, batch: Batch, fragments: Sequence[str] | None = None) -> None:
        """Append a batch in one commit: its rows, or fragments that already contain them."""
        self._count_outcomes(batch.outcomes)
        rows = [*self._pending_failures, *batch.rows]
        if self.description is None:
            self._pending_failures = rows
            return
        self._delete_replaced(batch)
        if fragments is not None:
            tables.commit_fragments(self.path, tables.ITEMS_TABLE, fragments)
        elif batch.ids & self.changed_ids:
            # Parts first: if this run is killed in between, they are computed again.
            for key in sorted(batch.ids & self.changed_ids):
                for name in tables.DERIVED_TABLES:
                    tables.delete_rows(self.path, name, key)
            tables.upsert_rows(self.path, tables.ITEMS_TABLE, rows, self.schema)
            self.changed_ids -= batch.ids
        elif rows:
            tables.append_rows(self.path, tables.ITEMS_TABLE, rows, self.schema)
        self._pending_failures = []
        self.ids |= batch.ids
        # what was read before an item with its content was taken out
        self.orphaned_paths |= {
            each.encoded_path for each in batch.outcomes if each.is_duplicate and each.id not in self.ids
        }

    def apply_renames(self, source_items: Mapping[str, SourceItem], is_gone: Callable[[str], bool]) -> None:
        """Update the path of each item whose file is gone and whose content is now in another file."""
        rows = {}
        for path, (_, key) in self.stamps.items():
            others = sorted((self.duplicate_paths.get(key, set()) & source_items.keys()) - self.stamps.keys())
            if others and key in self.ids and is_gone(path):
                renamed = source_items[others[0]]
                rows[key] = {"id": key, "stamp": renamed.stamp} | label_columns(renamed)
        tables.update_rows(self.path, tables.ITEMS_TABLE, list(rows.values()))
        self.report.duplicates -= len(rows)
        self.report.unchanged += len(rows)

    def _count_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            self.report.notes.update(each.notes)
            if each.failed is not None:
                self.report.failed.append((each.source, each.failed))
            elif each.is_duplicate:
                self.duplicate_paths.setdefault(each.id, set()).add(each.encoded_path)
                known = each.id in self.ids_without_source
                if each.encoded_path in self.stamps:
                    stamp, key = self.stamps[each.encoded_path]
                    known = key == each.id or not stamp
                self.report.unchanged += known
                self.report.duplicates += not known
            elif each.id in self.changed_ids:
                self.report.changed += 1
            else:
                self.report.added += 1

    def _delete_replaced(self, batch: Batch) -> None:
        """Delete rows that a batch replaces: earlier contents of the same files, and failures that succeeded now."""
        good = [each for each in batch.outcomes if each.failed is None]
        changed = {
            self.stamps.pop(each.encoded_path)[1] for each in good if self._is_replacement(each)
        } - batch.ids
        repaired = {self.failed.pop(each.encoded_path) for each in good if each.encoded_path in self.failed}
        for key in sorted(changed | repaired):
            for name in (tables.ITEMS_TABLE, *tables.DERIVED_TABLES):
                tables.delete_rows(self.path, name, key)
        self.ids -= changed
        self.orphaned_paths |= {path for key in changed for path in self.duplicate_paths.pop(key, ())}

    def _is_replacement(self, outcome: Outcome) -> bool:
        """Return whether the file had another content before; false for a line that moved within a text file."""
        stamp, key = self.stamps.get(outcome.encoded_path, ("", outcome.id))
        return key != outcome.id and (bool(stamp) or not outcome.is_duplicate)
