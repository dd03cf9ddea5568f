"""Read folders of images and clips; unusable files are listed with a reason."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bilrp.encoders import images
from bilrp.errors import InputError, import_optional, to_printable

if TYPE_CHECKING:
    from PIL import Image

VIDEO_SUFFIXES = (".avi", ".mp4", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".ogv", ".wmv")


@dataclass(frozen=True)
class SkippedFile:
    """A file or folder that was not used, and why."""

    file: str
    reason: str


@dataclass(frozen=True, eq=False)
class LabeledImage:
    """One image, already cropped and resized: `pixels` is uint8 (size, size, 3)."""

    name: str
    label: str
    pixels: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Clip:
    """Consecutive frames, already cropped and resized: `frames` is uint8 (n, size, size, 3)."""

    name: str
    frames: np.ndarray = field(repr=False)
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FolderContents:
    """Contents of a folder: usable `items`, `skipped` files with reasons, and `notes` for the report."""

    items: tuple[Any, ...]
    skipped: tuple[SkippedFile, ...] = ()
    notes: tuple[str, ...] = ()


def read_classes(folder: str | Path, *, size: int, crop: float = 1.0) -> FolderContents:
    """Read the images in `folder/<class>/…`; a class needs two readable images, one for each half of a split.

    Args:
        folder: The folder of class folders.
        size: Side in pixels to which images are resized.
        crop: The central square to use; see `crop_center`.

    >>> read_classes("faces", size=64, crop=0.6).items[0].label
    'Ada'
    """
    folder = require_folder(folder)
    usable, skipped, sizes = [], [], Counter()
    for path in _list_files(folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() not in images.SUFFIXES:
            skipped.append(SkippedFile(name, "not an image file"))
        elif path.parent == folder:
            skipped.append(SkippedFile(name, "not inside a class folder"))
        else:
            pixels = _read_image(path, name, skipped, sizes, size=size, crop=crop)
            if pixels is not None:
                usable.append(LabeledImage(name, name.split("/")[0], pixels))
    counts = Counter(item.label for item in usable)
    lonely = {label for label, n in counts.items() if n < 2}
    skipped += [
        SkippedFile(item.name, "the only readable picture of its class: two are needed, one for each half")
        for item in usable
        if item.label in lonely
    ]
    usable = [item for item in usable if item.label not in lonely]
    if len({item.label for item in usable}) < 2:
        raise InputError(
            f"{folder}: two classes with at least two readable images each are needed (folder/<class>/*.jpg), "
            f"found {len({item.label for item in usable})}{_first_skipped(skipped)}"
        )
    return FolderContents(tuple(usable), tuple(skipped), _size_notes(sizes, size))


def read_clips(folder: str | Path, *, size: int, crop: float = 1.0, max_frames: int = 100) -> FolderContents:
    """Read clips: every folder of frames (in natural order) is one clip, and so is every video file.

    Args:
        folder: The folder to search, subfolders included.
        size: Side in pixels to which frames are resized.
        crop: The central square to use; see `crop_center`.
        max_frames: Number of frames read of each clip, from its start.

    >>> read_clips("sports", size=128).items[0].frames.shape
    (24, 128, 128, 3)
    """
    folder = require_folder(folder)
    built, skipped, notes, sizes = [], [], [], Counter()
    for name, paths in _list_clips(folder, skipped):
        if len(paths) == 1 and paths[0].suffix.lower() in VIDEO_SUFFIXES:
            frames, names = _read_video(
                paths[0], name, skipped, sizes, size=size, crop=crop, max_frames=max_frames
            )
        else:
            if len(paths) > max_frames:
                notes.append(f"{name}: the first {max_frames} of {len(paths)} frames are used.")
            frames, names = [], []
            for path in paths[:max_frames]:
                pixels = _read_image(
                    path, path.relative_to(folder).as_posix(), skipped, sizes, size=size, crop=crop
                )
                if pixels is not None:
                    frames.append(pixels)
                    names.append(path.name)
        if len(frames) >= 2:
            built.append(Clip(name, np.stack(frames), tuple(names)))
        elif frames:
            skipped.append(SkippedFile(name, "a clip with one readable frame: two are needed to compare"))
    if not built:
        raise InputError(
            f"{folder}: no clips; a clip is a folder of at least two frames (folder/<action>/<clip>/*.jpg) "
            f"or a video file{_first_skipped(skipped)}"
        )
    return FolderContents(tuple(built), tuple(skipped), (*notes, *_size_notes(sizes, size)))


def read_stills(folder: str | Path, *, size: int, crop: float = 1.0) -> FolderContents:
    """Read all images under a folder.

    Args:
        folder: A folder, or one image file.
        size: Side in pixels to which images are resized.
        crop: The central square to use; see `crop_center`.
    """
    path = Path(folder)
    if path.is_file():
        folder, paths = path.parent, [path]
    else:
        folder = require_folder(folder)
        paths = _list_files(folder)
    usable, skipped, sizes = [], [], Counter()
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() not in images.SUFFIXES:
            skipped.append(SkippedFile(name, "not an image file"))
            continue
        pixels = _read_image(path, name, skipped, sizes, size=size, crop=crop)
        if pixels is not None:
            usable.append(LabeledImage(name, name, pixels))
    if not usable:
        raise InputError(f"{folder}: no readable images{_first_skipped(skipped)}")
    return FolderContents(tuple(usable), tuple(skipped), _size_notes(sizes, size))


def crop_center(image: Image.Image, crop: float) -> Image.Image:
    """Crop the central square: a fraction of the shorter side (crop ≤ 1) or a number of pixels (crop > 1).

    >>> crop_center(Image.new("RGB", (128, 96)), 0.5).size
    (48, 48)
    """
    if not crop > 0:
        raise InputError(
            f"crop is a share of the shorter side (0.6) or a number of pixels (80), got {crop:g}"
        )
    short = min(image.size)
    side = max(1, min(short, round(crop * short) if crop <= 1 else round(crop)))
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def natural_sort_key(path: Path | str) -> tuple[Any, ...]:
    """Sort key that compares digits as numbers: frame 2 precedes frame 10.

    >>> sorted(["f10.jpg", "f2.jpg"], key=natural_sort_key)
    ['f2.jpg', 'f10.jpg']
    """
    pieces = re.split(r"(\d+)", Path(path).as_posix())
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in pieces)


def require_folder(folder: str | Path) -> Path:
    """Return the path; raise InputError if it is not a folder or is empty."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if not any(folder.iterdir()):
        raise InputError(f"{folder}: the folder is empty")
    return folder


