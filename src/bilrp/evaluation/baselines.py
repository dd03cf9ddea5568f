"""Baselines for explaining a similarity y = ⟨φ(x), φ(x')⟩ (section 4 of the paper), as `Explanation`s.

The score is the model's, so `unattributed` tells how far a baseline is from adding up to it. Hessian×Product and
integrated Hessians decompose the embeddings, and their relevance is the product of the two sides' parts. Saliency and
curvature only score pairs of features: the parts of their sides are zero.

>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.ReLU())
>>> explanation = hessian_product(net, torch.rand(1, 4), torch.rand(1, 4))
>>> abs(explanation.unattributed) < 1e-5
True
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bilrp.decomposition import Decomposition
from bilrp.encoder import (
    Encoder,
    EncoderOrPair,
    InputLike,
    make_origin,
    read_item,
    resolve_encoders,
    resolve_regions,
)
from bilrp.engine import plan
from bilrp.engine.executor import plan_and_execute
from bilrp.engine.plan import PlanContext
from bilrp.engine.program import INPUT, Program, chunks, pull_to
from bilrp.errors import InputError
from bilrp.explanation import Explanation, explain, pair
from bilrp.inputs import Item
from bilrp.pipeline import Mode, check_embedding
from bilrp.progress import Progress, progress_bar
from bilrp.regions import Regions, RegionSpec, RegionSpecs, as_spec_pair
from bilrp.rules import composites
from bilrp.rules.freezing import freeze
from bilrp.similarity import Similarity
from bilrp.sparse_parts import densify
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Tape

MAX_HESSIAN_ELEMENTS = 2**24  # of the d × d' Hessian that `curvature` keeps in memory


def saliency(
    encoder: EncoderOrPair, a: InputLike, b: InputLike, *, regions: RegionSpecs | None = None
) -> Explanation:
    """Return saliency: R_ii' = (x_i x'_i')², summed over regions. It does not depend on the model.

    R_II' = (Σ_{i∈I} x_i²)(Σ_{i'∈I'} x'_i'²) factorises, so it costs one run of the encoder for each input.

    Args:
        encoder, a, b, regions: as for `hessian_product`.

    >>> net = torch.nn.Linear(2, 2)
    >>> saliency(net, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]])).relevance
    tensor([[ 9.,  0.],
            [36.,  0.]])
    """
    sides = trace_inputs(encoder, a, b, regions)
    squares = [side.regions.pool(side.x.square()[None])[0] for side in sides]
    return _explanation_from_relevance(sides, torch.outer(*squares), "saliency")


def curvature(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    regions: RegionSpecs | None = None,
    progress: bool = False,
) -> Explanation:
    """Return curvature: R_ii' = (∂²y/∂x_i∂x'_i')² = (Σ_m J_mi J'_mi')², summed over regions.

    Both Jacobians are computed, h·(d + d') numbers. Because of the square, their d × d' product has to be formed
    (h·d·d' multiplications); only a block of its rows is in memory at a time.

    Args:
        encoder, a, b, regions, progress: as for `hessian_product`.

    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> explanation = curvature(net, torch.rand(1, 2), torch.rand(1, 2))
    >>> torch.allclose(explanation.relevance, torch.outer(net.weight[0], net.weight[0]).square())
    True
    """
    left, right = sides = trace_inputs(encoder, a, b, regions)
    with torch.no_grad(), progress_bar(progress) as bar:
        first, second = (_compute_jacobian(side, bar) for side in sides)
        rows = [
            right.regions.pool((first[:, block].T @ second).square()[:, None])
            for block in chunks(first.shape[1], max(1, MAX_HESSIAN_ELEMENTS // second.shape[1]))
        ]
        relevance = left.regions.pool(torch.cat(rows).T[:, None]).T.contiguous()
    return _explanation_from_relevance(sides, relevance, "curvature")


def hessian_product(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    mode: Mode = "auto",
    progress: bool = False,
) -> Explanation:
    """Return Hessian×Product: R_ii' = x_i x'_i' ∂²y/∂x_i∂x'_i' = Σ_m (x_i J_mi)(x'_i' J'_mi'), summed over regions.

    This is BiLRP with gradients as rules: the cost is that of BiLRP, no Hessian is formed, and any differentiable
    encoder works. BiLRP with γ = 0 everywhere equals it (Prop. 2).

    Args:
        encoder: encoder of both inputs, or a pair of encoders.
        a, b: the inputs.
        similarity: similarity of the embeddings; the encoder's by default.
        regions: regions of both inputs, or a pair; the encoder's by default.
        mode: how parts are computed, as in `decompose`.
        progress: show a progress bar.

    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> x = torch.rand(1, 2)
    >>> torch.allclose(hessian_product(net, x, x, similarity="dot").relevance.sum(), net(x).square())
    True
    """
    composite = composites.hessian_product()
    return explain(
        encoder,
        a,
        b,
        similarity=similarity,
        regions=regions,
        composite=composite,
        mode=mode,
        progress=progress,
    )


def integrated_hessians(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    steps: int = 32,
    baseline: float | Tensor = 0.0,
    progress: bool = False,
) -> Explanation:
    """Return integrated Hessians along the product path, from x° to x and from x°' to x' independently of each other.

    R_ii' = ∫₀¹∫₀¹ (x_i − x°_i)(x'_i' − x°'_i') ∂²y/∂x_i∂x'_i'(x_α, x'_β) dα dβ = Σ_m IG_mi(x) IG_mi'(x'), with
    x_α = x° + α(x − x°): the integrand is a product, so one path per input is enough. Completeness holds:
    Σ R = ⟨φ(x) − φ(x°), φ(x') − φ(x°')⟩, and on each side Σ_I parts[I] = φ(x) − φ(x°), up to the error of the
    quadrature (`steps` Gauss-Legendre nodes; exact for gradients that are polynomials along the path).

    Janizek et al. move both inputs together, along (αβx, αβx'), and share y among pairs across, pairs within one
    input and single features. If φ is positively homogeneous, each ordered pair across then gets a quarter of this R
    (half of y in total); the product path attributes all of y to pairs across.

    Args:
        encoder, a, b, similarity, regions, progress: as for `hessian_product`.
        steps: number of quadrature nodes.
        baseline: x°, a number or a tensor that broadcasts to both inputs.

    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()).double()
    >>> x, zero = torch.rand(1, 3).double(), torch.zeros(1, 3).double()
    >>> explanation = integrated_hessians(net, x, x, similarity="dot")
    >>> torch.allclose(explanation.relevance.sum(), (net(x) - net(zero)).square().sum())
    True
    """
    if steps < 1:
        raise InputError(f"integrated_hessians needs at least one step, got {steps}")
    sides = trace_inputs(encoder, a, b, regions)
    with torch.no_grad(), progress_bar(progress) as bar:
        decompositions = [
            integrate_gradients(side, steps=steps, baseline=baseline, bar=bar) for side in sides
        ]
    return pair(*decompositions, similarity=similarity)


@dataclass(frozen=True, eq=False)
class TracedInput:
    """One of the two inputs with its tape and regions."""

    encoder: Encoder
    item: Item
    tape: Tape
    regions: Regions

    @property
    def x(self) -> Tensor:
        return self.tape.x

    def build_decomposition(self, parts: Tensor | None, name: str) -> Decomposition:
        """Return a decomposition with these parts and the model's embedding.

        Args:
            parts: None for methods that only score pairs: all parts are zero.
            name: Name of the method, in the origin.
        """
        origin = make_origin(self.encoder, self.tape, composites.Composite(name, lambda step: None), None)
        embedding = self.tape.result.flatten()
        parts = embedding.new_zeros(self.regions.count, embedding.numel()) if parts is None else parts
        return Decomposition(parts, embedding, self.regions, origin, self.item.view, name=self.item.name)


def trace_inputs(
    encoder: EncoderOrPair, a: InputLike, b: InputLike, regions: RegionSpecs | None
) -> tuple[TracedInput, TracedInput]:
    """Read both inputs and record the encoders' runs on them.

    Args:
        encoder: One encoder, or one for each input.
        a, b: The inputs.
        regions: Regions of both inputs; default: those of the encoder.
    """
    first, second = (
        trace_input(side_encoder, raw_input, spec)
        for side_encoder, raw_input, spec in zip(
            resolve_encoders(encoder, a, b), (a, b), as_spec_pair(regions), strict=True
        )
    )
    return first, second


def trace_input(encoder: Encoder, raw_input: InputLike, spec: RegionSpec | None) -> TracedInput:
    """Read an input and record the encoder's run on it.

    Args:
        encoder: The encoder.
        raw_input: The input.
        spec: Its regions; default: those of the encoder.
    """
    item = read_item(encoder, raw_input)
    with torch.no_grad():
        tape = encoder.record(item.x, item.model_input)
    check_embedding(tape.result)
    regions, item = resolve_regions(encoder, item, spec)
    return TracedInput(encoder, item, tape, regions)


def _explanation_from_relevance(
    sides: tuple[TracedInput, TracedInput], relevance: Tensor, name: str
) -> Explanation:
    """Return an explanation with this relevance, zero parts and the model's score."""
    left, right = (side.build_decomposition(None, name) for side in sides)
    return replace(pair(left, right, similarity="dot"), relevance=relevance)


