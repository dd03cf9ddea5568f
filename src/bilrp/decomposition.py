"""Decomposition: the embedding of one input as a sum of parts, one for each region."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp import inputs as views
from bilrp import regions as regions_module
from bilrp.encoder import diff_origins
from bilrp.engine.plan import Plan
from bilrp.errors import InputError, MismatchError, wrap_errors
from bilrp.inputs import Image, Text, View
from bilrp.io import schema, store
from bilrp.regions import Regions, RegionSpec
from bilrp.sparse_parts import AnyParts, densify

Weights: TypeAlias = Tensor | np.ndarray | list[float]
"""Weights of regions, or a mask of the input."""

STORABLE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False, init=False)
class Decomposition:
    """φ_m(x) = Σ_I parts[I, m] + unattributed[m], exactly.

    Args:
        parts: [regions, h], what each region contributes to each coordinate.
        embedding: φ(x), flat.
        regions: the regions of the input.
        origin: encoder, weights, layer, composite, projection, similarity; parts can be paired if these match.
        view: the image or text to show.
        plan: how the parts were computed, and at what cost.
        storage_error: ‖stored parts − computed parts‖ / ‖computed parts‖.
        name: to show, e.g. a file's name.
        shape: of the embedding before it was flattened.
        reference: what is subtracted from the embedding before it is decomposed, if anything: φ(x₀) of a reference input
            (`composites.secant`) or μ‖φ(x)‖ (`composites.centered`).
        reliability: the weight of each region, in [0, 1], after `weight`.
        unweighted_embedding: φ(x) before `weight`.
    """

    stored_parts: AnyParts  # sparse, or the matrix `parts`
    embedding: Float[Tensor, " h"]
    regions: Regions
    origin: Mapping[str, Any]
    view: View | None = field(default=None, repr=False)
    plan: Plan | None = field(default=None, repr=False)
    storage_error: float = 0.0
    name: str = ""
    shape: tuple[int, ...] | None = None
    reference: Float[Tensor, " h"] | None = field(default=None, repr=False)
    reliability: Float[Tensor, " regions"] | None = field(default=None, repr=False)
    unweighted_embedding: Float[Tensor, " h"] | None = field(default=None, repr=False)

    def __init__(
        self,
        parts: AnyParts | None = None,
        embedding: Float[Tensor, " h"] | None = None,
        regions: Regions | None = None,
        origin: Mapping[str, Any] | None = None,
        view: View | None = None,
        plan: Plan | None = None,
        storage_error: float = 0.0,
        name: str = "",
        shape: tuple[int, ...] | None = None,
        reference: Float[Tensor, " h"] | None = None,
        reliability: Float[Tensor, " regions"] | None = None,
        unweighted_embedding: Float[Tensor, " h"] | None = None,
        stored_parts: AnyParts | None = None,
    ) -> None:
        """Take `parts` as a matrix or sparse; `stored_parts` is what `dataclasses.replace` gives if they do not change."""
        chosen = stored_parts if parts is None else parts
        given = (
            chosen, embedding, regions, origin, view, plan, storage_error, name, shape, reference, reliability,
            unweighted_embedding,
        )  # fmt: skip
        if any(each is None for each in given[:4]):
            raise TypeError("a Decomposition needs parts, embedding, regions and origin")
        for each, value in zip(fields(self), given, strict=True):
            object.__setattr__(self, each.name, value)

    @property
    def parts(self) -> Float[Tensor, "regions h"]:
        """[regions, h], what each region contributes to each coordinate, as one matrix."""
        return densify(self.stored_parts)

    @property
    def unattributed(self) -> Float[Tensor, " h"]:
        """[h]: the contribution of biases, constants, a reference and features outside every region."""
        stored = self.stored_parts
        return self.embedding - (stored.sum(0) if isinstance(stored, Tensor) else stored.sum())

    @property
    def input_image(self) -> np.ndarray | None:
        """The model's input as an image of its own size, bytes (height, width, 3)."""
        if not isinstance(self.view, Image):
            return None
        high, wide = self.regions.labels.shape[-2:]
        return self.view.crop_to_input((high, wide))

    @property
    def region_boxes(self) -> np.ndarray | None:
        """Bounding box (left, top, right, bottom) of each region in pixels of the view; None without an image."""
        bounds = self.regions.bounds
        if bounds is None or not isinstance(self.view, Image):
            return None
        left, top, right, bottom = self.view.box
        high, wide = self.regions.labels.shape[-2:]
        scale = np.array([(right - left) / wide, (bottom - top) / high] * 2)
        return bounds.cpu().double().numpy()[:, [1, 0, 3, 2]] * scale + np.array([left, top] * 2)

    def weight(self, reliability: Weights) -> Decomposition:
        """Weigh each region by how reliable it is: P ← diag(w) P and φ ← diag(w) P summed + unattributed.

        Everything made of the result (pairs, sets, similarities of many inputs) is exact for the weighted embedding: for
        the dot product R[I, I'] becomes w_I R[I, I'] w'_I'. The unattributed remainder stays; weights multiply.

        Args:
            reliability: weights in [0, 1], one for each region; or a mask shaped like the input without its batch axis,
                of which each region has the mean.

        >>> from bilrp.pipeline import decompose
        >>> x = decompose(torch.nn.Linear(2, 3, bias=False), torch.ones(1, 2))
        >>> torch.allclose(x.weight([1.0, 0.0]).embedding, x.parts[0] + x.unattributed)
        True
        """
        weights = _check_weights(reliability, self.regions).to(self.embedding)
        parts = weights[:, None] * self.parts
        return replace(
            self,
            parts=parts,
            embedding=parts.sum(0) + self.unattributed,
            reliability=weights if self.reliability is None else weights * self.reliability,
            unweighted_embedding=self.embedding
            if self.unweighted_embedding is None
            else self.unweighted_embedding,
        )

    def coarsen(self, spec: RegionSpec | None) -> Decomposition:
        """Sum the parts over larger regions, each a union of the present ones; None returns self.

        Args:
            spec: regions as for `decompose`; of a text also "words", "sentences" or spans of characters.
        """
        if spec is None:
            return self
        labels = self.regions.labels
        if isinstance(spec, str | list) and isinstance(self.view, Text):
            coarse = _merge_text_regions(self.regions, self.view, spec)
        else:
            coarse = regions_module.resolve(spec, torch.empty(1, *labels.shape, device=labels.device))
        owner = torch.full((self.regions.count,), -2, device=labels.device)
        inside = labels.flatten() >= 0
        owner[labels.flatten()[inside]] = coarse.labels.flatten()[inside]
        if bool((owner[labels.flatten()[inside]] != coarse.labels.flatten()[inside]).any()):
            raise InputError(
                "coarsen needs regions that are unions of the present ones, and these cut through some"
            )
        sums = self.parts.new_zeros(coarse.count + 1, self.parts.shape[1])
        parts = sums.index_add_(0, owner + 1, self.parts)[1:]
        view = (
            self.view.merge_regions(owner.tolist(), coarse.count)
            if isinstance(self.view, Text)
            else self.view
        )
        weights = self.reliability
        if weights is not None:
            features = torch.cat([weights.new_zeros(1), weights])[labels + 1]  # 0 for those in no region
            weights = coarse.average(features)
        return replace(self, parts=parts, regions=coarse, view=view, reliability=weights)

    def save(self, path: str | Path, *, dtype: torch.dtype | None = None) -> Path:
        """Write to .safetensors or .npz atomically.

        Args:
            path: the file.
            dtype: store parts as torch.bfloat16 or torch.float16; the rounding error becomes unattributed, and its
                size is in `storage_error` of the loaded decomposition.
        """
        tensors, metadata = serialize_decomposition(self if dtype is None else _round_parts(self, dtype))
        if dtype is not None:
            tensors["parts"] = tensors["parts"].to(dtype)
        return store.write(path, tensors, {"kind": "decomposition", **metadata})

    @staticmethod
    def load(path: str | Path) -> Decomposition:
        """Read a file written by `save`."""
        tensors, metadata = store.read(path, kind="decomposition")
        with store.wrap_load_errors(path):
            return deserialize_decomposition(tensors, metadata)

    def __repr__(self) -> str:
        count, size = self.stored_parts.shape
        return f"Decomposition({count} regions × {size} coordinates, {self.origin.get('encoder')})"


