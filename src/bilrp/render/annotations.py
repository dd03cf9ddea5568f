"""Write findings for image viewers: Web Annotations with two targets, a IIIF manifest, region pairs as AIKON stores them.

Targets are boxes on IIIF canvases (`canvas#xywh=x,y,w,h`); an image that comes from no manifest is its own target.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from bilrp.errors import InputError
from bilrp.findings.formatting import format_number
from bilrp.findings.summary import UNRELIABLE, format_relevance, name_whole
from bilrp.inputs import Box, Canvas, Image
from bilrp.io import files
from bilrp.render.page import encode_image

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation
    from bilrp.findings.grouping import Finding

ANNOTATION_CONTEXT = "http://www.w3.org/ns/anno.jsonld"
PRESENTATION_CONTEXT = "http://iiif.io/api/presentation/3/context.json"
UNPUBLISHED = "https://bilrp.invalid"
"""Beginning of the ids of new resources, until they are published: names under .invalid never exist (RFC 2606)."""

AIKON_COLUMNS = (
    "img_1", "img_2", "regions_id_1", "regions_id_2", "score", "category", "category_x", "is_manual", "similarity_type",
)  # fmt: skip
AIKON_AUTOMATIC = 1  # similarity_type of a computed pair


@dataclass(frozen=True)
class Match:
    """A finding as two boxes on two canvases, with what to say about it."""

    canvases: tuple[Canvas, Canvas]
    boxes: tuple[Box, Box]
    text: str
    share: float | None

    def list_targets(self, first: int = 0) -> list[str]:
        """Return both targets; `first` is the side to name first."""
        targets = [_make_target(*each) for each in zip(self.canvases, self.boxes, strict=True)]
        return [targets[first], targets[1 - first]]


def write_annotations(explanations: Explanation | Sequence[Explanation], path: str | Path) -> Path:
    """Write the findings as an AnnotationPage of Web Annotations, each with a target in a and one in b."""
    matches = _list_matches(explanations)
    page_id = f"{UNPUBLISHED}/{_digest(matches)}"
    items = [_annotate(match, f"{page_id}/{number}") for number, match in enumerate(matches, 1)]
    page = {"@context": ANNOTATION_CONTEXT, "id": page_id, "type": "AnnotationPage", "items": items}
    return files.write_text(path, json.dumps(page, indent=1, ensure_ascii=False))


def write_manifest(explanations: Explanation | Sequence[Explanation], path: str | Path) -> Path:
    """Write a IIIF Presentation 3 manifest: the canvases of all inputs, and the findings as annotations on both sides."""
    matches, views = _list_matches(explanations), _list_views(explanations)
    manifest_id = f"{UNPUBLISHED}/{_digest(matches)}"
    canvases = []
    for number, (canvas, view) in enumerate(views.values(), 1):
        annotations = [
            _annotate(match, f"{manifest_id}/canvas/{number}/match/{k}", match.canvases.index(canvas))
            for k, match in enumerate(matches, 1)
            if canvas in match.canvases
        ]
        canvases.append(_serialize_canvas(canvas, view, f"{manifest_id}/canvas/{number}", annotations))
    labels = " and ".join(canvas.label for canvas, _ in views.values())
    manifest = {
        "@context": PRESENTATION_CONTEXT,
        "id": f"{manifest_id}/manifest",
        "type": "Manifest",
        "label": {"none": [f"What the model matches in {labels}"]},
        "behavior": ["continuous"],  # viewers put the canvases side by side
        "items": canvases,
    }
    return files.write_text(path, json.dumps(manifest, indent=1, ensure_ascii=False))


def write_region_pairs(explanations: Explanation | Sequence[Explanation], path: str | Path) -> Path:
    """Write the findings as rows of AIKON's table of region pairs, the score as per cent of the similarity.

    The ids of regions belong to the database of one AIKON: they are empty, and AIKON finds them by the names of the images.
    """
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(AIKON_COLUMNS)
    for match in _list_matches(explanations):
        names = sorted(_name_region(*each) for each in zip(match.canvases, match.boxes, strict=True))
        score = "" if match.share is None else f"{100 * match.share:.5f}"
        table.writerow([*names, "", "", score, "", "{}", "f", AIKON_AUTOMATIC])
    return files.write_text(path, buffer.getvalue())


WRITERS: Mapping[str, Callable[[Explanation | Sequence[Explanation], str | Path], Path]] = {
    ".jsonld": write_annotations,
    ".iiif.json": write_manifest,
    ".csv": write_region_pairs,
}
"""The writer of each file suffix, for one explanation or several."""


def _as_list(explanations: Explanation | Sequence[Explanation]) -> list[Explanation]:
    return list(explanations) if isinstance(explanations, Sequence) else [explanations]


def _list_views(explanations: Explanation | Sequence[Explanation]) -> dict[str, tuple[Canvas, Image]]:
    """Return each canvas with its image, by id, in the order in which they occur."""
    views: dict[str, tuple[Canvas, Image]] = {}
    for explanation in _as_list(explanations):
        for letter, side in (("a", explanation.a), ("b", explanation.b)):
            canvas = _find_canvas(side, letter)
            assert isinstance(side.view, Image)
            views.setdefault(canvas.id, (canvas, side.view))
    return views


def _list_matches(explanations: Explanation | Sequence[Explanation]) -> list[Match]:
    """Return the findings of all explanations."""
    matches = []
    for each in _as_list(explanations):
        canvases = _find_canvas(each.a, "a"), _find_canvas(each.b, "b")
        for number, finding in enumerate(each.findings(), 1):
            boxes = _find_box(each.a, canvases[0], finding.a), _find_box(each.b, canvases[1], finding.b)
            text = _describe(each, finding, number, canvases)
            matches.append(Match(canvases, boxes, text, finding.share))
    return matches


def _describe(
    explanation: Explanation, finding: Finding, number: int, canvases: tuple[Canvas, Canvas]
) -> str:
    """Return what an annotation says: the match, its share, the two sides, and whether to trust it."""
    amount = format_relevance(finding)
    amount += "" if finding.share is None else f" of {name_whole(explanation)}"
    score = f"{explanation.similarity.replace('_', ' ')} {format_number(explanation.score)}"
    mark = f", {UNRELIABLE}" if finding.is_unreliable else ""
    return f"Match {number} of {canvases[0].label} and {canvases[1].label}: {amount} ({score}){mark}"


def _find_canvas(side: Decomposition, letter: str) -> Canvas:
    """Return the canvas of an input; an image without one is its own, under its name."""
    view = side.view
    if not isinstance(view, Image) or side.region_boxes is None:
        raise InputError("annotations need two images: save explanations of texts as .html or .npz")
    if view.canvas is not None:
        return view.canvas
    width, height = view.original_size or view.size
    name = side.name or letter
    return Canvas(quote(name), width, height, (0.0, 0.0, width, height), name)


def _find_box(side: Decomposition, canvas: Canvas, regions: Sequence[int]) -> Box:
    """Return the box around some regions in units of the canvas."""
    boxes, view = side.region_boxes, side.view
    assert boxes is not None and isinstance(view, Image)
    chosen = boxes[list(regions)]
    edges = *chosen[:, :2].min(0).tolist(), *chosen[:, 2:].max(0).tolist()
    left, top, right, bottom = view.map_to_original(edges)
    wide, high = view.original_size or view.size
    x, y, end_x, end_y = canvas.box
    across, down = (end_x - x) / wide, (end_y - y) / high
    clipped = max(left, 0.0), max(top, 0.0), min(right, float(wide)), min(bottom, float(high))
    return (x + clipped[0] * across, y + clipped[1] * down, x + clipped[2] * across, y + clipped[3] * down)


def _round_box(box: Box) -> tuple[int, int, int, int]:
    """Return a box as whole x, y, width and height; at least one unit wide and high."""
    left, top, right, bottom = (round(edge) for edge in box)
    return left, top, max(1, right - left), max(1, bottom - top)


def _make_target(canvas: Canvas, box: Box) -> str:
    return f"{canvas.id}#xywh={','.join(map(str, _round_box(box)))}"


def _annotate(match: Match, identifier: str, first: int = 0) -> dict[str, Any]:
    """Return a Web Annotation with two targets."""
    return {
        "id": identifier,
        "type": "Annotation",
        "motivation": "commenting",
        "body": {"type": "TextualBody", "value": match.text, "format": "text/plain", "language": "en"},
        "target": match.list_targets(first),
    }


def _serialize_canvas(
    canvas: Canvas, view: Image, identifier: str, annotations: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a canvas of version 3 with its image, and a page of annotations."""
    width, height = (max(1, round(size)) for size in (canvas.width, canvas.height))
    whole = canvas.box == (0, 0, canvas.width, canvas.height)
    painted_on = canvas.id if whole else _make_target(canvas, canvas.box)
    painting = {
        "id": f"{identifier}/painting",
        "type": "Annotation",
        "motivation": "painting",
        "body": _serialize_image(canvas, view),
        "target": painted_on,
    }
    values: dict[str, Any] = {
        "id": canvas.id,
        "type": "Canvas",
        "label": {"none": [canvas.label]},
        "width": width,
        "height": height,
        "items": [{"id": f"{identifier}/page", "type": "AnnotationPage", "items": [painting]}],
        "annotations": [{"id": f"{identifier}/matches", "type": "AnnotationPage", "items": annotations}],
    }
    if canvas.manifest:
        values["partOf"] = [{"id": canvas.manifest, "type": "Manifest"}]
    return values


