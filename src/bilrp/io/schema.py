"""What a stored result must be, whoever wrote the file: shapes, types, finite numbers that agree with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bilrp import similarity as similarities
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation

BOX_EDGES = 4  # a box has


def check_tensors(tensors: Mapping[str, Tensor], count: Any) -> None:
    """The tensors of a decomposition of `count` regions, before anything is made of them."""
    parts, embedding, labels = (tensors[name] for name in ("parts", "embedding", "labels"))
    _require(isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= labels.numel(), "count")
    _require(parts.dim() == 2 and embedding.dim() == 1 and parts.shape == (count, len(embedding)), "shapes")
    for name in ("parts", "embedding"):
        check_finite(name, tensors[name])
    if "reference" in tensors:
        _require(tensors["reference"].shape == embedding.shape, "reference")
        check_finite("reference", tensors["reference"])
    _require(
        not labels.is_floating_point() and int(labels.min()) >= -1 and int(labels.max()) < count, "labels"
    )
    if "boxes" in tensors:
        boxes = tensors["boxes"]
        _require(boxes.shape == (count, BOX_EDGES) and not boxes.is_floating_point(), "boxes")
        _require(labels.dim() >= 2 and bool((boxes >= 0).all()), "boxes")
        high, wide = labels.shape[-2:]
        ends = torch.tensor([high, wide, high, wide], dtype=boxes.dtype)
        _require(bool((boxes <= ends).all()) and bool((boxes[:, 2:] > boxes[:, :2]).all()), "boxes")
        areas = (boxes[:, 2:] - boxes[:, :2]).long().prod(1) * (labels.numel() // (high * wide))
        _require(torch.equal(labels[labels >= 0].long().bincount(minlength=count), areas), "boxes")
    if "picture" in tensors:
        picture = tensors["picture"]
        _require(picture.dim() in (2, 3) and picture.numel() > 0 and picture.dtype == torch.uint8, "picture")


def check_decomposition(d: Decomposition) -> None:
    """Names, words and numbers of a rebuilt decomposition."""
    names = d.regions.names
    _require(names is None or all(isinstance(name, str) for name in names), "names")
    _require(isinstance(d.regions.kind, str) and isinstance(d.origin, dict), "origin")
    _require(0 <= d.storage_error < float("inf"), "storage_error")


def check_explanation(e: Explanation) -> None:
    """R[I, I'] and the score belong to the stored parts: Σ_I' R[I, I'] = R(P_I, Σ P'), for similarities known by name."""
    shape = e.a.regions.count, e.b.regions.count
    _require(e.relevance.shape == shape and e.a.embedding.shape == e.b.embedding.shape, "shapes")
    check_finite("relevance", e.relevance)
    _require(float("-inf") < e.score < float("inf"), "score")
    for side, within, count in zip("ab", e.self_terms or (), shape, strict=False):
        _require(within.shape == (count, count), f"within.{side}")
        check_finite(f"within.{side}", within)
    for side, against, count in zip("ab", e.reference_terms or (), shape, strict=False):
        _require(against.shape == (count,), f"against.{side}")
        check_finite(f"against.{side}", against)
    _require(float("-inf") < e.reference_score < float("inf"), "references")
    if e.similarity in similarities.SIMILARITIES and e.a.embedding.numel():
        _check_relevance(e, similarities.resolve_similarity(e.similarity))


def check_finite(name: str, tensor: Tensor) -> None:
    """Floating-point numbers, none of them NaN or infinite: then the least and the largest are none, in one reading."""
    ends = torch.stack(tensor.aminmax()) if tensor.is_floating_point() and tensor.numel() else tensor
    _require(tensor.is_floating_point() and bool(torch.isfinite(ends).all()), f"{name}: not all are numbers")


def _check_relevance(e: Explanation, similarity: similarities.Similarity) -> None:
    a, b = e.a.embedding.double(), e.b.embedding.double()
    close = max(
        1e-3, 16 * torch.finfo(e.relevance.dtype).eps
    )  # rounding differs from machine to machine, not more
    _require(
        _is_close(e.score, similarity.score(a, b), abs(similarity.score(a.abs(), -b.abs())), close), "score"
    )
    p, q = e.a.parts.double(), e.b.parts.double()
    if not p.any() and not q.any():
        return  # a baseline that has no parts (saliency, curvature): its relevance follows from nothing stored
    form = similarity.relevance_fn(a, b)
    rows, columns = e.relevance.double().sum(1), e.relevance.double().sum(0)
    most = (
        form(p.abs(), q.abs().sum(0, keepdim=True))[:, 0].abs(),
        form(p.abs().sum(0, keepdim=True), q.abs())[0].abs(),
    )
    for found, wanted, scale in (
        (rows, form(p, q.sum(0, keepdim=True))[:, 0], most[0]),
        (columns, form(p.sum(0, keepdim=True), q)[0], most[1]),
    ):
        _require(bool(((found - wanted).abs() <= close * scale + 1e-30).all()), "relevance")
    _require(
        (e.self_terms is not None) == similarity.has_self_terms and e.is_distance == similarity.is_distance,
        "within",
    )


def _is_close(actual: float, expected: float, scale: float, tolerance: float) -> bool:
    return abs(actual - expected) <= tolerance * scale + 1e-30


def _require(condition: bool, subject: str) -> None:
    if not condition:
        raise InputError(f"its {subject} cannot be right")
