"""Read IIIF Presentation manifests (versions 2 and 3): the canvases with their images and metadata, as inputs to index.

A manifest is a file or an address that the user gives. Images come from files next to a manifest on disk, or are downloaded
once, at a bounded size, from the image service or address that the manifest names.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin

from bilrp.collection.sources import SourceItem
from bilrp.collection.table_rows import clean_name, escape_surrogates
from bilrp.errors import InputError, to_printable, wrap_errors
from bilrp.inputs import Canvas, read_canvas
from bilrp.io import files, web

MAX_IMAGE_SIDE_PIXELS = 3000
"""Side of requested images: digits and fine lines remain readable."""

MAX_MANIFEST_BYTES = 64_000_000
MAX_IMAGE_BYTES = 64_000_000
MAX_CANVASES = 20_000
MAX_CANVAS_SIDE = 10_000_000  # in the units of the canvas
MAX_METADATA_PAIRS = 40
MAX_LABEL_DEPTH = 8  # lists in lists
MAX_TEXT_CHARACTERS = 2000  # of a value of metadata
JSON_KINDS = ("application/json", "application/ld+json", "text/json", "text/plain")
NUMBER = r"\d{1,9}(?:\.\d{0,9})?"
CANVAS_COLUMN = "iiif"
"""Column of a collection that has the canvas of each item, as JSON."""
log = logging.getLogger("bilrp")


def is_manifest(source: object) -> bool:
    """Return whether a source is an address, or a .json file."""
    if web.is_address(source):
        return True
    return isinstance(source, str | os.PathLike) and str(source).lower().endswith(".json")


def iter_manifest(source: str | os.PathLike[str], folder: Path) -> Iterator[SourceItem]:
    """Yield the canvases of a manifest with their images.

    An image that cannot be read or downloaded is left out with a warning; if there is none at all, that is an error.

    Args:
        source: The path or the address of a manifest.
        folder: Where downloaded images are stored; existing files are not downloaded again.
    """
    manifest = _read_manifest(source)
    reader = _ImageReader(source, folder)
    label = _read_text(manifest.get("label"))
    shared = _read_metadata(manifest)
    count, first_error = 0, ""
    for number, entry in enumerate(_list_canvases(manifest, source), 1):
        try:
            canvas = _read_canvas(entry, manifest, number)
            path = reader.read(canvas)
        except InputError as error:
            first_error = first_error or str(error)
            log.warning("canvas %d of %s: %s", number, to_printable(source), to_printable(error))
            continue
        metadata = shared | _read_metadata(entry) | {"canvas": canvas.id, "manifest": canvas.manifest}
        metadata |= {CANVAS_COLUMN: json.dumps(asdict(canvas))}
        key = hashlib.sha256(f"{canvas.manifest} {canvas.id}".encode()).hexdigest()[:32]
        count += 1
        yield SourceItem(path, canvas.label, label, str(path.resolve()), key=key, metadata=metadata)
    if not count:
        raise InputError(f"{to_printable(source)}: no image could be read ({first_error or 'no canvases'})")


def _read_manifest(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of a path or an address."""
    shown = to_printable(source)
    if web.is_address(source):
        host = web.split_address(str(source))[0]
        data = web.fetch(str(source), kinds=JSON_KINDS, max_bytes=MAX_MANIFEST_BYTES, host=host)
    else:
        path = Path(source)
        if not path.is_file():
            raise InputError(f"{shown}: no such file")
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise InputError(f"{shown}: more than {MAX_MANIFEST_BYTES // 1_000_000} MB")
        data = path.read_bytes()
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown}: not JSON ({str(error)[:80]})") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{shown}: not a IIIF manifest")
    kind = str(manifest.get("type") or manifest.get("@type") or "").removeprefix("sc:")
    if kind == "Collection":
        raise InputError(f"{shown}: a IIIF collection; give the manifests that it lists, one by one")
    if kind != "Manifest":
        raise InputError(f"{shown}: not a IIIF manifest, its type is {to_printable(kind[:40]) or 'missing'}")
    return manifest


