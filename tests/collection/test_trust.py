"""A collection is untrusted: it runs nothing, and its description is checked before it is used."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder, write_pictures
from PIL import Image

import bilrp
from bilrp import collection
from bilrp.cli import app
from bilrp.collection import approximate_index, tables
from bilrp.collection.indexing import build_with_report
from bilrp.encoders import registry
from bilrp.encoders.sentence_encoder import sentence
from bilrp.encoders.vgg import VGG16
from bilrp.errors import BilrpError, InputError, MismatchError
from forged_collections import write_canary_modules, write_forged_collection
from text_folders import ARCHITECTURES

pytest.importorskip("lance", reason="collections need bilrp[collection]")
WIDTH = 6
ORIGIN = {
    "encoder": "bigram",
    "weights": "a",
    "code": None,
    "composite": "b",
    "projection": None,
    "dtype": "float32",
}
SAID: dict[str, Any] = {"version": 1, "encoder": "bigram", "origin": ORIGIN, "width": WIDTH, "options": {}}


def rows(count: int = 3) -> list[dict[str, Any]]:
    numbers = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
    empty = {"group": "", "source": "", "stamp": ""}
    return [{"id": f"{n:032x}", "name": f"{n}", "embedding": e} | empty for n, e in enumerate(numbers)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules that record that they were imported."""
    write_canary_modules(tmp_path)
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (48, 36), "teal").save(tmp_path / "asked.png")
    return tmp_path


# ------------------------------------------------------------ nothing is run


@pytest.mark.parametrize("name", ["vgg16:evil", "bigram:pipe", "evil:run", "sentence:evil"])
@pytest.mark.parametrize("options", [{"families": []}, {"weights": "pipe"}, {}])
@pytest.mark.parametrize("command", ["open", "search", "audit", "serve"])
def test_opening_imports_nothing_and_follows_no_path(
    here: Path, name: str, options: dict[str, Any], command: str
) -> None:
    description = SAID | {"encoder": name, "origin": ORIGIN | {"encoder": name}, "options": options}
    path = str(write_forged_collection(here / "x.lance", description, rows(), WIDTH))
    with pytest.raises(InputError) as raised:
        if command == "open":
            collection.open(path).encoder  # noqa: B018
        else:
            app([command, path, *(["asked.png"] if command == "search" else [])], standalone_mode=False)
    assert not (here / "ran").exists(), "a module of the current folder was imported"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "asked",
    [
        {"families": []}, {"pretrained": False}, {"progress": True}, {"size": True}, {"size": -1}, {"size": 10**6},
        {"size": [1, 2, 3]}, {"size": ["original", "original"]}, {"size": "32"}, {"resize": "evil"}, {"resize": []},
        {"weights": 3}, [], "size", None,
    ],
)  # fmt: skip
def test_options_are_known_and_typed(asked: Any) -> None:
    with pytest.raises(InputError, match="stored"):
        registry.load_stored("bigram", asked)


def test_stored_options_keep_their_types(tmp_path: Path) -> None:
    """Size and resize of what was indexed come back, as typed as they went in."""
    assert registry.parse_stored_options({"size": [64, 48], "resize": "crop"}) == {
        "size": (64, 48),
        "resize": "crop",
    }
    assert registry.parse_stored_options({"size": "original"}) == {"size": "original"}
    assert registry.load_stored("bigram", {}).name == "bigram"


def test_weights_from_a_file_are_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(VGG16(31).state_dict(), tmp_path / "own.safetensors")
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "in", 3)
    options = ("-e", "vgg16:5", "--size", "16", "--weights", "own.safetensors")
    app(["index", "in", "-o", "x.lance", *options], standalone_mode=False)
    with pytest.raises(InputError, match=r"a path in a collection is not followed: give it, --weights .*own"):
        app(["search", "x.lance", "in/odd/001.png", "--explain"], standalone_mode=False)
    capsys.readouterr()
    app(
        ["search", "x.lance", "in/odd/001.png", "--explain", "--weights", "own.safetensors"],
        standalone_mode=False,
    )
    assert "Cosine" in capsys.readouterr().out