def _compute_jacobian(side: TracedInput, bar: Progress) -> Tensor:
    """Return the Jacobian J [h, d] of the embedding."""
    program = freeze(simplify(side.tape), composites.hessian_product())
    total = program.result.numel()
    bar.start("pulling gradients", total)
    rows = []
    chunk_size = plan.make_plan(PlanContext(program, side.regions, total), "pull").coordinate_chunk
    for chunk in chunks(total, chunk_size, bar.advance):
        index = torch.arange(total, device=side.x.device)[chunk]
        seeds = side.x.new_zeros(len(index), total).scatter_(1, index[:, None], 1.0)
        rows.append(_pull_gradients(program, seeds.reshape(-1, *program.result.shape)))
    return torch.cat(rows)


def _pull_gradients(program: Program, seeds: Tensor) -> Tensor:
    back = pull_to(program, seeds).get(INPUT)
    return seeds.new_zeros(len(seeds), program.x.numel()) if back is None else back.flatten(1)


def integrate_gradients(
    side: TracedInput, *, steps: int, baseline: float | Tensor = 0.0, bar: Progress
) -> Decomposition:
    """Return integrated gradients of every coordinate, summed over regions, as the parts of one input.

    Args:
        side: The input.
        steps: Points of the quadrature on the path.
        baseline: Where the path begins.
        bar: Shows the progress.
    """
    start = _baseline_input(side.x, baseline)
    difference = side.x - start
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = side.x.new_zeros(side.regions.count, side.tape.result.numel())
    bar.start("integrating gradients", steps)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        tape = side.encoder.record(start + float(node) * difference, side.item.model_input)
        # Frozen at the point on the path, but multiplied by the whole difference: gradient × (x − x°).
        program = replace(freeze(simplify(tape), composites.hessian_product()), x=difference)
        total += float(weight) * densify(plan_and_execute(program, side.regions)[0][program.output.value])
        bar.advance()
    return side.build_decomposition(total, f"integrated_hessians({steps})")


def _baseline_input(x: Tensor, baseline: float | Tensor) -> Tensor:
    start = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
    try:
        return start.expand_as(x)
    except RuntimeError:
        raise InputError(
            f"a baseline of shape {tuple(start.shape)} does not fit an input of shape {tuple(x.shape)}: "
            "give a number, or a tensor that broadcasts to both inputs"
        ) from None
