"""Check the files of a collection: which are damaged, which items they contain, and how to repair them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bilrp.collection import file_checksums, tables
from bilrp.errors import InputError

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

MAX_NAMED_ITEMS = 5  # items listed per damaged file
# How to repair a table whose version file is damaged, so that the list of its files is unknown.
REPAIR_HINTS = {
    tables.ITEMS_TABLE: tables.REINDEX_HINT,
    tables.PARTS_TABLE: f"remove {tables.PARTS_TABLE} from the collection, parts are computed again when needed",
    tables.NUMBERS_TABLE: f"remove {tables.NUMBERS_TABLE} from the collection, pages are read again when needed",
}


@dataclass(frozen=True)
class Damage:
    """A damaged file: the problem, and the items whose data it contains, as far as they can be read."""

    file: str
    problem: str
    table: str = ""
    fragment: int | None = None
    items: tuple[str, ...] = ()
    rows: int = 0

    def __str__(self) -> str:
        text = f"{self.file}: {self.problem}"
        if self.fragment is None:
            return text
        names = ", ".join(self.items[:MAX_NAMED_ITEMS]) + (", …" if len(self.items) > MAX_NAMED_ITEMS else "")
        content = {tables.ITEMS_TABLE: "items", tables.PARTS_TABLE: "parts of items"}.get(self.table, "pages")
        return f"{text}; it holds {self.rows} {content}" + (f" ({names})" if names else "")


def check(path: str) -> list[Damage]:
    """Compare every file of a collection with its checksum; return an entry for each that is damaged or has none."""
    if "://" in path:
        raise InputError(
            f"{path}: a collection in cloud storage has no checksums: copy it to this machine and check the copy"
        )
    if not os.path.isdir(tables.table_path(path, tables.ITEMS_TABLE)):
        raise InputError(f"{path}: no collection there; build one with bilrp index or bilrp.collection.build")
    checksums, invalid_lines = file_checksums.read(path)
    damages = [
        Damage(file_checksums.FILENAME, f"line {number} is not a checksum") for number in invalid_lines
    ]
    if not checksums:
        problem = "there are no checksums: bilrp index writes them, also if nothing is new"
        return [*damages, Damage(file_checksums.FILENAME, problem)]
    for name in REPAIR_HINTS:
        damages += _check_table(path, name, checksums)
    return damages


def drop_damaged(path: str, damages: Sequence[Damage]) -> list[Damage]:
    """Remove damaged fragments from their tables without reading them; return the removed ones.

    `bilrp index` adds their items again; parts are computed again when needed.
    """
    lance, removed = tables.import_lance(), []
    for name in REPAIR_HINTS:
        by_fragment = {each.fragment: each for each in damages if each.table == name}
        by_fragment.pop(None, None)
        dataset = tables.open_table(path, name) if by_fragment else None
        if dataset is not None:
            operation = lance.LanceOperation.Delete([], list(by_fragment), "true")
            lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
            tables.record_checksums(path, name)
            removed += by_fragment.values()
    return removed


def _check_table(path: str, name: str, checksums: dict[str, str]) -> Iterator[Damage]:
    if not os.path.isdir(tables.table_path(path, name)):
        return  # only the items table is required
    file_checksums.refuse_special_files(tables.table_path(path, name))
    version, latest = file_checksums.latest_version(name, checksums)
    if latest is not None:  # it lists the files of the table, so nothing else can be checked without it
        for file, problem in file_checksums.compare(path, {latest: None}, checksums, compare_content=True):
            yield Damage(file, f"{problem}: {REPAIR_HINTS[name]}", name)
            return
    try:
        dataset = tables.open_table(path, name)
        file_sizes = {} if dataset is None else file_checksums.list_files(name, dataset)
    except InputError as error:
        yield Damage(name, f"it cannot be opened ({error}): {REPAIR_HINTS[name]}", name)
        return
    if latest is not None and (dataset is None or dataset.version < version):
        yield Damage(latest, f"an earlier version was opened: {REPAIR_HINTS[name]}", name)
    fragments = {} if dataset is None else _fragments_by_file(name, dataset)
    for file, problem in file_checksums.compare(path, file_sizes, checksums, compare_content=True):
        yield _describe_damage(name, file, problem, fragments.get(file))
    for file in file_sizes.keys() - checksums.keys():
        yield Damage(file, "it has no checksum (a run was killed): bilrp index writes it", name)


def _fragments_by_file(name: str, dataset: LanceDataset) -> dict[str, LanceFragment]:
    """Map each file to its fragment."""
    fragments = {}
    for fragment in dataset.get_fragments():
        for each in fragment.data_files():
            fragments[f"{name}/data/{each.path}"] = fragment
        if fragment.deletion_file():
            fragments[f"{name}/{fragment.deletion_file()}"] = fragment
    return fragments


def _describe_damage(name: str, file: str, problem: str, fragment: LanceFragment | None) -> Damage:
    if fragment is None:
        return Damage(file, f"{problem}: {REPAIR_HINTS[name]}", name)
    column = "name" if name == tables.ITEMS_TABLE else "id"
    try:
        items = tuple(map(str, fragment.to_table(columns=[column]).column(column).to_pylist()))
    except BaseException as error:  # Lance may also panic on damaged bytes
        if isinstance(error, KeyboardInterrupt):
            raise
        items = ()
    return Damage(file, problem, name, fragment.fragment_id, items, fragment.physical_rows)
