"""The pipeline: read, record, verify, apply rules, rewrite, plan, execute; parts as a Decomposition."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args, overload

import torch
from torch import Tensor

from bilrp.decomposition import Decomposition
from bilrp.encoder import (
    MODEL_RUN_LOCK,
    PROJECTION_SEED,
    CompositeLike,
    DualEncoder,
    Encoder,
    EncoderLike,
    InputLike,
    encoder_for,
    make_origin,
    read_item,
    resolve_composite,
    resolve_regions,
)
from bilrp.engine.executor import is_cheaper_to_pull, plan_and_execute, pull_vectors
from bilrp.engine.passes import rewrite
from bilrp.engine.plan import Plan
from bilrp.engine.program import Key, Program
from bilrp.engine.remainder import locate_remainder
from bilrp.errors import InputError, RuleError
from bilrp.inputs import Item, Text
from bilrp.mean_embedding import TypicalEmbeddings, compute_typical_embeddings, find_typical_embeddings
from bilrp.progress import progress_bar
from bilrp.refinement import Refinement, start_refinement
from bilrp.regions import Regions, RegionSpec
from bilrp.rules.composites import CompositeFunction, is_centered, locates_remainder
from bilrp.rules.freezing import freeze, prepare_tape
from bilrp.similarity import random_projection
from bilrp.sparse_parts import AnyParts, densify
from bilrp.trace.devices import defer_checks
from bilrp.trace.forward_memory import check_forward_fits
from bilrp.trace.reference_run import read_reference_values
from bilrp.trace.tape import Tape
from bilrp.trace.weight_cache import use_weight_cache

Mode: TypeAlias = Literal["auto", "push", "pull"]
"""How parts are computed: push regions forward, pull coordinates backward, or whichever costs less."""

MODES: tuple[Mode, ...] = get_args(Mode)


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
    """Decompose φ(x) into parts[I, m], the contribution of region I to coordinate m of the embedding.

    Args:
        encoder: a name ("minilm"), an Encoder, a DualEncoder, an nn.Module or a callable tensor -> tensor.
        x: a tensor with a batch axis of 1, or anything that the encoder reads: a path, an image, a text.
        regions: the regions; None is the encoder's default.
        composite: the rules; None is the encoder's default.
        project: number of random dimensions to project the embedding to; None is exact.
        mode: push regions forward, pull coordinates backward, or "auto", whichever costs less.
        progress: show a progress bar.
        layers: return a decomposition for each of these layers, {layer: decomposition}.
        max_regions: split only the regions of largest contribution, up to that many regions (see `bilrp.refine`).

    >>> from bilrp.regions import features
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> decompose(net, torch.ones(1, 4), regions=features()).parts.shape
    torch.Size([4, 3])
    """
    encoder = encoder_for(encoder, x)
    if max_regions is not None:
        if layers is not None:
            raise InputError("max_regions cannot be combined with layers: leave out layers")
        steps = refine(
            encoder,
            x,
            regions=regions,
            composite=composite,
            project=project,
            mode=mode,
            max_regions=max_regions,
        )
        return deque(steps, maxlen=1)[0]
    by_layer = decompose_item(
        encoder, read_item(encoder, x), regions=regions, composite=composite, project=project, mode=mode,
        layers=layers, progress=progress,
    )  # fmt: skip
    return by_layer[None] if layers is None else {n: by_layer[n] for n in layers}


def decompose_item(
    encoder: Encoder,
    item: Item,
    *,
    regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    layers: Sequence[int] | None = None,
    progress: bool = False,
) -> dict[int | None, Decomposition]:
    """Decompose an input that was read: {layer: decomposition}, {None: decomposition} of the output without layers.

    Args:
        encoder: The encoder.
        item: The input, see `read_item`.
        regions, composite, project, mode, layers: As for `decompose`.
        progress: Show a progress bar.
    """
    prepared = prepare(
        encoder, item, regions=regions, composite=composite, project=project, mode=mode, layers=layers
    )
    if not prepared.taps:
        return {None: prepared.decompose(progress=progress)}
    parts, plan = prepared.plan_and_execute(prepared.regions, progress=progress)
    return {
        layer: prepared.build_decomposition(prepared.regions, parts[value], plan=plan, layer=layer)
        for layer, value in prepared.taps.items()
    }


@dataclass(frozen=True, eq=False)
class PreparedInput:
    """A recorded input with its rules applied, ready to compute parts."""

    program: Program
    regions: Regions
    item: Item
    origin: Mapping[str, Any]
    project: int | None
    mode: Mode
    taps: Mapping[int, int]  # layer -> number of its value
    embeddings: Mapping[int | None, Tensor]  # layer (None: output) -> embedding
    reference_embeddings: Mapping[int | None, Tensor]  # φ(x₀) of a reference input, or μ‖φ‖
    is_centered: bool = False  # the reference is a mean embedding, and the rest is distributed evenly

    def plan_and_execute(
        self, regions: Regions, *, progress: bool = False
    ) -> tuple[dict[int, AnyParts], Plan]:
        """Compute parts [regions, coordinates] of the output and of tapped values, by value number, and their plan."""
        with torch.no_grad():
            projection = None if self.taps else make_projection(self.project, self.program.result)
            taps = frozenset(self.taps.values())
            with progress_bar(progress) as bar:
                parts, plan = plan_and_execute(
                    self.program, regions, projection, mode=self.mode, taps=taps, bar=bar
                )
        _check_finite(parts[self.program.output.value], self.origin["composite"])
        return parts, plan

    def decompose(self, *, progress: bool = False) -> Decomposition:
        """Return the decomposition of the output."""
        parts, plan = self.plan_and_execute(self.regions, progress=progress)
        return self.build_decomposition(self.regions, parts[self.program.output.value], plan=plan)

    def compute_output_parts(self, regions: Regions, *, progress: bool = False) -> tuple[Tensor, Plan]:
        """Compute parts of the output only, by the rules alone; `decompose` also distributes what they leave."""
        parts, plan = self.plan_and_execute(regions, progress=progress)
        return densify(parts[self.program.output.value]), plan

    def pull(self, vectors: Tensor) -> Tensor:
        """Return [regions, n], ⟨P_I, v⟩ of each region and each of the vectors [n, h], by one backward sweep for all."""
        if not bool(torch.isfinite(vectors).all()):
            raise InputError("an embedding to compare with has NaN or infinite values")
        with torch.no_grad():
            values = pull_vectors(self.program, self.regions, vectors)
            if self.is_centered:
                values = self._spread_rest(values, vectors)
        _check_finite(values, self.origin["composite"])
        return values

    def is_cheaper_to_pull(self, count: int) -> bool:
        """Return whether pulling so many vectors costs at most half of what computing the parts costs."""
        with torch.no_grad():
            return is_cheaper_to_pull(self.program, self.regions, count)

    def _spread_rest(self, values: Tensor, vectors: Tensor) -> Tensor:
        """Add what the rules leave of φ − μ‖φ‖, times the vectors, to the values [regions, n] of each region."""
        uncovered = _uncovered_region(self.regions)
        explained = values.sum(0)
        if uncovered is not None:
            explained = explained + pull_vectors(self.program, uncovered, vectors).sum(0)
        wanted = vectors @ (self.embeddings[None] - self.reference_embeddings[None]).flatten()
        return spread_evenly(values, self.regions, wanted - explained)

    @property
    def mean_embedding(self) -> Tensor | None:
        """The mean embedding [h] of typical inputs, if the rules are centered."""
        if not self.is_centered:
            return None
        return (self.reference_embeddings[None] / torch.linalg.vector_norm(self.embeddings[None])).flatten()

    def begin_refinement(self, max_regions: int | None) -> Refinement:
        """Start a refinement to at most `max_regions` regions, at its coarsest regions."""
        return start_refinement(self.regions, self.compute_output_parts, max_regions)

    def split_regions(self, refinement: Refinement, weight: Tensor) -> Refinement:
        """Split the regions of largest weight; return `refinement` itself if none can be split."""
        return refinement.split(weight, self.compute_output_parts)

    def build_refined(self, refinement: Refinement) -> Decomposition:
        """Return the decomposition on the present regions of a refinement."""
        count, view = len(refinement.groups), self.item.view
        view = (
            view.merge_regions(refinement.group_of_region.tolist(), count) if isinstance(view, Text) else view
        )
        decomposition = self.build_decomposition(refinement.regions, refinement.parts, plan=refinement.plan)
        return decomposition if refinement.is_complete else replace(decomposition, view=view)

    def build_decomposition(
        self, regions: Regions, parts: AnyParts, *, plan: Plan, layer: int | None = None
    ) -> Decomposition:
        """Return the decomposition of one layer; layers are projected here, the output already was.

        Args:
            regions, parts: The regions, and the parts [regions, coordinates] of that layer.
            plan: How they were computed.
            layer: Number of the layer; None for the output.
        """
        result, reference = self.embeddings[layer], self.reference_embeddings.get(layer)
        projection = make_projection(self.project, result)
        if layer is not None and projection is not None:
            parts = densify(parts) @ projection.T
        if self.is_centered and reference is not None:
            uncovered, parts = _uncovered_region(regions), densify(parts)
            explained = parts.sum(0)
            if uncovered is not None:
                explained = explained + self.compute_output_parts(uncovered)[0].sum(0)
            rest = _project(result, projection) - _project(reference.to(result), projection) - explained
            parts = spread_evenly(parts, regions, rest)
        return self.attach_parts(regions, parts, plan=plan, layer=layer)

    def attach_parts(
        self, regions: Regions, parts: AnyParts, *, plan: Plan | None = None, layer: int | None = None
    ) -> Decomposition:
        """Return a decomposition with these parts, which are complete and projected.

        Args:
            regions, parts, layer: As for `build_decomposition`.
            plan: How they were computed; None if they will be when they are read.
        """
        result, reference = self.embeddings[layer], self.reference_embeddings.get(layer)
        projection = make_projection(self.project, result)
        embedding = _project(result, projection)
        return Decomposition(
            parts, embedding, regions, {**self.origin, **({} if layer is None else {"layer": layer})},
            self.item.view, plan, name=self.item.name,
            shape=tuple(result.shape) if projection is None else tuple(embedding.shape),
            reference=None if reference is None else _project(reference.to(result), projection),
        )  # fmt: skip


def _project(embedding: Tensor, projection: Tensor | None) -> Tensor:
    return embedding.flatten() if projection is None else projection @ embedding.flatten()


def spread_evenly(values: Tensor, regions: Regions, rest: Tensor) -> Tensor:
    """Return values [regions, n] plus the rest [n] in proportion to the number of features of each region.

    Args:
        values, regions: One row for each region, and the regions.
        rest: What is distributed; features in no region have their share too, which is not returned.
    """
    sizes = torch.bincount(regions.labels.flatten() + 1, minlength=regions.count + 1)[1:]
    return values + torch.outer((sizes.double() / regions.labels.numel()).to(values), rest)


def _uncovered_region(regions: Regions) -> Regions | None:
    """Return one region with all features that are in none; None if there are no such features."""
    outside = regions.labels < 0
    if not bool(outside.any()):
        return None
    return Regions(torch.where(outside, 0, -1), 1, "labels")


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
    """Record the run, apply the rules, and resolve the regions.

    Args:
        encoder, item: As for `decompose_item`.
        regions, composite, project, mode, layers: As for `decompose`.
    """
    _check_options(mode, project, layers)
    check_forward_fits(encoder.forward_fn(item.model_input), item.x)
    with torch.no_grad(), defer_checks():
        tape, chosen, typical = _record_with_typical(encoder, item, composite, layers)
        taps = _layer_values(encoder, tape, layers)
        results = _read_results(tape, taps)
        for result in results.values():
            check_embedding(result)
        resolved, item = resolve_regions(encoder, item, regions)
        origin: dict[str, object] = {**make_origin(encoder, tape, chosen, project)}
        program, references = _freeze_program(encoder, item, tape, chosen, taps)
        # The tape is dropped here, to free activations that no map references before parts are computed.
        if typical is not None:
            length = torch.linalg.vector_norm(tape.result.double())
            references = {**references, None: (typical.mean.to(tape.result.device) * length).to(tape.result)}
            origin |= {"random_cosines": typical.summarize_cosines()} if typical.cosines else {}
        centered = typical is not None
        return PreparedInput(
            program, resolved, item, origin, project, mode, taps, results, references, centered
        )


def _check_options(mode: Mode, project: int | None, layers: Sequence[int] | None) -> None:
    if mode not in MODES:
        raise InputError(f"unknown mode {mode!r}: use one of {', '.join(MODES)}")
    if layers and mode == "pull":
        raise InputError("mode='pull' has no parts of inner layers: leave out mode= or layers=")
    if project is not None and (not isinstance(project, Integral) or isinstance(project, bool)):
        raise InputError(
            f"project must be a number of dimensions, or None for an exact result, got {project!r}"
        )


def _record_with_typical(
    encoder: Encoder, item: Item, composite: CompositeLike | None, layers: Sequence[int] | None
) -> tuple[Tape, CompositeFunction, TypicalEmbeddings | None]:
    """Record the run and choose its composite; a centered one also needs the embeddings of typical inputs."""
    tape = encoder.record(item.x, item.model_input)
    chosen = resolve_composite(encoder, tape, composite)
    if layers or not is_centered(chosen):
        return tape, chosen, None
    typical = find_typical_embeddings(encoder, tape.fingerprint)
    if typical is None:
        typical = compute_typical_embeddings(encoder, tape.fingerprint)
        # other runs may have written to the model's buffers
        tape = encoder.record(item.x, item.model_input)
    return tape, chosen, typical


def _read_results(tape: Tape, taps: Mapping[int, int]) -> dict[int | None, Tensor]:
    """Return {layer: its value}, {None: the output} without layers."""
    if not taps:
        return {None: tape.result}
    tapped = {step.output: step.result for step in tape.steps if step.output in taps.values()}
    return {layer: tapped.get(value, tape.result) for layer, value in taps.items()}


def _freeze_program(
    encoder: Encoder, item: Item, tape: Tape, composite: CompositeFunction, taps: Mapping[int, int]
) -> tuple[Program, dict[int | None, Tensor]]:
    """Turn the tape into a rewritten program; return it with the tapped values at the reference input, if there is one."""
    tapped = frozenset(taps.values())
    with use_weight_cache(encoder.module, tape.weights, tape.fingerprint):
        simplified = prepare_tape(tape, composite, tapped)
        values: dict[int | None, int] = {**taps} if taps else {None: tape.output}
        with nullcontext() if simplified.reference is None else MODEL_RUN_LOCK:
            references = read_reference_values(simplified, encoder.forward_fn(item.model_input), values)
        program, keep = freeze(simplified, composite, max(tapped, default=None)), frozenset(map(Key, tapped))
        if locates_remainder(composite) and not taps and simplified.reference is None:
            program = locate_remainder(program, simplified.read_value)
        keep |= set() if program.remainder is None else {program.remainder.key}
        return rewrite(program, keep), references


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
    """Decompose φ(x) coarse to fine: about 16 regions first, then those of largest |⟨P_I, φ⟩| are split.

    P_{I ∪ J} = P_I + P_J, so each decomposition is exact on its own partition.

    Args:
        encoder, x, regions, composite, project, mode: as for `decompose`.
        max_regions: stop at that many regions; None goes on to the regions of `decompose`.

    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    >>> [d.regions.count for d in refine(net, torch.rand(1, 3, 16, 16), regions=2, max_regions=40)]
    [16, 28, 40]
    """
    encoder = encoder_for(encoder, x)
    prepared = prepare(
        encoder, read_item(encoder, x), regions=regions, composite=composite, project=project, mode=mode
    )
    refinement, finer = None, prepared.begin_refinement(max_regions)
    while finer is not refinement:
        refinement = finer
        decomposition = prepared.build_refined(refinement)
        yield decomposition
        finer = prepared.split_regions(refinement, (refinement.parts @ decomposition.embedding).abs())


def check_embedding(embedding: Tensor) -> None:
    """Raise for an embedding that is empty, not finite, or zero in every coordinate."""
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
            "the embedding is zero in every coordinate, so there is no similarity to explain: use another input or layer"
        )


def _layer_values(encoder: Encoder, tape: Tape, layers: Sequence[int] | None) -> dict[int, int]:
    """Return {layer: number of its value}."""
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
            "use float64, or other rules"
        )


def make_projection(project: int | None, result: Tensor) -> Tensor | None:
    """Return the random projection of an embedding, or None."""
    return (
        None
        if project is None
        else random_projection(project, result.numel(), seed=PROJECTION_SEED, like=result)
    )
