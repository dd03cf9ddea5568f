"""Store tensors and metadata as .safetensors or .npz, never pickle, atomically and with checksums.

Equal content gives equal bytes. A damaged file raises an error of one line. Sizes that a file declares are checked
before anything is allocated, and only the members listed in the checksums are read.
"""

from __future__ import annotations

import hashlib
import json
import math
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

CHECKSUM_KEY = "checksum"
MAX_NPZ_BYTES = 1_000_000_000  # of all members of an .npz, unpacked
MAX_HEADER_BYTES = 16_000_000
_DTYPE_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Path:
    """Write tensors and metadata to one file.

    Args:
        path: The file; its suffix (.safetensors or .npz) selects the format.
        tensors: Tensors by name.
        metadata: Strings by name; "kind" is what `read` checks.
    """
    suffix = _check_suffix(path, f"cannot store numbers as {path}")
    plain = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    metadata = {to_printable(name): to_printable(text) for name, text in metadata.items()}
    checksums = {name: hash_tensor(name, tensor) for name, tensor in plain.items()}
    checksums[""] = _metadata_digest(metadata)
    metadata = dict(sorted({**metadata, CHECKSUM_KEY: json.dumps(checksums, sort_keys=True)}.items()))
    if suffix == ".npz":
        if any(t.dtype == torch.bfloat16 for t in plain.values()):
            raise InputError(f"cannot write {path}: .npz has no bfloat16, use .safetensors")
        if sum(t.nbytes for t in plain.values()) > MAX_NPZ_BYTES - MAX_HEADER_BYTES:
            raise InputError(
                f"cannot write {path}: more than {MAX_NPZ_BYTES // 1_000_000} MB, use .safetensors"
            )
    with files.atomic_write(path) as temporary:
        (_write_safetensors if suffix == ".safetensors" else _write_npz)(temporary, plain, metadata)
    return Path(path)


def read(
    path: str | Path, *, kind: str, only: Collection[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and metadata that `write` stored, and verify their checksums.

    Args:
        path, kind: The file, and the "kind" that its metadata must have.
        only: Names of the tensors to read; None reads all.
    """
    path = Path(path)
    suffix = _check_suffix(path, f"{path} has no stored numbers")
    if not path.is_file():
        raise InputError(f"no file {path}")
    with wrap_errors(f"{path} is not a readable {suffix} file"):
        open_store = _open_safetensors if suffix == ".safetensors" else _open_npz
        with open_store(path) as (names, metadata, read_tensor):
            if metadata.get("kind") != kind:
                stored_kind = metadata.get("kind", "something else")
                raise InputError(f"{path} holds {stored_kind[:40]}, not a stored {kind}")
            if CHECKSUM_KEY not in metadata:
                raise InputError(f"{path} is damaged: its checksum is missing")
            checksums = json.loads(metadata.pop(CHECKSUM_KEY))
            listed = set(checksums) - {""}
            if not listed <= set(names):
                raise InputError(f"{path} is damaged: {min(listed - set(names))} is missing")
            tensors = {name: read_tensor(name) for name in sorted(listed) if only is None or name in only}
            actual = {"": _metadata_digest(metadata)} | {n: hash_tensor(n, t) for n, t in tensors.items()}
            if any(checksums[name] != checksum for name, checksum in actual.items()):
                raise InputError(f"{path} is damaged: its content does not match its checksum")
    return tensors, metadata


@contextmanager
def wrap_load_errors(path: str | Path) -> Iterator[None]:
    """Turn any error while a stored object is rebuilt into one line that names the file."""
    with wrap_errors(f"{path} is damaged, it cannot be rebuilt"):
        try:
            yield
        except InputError as error:
            raise InputError(f"{path} is damaged, it cannot be rebuilt: {error}") from None


def hash_tensor(name: str, tensor: Tensor) -> str:
    """Return the sha256 of a tensor's name, dtype, shape and bytes."""
    header = f"{name} {tensor.dtype} {tuple(tensor.shape)}\n"
    digest = hashlib.sha256(header.encode("utf-8", "backslashreplace"))
    digest.update(_tensor_bytes(tensor).data)
    return digest.hexdigest()


def _metadata_digest(metadata: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def _tensor_bytes(tensor: Tensor) -> np.ndarray:
    """Return the memory of a tensor of any dtype as uint8."""
    return (
        tensor.contiguous().flatten().view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    )


def _write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write the safetensors format (length, JSON header, bytes) with entries in a fixed order, without a copy."""
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    # large element sizes first, so that every tensor is aligned
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        if tensor.dtype not in _DTYPE_CODES:
            raise InputError(f"cannot write {path.suffix}: the format has no {tensor.dtype}")
        header[name] = {
            "dtype": _DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
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
            # a fixed date, so that equal content gives equal bytes
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            with file.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


_OpenStore = tuple[list[str], dict[str, str], Callable[[str], Tensor]]


@contextmanager
def _open_safetensors(path: Path) -> Iterator[_OpenStore]:
    """Yield names, metadata and a reader of single tensors; safetensors itself checks the offsets."""
    from safetensors import safe_open

    with files.open_regular(path) as raw:
        if int.from_bytes(raw.read(8), "little") > MAX_HEADER_BYTES:
            raise ValueError("its header is too large")
    with safe_open(str(path), framework="pt") as file:
        yield list(file.keys()), dict(file.metadata() or {}), file.get_tensor


@contextmanager
def _open_npz(path: Path) -> Iterator[_OpenStore]:
    with zipfile.ZipFile(path) as file:
        members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
        budget = MAX_NPZ_BYTES

        def read_member(name: str, kinds: str) -> np.ndarray:
            nonlocal budget
            budget -= members[name].file_size
            if budget < 0:
                raise ValueError(f"it unpacks to more than {MAX_NPZ_BYTES // 1_000_000} MB")
            with file.open(members[name]) as stream:
                return _read_array(stream, members[name].file_size, kinds)

        names = [name for name in members if not name.startswith("words.")]
        strings = [name for name in members if name.startswith("words.")]
        metadata = {name.removeprefix("words."): str(read_member(name, "U")) for name in strings}
        yield names, metadata, lambda name: torch.from_numpy(read_member(name, "fiub"))


def _read_array(stream: IO[bytes] | BufferedIOBase, size: int, kinds: str) -> np.ndarray:
    """Read one .npy of `size` bytes; its header is checked against the size before anything is allocated."""
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, fortran, dtype = read_header(stream)
    count = math.prod(shape)
    if dtype.kind not in kinds or dtype.hasobject or count * dtype.itemsize != size - stream.tell():
        raise ValueError(f"an array of {dtype} {shape} does not match its size in the file")
    data = np.empty(count * dtype.itemsize, np.uint8)
    position = 0
    while position < len(data):
        chunk = stream.read(min(1 << 22, len(data) - position))
        if not chunk:
            raise ValueError("an array is truncated")
        data[position : position + len(chunk)] = np.frombuffer(chunk, np.uint8)
        position += len(chunk)
    native = data.view(dtype).astype(dtype.newbyteorder("="), copy=False)
    return native.reshape(shape, order="F" if fortran else "C")


def _check_suffix(path: str | Path, problem: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in files.NUMBER_SUFFIXES:
        raise InputError(f"{problem}: use {' or '.join(files.NUMBER_SUFFIXES)}")
    return suffix
