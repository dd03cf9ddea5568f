"""Validation of stored results: shapes, dtypes, finite and consistent numbers. Files are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bilrp import similarity as similarities
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.decomposition import Decomposition
    from bilrp.explanation import Explanation

BOX_EDGES = 4  # top, left, bottom, right


def check_tensors(tensors: Mapping[str, Tensor], count: object) -> None:
    """Check the stored tensors of a decomposition of `count` regions."""
    parts, embedding, labels = (tensors[name] for name in ("parts", "embedding", "labels"))
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= labels.numel():
        raise InputError("invalid count")
    _require(parts.dim() == 2 and embedding.dim() == 1 and parts.shape == (count, len(embedding)), "shapes")
    for name in ("parts", "embedding"):
        check_finite(name, tensors[name])
    for name in ("reference", "unweighted_embedding"):
        if name in tensors:
            _require(tensors[name].shape == embedding.shape, name)
            check_finite(name, tensors[name])
    _require(("reliability" in tensors) == ("unweighted_embedding" in tensors), "reliability")
    if "reliability" in tensors:
        weights = tensors["reliability"]
        check_finite("reliability", weights)
        _require(weights.shape == (count,) and bool(((weights >= 0) & (weights <= 1)).all()), "reliability")
    _require(
        not labels.is_floating_point() and int(labels.min()) >= -1 and int(labels.max()) < count, "labels"
    )
    if "boxes" in tensors:
        boxes = tensors["boxes"]
        _require(boxes.shape == (count, BOX_EDGES) and not boxes.is_floating_point(), "boxes")
        _require(labels.dim() >= 2 and bool((boxes >= 0).all()), "boxes")
        height, width = labels.shape[-2:]
        ends = torch.tensor([height, width, height, width], dtype=boxes.dtype)
        _require(bool((boxes <= ends).all()) and bool((boxes[:, 2:] > boxes[:, :2]).all()), "boxes")
        areas = (boxes[:, 2:] - boxes[:, :2]).long().prod(1) * (labels.numel() // (height * width))
        _require(torch.equal(labels[labels >= 0].long().bincount(minlength=count), areas), "boxes")


def check_decomposition(d: Decomposition) -> None:
    """Check the names, origin and numbers of a rebuilt decomposition."""
    names = d.regions.names
    _require(names is None or all(isinstance(name, str) for name in names), "names")
    _require(isinstance(d.regions.kind, str) and isinstance(d.origin, dict), "origin")
    _require(0 <= d.storage_error < float("inf"), "storage_error")


def check_explanation(e: Explanation) -> None:
    """Check an explanation; for named similarities also its score, and that Σ_I' R[I, I'] = R(P_I, Σ P')."""
    shape = e.a.regions.count, e.b.regions.count
    known = e.similarity in similarities.SIMILARITIES
    similarity = similarities.resolve_similarity(e.similarity) if known else None
    any_size = similarity is not None and similarity.any_size
    _require(e.relevance.shape == shape, "shapes")
    _require(any_size or e.a.embedding.shape == e.b.embedding.shape, "shapes")
    check_finite("relevance", e.relevance)
    _require(float("-inf") < e.score < float("inf"), "score")
    for side, terms, count in zip("ab", e.self_terms or (), shape, strict=False):
        _require(terms.shape == (count, count), f"self_terms.{side}")
        check_finite(f"self_terms.{side}", terms)
    for side, terms, count in zip("ab", e.reference_terms or (), shape, strict=False):
        _require(terms.shape == (count,), f"reference_terms.{side}")
        check_finite(f"reference_terms.{side}", terms)
    _require(float("-inf") < e.reference_score < float("inf"), "reference_score")
    is_weighted = e.a.reliability is not None or e.b.reliability is not None
    _require((e.unweighted_score is not None) == is_weighted, "unweighted_score")
    _require(float("-inf") < (e.unweighted_score or 0.0) < float("inf"), "unweighted_score")
    # maxsim of flat embeddings has a width that is not stored, so its relevance cannot be recomputed
    a, b = e.a.shape or (), e.b.shape or ()
    if similarity is not None and e.a.embedding.numel() and not (any_size and len(a) < 3):
        _check_relevance(e, similarity.for_shapes(a, b))


def check_finite(name: str, tensor: Tensor) -> None:
    """Check that a tensor has finite floats only: NaN and infinities appear in its minimum or maximum, in one pass."""
    extremes = torch.stack(tensor.aminmax()) if tensor.is_floating_point() and tensor.numel() else tensor
    finite = tensor.is_floating_point() and bool(torch.isfinite(extremes).all())
    _require(finite, f"{name} (not all values are finite numbers)")


def _check_relevance(e: Explanation, similarity: similarities.Similarity) -> None:
    a, b = e.a.embedding.double(), e.b.embedding.double()
    tolerance = max(1e-3, 16 * torch.finfo(e.relevance.dtype).eps)  # rounding differs between machines
    scale = abs(similarity.score(a.abs(), b.abs() if similarity.any_size else -b.abs()))
    _require(abs(e.score - similarity.score(a, b)) <= tolerance * scale + 1e-30, "score")
    p, q = e.a.parts.double(), e.b.parts.double()
    if not p.any() and not q.any():
        return  # a baseline without parts (saliency, curvature): its relevance cannot be recomputed
    relevance_of = similarity.relevance_fn(a, b)
    for dim, marginals in ((1, lambda p, q: relevance_of(p, q.sum(0, keepdim=True))[:, 0]),
                           (0, lambda p, q: relevance_of(p.sum(0, keepdim=True), q)[0])):  # fmt: skip
        difference = e.relevance.double().sum(dim) - marginals(p, q)
        scale = marginals(p.abs(), q.abs()).abs()
        _require(bool((difference.abs() <= tolerance * scale + 1e-30).all()), "relevance")
    _require(
        (e.self_terms is not None) == similarity.has_self_terms and e.is_distance == similarity.is_distance,
        "self_terms",
    )


def _require(condition: bool, subject: str) -> None:
    if not condition:
        raise InputError(f"invalid {subject}")
