"""Tensors and words on disk: .safetensors or .npz, never pickle; whole or not at all, and each with its checksum.

The same content is the same bytes. A file that was damaged since is one clear line; nothing is allocated for what a
file only claims to hold, and nothing is read but the members it is known to have.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.errors import InputError, to_printable, wrap_errors
from bilrp.io import files

SUFFIXES = (".safetensors", ".npz")
CHECKSUM_KEY = "checksum"
MAX_NPZ_BYTES = 1_000_000_000  # what an .npz may unpack to
MAX_HEADER_BYTES = 16_000_000
# Files of versions before checksums held these and nothing else.
_LEGACY_FIELDS = ("parts", "embedding", "labels", "boxes", "picture", "regions", "origin", "storage_error")
_LEGACY_NAMES = frozenset(
    (
        *_LEGACY_FIELDS,
        *(f"{side}.{name}" for side in "ab" for name in _LEGACY_FIELDS),
        "relevance",
        "within.a",
        "within.b",
    )
)
_LEGACY_NAMES |= {"kind", "score", "similarity", "distance"}
_DTYPE_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` make the file under a temporary name beside `path`, then rename it into place."""
    with files.atomic_write(path) as temporary:
        write(temporary)
    return Path(path)


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Path:
    """Store tensors and words; the suffix decides the format, and the same content is the same bytes."""
    suffix = _check_suffix(path)
    plain = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    metadata = {to_printable(name): to_printable(text) for name, text in metadata.items()}
    sums = {name: hash_tensor(name, tensor) for name, tensor in plain.items()} | {
        "": _metadata_digest(metadata)
    }
    said = {**metadata, CHECKSUM_KEY: json.dumps(sums, sort_keys=True)}
    said = {name: said[name] for name in sorted(said)}
    if suffix == ".safetensors":
        return write_atomically(path, lambda p: _write_safetensors(p, plain, said))
    if any(t.dtype == torch.bfloat16 for t in plain.values()):
        raise InputError(f"cannot write {path}: .npz has no bfloat16, use .safetensors")
    if sum(t.nbytes for t in plain.values()) > MAX_NPZ_BYTES - MAX_HEADER_BYTES:
        raise InputError(f"cannot write {path}: more than {MAX_NPZ_BYTES // 1_000_000} MB, use .safetensors")
    return write_atomically(path, lambda p: _write_npz(p, plain, said))


