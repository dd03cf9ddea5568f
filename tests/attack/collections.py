"""Untrusted collections: damaged descriptions, names of encoders and options that would run something, forged JSON.

Each is what was stored, or refused in one line. Modules that record that they were imported are in the current folder.
"""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attack.budget import measure_cost
from attack.mutate import mutate_bytes
from attack.table import Failure, Row
from bilrp import collection
from bilrp.collection import approximate_index, description, packed_parts, tables
from bilrp.encoder import Encoder, read_item
from bilrp.encoders import registry
from bilrp.errors import BilrpError
from forged_collections import write_canary_modules, write_forged_collection

TRIALS, FORGERIES = 90, 30  # a round
NAMES = (
    "vgg16:evil", "vgg16:canary", "canary:run", "canary:run:x", "evil", "os:system", "os:system:touch ran", "builtins:eval",
    "bigram:pipe", "bigram:canary.py", "bigram:evil:run", "sentence:canary", "vision:canary", "clip:canary", "minilm:canary",
    "canary:", ":run", "", "vgg16", "bigram\n", "bigram\x00", "importlib:import_module:canary", "x" * 70_000,
)  # fmt: skip
OPTIONS: tuple[Any, ...] = (
    {"families": []}, {"families": [["canary", "run"]]}, {"families": None}, {"pretrained": False}, {"progress": True},
    {"weights": "pipe"}, {"weights": "canary.py"}, {"weights": ["pipe"]}, {"weights": None}, {"name": "canary:run"},
    {"size": True}, {"size": -1}, {"size": 0}, {"size": 10**9}, {"size": [1, 2, 3]}, {"size": "32"}, {"size": 1.5},
    {"size": ["original", "original"]}, {"resize": "canary"}, {"resize": []}, {"": 1}, {"__class__": "x"}, [], "size", 3,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**63, 1.5, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "\x1b[2J", [], {}, [[]],
    {"": None}, [0] * 1000, "y" * 100_000,
)  # fmt: skip
VIEWS = (
    "", "{", "[]", "3", "null", "{}", '{"kind": "image"}', '{"kind": "image", "box": [1], "full": [1, 1]}', "[" * 5000,
    '{"kind": "image", "box": [0, 0, NaN, 1], "full": [1, 1]}', '{"kind": "image", "box": [0, 0, 1, 1], "full": []}',
    '{"kind": "text"}', '{"kind": "text", "spans": [[0]]}', '{"kind": "text", "spans": 3}', '{"kind": ["text"]}',
    '{"kind": "text", "spans": [["a", "b"]]}', '{"kind": "text", "spans": [[-5, 90]]}',
)  # fmt: skip
SAID = ("", "{", "[]", '{"probes": "many"}', '{"dataset": 1}', "[" * 5000)


@cache
def encoder() -> Encoder:
    return registry.load("bigram")


@cache
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@cache
def truth() -> tuple[description.Description, torch.Tensor]:
    """What an honest collection says of itself, and the embedding of a picture."""
    item = read_item(encoder(), picture())
    with torch.no_grad():
        embedding = encoder().module(item.x).flatten().float()
    return description.describe(encoder(), item, width=embedding.numel(), options={}), embedding


def honest_rows() -> list[dict[str, Any]]:
    empty = {"group": "", "source": "", "stamp": ""}
    return [
        {"id": f"{n:032x}", "name": f"item {n}", "embedding": truth()[1].numpy() + n} | empty
        for n in range(3)
    ]


def check(path: Path, folder: Path) -> Failure | bool:
    """Everything that opening, searching and serving ask of a collection. True: as it was stored; False: one line."""
    metadata, embedding = truth()
    with measure_cost() as cost:
        try:
            result = collection.open(path)
            same = np.array_equal(result.embeddings, np.stack([row["embedding"] for row in honest_rows()]))
            same = (
                same
                and result.names == [row["name"] for row in honest_rows()]
                and result.width == metadata["width"]
            )
            views = [result.view(at) for at in range(len(result))]
            same = same and torch.allclose(result.embedding(picture()), embedding, atol=1e-5)
            same = same and views == [None] * len(views)
        except BilrpError as error:
            same = None
            if "\n" in str(error):
                return Failure("unexpected error", f"more than one line: {error}")
        except Exception as error:
            return Failure("unexpected error", f"{type(error).__name__}: {error}"[:300])
    if (folder / "ran").exists():
        return Failure("executed", "a module of the current folder was imported")
    if cost.over:
        return Failure("over budget", str(cost))
    return False if same is None else True if same else Failure("wrong", "opened with other values")