def _merge_text_regions(regions: Regions, view: Text, spec: str | list[tuple[int, int]]) -> Regions:
    """Return words, sentences or spans of a text as unions of its present regions."""
    from bilrp.encoders.text.segmentation import TokenizedText

    names = regions.names or ("",) * regions.count
    special = tuple(name if span is None else "" for name, span in zip(names, view.spans, strict=True))
    merged, _ = TokenizedText(view.text, view.spans, special).segment(spec, 1)
    owner = torch.cat([merged.labels[:, 0], torch.tensor([-1])]).to(regions.labels)  # −1 stays in no region
    return replace(merged, labels=owner[regions.labels])


def check_pair(a: Decomposition, b: Decomposition, *, any_size: bool = False) -> None:
    """Raise `MismatchError` unless two decompositions can be paired.

    They need the same encoder, weights and rules, or encoders of one embedding space.

    Args:
        a, b: the decompositions.
        any_size: allow embeddings of different sizes.
    """
    difference = diff_origins(a.origin, b.origin)
    if difference:
        raise MismatchError(f"these two decompositions do not belong together: they differ in {difference}")
    if not any_size and a.embedding.shape != b.embedding.shape:
        raise MismatchError(
            f"the embeddings have {a.embedding.numel()} and {b.embedding.numel()} coordinates: give the encoder inputs "
            "of one size, or an encoder that pools"
        )


