"""Small files that ask for much: read or refused within a gigabyte and five seconds of the processor."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from attack.budget import measure_cost
from attack.table import Row
from bilrp import Explanation
from bilrp.cli.texts import read_text
from bilrp.collection import packed_parts, parts_table, thumbnails
from bilrp.encoders import images, vgg_weights
from bilrp.encoders.sentence_encoder import sentence
from bilrp.errors import BilrpError, wrap_errors

HUGE = 2_000_000_000
MUCH = 1_200_000_000  # of packed zeros, which take time to pack


def attack(seed: int, location: Path) -> Row:
    row = Row("bombs")
    worst_seconds, worst_bytes = (0.0, ""), (0, "")
    for name, (make, read) in BOMBS.items():
        path = make(location / name.replace(" ", "-"))
        with measure_cost() as cost:
            try:
                read(path)
                row.right += 1
            except BilrpError as error:
                row.refused += 1
                if "\n" in str(error):
                    row.failed("unexpected error", f"{name}: more than one line: {error}")
            except Exception as error:
                row.failed("unexpected error", f"{name}: {type(error).__name__}: {error}")
        if cost.over:
            row.failed("over budget", f"{name}: {cost}")
        worst_seconds, worst_bytes = (
            max(worst_seconds, (cost.seconds, name)),
            max(worst_bytes, (cost.bytes, name)),
        )
    row.note = f"worst {worst_seconds[0]:.1f} s ({worst_seconds[1]}), {worst_bytes[0] / 1e6:.0f} MB ({worst_bytes[1]})"
    return row


def _written(data: bytes, suffix: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path = path.with_suffix(suffix)
        path.write_bytes(data)
        return path

    return make


# ---------------------------------------------------------------- pictures


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes, mode: int = 2, whole: bool = False) -> bytes:
    """A header of that size, and pixels only where they are asked for: then all zero, in a few kilobytes."""
    head = struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0)
    rows = (1 + width * {0: 1, 2: 3, 6: 4}[mode]) * height if whole else 100
    pack = zlib.compressobj(1)
    pixels = (
        b"".join(pack.compress(bytes(min(1 << 20, rows - at))) for at in range(0, rows, 1 << 20))
        + pack.flush()
    )
    start = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head)
    return start + b"".join(more) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def tiff(directories: int, *, loop: bool = False) -> bytes:
    """Directories one after the other, each of a small picture; with a loop the last points at the first."""
    buffer, size = bytearray(b"II*\0" + struct.pack("<I", 8)), 2 + 9 * 12 + 4
    for number in range(directories):
        start = 8 + number * (size + 4)
        follows = start + size + 4 if number + 1 < directories else (8 if loop else 0)
        tags = [(256, 4, 1, 1), (257, 4, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, start + size),
                (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, 1, 1)]  # fmt: skip
        buffer += struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
        buffer += struct.pack("<I", follows) + b"\x80\0\0\0"
    return bytes(buffer)


def tiff_that_claims(width: int, height: int, compression: int, count: int = 1) -> bytes:
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1),
            (273, 4, count, 8), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, count, 100)]  # fmt: skip
    body = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<I", 8) + body + bytes(4) + b"\x80" * 200


def gif(frames: int, side: int = 1) -> bytes:
    one = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6) + one * frames + b"\x3b"


def pictures() -> dict[str, bytes]:
    jpeg = io.BytesIO()
    Image.new("L", (16000, 12000)).save(jpeg, "JPEG")
    animated = io.BytesIO()
    Image.new("P", (8, 8)).save(
        animated, "PNG", save_all=True, append_images=[Image.new("P", (8, 8), n) for n in range(2)]
    )
    text = zlib.compress(bytes(50_000_000), 9)
    bmp = struct.pack("<IiiHH", 40, 30_000, 30_000, 1, 24) + bytes(24)
    packed = struct.pack("<IiiHHI", 40, 1_990, 1_990, 1, 8, 1) + bytes(20 + 1024)
    return {
        "a header of png": png(30_000, 30_000), "a header of 2^31 png": png(2**31 - 1, 2**31 - 1),
        "an odd header png": png(0, 0), "a whole 100 MP png": png(10_000, 10_000, mode=0, whole=True),
        "a whole 225 MP png": png(15_000, 15_000, mode=0, whole=True),
        "a transparent 99 MP png": png(11_000, 9_000, mode=6, whole=True), "a strip png": png(100_000_000, 1, mode=0),
        "text png": png(8, 8, *[_chunk(b"zTXt", b"a\0\0" + text)] * 3), "frames png": animated.getvalue(),
        "profile png": png(8, 8, _chunk(b"iCCP", b"a\0\0" + text)),
        "chunks png": png(8, 8, *[_chunk(b"tEXt", b"a\0b")] * 100_000),
        "directories tif": tiff(50_000), "loop tif": tiff(3, loop=True), "claims tif": tiff_that_claims(2**31, 2**31, 1),
        "packed tif": tiff_that_claims(30_000, 30_000, 32773), "tags tif": tiff_that_claims(8, 8, 1, 2**32 - 1),
        "fax tif": tiff_that_claims(9_999, 9_999, 4), "lzw tif": tiff_that_claims(9_999, 9_999, 5),
        "frames gif": gif(300_000), "large gif": gif(1, 65_535), "192 MP jpg": jpeg.getvalue(),
        "header bmp": b"BM" + struct.pack("<IHHI", 200, 0, 0, 54) + bmp + bytes(100),
        "rle bmp": b"BM" + struct.pack("<IHHI", 2000, 0, 0, 1078) + packed + b"\xff\x01" * 20_000,
        "header ppm": b"P6 30000 30000 255\n" + bytes(100),
        "comments ppm": b"P6 " + b"#\n" * 2_000_000 + b"1 1 255\n\0\0\0",
        "plain ppm": b"P3 1990 1990 255\n" + b"0 " * 6_000_000, "digits ppm": b"P6 " + b"1" * 5_000_000 + b" 1 255\n",
        "header tga": struct.pack("<BBBHHBHHHHBB", 0, 0, 10, 0, 0, 0, 0, 0, 9_999, 9_999, 24, 0) + b"\xff\0\0\0" * 1000,
        "header qoi": b"qoif" + struct.pack(">IIBB", 1_999, 1_999, 3, 0) + b"\xfd" * 70_000,
        "header pcx": struct.pack("<BBBBHHHH", 10, 5, 1, 8, 0, 0, 9_998, 9_998) + bytes(116) + b"\xff\0" * 1000,
        "header sgi": struct.pack(">hbbHHHHll", 474, 1, 1, 3, 9_999, 9_999, 3, 0, 255) + bytes(490) + b"\0\0\2\0" * 1000,
    }  # fmt: skip


def read_picture(path: Path) -> None:
    images.read_with_view(path, size=32)


# ---------------------------------------------------------------- results


def npz(shape: tuple[int, ...], *, bytes_: int = 0, name: str = "relevance") -> Callable[[Path], Path]:
    """Kilobytes with one array that claims, or unpacks to, very much."""

    def make(path: Path) -> Path:
        path = path.with_suffix(".npz")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for word, text in {"kind": "explanation", "similarity": "dot"}.items():
                array = io.BytesIO()
                np.save(array, np.array(text))
                file.writestr(f"words.{word}.npy", array.getvalue())
            with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(
                    stream, {"descr": "<f8", "fortran_order": False, "shape": shape}
                )
                for _ in range(bytes_ // 10_000_000):
                    stream.write(bytes(10_000_000))
        return path

    return make


def safetensors(header: bytes, claimed: int | None = None, size: int = 0) -> Callable[[Path], Path]:
    """A header of that many bytes, or that claims to be, in a sparse file."""

    def make(path: Path) -> Path:
        path = path.with_suffix(".safetensors")
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(header) if claimed is None else claimed) + header)
            if size:
                file.truncate(size)
        return path

    return make


def claim(kind: str, size: int, *, there: bool) -> Callable[[Path], Path]:
    """One tensor of that many bytes, which the (sparse) file has, or has not."""
    entry = {"dtype": kind, "shape": [size // int(kind[1:]) * 8], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"kind": "explanation"}, "relevance": entry}).encode()
    return safetensors(header, size=8 + len(header) + size if there else 0)


def many_tensors() -> bytes:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return json.dumps(
        {"__metadata__": {"kind": "explanation"}, **{f"t{n}": entry for n in range(150_000)}}
    ).encode()


# ---------------------------------------------------------------- weights and texts


def tar_bomb(path: Path) -> Path:
    path = path.with_suffix(".tar.gz")

    class Zeros(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        info = tarfile.TarInfo(vgg_weights.CHECKPOINT_MEMBER)
        info.size = MUCH
        tar.addfile(info, Zeros())
    return path


def torch_bomb(path: Path) -> Path:
    """A torch file whose one storage is two gigabytes of packed zeros."""
    path = path.with_suffix(".pth")
    torch.save({"features.0.weight": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, data in members.items():
            if name.endswith("data/0"):
                with file.open(name, "w", force_zip64=True) as stream:
                    for _ in range(MUCH // 10_000_000):
                        stream.write(bytes(10_000_000))
            else:
                file.writestr(name, data)
    return path


def pickle_bomb(path: Path) -> Path:
    """Lists in lists, each twice the one before it, and bytes that claim to be 2^60."""
    path = path.with_suffix(".ckpt")
    path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 2**60))
    return path


def deep_pickle(path: Path) -> Path:
    path = path.with_suffix(".ckpt")
    path.write_bytes(b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".")
    return path


def sparse(suffix: str, start: bytes = b"", size: int = HUGE) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path = path.with_suffix(suffix)
        with path.open("wb") as file:
            file.write(start)
            file.truncate(size)
        return path

    return make


SMALL = {"model.safetensors": struct.pack("<Q", 2) + b"{}"}


def folder(files: dict[str, bytes]) -> Callable[[Path], Path]:
    """A folder of a text model, some of its files larger than they should be."""

    def make(path: Path) -> Path:
        path.mkdir()
        plain = {"config.json": b'{"model_type": "bert"}', "tokenizer.json": b"{}", "model.safetensors": b"x"}
        for name, data in {**plain, **files}.items():
            (path / name).write_bytes(data)
            if len(data) <= 1:
                with (path / name).open("r+b") as file:
                    file.truncate(HUGE)
        return path

    return make


def _bombs() -> dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]]:
    cases: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {}
    for name, data in pictures().items():
        cases[name] = _written(data, f".{name.rpartition(' ')[2]}"), read_picture
    cases["endless png"] = sparse(".png", png(8, 8)), read_picture
    for name, make in {
        "count 2^28": npz((2**28,)), "count 2^60": npz((2**60, 2**60)),
        "unpacks to much": npz((MUCH // 8,), bytes_=MUCH), "unread, much": npz((MUCH // 8,), bytes_=MUCH, name="bomb"),
        "words of much": npz((MUCH // 8,), bytes_=MUCH, name="words.x"), "header 2^63": safetensors(b"", 2**63),
        "header 99 MB": safetensors(b" " * 99_000_000), "header of nothing": safetensors(b"", 2**33, HUGE),
        "many tensors": safetensors(many_tensors()), "deep header": safetensors(b'{"a":' * 100_000),
        "an entry of 2^62": claim("F64", 2**62, there=False), "an entry of 2 GB": claim("F64", HUGE, there=True),
    }.items():  # fmt: skip
        cases[f"result, {name}"] = make, Explanation.load
    for name, make in {
        "a large tar": tar_bomb, "a packed torch file": torch_bomb, "bytes of 2^60": pickle_bomb, "deep pickle": deep_pickle,
        "header 99 MB": safetensors(b" " * 99_000_000), "header 2^63": safetensors(b"", 2**63),
        "sparse pth": sparse(".pth", b"\x80\x02"), "sparse ckpt": sparse(".ckpt", b"\x80\x04"),
        "an entry of 2 GB": claim("F32", HUGE, there=True),
    }.items():  # fmt: skip
        cases[f"weights, {name}"] = make, vgg_weights.from_file
    cases["texts, sparse"] = sparse(".txt"), lambda path: read_text(f"@{path}")
    cases["texts, one line"] = sparse(".txt", b"a" * 1000), lambda path: read_text(f"@{path}")
    deep, wide = (
        {"model_type": "bert", "num_hidden_layers": 10**7},
        {"model_type": "bert", "hidden_size": 24_000},
    )
    words = {"model_type": "bert", "vocab_size": 10**8, "num_hidden_layers": 1, "hidden_size": 12}
    inner = {**words, "vocab_size": 100, "intermediate_size": 10**8}
    pooler = {"model_type": "bert", "hidden_size": 24_000, "vocab_size": 9, "num_hidden_layers": 0}
    for name, files in {
        "config of 2 GB": {"config.json": b"{"}, "modules of 2 GB": {"modules.json": b"["},
        "tokenizer of 2 GB": {"tokenizer.json": b"{"}, "deep config": {"config.json": b'{"a":' * 100_000},
        "weights of 2 GB": {}, "endless layers": {"config.json": json.dumps(deep).encode(), **SMALL},
        "endless width": {"config.json": json.dumps(wide).encode(), **SMALL},
        "endless words": {"config.json": json.dumps(words).encode(), **SMALL},
        "an endless inner layer": {"config.json": json.dumps(inner).encode(), **SMALL},
        "an endless pooler": {"config.json": json.dumps(pooler).encode(), **SMALL},
    }.items():  # fmt: skip
        cases[f"model, {name}"] = folder(files), lambda path: sentence(str(path))
    cases["collection, a frame"] = _written(packed_frame(MUCH), ".frame"), read_frame
    cases["collection, a thumbnail"] = _written(jpeg(11_300), ".jpg"), read_thumbnail
    return cases


def packed_frame(size: int) -> bytes:
    """What a collection stores with the parts of an item, with labels of that many bytes, all zero."""
    header = json.dumps({"labels": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    pack = zlib.compressobj(1)
    data = [pack.compress(struct.pack("<Q", len(header)) + header)]
    data += [pack.compress(bytes(10_000_000)) for _ in range(size // 10_000_000)]
    return b"".join(data) + pack.flush()


def read_frame(path: Path) -> None:
    with wrap_errors("damaged parts"):
        parts_table.restore_decomposition(
            packed_parts.pack(torch.ones(1, 4)), path.read_bytes(), torch.ones(4)
        )


def jpeg(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "JPEG")
    return buffer.getvalue()


def read_thumbnail(path: Path) -> None:
    about = {"kind": "image", "box": [0, 0, 1, 1], "full": [1, 1]}
    thumbnails.from_row(path.read_bytes(), None, json.dumps(about))


BOMBS = _bombs()