def read(
    path: str | Path, *, kind: str, only: Collection[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors (all, or `only` some) and words, and check that they are what was asked for, and undamaged."""
    path = Path(path)
    suffix = _check_suffix(path)
    if not path.is_file():
        raise InputError(f"no file {path}")
    with wrap_errors(f"{path} is not a readable {suffix} file"):
        opened = _open_safetensors if suffix == ".safetensors" else _open_npz
        with opened(path) as (names, words, tensor):
            if words.get("kind") != kind:
                found = words.get("kind", "something else")
                raise InputError(f"{path} holds {found[:40]}, not a stored {kind}")
            sums = json.loads(words.pop(CHECKSUM_KEY)) if CHECKSUM_KEY in words else None
            if sums is None and not {*names, *words} <= _LEGACY_NAMES:
                raise InputError(f"{path} is damaged: its checksum is missing")
            known = set(names) if sums is None else set(sums) - {""}
            if not known <= set(names):
                raise InputError(f"{path} is damaged: {min(known - set(names))} is missing")
            tensors = {name: tensor(name) for name in sorted(known) if only is None or name in only}
            if sums is None:
                words["unchecked"] = "yes"
            elif sums[""] != _metadata_digest(words) or any(
                sums[n] != hash_tensor(n, t) for n, t in tensors.items()
            ):
                raise InputError(f"{path} is damaged: its numbers are not the ones that were saved")
    return tensors, words


@contextmanager
def wrap_load_errors(path: str | Path, metadata: dict[str, str]) -> Iterator[None]:
    """What a stored file lacks or garbles is one line, whatever was being rebuilt from it."""
    with wrap_errors(f"{path} is damaged, it cannot be rebuilt"):
        try:
            yield
        except InputError as error:
            raise InputError(f"{path} is damaged, it cannot be rebuilt: {error}") from None
    if metadata.get("unchecked"):
        warnings.warn(
            f"{path} has no checksum (an earlier version wrote it): its numbers agree with each other, no more is known",
            stacklevel=4,
        )


def hash_tensor(name: str, tensor: Tensor) -> str:
    """sha256 of a tensor's name, type, shape and bytes.

    >>> hash_tensor("x", torch.zeros(2)) == hash_tensor("x", torch.zeros(1, 2))
    False
    """
    total = hashlib.sha256(
        f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode("utf-8", "backslashreplace")
    )
    total.update(_tensor_bytes(tensor).data)
    return total.hexdigest()


def _metadata_digest(metadata: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def _tensor_bytes(tensor: Tensor) -> np.ndarray:
    """A contiguous tensor's memory, whatever its type."""
    return (
        tensor.contiguous().flatten().view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    )


def _write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """The format of safetensors (length, JSON header, bytes), with its entries in one order, straight to the file."""
    header: dict[str, Any] = {"__metadata__": metadata}
    place = 0
    ordered = sorted(
        tensors.items(), key=lambda item: (-item[1].element_size(), item[0])
    )  # so each is aligned
    for name, tensor in ordered:
        if tensor.dtype not in _DTYPE_CODES:
            raise InputError(f"cannot write {path.suffix}: it has no {tensor.dtype}")
        span = [place, place + tensor.nbytes]
        header[name] = {
            "dtype": _DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        place += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(_tensor_bytes(tensor).data)


def _write_npz(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    arrays = {name: t.numpy() for name, t in tensors.items()}
    arrays |= {f"words.{name}": np.array(text) for name, text in metadata.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))  # not when it was saved
            member.compress_type = zipfile.ZIP_DEFLATED
            with file.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


_OpenStore = tuple[list[str], dict[str, str], Callable[[str], Tensor]]


@contextmanager
def _open_safetensors(path: Path) -> Iterator[_OpenStore]:
    """Names, words and a reader of single tensors; the library checks that everything lies inside the file."""
    from safetensors import safe_open

    with files.open_regular(path) as raw:
        if int.from_bytes(raw.read(8), "little") > MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
    with safe_open(str(path), framework="pt") as file:
        yield list(file.keys()), dict(file.metadata() or {}), file.get_tensor


@contextmanager
def _open_npz(path: Path) -> Iterator[_OpenStore]:
    with zipfile.ZipFile(path) as file:
        members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
        left = MAX_NPZ_BYTES

        def array(name: str, kinds: str) -> np.ndarray:
            nonlocal left
            left -= members[name].file_size
            if left < 0:
                raise ValueError(f"it unpacks to more than {MAX_NPZ_BYTES // 1_000_000} MB")
            with file.open(members[name]) as stream:
                return _read_array(stream, members[name].file_size, kinds)

        said = [name for name in members if name.startswith("words.")]
        words = {name.removeprefix("words."): str(array(name, "U")) for name in said}
        names = [name for name in members if not name.startswith("words.")]
        yield names, words, lambda name: torch.from_numpy(array(name, "fiub"))


def _read_array(stream: IO[bytes] | BufferedIOBase, size: int, kinds: str) -> np.ndarray:
    """One .npy of `size` bytes; its header is checked against that before anything is allocated."""
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, fortran, dtype = read_header(stream)
    count = math.prod(shape)
    if dtype.kind not in kinds or dtype.hasobject or count * dtype.itemsize != size - stream.tell():
        raise ValueError(f"an array of {dtype} {shape} that is not there")
    data = np.empty(count * dtype.itemsize, np.uint8)
    place = 0
    while place < len(data):
        chunk = stream.read(min(1 << 22, len(data) - place))
        if not chunk:
            raise ValueError("an array that is cut short")
        data[place : place + len(chunk)] = np.frombuffer(chunk, np.uint8)
        place += len(chunk)
    native = data.view(dtype).astype(dtype.newbyteorder("="), copy=False)
    return native.reshape(shape, order="F" if fortran else "C")


def _check_suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path} has no format for numbers: use {' or '.join(SUFFIXES)}")
    return suffix
