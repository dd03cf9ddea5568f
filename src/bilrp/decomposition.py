"""Decomposition: one embedding taken apart into its regions' parts. It belongs to one input; keep it, pair it at will."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp import inputs as views
from bilrp import regions as regions_module
from bilrp.encoder import (
    MODEL_RUN_LOCK,
    PROJECTION_SEED,
    CompositeLike,
    DualEncoder,
    Encoder,
    EncoderLike,
    InputLike,
    diff_origins,
    encoder_for,
    make_origin,
    read_item,
    resolve_composite,
    resolve_regions,
)
from bilrp.engine import memory
from bilrp.engine.executor import compute_parts
from bilrp.engine.passes.channels_first import rewrite_channels_first
from bilrp.engine.passes.hoist_pooling import hoist_poolings
from bilrp.engine.plan import Plan
from bilrp.engine.program import Key, Program
from bilrp.engine.refinement import Refinement, start_refinement
from bilrp.engine.sparse_parts import AnyParts, LazyDenseParts, densify, lazy_dense, stored_parts
from bilrp.errors import InputError, MismatchError, RuleError
from bilrp.inputs import Image, Item, Text, View
from bilrp.io import schema, store
from bilrp.progress import progress_bar
from bilrp.regions import Regions, RegionSpec
from bilrp.rules.freezing import freeze, prepare_tape
from bilrp.similarity import random_projection
from bilrp.trace.devices import defer_checks
from bilrp.trace.reference_run import read_reference_values
from bilrp.trace.tape import Tape
from bilrp.trace.weight_cache import use_weight_cache

Mode: TypeAlias = Literal["auto", "push", "pull"]
"""How parts are computed: push regions forward, pull coordinates backward, or whichever costs less."""

MODES: tuple[Mode, ...] = get_args(Mode)
STORABLE_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@lazy_dense
@dataclass(frozen=True, eq=False)
class Decomposition:
    """φ_m(x) = Σ_I parts[I, m] + unattributed[m], exactly.

    `origin` says what made it (encoder, weights, layer, composite, projection): only equal origins pair. `view` is the input
    as people see it (a photograph, a text), `name` what they call it (a file's name). `reference` is φ(x₀) where the rules
    compare with a reference input (`composites.secant`): what is unattributed, but for features outside every region.
    """

    parts: LazyDenseParts  # [regions, h], made when first read where it is nearly all zeros
    embedding: Float[Tensor, " h"]
    regions: Regions
    origin: Mapping[str, Any]
    view: View | None = field(default=None, repr=False)
    plan: Plan | None = field(default=None, repr=False)
    storage_error: float = 0.0  # ‖parts kept − parts computed‖ / ‖parts computed‖
    name: str = ""
    shape: tuple[int, ...] | None = None  # of the embedding before it was flattened, where it was no vector
    reference: Float[Tensor, " h"] | None = field(default=None, repr=False)

    @property
    def unattributed(self) -> Float[Tensor, " h"]:
        """What biases, other constants, a reference and features outside every region contribute to each coordinate."""
        return self.embedding - stored_parts(self).sum(0)

    @property
    def input_image(self) -> np.ndarray | None:
        """What the model saw as a picture of the input's own size, (height, width, 3) bytes."""
        if not isinstance(self.view, Image):
            return None
        high, wide = self.regions.labels.shape[-2:]
        return self.view.crop_to_input((high, wide))

    @property
    def region_boxes(self) -> np.ndarray | None:
        """(left, top, right, bottom) around each region, in pixels of the view; None where regions are no areas of one."""
        bounds = self.regions.bounds
        if bounds is None or not isinstance(self.view, Image):
            return None
        left, top, right, bottom = self.view.box
        high, wide = self.regions.labels.shape[-2:]
        scale = np.array([(right - left) / wide, (bottom - top) / high] * 2)
        return bounds.cpu().double().numpy()[:, [1, 0, 3, 2]] * scale + np.array([left, top] * 2)

    def coarsen(self, spec: RegionSpec | None) -> Decomposition:
        """The same parts summed over larger regions, each a union of the present ones (None: over these very ones)."""
        if spec is None:
            return self
        labels = self.regions.labels
        coarse = regions_module.resolve(spec, torch.empty(1, *labels.shape, device=labels.device))
        owner = torch.full((self.regions.count,), -2, device=labels.device)
        inside = labels.flatten() >= 0
        owner[labels.flatten()[inside]] = coarse.labels.flatten()[inside]
        if bool((owner[labels.flatten()[inside]] != coarse.labels.flatten()[inside]).any()):
            raise InputError(
                "coarsen needs regions that are unions of the present ones; these cut through some"
            )
        sums = self.parts.new_zeros(coarse.count + 1, self.parts.shape[1])
        parts = sums.index_add_(0, owner + 1, self.parts)[1:]
        view = (
            self.view.merge_regions(owner.tolist(), coarse.count)
            if isinstance(self.view, Text)
            else self.view
        )
        return replace(self, parts=parts, regions=coarse, view=view)

    def save(self, path: str | Path, *, dtype: torch.dtype | None = None) -> Path:
        """Write to .safetensors or .npz (never pickle), whole or not at all.

        `dtype` (torch.bfloat16, torch.float16) keeps the parts in half the space; what that cost is in
        `storage_error` of the loaded decomposition, and what was rounded away counts as unattributed.
        """
        kept = self if dtype is None else _round_parts(self, dtype)
        tensors, words = serialize_decomposition(kept)
        if dtype is not None:
            tensors["parts"] = tensors["parts"].to(dtype)
        return store.write(path, tensors, {"kind": "decomposition", **words})

    @staticmethod
    def load(path: str | Path) -> Decomposition:
        """Read what `save` wrote."""
        tensors, words = store.read(path, kind="decomposition")
        with store.wrap_load_errors(path, words):
            return deserialize_decomposition(tensors, words)

    def __repr__(self) -> str:
        count, size = stored_parts(self).shape
        return f"Decomposition({count} regions × {size} coordinates, {self.origin.get('encoder')})"


@overload
def decompose(
    encoder: EncoderLike | DualEncoder, x: InputLike, *, regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None, mode: Mode = "auto", progress: bool = False, layers: None = None,
    max_regions: int | None = None,
) -> Decomposition: ...  # fmt: skip


@overload
def decompose(
    encoder: EncoderLike | DualEncoder, x: InputLike, *, regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None, mode: Mode = "auto", progress: bool = False, layers: Sequence[int],
) -> dict[int, Decomposition]: ...  # fmt: skip


def decompose(
    encoder: EncoderLike | DualEncoder,
    x: InputLike,
    *,
    regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    progress: bool = False,
    layers: Sequence[int] | None = None,
    max_regions: int | None = None,
) -> Decomposition | dict[int, Decomposition]:
    """Take φ(x) apart: parts[I, m] is what region I contributes to coordinate m of the embedding.

    With `max_regions`, into at most that many regions: fine where the share is large, coarse elsewhere (see `bilrp.refine`).

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> found = decompose(net, torch.ones(1, 4), regions=regions_module.features())
    >>> found.parts.shape
    torch.Size([4, 3])
    """
    encoder = encoder_for(encoder, x)
    if max_regions is not None:
        if layers is not None:
            raise InputError("max_regions splits regions by their share in one embedding: leave out layers")
        options = {"regions": regions, "composite": composite, "project": project, "mode": mode}
        return deque(refine(encoder, x, max_regions=max_regions, **options), maxlen=1)[0]
    options = {"regions": regions, "composite": composite, "project": project, "mode": mode, "layers": layers}
    found = decompose_item(encoder, read_item(encoder, x), progress=progress, **options)
    return found[None] if layers is None else {n: found[n] for n in layers}


def decompose_item(
    encoder: Encoder, item: Item, *, progress: bool = False, **options: Any
) -> dict[int | None, Decomposition]:
    """What `decompose` does once the input was read: the decomposition of each layer, of the output as None."""
    ready = prepare(encoder, item, **options)
    parts, plan = ready.compute(ready.partition, progress=progress)
    if not ready.taps:
        return {
            None: ready.build_decomposition(ready.partition, parts[ready.program.output.value], plan=plan)
        }
    return {
        n: ready.build_decomposition(ready.partition, parts[v], plan=plan, layer=n)
        for n, v in ready.taps.items()
    }


@dataclass(frozen=True, eq=False)
class PreparedInput:
    """One input, run and frozen: what is left to do is to push regions or to pull coordinates."""

    program: Program
    partition: Regions
    item: Item
    origin: Mapping[str, Any]
    project: int | None
    mode: Mode
    taps: Mapping[int, int]  # the value of each layer asked for
    embeddings: Mapping[int | None, Tensor]  # the embedding of each layer, of the output as None
    reference_embeddings: Mapping[
        int | None, Tensor
    ]  # the same at a reference input, where the rules ask for one

    def compute(self, partition: Regions, *, progress: bool = False) -> tuple[dict[int, AnyParts], Plan]:
        """Parts [regions, coordinates] of the output and of tapped values."""
        with torch.no_grad():
            weights = None if self.taps else make_projection(self.project, self.program.result)
            taps = frozenset(self.taps.values())
            with progress_bar(progress) as bar:
                parts, plan = compute_parts(
                    self.program, partition, weights, mode=self.mode, taps=taps, bar=bar
                )
        _check_finite(parts[self.program.output.value], self.origin["composite"])  # wherever it went wrong
        return parts, plan

    def compute_parts(self, partition: Regions, *, progress: bool = False) -> tuple[Tensor, Plan]:
        """Parts of the output alone."""
        parts, plan = self.compute(partition, progress=progress)
        return densify(parts[self.program.output.value]), plan

    def begin_refinement(self, max_regions: int | None) -> Refinement:
        """The coarsest moment of a refinement to at most `max_regions` regions."""
        return start_refinement(self.partition, self.compute_parts, max_regions)

    def split_regions(self, refinement: Refinement, weight: Tensor) -> Refinement:
        """The next moment: regions of most weight split; the same moment where nothing can be."""
        return refinement.split(weight, self.compute_parts)

    def build_refined(self, refinement: Refinement) -> Decomposition:
        """What is known at one moment of a refinement."""
        count, view = len(refinement.groups), self.item.view
        view = (
            view.merge_regions(refinement.group_of_region.tolist(), count) if isinstance(view, Text) else view
        )
        made = self.build_decomposition(refinement.regions, refinement.parts, plan=refinement.plan)
        return made if refinement.is_complete else replace(made, view=view)

    def build_decomposition(
        self, regions: Regions, parts: AnyParts, *, plan: Plan, layer: int | None = None
    ) -> Decomposition:
        """Embedding and parts, projected where that has not happened yet, with their origin."""
        result, reference = self.embeddings[layer], self.reference_embeddings.get(layer)
        weights = make_projection(self.project, result)

        def flat(t: Tensor) -> Tensor:
            return t.flatten() if weights is None else weights @ t.flatten()

        origin = dict(self.origin)
        if layer is not None:
            parts = parts if weights is None else densify(parts) @ weights.T
            origin["layer"] = layer
        embedding = flat(result)
        return Decomposition(
            parts, embedding, regions, origin, self.item.view, plan, name=self.item.name,  # type: ignore[arg-type]
            shape=tuple(result.shape) if weights is None else tuple(embedding.shape),
            reference=None if reference is None else flat(reference.to(result)),
        )  # fmt: skip


def prepare(
    encoder: Encoder,
    item: Item,
    *,
    regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    layers: Sequence[int] | None = None,
) -> PreparedInput:
    """Record the run, freeze it by the rules, and lay out the regions."""
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}: use one of {', '.join(MODES)}")
    if project is not None and (not isinstance(project, Integral) or isinstance(project, bool)):
        raise InputError(f"project is a number of dimensions, or None for the exact answer, got {project!r}")
    memory.check_forward_fits(encoder.forward_fn(item.model_input), item.x)
    with torch.no_grad(), defer_checks():
        tape = encoder.record(item.x, item.model_input)
        taps = _layer_values(encoder, tape, layers)
        made = {step.output: step.result for step in tape.steps if step.output in taps.values()}
        wanted: dict[int | None, int] = {**taps} if taps else {None: tape.output}
        results = {n: made.get(value, tape.result) for n, value in wanted.items()}
        for result in results.values():
            check_embedding(result)
        book = resolve_composite(encoder, tape, composite)
        partition, item = resolve_regions(encoder, item, regions)
        tapped = frozenset(taps.values())
        origin = make_origin(encoder, tape, book, project)
        with use_weight_cache(encoder.module, tape.weights, origin["weights"]):
            ready = prepare_tape(tape, book, tapped)
            with nullcontext() if ready.reference is None else MODEL_RUN_LOCK:
                references = read_reference_values(ready, encoder.forward_fn(item.model_input), wanted)
            program, keep = freeze(ready, book, max(tapped, default=None)), frozenset(map(Key, tapped))
            program = hoist_poolings(rewrite_channels_first(program, keep), keep)
        # The tape ends here: recorded values that no map keeps would take room while the parts are computed.
        return PreparedInput(program, partition, item, origin, project, mode, taps, results, references)


