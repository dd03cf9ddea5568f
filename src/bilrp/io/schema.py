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

SIDES = 4  # a box has


def check_tensors(tensors: Mapping[str, Tensor], count: Any) -> None:
    """The tensors of a decomposition of `count` regions, before anything is made of them."""
    parts, embedding, labels = (tensors[name] for name in ("parts", "embedding", "labels"))
    _need(isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= labels.numel(), "count")
    _need(parts.dim() == 2 and embedding.dim() == 1 and parts.shape == (count, len(embedding)), "shapes")
    for name in ("parts", "embedding"):
        finite(name, tensors[name])
    if "reference" in tensors:
        _need(tensors["reference"].shape == embedding.shape, "reference")
        finite("reference", tensors["reference"])
    _need(not labels.is_floating_point() and int(labels.min()) >= -1 and int(labels.max()) < count, "labels")
    if "boxes" in tensors:
        boxes = tensors["boxes"]
        _need(boxes.shape == (count, SIDES) and not boxes.is_floating_point(), "boxes")
        _need(labels.dim() >= 2 and bool((boxes >= 0).all()), "boxes")
        high, wide = labels.shape[-2:]
        ends = torch.tensor([high, wide, high, wide], dtype=boxes.dtype)
        _need(bool((boxes <= ends).all()) and bool((boxes[:, 2:] > boxes[:, :2]).all()), "boxes")
        areas = (boxes[:, 2:] - boxes[:, :2]).long().prod(1) * (labels.numel() // (high * wide))
        _need(torch.equal(labels[labels >= 0].long().bincount(minlength=count), areas), "boxes")
    if "picture" in tensors:
        picture = tensors["picture"]
        _need(picture.dim() in (2, 3) and picture.numel() > 0 and picture.dtype == torch.uint8, "picture")


def check_decomposition(d: Decomposition) -> None:
    """Names, words and numbers of a rebuilt decomposition."""
    names = d.regions.names
    _need(names is None or all(isinstance(name, str) for name in names), "names")
    _need(isinstance(d.regions.kind, str) and isinstance(d.origin, dict), "origin")
    _need(0 <= d.storage_error < float("inf"), "storage_error")


def check_explanation(e: Explanation) -> None:
    """R[I, I'] and the score belong to the stored parts: Σ_I' R[I, I'] = R(P_I, Σ P'), for similarities known by name."""
    shape = e.a.regions.count, e.b.regions.count
    _need(e.relevance.shape == shape and e.a.embedding.shape == e.b.embedding.shape, "shapes")
    finite("relevance", e.relevance)
    _need(float("-inf") < e.score < float("inf"), "score")
    for side, within, count in zip("ab", e.within or (), shape, strict=False):
        _need(within.shape == (count, count), f"within.{side}")
        finite(f"within.{side}", within)
    for side, against, count in zip("ab", e.against or (), shape, strict=False):
        _need(against.shape == (count,), f"against.{side}")
        finite(f"against.{side}", against)
    _need(float("-inf") < e.references < float("inf"), "references")
    if e.similarity in similarities.NAMED and e.a.embedding.numel():
        _agree(e, similarities.resolve(e.similarity))


def finite(name: str, tensor: Tensor) -> None:
    """Floating-point numbers, none of them NaN or infinite: then the least and the largest are none, in one reading."""
    ends = torch.stack(tensor.aminmax()) if tensor.is_floating_point() and tensor.numel() else tensor
    _need(tensor.is_floating_point() and bool(torch.isfinite(ends).all()), f"{name}: not all are numbers")


def _agree(e: Explanation, similarity: similarities.Similarity) -> None:
    a, b = e.a.embedding.double(), e.b.embedding.double()
    close = max(
        1e-3, 16 * torch.finfo(e.relevance.dtype).eps
    )  # rounding differs from machine to machine, not more
    _need(_near(e.score, similarity.score(a, b), abs(similarity.score(a.abs(), -b.abs())), close), "score")
    p, q = e.a.parts.double(), e.b.parts.double()
    if not p.any() and not q.any():
        return  # a baseline that has no parts (saliency, curvature): its relevance follows from nothing stored
    form = similarity.weigh(a, b)
    rows, columns = e.relevance.double().sum(1), e.relevance.double().sum(0)
    most = (
        form(p.abs(), q.abs().sum(0, keepdim=True))[:, 0].abs(),
        form(p.abs().sum(0, keepdim=True), q.abs())[0].abs(),
    )
    for found, wanted, scale in (
        (rows, form(p, q.sum(0, keepdim=True))[:, 0], most[0]),
        (columns, form(p.sum(0, keepdim=True), q)[0], most[1]),
    ):
        _need(bool(((found - wanted).abs() <= close * scale + 1e-30).all()), "relevance")
    _need((e.within is not None) == similarity.within and e.distance == similarity.distance, "within")


def _near(found: float, wanted: float, scale: float, close: float) -> bool:
    return abs(found - wanted) <= close * scale + 1e-30


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"its {what} cannot be right")