def _list_canvases(manifest: Mapping[str, Any], source: object) -> list[dict[str, Any]]:
    """Return the canvases of a manifest of version 3 (items) or 2 (the first sequence)."""
    sequences = manifest.get("sequences")
    if isinstance(sequences, list) and sequences and isinstance(sequences[0], dict):
        canvases = sequences[0].get("canvases")
    else:
        canvases = manifest.get("items")
    entries = [entry for entry in canvases if isinstance(entry, dict)] if isinstance(canvases, list) else []
    if len(entries) > MAX_CANVASES:
        raise InputError(
            f"{to_printable(source)}: {len(entries)} canvases, at most {MAX_CANVASES} are indexed"
        )
    return entries


def _read_canvas(entry: Mapping[str, Any], manifest: Mapping[str, Any], number: int) -> Canvas:
    """Return a canvas with the address of its image."""
    body, target = _find_painting(entry)
    identifier, manifest_id = (_read_id(each) for each in (entry, manifest))
    if not identifier:
        raise InputError("it has no id")
    given: list[Any] = [entry.get(side) or body.get(side) for side in ("width", "height")]
    sizes = [float(size) for size in given if type(size) in (int, float) and 0 < size <= MAX_CANVAS_SIDE]
    if len(sizes) != 2:
        raise InputError(f"its width and height are not numbers from 1 to {MAX_CANVAS_SIDE}")
    service, kind = _find_service(body)
    image = _read_id(body)
    if not image and not service:
        raise InputError("its image has no id")
    match = re.search(rf"#xywh=(?:pixel:)?({NUMBER}),({NUMBER}),({NUMBER}),({NUMBER})$", target)
    x, y, width, height = map(float, match.groups()) if match else (0.0, 0.0, *sizes)
    if not (0 < width <= MAX_CANVAS_SIDE and 0 < height <= MAX_CANVAS_SIDE):
        raise InputError("its image has no extent")
    return Canvas(
        identifier, sizes[0], sizes[1], (x, y, x + width, y + height), _read_text(entry.get("label")) or f"canvas {number}",
        manifest_id, image, service, kind,
    )  # fmt: skip


def _find_painting(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the first image that is painted on a canvas, and what part of the canvas it is painted on."""
    if isinstance(entry.get("images"), list):  # version 2
        annotations, body_name, target_name = entry["images"], "resource", "on"
    else:
        pages = entry.get("items")
        annotations = [
            each
            for page in (pages if isinstance(pages, list) else [])
            if isinstance(page, dict) and isinstance(page.get("items"), list)
            for each in page["items"]
        ]
        body_name, target_name = "body", "target"
    for annotation in annotations:
        body = annotation.get(body_name) if isinstance(annotation, dict) else None
        body = body[0] if isinstance(body, list) and body else body
        for choice in ("default", "items", "source"):  # oa:Choice, Choice, SpecificResource
            inner = body.get(choice) if isinstance(body, dict) else None
            inner = inner[0] if isinstance(inner, list) and inner else inner
            body = inner if isinstance(inner, dict) else body
        if isinstance(body, dict):
            target = annotation.get(target_name)
            target = _read_id(target) if isinstance(target, dict) else target
            return body, target if isinstance(target, str) else ""
    raise InputError("no image is painted on it")


def _find_service(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the address and the type of an image service; empty if there is none."""
    services = body.get("service")
    for service in services if isinstance(services, list) else [services]:
        if not isinstance(service, dict):
            continue
        about = " ".join(str(service.get(name) or "") for name in ("type", "@type", "@context", "profile"))
        for version in ("3", "2", "1"):
            if f"ImageService{version}" in about or f"/image/{version}/" in about:
                level = "level0" if "level0" in about else ""
                return _read_id(service).rstrip("/"), f"ImageService{version}{level}"
    return "", ""


class _ImageReader:
    """Reads the images of one manifest: files next to it, or downloads into a folder."""

    def __init__(self, source: str | os.PathLike[str], folder: Path) -> None:
        self.address = str(source) if web.is_address(source) else ""
        self.host = web.split_address(self.address)[0]
        self.parent = None if self.address else Path(source).resolve().parent
        self.folder = folder

    def read(self, canvas: Canvas) -> Path:
        """Return the file of a canvas' image."""
        local = self._find_file(canvas.image)
        if local is not None:
            return local
        address = self._choose_address(canvas)
        name = f"{hashlib.sha256(address.encode()).hexdigest()[:24]}.jpg"
        path = self.folder / name
        if not path.is_file():
            data = web.fetch(address, kinds=("image/",), max_bytes=MAX_IMAGE_BYTES, host=self.host)
            self.folder.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, data)
        return path

    def _find_file(self, image: str) -> Path | None:
        """Return the file next to a manifest on disk; None for an image on a server."""
        if web.is_address(image) or self.parent is None or not image:
            return None
        shown = to_printable(image[:200])
        with wrap_errors(f"{shown}: not the name of a file"):  # too long, or with a null character
            path = (self.parent / unquote(image.removeprefix("file://"))).resolve()
            if not path.is_relative_to(self.parent):
                raise InputError(f"{shown}: an image outside of the manifest's folder")
            if not path.is_file():
                raise InputError(f"{shown}: no such file next to the manifest")
        return path

    def _choose_address(self, canvas: Canvas) -> str:
        """Return the address of an image of at most `MAX_IMAGE_SIDE_PIXELS`, in the form of its service."""
        web.split_address(canvas.service or canvas.image)
        if not canvas.service:
            return urljoin(self.address, canvas.image)
        service, kind = urljoin(self.address, canvas.service), canvas.service_type
        quality = "native" if kind.startswith("ImageService1") else "default"
        whole = "max" if kind.startswith("ImageService3") else "full"
        if kind.endswith("level0"):  # ready-made sizes only
            return f"{service}/full/{self._choose_size(service, kind) or whole}/0/{quality}.jpg"
        left, top, right, bottom = canvas.box
        is_small = max(right - left, bottom - top) <= MAX_IMAGE_SIDE_PIXELS
        size = whole if is_small else f"!{MAX_IMAGE_SIDE_PIXELS},{MAX_IMAGE_SIDE_PIXELS}"
        return f"{service}/full/{size}/0/{quality}.jpg"

    def _choose_size(self, service: str, kind: str) -> str:
        """Return the largest listed size that is not too large; empty if the service lists none."""
        data = web.fetch(
            f"{service}/info.json", kinds=JSON_KINDS, max_bytes=MAX_MANIFEST_BYTES, host=self.host
        )
        with wrap_errors(f"{to_printable(service)}/info.json is not a description of an image"):
            sizes = [(int(each["width"]), int(each["height"])) for each in json.loads(data).get("sizes", [])]
        fitting = [size for size in sizes if max(size) <= MAX_IMAGE_SIDE_PIXELS] or sizes[:1]
        if not fitting:
            return ""
        width, height = max(fitting)
        return f"{width},{height}" if kind.startswith("ImageService3") else f"{width},"


