"""Folders as people have them: broken files, duplicates, strange names, links that loop; and encoders that fail."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder, write_pictures
from PIL import Image
from torch import Tensor, nn

import bilrp
from bilrp import collection
from bilrp.collection import indexing
from bilrp.collection.indexing import build_with_report

pytest.importorskip("lance", reason="collections need bilrp[collection]")


def huge(path: Path) -> None:
    """A picture of 60,000 × 60,000 pixels, by its header."""
    header = (60_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    chunk = b"IHDR" + header
    signature = b"\x89PNG\r\n\x1a\n"
    path.write_bytes(
        signature + len(header).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    )


def small(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def test_a_thousand_files_of_which_twenty_are_broken(tmp_path: Path) -> None:
    """940 pictures, 20 duplicates, 20 with strange names, 20 broken: all are counted, and nothing else is."""
    source = tmp_path / "in"
    for number in range(940):
        small(source / f"{number % 7}" / f"{number % 5}" / f"{number:03}.png", number)
    for number in range(20):
        shutil.copy(
            source / f"{number % 7}" / f"{number % 5}" / f"{number:03}.png",
            source / f"duplicate {number}.png",
        )
    strange = [
        "ünïcødé",
        "数字",
        "🐎",
        "a\nb",
        "tab\t",
        "quo'te",
        'dou"ble',
        "per%cent",
        "back\\slash",
        "\u202eright",
    ]
    for number, name in enumerate(strange):
        small(source / "strange" / f"{name}.png", 2000 + number)
        small(source / f"{name}" / "in it.PNG", 3000 + number)
    broken = source / "broken"
    broken.mkdir()
    full = (source / "0" / "0" / "000.png").read_bytes()
    for number in range(4):
        (broken / f"truncated {number}.png").write_bytes(full[: len(full) - 30 - number])
        (broken / f"wrong suffix {number}.jpg").write_text(f"{number} is no picture")
        (broken / f"empty {number}.png").touch()
        huge(broken / f"huge {number}.png")
        (broken / f"link to nothing {number}.png").symlink_to(source / "nowhere" / f"{number}.png")
    with (broken / "enormous.jpg").open("wb") as file:
        file.truncate(2**40)  # a sparse file of a terabyte
    (source / "loop").symlink_to(source, target_is_directory=True)
    (source / "0" / "up").symlink_to(source, target_is_directory=True)
    os.mkfifo(source / "pipe.png")
    (source / "notes.txt").write_text("not a picture's name")
    result, report = build_with_report(source, tiny_encoder(), tmp_path / "x.lance")
    assert (report.added, report.duplicates, len(report.failed)) == (960, 20, 21)
    assert len(result) == 960 and len(result.failed) == 21 and len(set(result.names)) == 950 + 1
    assert {Path(path).parent.name for path, _ in report.failed} == {"broken", "nowhere"}
    assert all(why and "\n" not in why for _, why in report.failed)
    assert result.names.count("in it.PNG") == 10 and set(result.groups()) >= {"数字", "strange", "6/4"}
    assert result.decomposition(source / "strange" / "数字.png").regions.count == 16
    _, report = build_with_report(source, tiny_encoder(), tmp_path / "x.lance")
    assert (report.added, report.unchanged, report.duplicates, len(report.failed)) == (0, 960, 20, 21)
    assert len(collection.open(tmp_path / "x.lance").failed) == 21  # once each


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 3), tmp_path / "x.lance"
    strange = source / "caf\udce9.png"
    try:
        small(strange, 9)
    except OSError:
        pytest.skip("needs a file system with such names")
    result, report = build_with_report(source, tiny_encoder(), path, parts=True, prune=True)
    assert len(result) == 4 and report.removed == 0 and not report.failed
    assert result.position(strange) == 0 and result.names[0] == "caf\\xe9.png"
    assert build_with_report(source, tiny_encoder(), path)[1].unchanged == 4


def test_a_duplicate_is_added_when_its_original_changed(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 2), tmp_path / "x.lance"
    shutil.copy(source / "odd" / "001.png", source / "odd" / "a copy.png")
    result, report = build_with_report(source, tiny_encoder(), path)
    stored = set(result.ids)
    assert report.duplicates == 1
    small(source / "odd" / "001.png", 5)
    result, report = build_with_report(source, tiny_encoder(), path)
    assert len(result) == 3 and stored < set(result.ids)


def test_a_duplicate_is_added_when_the_original_changed_before_it_was_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "ITEMS_PER_COMMIT", 2)
    source, path = tmp_path / "in", tmp_path / "x.lance"
    small(source / "a.png", 0)
    shutil.copy(source / "a.png", source / "z.png")
    stored = set(build_with_report(source, tiny_encoder(), path)[0].ids)
    for number, name in enumerate("abc", 1):
        small(source / f"{name}.png", number)
    result, _ = build_with_report(source, tiny_encoder(), path)
    assert len(result) == 4 and stored < set(result.ids) and result.position(source / "z.png") is not None


@pytest.mark.parametrize("prune", [False, True])
def test_a_file_that_was_renamed_is_kept_under_its_new_name(tmp_path: Path, prune: bool) -> None:
    source, path = write_pictures(tmp_path / "in", 4), tmp_path / "x.lance"
    before = collection.build(source, tiny_encoder(), path, parts=True)
    (source / "new").mkdir()
    new = (source / "even" / "000.png").rename(source / "new" / "named.png")
    result, report = build_with_report(source, tiny_encoder(), path, prune=prune)
    assert set(result.ids) == set(before.ids) and len(result) == 4
    at = result.position(new)
    assert at is not None and result.original_input(at) == new and result.names[at] == "named.png"
    assert result.ids[at] == before.ids[0] and result.groups()["new"] == [at]
    assert np.array_equal(result.embeddings[at], before.embeddings[0]) and result.view(at) is not None
    assert (report.unchanged, report.duplicates, report.added, report.removed) == (4, 0, 0, 0)
    assert build_with_report(source, tiny_encoder(), path, prune=prune)[1].unchanged == 4


def test_a_copy_elsewhere_does_not_take_the_item_along(tmp_path: Path) -> None:
    source, other, path = write_pictures(tmp_path / "in", 2), tmp_path / "other", tmp_path / "x.lance"
    collection.build(source, tiny_encoder(), path)
    shutil.copytree(source, other)
    result, report = build_with_report(other, tiny_encoder(), path, prune=True)
    assert (len(result), report.duplicates, report.removed) == (2, 2, 0)
    assert result.position(source / "odd" / "001.png") is not None


def test_a_file_that_was_renamed_to_another_takes_its_place(tmp_path: Path) -> None:
    source, path = write_pictures(tmp_path / "in", 4), tmp_path / "x.lance"
    before = collection.build(source, tiny_encoder(), path)
    (source / "even" / "002.png").rename(source / "even" / "000.png")
    one, other = source / "odd" / "001.png", source / "odd" / "003.png"
    third = one.rename(source / "odd" / "third")
    other.rename(one)
    third.rename(other)  # the two have changed places
    indexed = collection.build(source, tiny_encoder(), path)
    assert set(indexed.ids) == set(before.ids[1:])
    assert indexed.position(source / "even" / "000.png") == indexed.position(before.ids[1])
    assert indexed.position(one) == indexed.position(before.ids[3])


def test_what_came_from_no_file_replaces_nothing(tmp_path: Path) -> None:
    inputs, path = list(torch.rand(3, 1, 3, 8, 8)), tmp_path / "x.lance"
    for count in range(1, 4):
        result, report = build_with_report(inputs[:count], nn.Flatten(), path)
        assert len(result) == count and (report.added, report.unchanged) == (1, count - 1)


def test_duplicates_of_an_input_that_the_encoder_refuses_fail_too(tmp_path: Path) -> None:
    inputs = [torch.rand(1, 3, 4, 4), *[torch.ones(1, 3, 4, 8)] * 3]
    result, report = build_with_report(inputs, nn.Flatten(), tmp_path / "x.lance")
    assert len(result) == 1 and len(report.failed) == 3 and report.duplicates == 0


def test_a_source_that_begins_with_broken_files_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "ITEMS_PER_COMMIT", 2)
    source = write_pictures(tmp_path / "in", 3)
    for number in range(5):
        (source / "even" / f"- {number}.png").touch()
    result, report = build_with_report(source, tiny_encoder(), tmp_path / "x.lance")
    assert len(result) == 3 and len(result.failed) == len(report.failed) == 5


class Picky(nn.Module):
    """Fails on dark inputs, and gives half of its coordinates for bright ones."""

    def forward(self, x: Tensor) -> Tensor:
        if x.amin() < 0.2:
            raise RuntimeError("too dark\nfor this model")
        return x.flatten(1) if x.amax() < 0.8 else x.flatten(1)[:, ::2]


def test_inputs_on_which_the_encoder_fails_are_left_out_alone(tmp_path: Path) -> None:
    values = [0.5, 0.1, 0.6, 0.9, 0.7]
    result, report = build_with_report(
        [torch.full((1, 1, 4, 4), v) for v in values], Picky(), tmp_path / "x.lance"
    )
    assert result.names == ["item 0", "item 2", "item 4"]
    assert dict(report.failed) == {
        "item 1": "RuntimeError: too dark",
        "item 3": "its embedding has 8 coordinates, the collection's have 16",
    }
    assert dict(result.failed) == dict(report.failed)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(8, 6)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.out(self.table(numbers).flatten(1)).relu()


def test_encoders_whose_input_is_the_output_of_an_inner_module(tmp_path: Path) -> None:
    """What is explained is the output of a module inside; what is indexed is what the whole makes of the input."""
    encoder, inputs = (
        bilrp.Encoder(Bag(), name="bag", input_layer="table"),
        [torch.tensor([[n, n + 1]]) for n in range(5)],
    )
    indexed = collection.build(inputs, encoder, tmp_path / "x.lance")
    with torch.no_grad():
        expected = torch.cat([encoder.module(x) for x in inputs])
    torch.testing.assert_close(torch.from_numpy(indexed.embeddings), expected)
    neighbours = indexed.nearest(inputs[2], k=1, similarity="cosine")
    assert neighbours[0].position == 2 and neighbours[0].score == pytest.approx(1.0)