def deserialize_decomposition(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Decomposition:
    """Rebuild a decomposition from stored tensors and metadata."""
    about = json.loads(metadata["regions"])
    schema.check_tensors(tensors, about["count"])
    partition = Regions(
        labels=tensors["labels"].long(),
        count=about["count"],
        kind=about["kind"],
        boxes=tensors["boxes"].long() if "boxes" in tensors else None,
        names=tuple(about["names"]) if about["names"] is not None else None,
    )
    origin = json.loads(metadata["origin"])
    embedding, error = tensors["embedding"], float.fromhex(metadata.get("storage_error", "0x0p+0"))
    parts = tensors["parts"].to(embedding.dtype)
    view = views.deserialize_view(tensors, metadata)
    shape = tuple(int(n) for n in json.loads(metadata["shape"])) if "shape" in metadata else None
    decomposition = Decomposition(
        parts,
        embedding,
        partition,
        origin,
        view,
        storage_error=error,
        name=metadata.get("name", ""),
        shape=shape,
        reference=tensors.get("reference"),
        reliability=tensors.get("reliability"),
        unweighted_embedding=tensors.get("unweighted_embedding"),
    )
    schema.check_decomposition(decomposition)
    return decomposition


def serialize_decomposition(d: Decomposition) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata that `deserialize_decomposition` reads."""
    tensors = {"parts": d.parts, "embedding": d.embedding, "labels": d.regions.labels.int()}
    for name in ("reference", "reliability", "unweighted_embedding"):
        tensors |= {} if getattr(d, name) is None else {name: getattr(d, name)}
    if d.regions.boxes is not None:
        tensors["boxes"] = d.regions.boxes.int()
    about = {"count": d.regions.count, "kind": d.regions.kind, "names": d.regions.names}
    metadata = {"regions": json.dumps(about), "origin": json.dumps(dict(d.origin)), "name": d.name}
    metadata |= {} if d.shape is None else {"shape": json.dumps(d.shape)}
    pixels, seen = views.serialize_view(d.view)
    return tensors | pixels, metadata | seen | {"storage_error": d.storage_error.hex()}


def _check_weights(reliability: Weights, regions: Regions) -> Tensor:
    """Return one weight in [0, 1] for each region."""
    with wrap_errors("reliability must be numbers between 0 and 1"):
        weights = torch.as_tensor(reliability).detach()
    if weights.is_complex():
        raise InputError("reliability must be numbers between 0 and 1, and these are complex")
    weights = weights if weights.is_floating_point() else weights.to(torch.get_default_dtype())
    if weights.shape != (regions.count,):
        shape = tuple(regions.labels.shape)
        if weights.shape not in (shape, shape[-2:] if len(shape) == 3 else shape):
            raise InputError(
                f"reliability has shape {tuple(weights.shape)}: give one weight for each of the {regions.count} regions, "
                f"or a mask {shape}"
            )
        weights = regions.average(weights)
    if not bool(((weights >= 0) & (weights <= 1)).all()):
        raise InputError("reliability must be between 0 (not at all) and 1 (fully), and some weights are not")
    return weights


def _round_parts(d: Decomposition, dtype: torch.dtype) -> Decomposition:
    """Round parts to `dtype` and add ‖difference‖ / ‖parts‖ to the storage error."""
    if dtype not in STORABLE_DTYPES:
        raise InputError(
            f"parts cannot be stored as {dtype}: use one of {', '.join(map(str, STORABLE_DTYPES))}"
        )
    parts = d.parts.to(dtype).to(d.parts.dtype)
    if not bool(torch.isfinite(parts).all()):
        largest = float(d.parts.abs().max())
        raise InputError(f"parts up to {largest:.3g} do not fit {dtype}: use torch.bfloat16")
    error = float(torch.linalg.vector_norm(parts - d.parts)) / (
        float(torch.linalg.vector_norm(d.parts)) or 1.0
    )
    return replace(d, parts=parts, storage_error=d.storage_error + error)
