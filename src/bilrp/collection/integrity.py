"""Which files of a collection are damaged, which items lie in them, and how to get these back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bilrp.collection import file_checksums, tables
from bilrp.errors import InputError

MAX_NAMED_ITEMS = 5  # items that are named of a damaged file
# How to repair a table whose version is damaged, so that nobody knows what it is made of.
REPAIR_HINTS = {
    tables.ITEMS_TABLE: "index it again under another name",
    tables.PARTS_TABLE: f"remove {tables.PARTS_TABLE} from the collection, parts are made again when they are asked for",
}


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written: what is wrong, and whose data it holds, as far as that can be read."""

    file: str
    problem: str
    table: str = ""
    fragment: int | None = None
    items: tuple[str, ...] = ()
    rows: int = 0

    def __str__(self) -> str:
        said = f"{self.file}: {self.problem}"
        if self.fragment is None:
            return said
        named = ", ".join(self.items[:MAX_NAMED_ITEMS]) + (", …" if len(self.items) > MAX_NAMED_ITEMS else "")
        whose = "items" if self.table == tables.ITEMS_TABLE else "parts of items"
        return f"{said}; it holds {self.rows} {whose}" + (f" ({named})" if named else "")


def check(path: str) -> list[Damage]:
    """Compare every file of a collection with its checksum; one entry for each that is damaged or has none.

    >>> check("photographs.lance")  # doctest: +SKIP
    []
    """
    if "://" in path:
        raise InputError(
            f"{path}: a collection in a cloud has no checksums of its own: copy it here, and check that"
        )
    if not os.path.isdir(tables.table_path(path, tables.ITEMS_TABLE)):
        raise InputError(f"{path}: no collection there; make one with bilrp index or bilrp.collection.build")
    known, odd = file_checksums.read(path)
    found = [Damage(file_checksums.FILENAME, f"line {number} is no checksum") for number in odd]
    if not known:
        return [
            *found,
            Damage(
                file_checksums.FILENAME,
                "there are no checksums: bilrp index writes them, also where nothing is new",
            ),
        ]
    for name in (tables.ITEMS_TABLE, tables.PARTS_TABLE):
        found += _check_table(path, name, known)
    return found


def drop_damaged(path: str, damages: Sequence[Damage]) -> list[Damage]:
    """Take damaged fragments out of their tables, without reading them; those that could be taken out.

    Their items are new to `bilrp index` then, and parts are made again when they are asked for.
    """
    lance, dropped = tables.import_lance(), []
    for name in (tables.ITEMS_TABLE, tables.PARTS_TABLE):
        gone = {each.fragment: each for each in damages if each.table == name and each.fragment is not None}
        dataset = tables.open_table(path, name) if gone else None
        if dataset is not None:
            operation = lance.LanceOperation.Delete(
                [], [number for number in gone if number is not None], "true"
            )
            lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)
            tables.record_checksums(path, name)
            dropped += gone.values()
    return dropped


def _check_table(path: str, name: str, checksums: dict[str, str]) -> Iterator[Damage]:
    if not os.path.isdir(tables.table_path(path, name)):
        return  # no parts were made, or somebody removed them
    file_checksums.refuse_special_files(tables.table_path(path, name))
    version, latest = file_checksums.latest_version(name, checksums)
    if latest is not None:  # without it, the files that the table is made of are not known
        for file, what in file_checksums.compare(path, {latest: None}, checksums, compare_content=True):
            yield Damage(file, f"{what}: {REPAIR_HINTS[name]}", name)
            return
    try:
        dataset = tables.open_table(path, name)
        made_of = {} if dataset is None else file_checksums.list_files(name, dataset)
    except InputError as error:
        yield Damage(name, f"it cannot be opened ({error}): {REPAIR_HINTS[name]}", name)
        return
    if latest is not None and (dataset is None or dataset.version < version):
        yield Damage(latest, f"an earlier version was opened: {REPAIR_HINTS[name]}", name)
    holders = {} if dataset is None else _fragments_by_file(name, dataset)
    for file, what in file_checksums.compare(path, made_of, checksums, compare_content=True):
        yield _describe_damage(name, file, what, holders.get(file))
    for file in made_of.keys() - checksums.keys():
        yield Damage(file, "it has no checksum (a run was killed): bilrp index writes it", name)


def _fragments_by_file(name: str, dataset: Any) -> dict[str, Any]:
    """The fragment that each file belongs to."""
    found = {}
    for fragment in dataset.get_fragments():
        for each in fragment.data_files():
            found[f"{name}/data/{each.path}"] = fragment
        if fragment.deletion_file():
            found[f"{name}/{fragment.deletion_file()}"] = fragment
    return found


def _describe_damage(name: str, file: str, problem: str, fragment: Any) -> Damage:
    if fragment is None:
        return Damage(file, f"{problem}: {REPAIR_HINTS[name]}", name)
    column = "name" if name == tables.ITEMS_TABLE else "id"
    try:
        items = tuple(map(str, fragment.to_table(columns=[column]).column(column).to_pylist()))
    except BaseException as error:  # whatever Lance makes of damaged bytes, panics included
        if isinstance(error, KeyboardInterrupt):
            raise
        items = ()
    return Damage(file, problem, name, fragment.fragment_id, items, fragment.physical_rows)