def _list_files(folder: Path) -> list[Path]:
    """List all files under a folder except hidden ones, following symbolic links; each real folder is visited once."""
    result, seen = [], set()
    for folder_path, inner, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(folder_path)
        if real in seen:  # a link to a parent folder would recurse forever
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        result += [Path(folder_path) / name for name in names if not name.startswith(".")]
    return sorted(result, key=lambda p: natural_sort_key(p.relative_to(folder)))


def _list_clips(folder: Path, skipped: list[SkippedFile]) -> Iterator[tuple[str, Sequence[Path]]]:
    """Yield (name, frames) for each folder of frames and (name, [video]) for each video file."""
    by_folder: dict[Path, list[Path]] = {}
    movies: list[Path] = []
    for path in _list_files(folder):
        if path.suffix.lower() in images.SUFFIXES:
            by_folder.setdefault(path.parent, []).append(path)
        elif path.suffix.lower() in VIDEO_SUFFIXES:
            movies.append(path)
        else:
            skipped.append(
                SkippedFile(path.relative_to(folder).as_posix(), "neither an image nor a video file")
            )
    for parent, paths in by_folder.items():
        if parent == folder:
            why = "are in no subfolder: put the frames of each clip into one, or compare stills with --transform"
            skipped.append(SkippedFile(f"{len(paths)} pictures", why))
        else:
            yield parent.relative_to(folder).as_posix(), paths
    for path in movies:
        name = path.relative_to(folder).as_posix()
        if path.parent in by_folder:
            skipped.append(SkippedFile(name, "its folder already holds the frames as images"))
        else:
            yield name, [path]


def _read_image(
    path: Path, name: str, skipped: list[SkippedFile], sizes: Counter, *, size: int, crop: float
) -> np.ndarray | None:
    try:
        image = images.open_image(path)
    except InputError as error:
        skipped.append(SkippedFile(name, str(error).removeprefix(to_printable(f"{path}: "))))
        return None
    sizes[image.size] += 1
    return np.asarray(images.resize_image(crop_center(image, crop), size=size), dtype=np.uint8)


def _read_video(
    path: Path,
    name: str,
    skipped: list[SkippedFile],
    sizes: Counter,
    *,
    size: int,
    crop: float,
    max_frames: int,
) -> tuple[list[np.ndarray], list[str]]:
    av = import_optional("av", "video", f"{path}: video files (unlike folders of frames)")
    frames: list[np.ndarray] = []
    try:
        with av.open(str(path)) as movie:
            for frame in movie.decode(video=0):
                image = frame.to_image()
                sizes[image.size] += 1
                frames.append(
                    np.asarray(images.resize_image(crop_center(image, crop), size=size), dtype=np.uint8)
                )
                if len(frames) == max_frames:
                    break
    except Exception as error:  # a damaged stream can fail anywhere; keep the frames decoded so far
        reason = (str(error) or type(error).__name__).splitlines()[0]
        skipped.append(SkippedFile(name, f"damaged video after {len(frames)} frames ({reason})"))
    else:
        if not frames:
            skipped.append(SkippedFile(name, "a video without frames"))
    return frames, [f"frame {i}" for i in range(len(frames))]


def _size_notes(sizes: Counter, size: int) -> tuple[str, ...]:
    if len(sizes) < 2:
        return ()
    (usual, count), total = sizes.most_common(1)[0], sum(sizes.values())
    return (
        f"The pictures come in {len(sizes)} sizes ({count} of {total} are {usual[0]}×{usual[1]}); "
        f"each was cut to its middle square and scaled to {size}×{size}.",
    )


def _first_skipped(skipped: Sequence[SkippedFile]) -> str:
    if not skipped:
        return ""
    return f"; {len(skipped)} files skipped, the first: {skipped[0].file} ({skipped[0].reason})"