def attack(seed: int, path: Path) -> Row:
    draw, row = random.Random(seed), Row("collections")
    write_canary_modules(path)
    os.chdir(path)
    for trial in range(TRIALS):
        kind = draw.choice(("bytes", "values", "values", "names", "options"))
        metadata, width = _hostile(kind, draw), truth()[0]["width"]
        write_forged_collection(path / "x.lance", metadata, honest_rows(), width)
        _count(row, check(path / "x.lance", path), f"seed {seed} trial {trial} ({kind}: {metadata!r:.200})")
    for trial in range(FORGERIES):
        what, detail = _forge(draw, path / "x.lance")
        _count(row, check(path / "x.lance", path), f"seed {seed} forgery {trial} ({what}: {detail:.200})")
        if what == "parts":
            _count(row, check_parts(path / "x.lance"), f"seed {seed} forgery {trial} ({detail})")
    os.chdir("/")
    return row


def _count(row: Row, result: Failure | bool, description: str) -> None:
    if isinstance(result, Failure):
        row.failed(result.what, f"{description}: {result.description}")
    elif result:
        row.right += 1
    else:
        row.refused += 1


def _hostile(kind: str, draw: random.Random) -> dict[str, Any] | bytes:
    """A description made worse."""
    metadata = json.loads(json.dumps(truth()[0]))
    if kind == "bytes":
        return (
            mutate_bytes(json.dumps(metadata).encode(), draw).decode(errors="replace").encode()
        )  # Lance keeps UTF-8
    if kind == "names":
        metadata["encoder"] = draw.choice(NAMES)
        if draw.random() < 0.7:
            metadata["origin"]["encoder"] = metadata["encoder"]
        if draw.random() < 0.5:
            metadata["options"] = draw.choice(OPTIONS)
    elif kind == "options":
        metadata["options"] = draw.choice(OPTIONS)
    else:
        for _ in range(draw.choice((1, 1, 2, 3))):
            inner = (
                metadata["origin"]
                if draw.random() < 0.4 and isinstance(metadata.get("origin"), dict)
                else metadata
            )
            key = draw.choice([*inner, "more"])
            if draw.random() < 0.3:
                inner.pop(key, None)
            else:
                inner[key] = draw.choice(ODD)
        if draw.random() < 0.05:
            return b'{"version": 1, "encoder": ' + b"[" * 100_000
    return metadata


def _forge(draw: random.Random, path: Path) -> tuple[str, str]:
    """An honest description with one JSON text or a column of numbers that cannot be."""
    rows, (description, _) = honest_rows(), truth()
    what = draw.choice(("view", "said", "row", "parts"))
    if what == "view":
        detail = draw.choice(VIEWS)
        rows[draw.randrange(3)] |= {
            "view": detail,
            "text": "a cat",
            "thumbnail": draw.choice((None, b"", b"x")),
        }
    elif what == "row":
        detail = draw.choice(("id", "name", "group", "source", "embedding"))
        rows[draw.randrange(3)][detail] = None
    else:
        detail = draw.choice(SAID)
    write_forged_collection(path, description, rows, description["width"])
    if what == "said":
        tables.import_lance().dataset(tables.table_path(str(path), tables.ITEMS_TABLE)).update_config(
            {approximate_index.CONFIG_KEY: detail}
        )
    if what == "parts":
        detail = draw.choice(("negative", "beyond", "unordered", "twice", "error", "short"))
        tables.append_rows(
            str(path), tables.PARTS_TABLE, [forge_parts(detail, description["width"])], tables.parts_schema()
        )
    return what, detail


def forge_parts(way: str, width: int) -> dict[str, Any]:
    """Parts of the first item on coordinates that cannot be, or with bytes that are missing."""
    columns = {"negative": [-1, 1], "beyond": [1, width], "unordered": [2, 1], "twice": [1, 1]}.get(
        way, [1, 2]
    )
    values = np.ones((2, 2), np.uint16).tobytes()
    error = float("nan") if way == "error" else 0.0
    values = values[:-1] if way == "short" else values
    return {
        "id": f"{0:032x}",
        "columns": np.array(columns, np.int32).tobytes(),
        "values": values,
        "error": error,
    }


def check_parts(path: Path) -> Failure | bool:
    """Forged parts are refused by every reader."""
    result = collection.open(path)
    try:
        packed = result.parts.read_parts(result.ids[:1])[0]
        relevance = None if packed is None else packed_parts.compute_relevance(packed, packed)
    except BilrpError:
        return False
    except Exception as error:
        return Failure("unexpected error", f"{type(error).__name__}: {error}"[:300])
    return Failure("wrong", f"forged parts were believed: {relevance}")
