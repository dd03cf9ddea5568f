"""Index a source: read, embed in batches, commit; what is there already is left alone, what is broken is kept as failed."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bilrp.collection import previews, tables
from bilrp.collection.holding import Collection, check_origin, open
from bilrp.collection.sources import Thing, things
from bilrp.decomposition import check_embedding
from bilrp.encoder import Encoder, Model, as_encoder, origin_at, read_item
from bilrp.encoders import families
from bilrp.engine.progress import tracking
from bilrp.errors import BilrpError, InputError, printable, reason
from bilrp.item import Item

BATCH = 16  # inputs of one shape that run at once
COMMIT = 64  # items of one commit: what a kill can cost at most


@dataclass(frozen=True)
class Report:
    """What indexing did: how many are new, were there before, are the same as another, and which are broken, and why."""

    added: int = 0
    known: int = 0
    same: int = 0
    removed: int = 0
    failed: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


@dataclass
class _Tally:
    added: int = 0
    known: int = 0
    same: int = 0
    removed: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Read:
    """A thing as it was read, or why it could not be."""

    thing: Thing
    id: str
    stamp: str
    item: Item | None = None
    failed: str | None = None


def build(
    source: Any,
    encoder: Model | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
) -> Collection:
    """Index a folder, files, texts or any iterable of what the encoder reads; adding again does what is new or changed.

    >>> import tempfile
    >>> images = [image for image in torch.rand(5, 1, 3, 8, 8)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(build(images, torch.nn.Flatten(), f"{folder}/noise.lance"))
    5
    """
    return indexed(source, encoder, path, parts=parts, progress=progress, column=column, prune=prune)[0]


def indexed(
    source: Any,
    encoder: Model | str,
    path: str | Path,
    *,
    parts: bool = False,
    progress: bool = False,
    column: str | None = None,
    prune: bool = False,
    asked: Mapping[str, Any] | None = None,
) -> tuple[Collection, Report]:
    """What `build` does, and a report of it; `asked` is what else the encoder's name needs to make it again (size, fit)."""
    start, tally = time.perf_counter(), _Tally()
    chosen = families.load(encoder) if isinstance(encoder, str) else as_encoder(encoder)
    path = str(path)
    listed = list(things(source, chosen, column=column))
    if not listed:
        raise InputError(f"nothing to index in {_called(source)}: no files or texts that {chosen.name} reads")
    state = _State.of(path)
    state.asked = dict(asked or {})
    with tracking(progress) as bar, ThreadPoolExecutor(2) as pool:
        bar.start("indexing", len(listed))
        forward = _Forward(chosen)
        for window in _windows(listed, chosen, state, tally, pool):
            _commit(path, chosen, forward, state, window, tally)
            bar.advance(len(window))
    if state.about is None:
        first = tally.failed[0] if tally.failed else ("", "nothing could be read")
        raise InputError(f"nothing was indexed: {printable(first[0])}: {first[1]}")
    if prune:
        tally.removed = _prune(path, source, {t.source for t in listed})
    found = open(path, encoder=chosen)
    if parts:
        found.make_parts(progress=progress)
    seconds = time.perf_counter() - start
    return found, Report(tally.added, tally.known, tally.same, tally.removed, tuple(tally.failed), seconds)


@dataclass
class _State:
    """What the collection holds already."""

    about: dict[str, Any] | None
    ids: set[str]
    failed: dict[str, str]  # id → source
    stamps: dict[str, tuple[str, str]]  # source → (stamp, id)
    checked: bool = False
    asked: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(path: str) -> _State:
        dataset = tables.opened(path, tables.ITEMS)
        if dataset is None:
            return _State(None, set(), {}, {})
        rows = tables.columns(dataset, ["id", "source", "stamp", "failed"])
        good = [not broken for broken in rows["failed"]]
        ids = {i for i, ok in zip(rows["id"], good, strict=True) if ok}
        stamps = {
            source: (stamp, i)
            for i, source, stamp, ok in zip(rows["id"], rows["source"], rows["stamp"], good, strict=True)
            if ok and source
        }
        failed = {i: source for i, source in zip(rows["id"], rows["source"], strict=True) if i not in ids}
        return _State(tables.about(dataset), ids, failed, stamps)


def _windows(
    listed: Sequence[Thing], encoder: Encoder, state: _State, tally: _Tally, pool: ThreadPoolExecutor
) -> Iterator[list[_Read]]:
    """Things that are new, read ahead of their turn, a commit's worth at a time, in the order of the source."""
    fresh = (thing for thing in listed if not _known(thing, state, tally))
    waiting: list[Future[_Read]] = []
    while True:
        waiting += [pool.submit(_read, encoder, thing) for thing in islice(fresh, 2 * COMMIT - len(waiting))]
        if not waiting:
            return
        now, waiting = waiting[:COMMIT], waiting[COMMIT:]
        yield [each.result() for each in now]


def _known(thing: Thing, state: _State, tally: _Tally) -> bool:
    stamp = thing.stamp
    known = bool(stamp) and state.stamps.get(thing.source, ("", ""))[0] == stamp
    tally.known += known
    return known


def _read(encoder: Encoder, thing: Thing) -> _Read:
    """Read one thing; whatever is wrong with it is its own affair."""
    stamp = thing.stamp
    try:
        key = thing.key()
    except OSError as error:
        broken = replace(thing, content=thing.source)
        return _Read(thing, broken.key(), stamp, failed=reason(error))
    try:
        item = read_item(encoder, thing.content)
        return _Read(thing, key, stamp, replace(item, view=previews.smaller(item.view), cut=None))
    except BilrpError as error:
        return _Read(thing, key, stamp, failed=str(error))
    except Exception as error:  # an encoder's own reader may raise anything
        return _Read(thing, key, stamp, failed=f"{type(error).__name__}: {reason(error)}")


def _commit(
    path: str, encoder: Encoder, forward: _Forward, state: _State, window: Sequence[_Read], tally: _Tally
) -> None:
    """Embed what was read and append it, in the order of the source, as one commit."""
    new, seen = [], set(state.ids)
    for read in window:
        if read.id in seen:
            tally.known += read.thing.source in state.stamps
            tally.same += read.thing.source not in state.stamps
            continue
        seen |= {read.id} if read.item is not None else set()
        new.append(read)
    good = [read for read in new if read.item is not None]
    embeddings = dict(zip([r.id for r in good], forward.run([r.item for r in good if r.item]), strict=True))
    rows, stale = [], []
    for read in new:
        embedding = embeddings.get(read.id)
        failed = read.failed if embedding is None else _trouble(embedding)
        if failed is not None:
            tally.failed.append((read.thing.source or read.thing.name, failed))
            if read.id in state.failed:
                continue
        else:
            stale += [i for i, source in state.failed.items() if i == read.id or source == read.thing.source]
            stale += [state.stamps[read.thing.source][1]] if read.thing.source in state.stamps else []
        rows.append(_row(read, None if failed else embedding, failed))
        tally.added += failed is None
    if state.about is None:
        made = _about(encoder, good, embeddings)
        state.about = None if made is None else made | {"asked": state.asked}
    elif good and not state.checked:
        check_origin(path, state.about["origin"], origin_at(encoder, next(r.item for r in good if r.item)))
    state.checked = True
    if not rows or state.about is None:
        return
    for gone in dict.fromkeys(stale):
        tables.deleted(path, tables.ITEMS, gone)
        state.failed.pop(gone, None)
    tables.appended(path, tables.ITEMS, rows, tables.items_schema(state.about["width"], state.about))
    state.ids |= {row["id"] for row in rows if not row["failed"]}
    state.failed |= {row["id"]: row["source"] for row in rows if row["failed"]}


def _trouble(embedding: Tensor) -> str | None:
    try:
        check_embedding(embedding)
    except InputError as error:
        return str(error)
    return None


def _about(encoder: Encoder, good: Sequence[_Read], embeddings: dict[str, Tensor]) -> dict[str, Any] | None:
    """What the collection will say of itself, from the first item that could be embedded."""
    read = next((r for r in good if _trouble(embeddings[r.id]) is None), None)
    if read is None or read.item is None:
        return None
    return {
        "version": tables.VERSION,
        "encoder": encoder.name,
        "origin": origin_at(encoder, read.item),
        "width": embeddings[read.id].numel(),
    }


def _row(read: _Read, embedding: Tensor | None, failed: str | None) -> dict[str, Any]:
    thing = read.thing
    about = {
        "id": read.id,
        "name": printable(thing.name),
        "group": printable(thing.group),
        "source": thing.source.encode("utf-8", "backslashreplace").decode(),
        "stamp": read.stamp,
        "failed": failed,
        "embedding": None if embedding is None else embedding.float().numpy(),
    }
    return about if read.item is None else about | previews.to_row(read.item.view)


@dataclass
class _Forward:
    """The encoder on many inputs: those of one shape at once, where that gives what one at a time gives."""

    encoder: Encoder
    batches: bool | None = None  # not known yet

    def run(self, items: Sequence[Item]) -> list[Tensor]:
        shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            shapes[tuple(item.x.shape)].append(number)
        found: dict[int, Tensor] = {}
        with torch.inference_mode():
            for numbers in shapes.values():
                for at in range(0, len(numbers), BATCH):
                    few = numbers[at : at + BATCH]
                    found |= zip(few, self._embed([items[n].x for n in few]), strict=True)
        return [found[number] for number in range(len(items))]

    def _embed(self, inputs: Sequence[Tensor]) -> Iterable[Tensor]:
        if len(inputs) > 1 and self.batches is not False:
            together = self._together(inputs)
            if together is not None:
                return together
        return [self.encoder.module(x).flatten().cpu() for x in inputs]

    def _together(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """All at once; None where the first shows that the model takes one at a time."""
        try:
            together = self.encoder.module(torch.cat(list(inputs))).flatten(1).cpu()
        except Exception:  # a model written for a batch of one may fail in any way
            self.batches = False
            return None
        if self.batches is None:
            alone = self.encoder.module(inputs[-1]).flatten().cpu()
            self.batches = len(together) == len(inputs) and torch.allclose(
                together[-1], alone, rtol=1e-3, atol=1e-5 * float(alone.abs().max())
            )
        return together if self.batches else None


def _prune(path: str, source: Any, there: set[str]) -> int:
    """Remove items of these folders whose files are gone."""
    folders = [Path(s) for s in ([source] if isinstance(source, str | Path) else source) if Path(s).is_dir()]
    dataset = tables.opened(path, tables.ITEMS)
    if dataset is None:
        return 0
    rows = tables.columns(dataset, ["id", "source"])
    gone = [
        i
        for i, source in zip(rows["id"], rows["source"], strict=True)
        if source not in there and any(Path(source).is_relative_to(f.resolve()) for f in folders)
    ]
    for each in gone:
        tables.deleted(path, tables.ITEMS, each)
        tables.deleted(path, tables.PARTS, each)
    return len(gone)


def _called(source: Any) -> str:
    return printable(str(source)) if isinstance(source, str | Path) else json.dumps(type(source).__name__)