def refine(
    encoder: EncoderLike | DualEncoder,
    x: InputLike,
    *,
    regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    max_regions: int | None = None,
) -> Iterator[Decomposition]:
    """Take φ(x) apart coarse to fine: about 16 regions first, then those of the largest share |⟨P_I, φ⟩| split.

    P_{I ∪ J} = P_I + P_J, so each moment is exact on its own partition; the last has at most `max_regions` regions, and
    without one it is `decompose`'s.

    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    >>> [found.regions.count for found in refine(net, torch.rand(1, 3, 16, 16), regions=2, max_regions=40)]
    [16, 28, 40]
    """
    encoder = encoder_for(encoder, x)
    ready = prepare(
        encoder, read_item(encoder, x), regions=regions, composite=composite, project=project, mode=mode
    )
    found, finer = None, ready.begin_refinement(max_regions)
    while finer is not found:
        found = finer
        made = ready.build_refined(found)
        yield made
        finer = ready.split_regions(found, (found.parts @ made.embedding).abs())


def check_embedding(embedding: Tensor) -> None:
    """Refuse what has no similarity to explain: nothing, NaN, or zero in every coordinate."""
    if embedding.numel() == 0:
        raise InputError(
            f"the embedding has no coordinates (shape {tuple(embedding.shape)}): the input is too small for this encoder"
        )
    if not bool(torch.isfinite(embedding).all()):
        raise InputError(
            "the embedding has NaN or infinite values for this input: check the model and the input"
        )
    if not bool(embedding.any()):
        raise InputError(
            "the embedding is zero in every coordinate: the encoder sees nothing in this input, so there is nothing to "
            "explain"
        )


