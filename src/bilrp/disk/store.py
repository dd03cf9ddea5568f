"""Tensors and words on disk: .safetensors or .npz, never pickle; a file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bilrp.disk import files
from bilrp.errors import InputError

SUFFIXES = (".safetensors", ".npz")


def atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` make the file under a temporary name beside `path`, then rename it into place."""
    with files.whole(path) as temporary:
        write(temporary)
    return Path(path)


def write(path: str | Path, tensors: dict[str, Tensor], words: dict[str, str]) -> Path:
    """Store tensors and words; the suffix decides the format."""
    suffix = _suffix(path)
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    if suffix == ".safetensors":
        from safetensors.torch import save_file

        return atomically(path, lambda p: save_file(plain, str(p), metadata=words))
    if any(t.dtype == torch.bfloat16 for t in plain.values()):
        raise InputError(f"cannot write {path}: .npz has no bfloat16, use .safetensors")
    arrays: dict[str, np.ndarray] = {name: t.numpy() for name, t in plain.items()}
    arrays |= {f"words.{name}": np.array(text) for name, text in words.items()}
    return atomically(path, lambda p: np.savez_compressed(p, **arrays))  # type: ignore[arg-type]


def read(path: str | Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and words, and check that they are what was asked for."""
    path = Path(path)
    suffix = _suffix(path)
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        tensors, words = _read_safetensors(path) if suffix == ".safetensors" else _read_npz(path)
    except Exception as error:
        raise InputError(f"{path} is not a readable {suffix} file: {str(error).splitlines()[0]}") from error
    if words.get("kind") != kind:
        raise InputError(f"{path} holds {words.get('kind', 'something else')}, not a stored {kind}")
    return tensors, words


@contextmanager
def understanding(path: str | Path) -> Iterator[None]:
    """What a stored file lacks or garbles is one line, whatever was being rebuilt from it."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{path} is damaged, it cannot be rebuilt: {type(error).__name__} {error}"
        ) from error


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def _read_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    # Opened here, because np.load leaves a damaged file open.
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        words = {name.removeprefix("words."): str(file[name]) for name in file if name.startswith("words.")}
        tensors = {
            name: torch.from_numpy(file[name].copy()) for name in file if not name.startswith("words.")
        }
    return tensors, words


def _suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path} has no format for numbers: use {' or '.join(SUFFIXES)}")
    return suffix