def test_an_id_is_not_a_condition(tmp_path: Path) -> None:
    """An id of a collection is part of an SQL condition: with a quote in it, all items would be deleted."""
    some = rows()
    some[1]["id"] = "x' OR '1' = '1"
    indexed = collection.open(write_forged_collection(tmp_path / "x.lance", SAID, some, WIDTH))
    assert indexed.remove([1]) == 1 and len(indexed) == 2


# ------------------------------------------------------------ what it says of itself


def broken(change: Callable[[dict[str, Any]], object]) -> bytes:
    description = copy.deepcopy(SAID)
    change(description)
    return json.dumps(description).encode()


DAMAGES: dict[str, bytes] = {
    "no JSON": b"{", "empty": b"", "a list": b"[]", "a number": b"3", "null": b"null",
    "deep": b"[" * 100_000, "deep inside": b'{"version": 1, "encoder": ' + b"[" * 100_000, "long": b" " * 2**21 + b"{}",
    "NaN": broken(lambda s: s.update(width=float("nan"))),
    "no version": broken(lambda s: s.pop("version")), "version true": broken(lambda s: s.update(version=True)),
    "version 2": broken(lambda s: s.update(version=2)), "version text": broken(lambda s: s.update(version="1")),
    "no width": broken(lambda s: s.pop("width")), "width text": broken(lambda s: s.update(width="6")),
    "width zero": broken(lambda s: s.update(width=0)), "width negative": broken(lambda s: s.update(width=-6)),
    "half the width": broken(lambda s: s.update(width=3)), "twice the width": broken(lambda s: s.update(width=12)),
    "width true": broken(lambda s: s.update(width=True)), "width 6.0": broken(lambda s: s.update(width=6.0)),
    "width huge": broken(lambda s: s.update(width=2**70)),
    "no encoder": broken(lambda s: s.pop("encoder")), "encoder null": broken(lambda s: s.update(encoder=None)),
    "encoder list": broken(lambda s: s.update(encoder=["bigram"])), "encoder number": broken(lambda s: s.update(encoder=1)),
    "another encoder": broken(lambda s: s.update(encoder="minilm")),
    "no origin": broken(lambda s: s.pop("origin")), "origin list": broken(lambda s: s.update(origin=[])),
    "origin text": broken(lambda s: s.update(origin="bigram")), "origin null": broken(lambda s: s.update(origin=None)),
    "origin empty": broken(lambda s: s.update(origin={})),
    "origin without weights": broken(lambda s: s["origin"].pop("weights")),
    "origin of objects": broken(lambda s: s["origin"].update(composite={})),
    "options list": broken(lambda s: s.update(options=[])), "options text": broken(lambda s: s.update(options="x")),
    "options null": broken(lambda s: s.update(options=None)),
    "options unknown": broken(lambda s: s.update(options={"x": 1})),
    "regions number": broken(lambda s: s.update(regions=8)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_description_is_one_line_on_opening(tmp_path: Path, damage: str) -> None:
    path = write_forged_collection(tmp_path / "x.lance", DAMAGES[damage], rows(), WIDTH)
    with pytest.raises(InputError) as raised:
        collection.open(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 400


def test_an_honest_description_opens(tmp_path: Path) -> None:
    indexed = collection.open(write_forged_collection(tmp_path / "x.lance", SAID, rows(), WIDTH))
    assert np.array_equal(indexed.embeddings, np.stack([row["embedding"] for row in rows()]))
    assert [neighbours.position for neighbours in indexed.nearest(2, k=2)] == [2, 1]


def test_a_column_of_another_type_is_one_line(tmp_path: Path) -> None:
    import pyarrow as pa

    schema = tables.items_schema(WIDTH, SAID)
    at = schema.get_field_index("name")
    schema = schema.set(at, pa.field("name", pa.int64()))
    some = [row | {"name": 3} for row in rows()]
    tables.append_rows(str(tmp_path / "x.lance"), tables.ITEMS_TABLE, some, schema)
    with pytest.raises(InputError, match="the column name is not of type string"):
        collection.open(tmp_path / "x.lance")


@pytest.mark.parametrize("column", ["id", "name", "group", "source", "embedding"])
def test_a_row_without_a_value_is_one_line(tmp_path: Path, column: str) -> None:
    """Without its embedding, the positions behind it would be those of others."""
    some = rows()
    some[1][column] = None
    indexed = collection.open(write_forged_collection(tmp_path / "x.lance", SAID, some, WIDTH))
    with pytest.raises(InputError, match=f"has no {column}"):
        indexed.nearest(0)


@pytest.mark.parametrize(
    "view",
    ["{", "[]", "[" * 5000, '{"kind": "image"}', '{"kind": "image", "box": [0, 0, NaN, 1], "full": [1, 1]}',
     '{"kind": "text"}', '{"kind": "text", "spans": [[0]]}', '{"kind": "text", "spans": [[0.5, 1]]}'],
)  # fmt: skip
def test_a_forged_view_is_one_line(tmp_path: Path, view: str) -> None:
    some = rows()
    some[0] |= {"view": view, "text": "a cat", "thumbnail": b"x"}
    indexed = collection.open(write_forged_collection(tmp_path / "x.lance", SAID, some, WIDTH))
    with pytest.raises(InputError, match=r"the thumbnail or text of 0 is damaged"):
        indexed.view(0)


@pytest.mark.parametrize("columns", [[-1, 1], [1, WIDTH], [2, 1], [1, 1]])
def test_parts_on_impossible_coordinates_are_refused(tmp_path: Path, columns: list[int]) -> None:
    path = write_forged_collection(tmp_path / "x.lance", SAID, rows(), WIDTH)
    built = {"columns": np.array(columns, np.int32).tobytes(), "values": bytes(8), "error": 0.0, "frame": b""}
    table = [{"id": rows()[n]["id"]} | built for n in range(2)]
    tables.append_rows(str(path), tables.PARTS_TABLE, table, tables.parts_schema())
    with pytest.raises(InputError, match="coordinates"):
        collection.open(path).relevance(0, 1)


def test_a_forged_measurement_of_an_index_counts_as_none(tmp_path: Path) -> None:
    collection.build(write_pictures(tmp_path / "in", 8), tiny_encoder(), tmp_path / "x.lance")
    indexed = collection.open(tmp_path / "x.lance", tiny_encoder())
    indexed.items.max_resident_bytes = 0
    assert indexed.items.index("dot") is not None
    dataset = tables.open_table(str(tmp_path / "x.lance"), tables.ITEMS_TABLE)
    assert dataset is not None
    honest = json.loads(dataset.config()[approximate_index.CONFIG_KEY])
    for forged in (
        {"probes": "many"},
        {"recall": "1"},
        {"recall": 7.0},
        {"probes": 0},
        {"similarity": "evil"},
    ):
        dataset = tables.open_table(str(tmp_path / "x.lance"), tables.ITEMS_TABLE)
        assert dataset is not None
        dataset.update_config({approximate_index.CONFIG_KEY: json.dumps(honest | forged)})
        second = collection.open(tmp_path / "x.lance", tiny_encoder())
        second.items.max_resident_bytes = 0
        assert second.recall("dot") == honest["recall"]


# ------------------------------------------------------------ who made it


def test_parts_of_other_regions_are_neither_kept_nor_mixed(tmp_path: Path) -> None:
    folder = ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32)
    texts = ["The cat sat. It rains.", "Two kittens rested. It rains."]
    path = tmp_path / "x.lance"
    collection.build(texts, sentence(folder), path)
    with pytest.raises(MismatchError, match=r"they differ in regions \(words and sentences\)"):
        collection.open(path, sentence(folder, regions="sentences")).decomposition(0)
    indexed = collection.open(path, sentence(folder))
    assert {indexed.decomposition(at).regions.kind for at in (0, 1)} == {"words"}
    with pytest.raises(MismatchError, match="regions"):  # what is stored is not shown as if it were another's
        collection.open(path, sentence(folder, regions="sentences")).explain(0, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (bilrp.regions.grid(8), bilrp.regions.grid(16)),
        (
            bilrp.regions.labels(torch.arange(4).repeat(32, 8)),
            bilrp.regions.labels(torch.arange(2).repeat(32, 16)),
        ),
        (torch.arange(4).repeat(32, 8), torch.arange(4).repeat(32, 8).flip(0, 1)),
    ],
)
def test_regions_are_told_apart(tmp_path: Path, ours: Any, theirs: Any) -> None:
    path, encoder = tmp_path / "x.lance", tiny_encoder()
    source = write_pictures(tmp_path / "in", 3)
    collection.build(source, replace(encoder, regions=ours), path)
    collection.open(path, replace(encoder, regions=ours)).make_parts([0])
    for use in (lambda c: c.make_parts([1]), lambda c: c.decomposition(0), lambda c: c.explain(0, 1)):
        with pytest.raises(MismatchError, match="regions"):
            use(collection.open(path, replace(encoder, regions=theirs)))
    with pytest.raises(MismatchError, match="regions"):
        build_with_report(source, replace(encoder, regions=theirs), path, parts=True)
    assert collection.open(path, replace(encoder, regions=ours)).explain(0, 1).relevance.numel()


@pytest.mark.parametrize("kind", ["pictures", "texts"])
def test_another_encoder_is_refused_where_nothing_is_new(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.lance"
    if kind == "pictures":
        source: Any = write_pictures(tmp_path / "in", 3)
        first, second = tiny_encoder(0), tiny_encoder(1)
    else:
        source = tmp_path / "texts.txt"
        source.write_text("The cat sat.\nIt rains.\n")
        first = sentence(ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32))
        module = copy.deepcopy(first.module)
        assert isinstance(module, torch.nn.Module)
        next(module.parameters()).add_(1.0)
        second = replace(first, module=module)
    collection.build(source, first, path)
    with pytest.raises(MismatchError, match="they differ in weights"):
        build_with_report(source, second, path, prune=True)
    assert build_with_report(source, first, path)[1].unchanged == len(collection.open(path))
    with pytest.raises(MismatchError, match=r"they differ in encoder \(.* and other\)"):
        build_with_report(source, replace(first, name="other"), path)


# ------------------------------------------------------------ queries


def test_a_text_that_cannot_be_a_file_name_is_a_query(tmp_path: Path) -> None:
    encoder = sentence(ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32))
    indexed = collection.build(["The cat sat.", "It rains."], encoder, tmp_path / "x.lance")
    assert len(indexed.nearest("The cat\0sat.", k=2)) == 2
    some = collection.build(write_pictures(tmp_path / "in", 3), tiny_encoder(), tmp_path / "y.lance")
    with pytest.raises(BilrpError):
        some.nearest("a\0b")


def test_removing_what_is_not_an_item_is_said(tmp_path: Path) -> None:
    indexed = collection.build(write_pictures(tmp_path / "in", 3), tiny_encoder(), tmp_path / "x.lance")
    with pytest.raises(
        InputError, match=rf"001.png is not an item of .*: give a position, an id .*{indexed.ids[2]}"
    ):
        indexed.remove([0, "001.png"])
    assert len(indexed) == 3, "nothing is removed where something is unknown"
    assert indexed.remove([indexed.ids[0], 0]) == 1 and len(indexed) == 2