def _layer_values(encoder: Encoder, tape: Tape, layers: Sequence[int] | None) -> dict[int, int]:
    """The value number of each layer asked for."""
    if layers is None:
        return {}
    if encoder.layers is None:
        raise InputError(
            f"the encoder {encoder.name!r} has no numbered layers: use an encoder that has, e.g. encoders.vgg16"
        )
    return {n: encoder.layers(tape, n) for n in layers}


def _check_finite(parts: AnyParts, composite: str) -> None:
    if not bool(torch.isfinite(densify(parts)).all()):
        raise RuleError(
            f"the parts under {composite} have NaN or infinite values, though the embedding has none: "
            "use a wider type (float64), or other rules"
        )


def check_pair(a: Decomposition, b: Decomposition, *, any_size: bool = False) -> None:
    """Two decompositions pair only if one encoder, with one set of weights and rules, made both, or two of one space."""
    found = diff_origins(a.origin, b.origin)
    if found:
        raise MismatchError(f"these two decompositions do not belong together: they differ in {found}")
    if not any_size and a.embedding.shape != b.embedding.shape:
        raise MismatchError(
            f"the embeddings have {a.embedding.numel()} and {b.embedding.numel()} coordinates: give the encoder inputs "
            "of one size, or an encoder that pools"
        )