def _read_id(values: Mapping[str, Any]) -> str:
    identifier = values.get("id") or values.get("@id")
    return escape_surrogates(identifier) if isinstance(identifier, str) else ""


def _read_text(value: object, depth: int = 0) -> str:
    """Return a label as text: a string, a language map (English, no language, or the first), or a list of either."""
    if depth > MAX_LABEL_DEPTH:
        return ""
    if isinstance(value, list):
        return "; ".join(filter(None, (_read_text(each, depth + 1) for each in value)))[:MAX_TEXT_CHARACTERS]
    if isinstance(value, dict):
        if "@value" in value:
            return _read_text(value["@value"], depth + 1)
        first = next((value[language] for language in ("en", "none") if language in value), None)
        return _read_text(first if first is not None else next(iter(value.values()), ""), depth + 1)
    return "" if value is None else escape_surrogates(str(value))[:MAX_TEXT_CHARACTERS]


def _read_metadata(values: Mapping[str, Any]) -> dict[str, str]:
    """Return navDate, rights and the pairs of `metadata` by column."""
    read = {
        name: _read_text(values[name])
        for name in ("navDate", "rights", "license")
        if isinstance(values.get(name), str)
    }
    pairs = values.get("metadata")
    for pair in pairs[:MAX_METADATA_PAIRS] if isinstance(pairs, list) else []:
        if isinstance(pair, dict) and (name := _read_text(pair.get("label"))):
            read[clean_name(name)] = _read_text(pair.get("value"))
    return read


def find_canvas(metadata: Mapping[str, object]) -> Canvas | None:
    """Return the canvas of an item by its metadata; None for an item that comes from no manifest."""
    text = metadata.get(CANVAS_COLUMN)
    if not isinstance(text, str):
        return None
    if not text.lstrip().startswith("{"):
        return None  # a column of a user's own table that happens to have this name
    with wrap_errors("the IIIF canvas of an item is damaged"):
        return read_canvas(json.loads(text))