def _serialize_image(canvas: Canvas, view: Image) -> dict[str, Any]:
    """Return the image of a canvas: its address and service, or the image itself where it has none."""
    left, top, right, bottom = canvas.box
    body: dict[str, Any] = {"type": "Image", "width": round(right - left), "height": round(bottom - top)}
    if not canvas.service:
        return {"id": canvas.image or encode_image(view.pixels), **body}
    kind = canvas.service_type.removesuffix("level0")
    level = "level0" if canvas.service_type.endswith("level0") else "level1"
    whole = "max" if kind == "ImageService3" else "full"
    named = {"id": canvas.service, "type": kind}
    if kind != "ImageService3":
        named = {"@id": canvas.service, "@type": kind}
    service = named | {
        "profile": level if kind == "ImageService3" else f"http://iiif.io/api/image/2/{level}.json"
    }
    return {
        "id": canvas.image or f"{canvas.service}/full/{whole}/0/default.jpg",
        **body,
        "format": "image/jpeg",
        "service": [service],
    }


def _name_region(canvas: Canvas, box: Box) -> str:
    """Return the name that AIKON gives to a region: IMAGE_x,y,w,h.jpg."""
    address = canvas.service or canvas.image or canvas.id
    last = urlsplit(address).path.rstrip("/").rsplit("/", 1)[-1]
    stem = re.sub(r"\.\w{2,5}$", "", last) or "image"
    return f"{stem}_{','.join(map(str, _round_box(box)))}.jpg"


def _digest(matches: Sequence[Match]) -> str:
    """Return a short hash: equal results have equal ids."""
    texts = [[match.text, *match.list_targets()] for match in matches]
    return hashlib.sha256(json.dumps(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