def deserialize_decomposition(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Decomposition:
    """Rebuild a decomposition from stored tensors and words."""
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
    found = Decomposition(
        parts,
        embedding,
        partition,
        origin,
        view,
        storage_error=error,
        name=metadata.get("name", ""),
        shape=shape,
        reference=tensors.get("reference"),
    )
    schema.check_decomposition(found)
    return found


def serialize_decomposition(d: Decomposition) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and words that `deserialize_decomposition` rebuilds a decomposition from."""
    tensors = {"parts": d.parts, "embedding": d.embedding, "labels": d.regions.labels.int()}
    tensors |= {} if d.reference is None else {"reference": d.reference}
    if d.regions.boxes is not None:
        tensors["boxes"] = d.regions.boxes.int()
    about = {"count": d.regions.count, "kind": d.regions.kind, "names": d.regions.names}
    words = {"regions": json.dumps(about), "origin": json.dumps(dict(d.origin)), "name": d.name}
    words |= {} if d.shape is None else {"shape": json.dumps(d.shape)}
    pixels, seen = views.serialize_view(d.view)
    return tensors | pixels, words | seen | {"storage_error": d.storage_error.hex()}


def _round_parts(d: Decomposition, dtype: torch.dtype) -> Decomposition:
    """Parts as they will be read back from `dtype`, and ‖difference‖ / ‖parts‖."""
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


def make_projection(project: int | None, result: Tensor) -> Tensor | None:
    """The random projection of an embedding, if one is wanted."""
    return (
        None
        if project is None
        else random_projection(project, result.numel(), seed=PROJECTION_SEED, like=result)
    )
