"""Baselines that look at feature maps or cover regions: the last layer, occlusion of pairs, and PAIR-X.

The last layer and PAIR-X need an encoder with positions: feature maps of an image, or hidden states of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.decomposition import Decomposition
from bilrp.encoder import EncoderOrPair, InputLike
from bilrp.errors import InputError
from bilrp.evaluation.baselines import TracedInput, trace_inputs
from bilrp.evaluation.positions import find_last, find_middle, zplus_convolutions
from bilrp.explanation import Explanation, pair
from bilrp.inputs import Text
from bilrp.progress import Progress, progress_bar
from bilrp.regions import RegionSpecs
from bilrp.rules.composites import CompositeFunction
from bilrp.similarity import Similarity, resolve_similarity

Fill: TypeAlias = Literal["mean", "delete"] | float | Tensor | Callable[[Tensor], Tensor]
"""What covers a region: its values are replaced by a mean, a number, a tensor or a function of the input, or deleted."""

BATCH_INPUTS = 16  # covered inputs per forward pass


def last_layer(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
) -> Explanation:
    """Return products of positions of the last feature map, or of the last hidden states of a text.

    P_I = T(share_I ⊙ F), where F is the last map, share_I(p) the fraction of the pixels of position p that belong to
    region I, and T the frozen map from F to the embedding: for mean pooling and a linear head W,
    P_I = W Σ_p share_I(p) F(p) / n. Then Σ_I P_I = φ without the head's bias, and Σ R is the score. A position stands
    for the pixels around it, though its receptive field is larger: everything below F is ignored.

    Args:
        encoder: encoder of both inputs, or a pair of encoders; of images or sequences of tokens.
        a, b: the inputs.
        similarity: similarity of the embeddings; the encoder's by default.
        regions: regions of both inputs, or a pair; the encoder's by default.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> x = torch.rand(1, 3, 16, 16)
    >>> abs(last_layer(net, x, x, regions=8).unattributed) < 1e-5
    True
    """
    with torch.no_grad():
        decompositions = [decompose_last_layer(side) for side in trace_inputs(encoder, a, b, regions)]
    return pair(*decompositions, similarity=similarity)


def occlusion(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    fill: Fill | None = None,
    progress: bool = False,
) -> Explanation:
    """Return the second difference of the score s when a region of each input is covered.

    R_II' = s(x, x') − s(x∖I, x') − s(x, x'∖I') + s(x∖I, x'∖I'), for any similarity. For the dot product this is
    ⟨φ(x) − φ(x∖I), φ(x') − φ(x'∖I')⟩, so one forward pass for each region is enough; the parts are these differences.

    Args:
        encoder, a, b, similarity, regions, progress: as for `baselines.hessian_product`.
        fill: "mean" (the mean colour of an image, the mean vector of a sequence; a number for other inputs: 0), "delete"
            (remove the tokens of the region), a number, a tensor that broadcasts to both inputs, or a function of the
            input. By default texts are deleted from, everything else has the mean.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> x = torch.rand(1, 2)
    >>> explanation = occlusion(net, x, x, similarity="dot")  # of a linear encoder: Hessian×Product
    >>> torch.allclose(explanation.relevance.sum(), net(x).square().sum())
    True
    """
    sides = trace_inputs(encoder, a, b, regions)
    with progress_bar(progress) as bar:
        return pair_occlusions(
            *(occlude_each_region(side, fill, bar) for side in sides), similarity=similarity
        )


def pairx(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    composite: CompositeFunction | None = None,
) -> Explanation:
    """Return PAIR-X (Shrack et al. 2025): mutual nearest neighbours of a middle feature map, weighed by relevance.

    With F and F' the maps of both inputs, positions p and p' match if F'(p') is the nearest vector to F(p) and F(p) the
    nearest to F'(p'), by Euclidean distance. A match has the relevance r(p) r'(p'), where r(p) = Σ_c |R_c(p)| and R is
    the relevance of the score on the map; all other pairs have none. A position belongs to regions in proportion to the
    pixels it covers. The map is the last one of twice the side of the last feature map; for sequences of tokens, the
    hidden states halfway. Relevance is not negative and does not add up to the score; the parts are zero.

    Written from the description of the method; the published code propagates dy/dφ as relevance, this one φ ⊙ dy/dφ,
    which adds up to the score. The similarity is taken as linear in each embedding, with the norms detached.

    Args:
        encoder: encoder of both inputs, or a pair of encoders; of images or sequences of tokens.
        a, b, similarity, regions: as for `last_layer`.
        composite: rules from the embedding to the map; z⁺ on convolutions and LRP-0 elsewhere by default.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> x = torch.rand(1, 3, 16, 16)
    >>> bool((pairx(net, x, x, regions=8).relevance.diag() > 0).all())
    True
    """
    rules = zplus_convolutions() if composite is None else composite
    sides = trace_inputs(encoder, a, b, regions)
    decompositions = (
        replace(side.build_decomposition(None, "pairx"), shape=tuple(side.tape.result.shape))
        for side in sides
    )
    explanation = pair(*decompositions, similarity=similarity)
    embeddings = [side.tape.result.flatten() for side in sides]
    targets = pair_vectors(_resolve(similarity, [explanation.a, explanation.b]), *embeddings)
    with torch.no_grad():
        left, right = (find_middle(side.tape, rules) for side in sides)
        if left.vectors.shape[1] != right.vectors.shape[1]:
            raise InputError(
                f"PAIR-X compares vectors of one length, and the middle maps have {left.vectors.shape[1]} and "
                f"{right.vectors.shape[1]} channels: use one encoder for both inputs"
            )
        weights = [
            (each.vectors * each.pull_gradient(target)).abs().sum(1)
            for each, target in zip((left, right), targets, strict=True)
        ]
        matches = match_mutually(left.vectors, right.vectors) * torch.outer(*weights)
        shares = [each.region_shares(side.regions) for each, side in zip((left, right), sides, strict=True)]
        return replace(explanation, relevance=shares[0] @ matches @ shares[1].T, self_terms=None)


def decompose_last_layer(side: TracedInput) -> Decomposition:
    """Return the decomposition of one input by positions of its last feature map or hidden states."""
    return side.build_decomposition(find_last(side.tape).push_regions(side.regions), "last_layer")


def occlude_each_region(side: TracedInput, fill: Fill | None, bar: Progress) -> Decomposition:
    """Return the decomposition with parts φ(x) − φ(x∖I) of one input.

    Args:
        side: the input.
        fill: what covers a region, as for `occlusion`.
        bar: advanced by each region.
    """
    with torch.no_grad():
        covered = _embed_covered(side, fill, bar)
    parts = side.tape.result.flatten() - covered
    return replace(side.build_decomposition(parts, "occlusion"), shape=tuple(side.tape.result.shape))


def pair_occlusions(
    a: Decomposition, b: Decomposition, *, similarity: str | Similarity | None = None
) -> Explanation:
    """Return the second differences of the score from two decompositions of `occlude_each_region`.

    Args:
        a, b: The inputs.
        similarity: Default: the encoder's own.
    """
    explanation = pair(a, b, similarity=similarity)
    scores = _score_table(_resolve(similarity, [a, b]), a, b)
    relevance = scores[:1, :1] - scores[1:, :1] - scores[:1, 1:] + scores[1:, 1:]
    return replace(explanation, relevance=relevance.to(explanation.relevance), self_terms=None)


def match_mutually(
    a: Float[Tensor, "positions_a channels"], b: Float[Tensor, "positions_b channels"]
) -> Float[Tensor, "positions_a positions_b"]:
    """Return 1 where two vectors are each other's nearest by Euclidean distance, 0 elsewhere; of ties the first."""
    distances = torch.cdist(a.double(), b.double())
    first = torch.zeros_like(distances).scatter_(1, distances.argmin(1, keepdim=True), 1.0)
    second = torch.zeros_like(distances).scatter_(0, distances.argmin(0, keepdim=True), 1.0)
    return (first * second).to(a)


def pair_vectors(similarity: Similarity, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return v and v' with y = ⟨φ, v⟩ = ⟨φ', v'⟩: what the similarity pairs each embedding with, norms detached.

    Args:
        similarity: The similarity.
        a, b: The embeddings.
    """
    form = similarity.relevance_fn(a, b)
    with torch.enable_grad():
        left, right = (each.detach().clone().requires_grad_() for each in (a, b))
        first, second = torch.autograd.grad(form(left[None], right[None]).sum(), (left, right))
    return first, second


def _resolve(similarity: str | Similarity | None, sides: list[Decomposition]) -> Similarity:
    chosen = resolve_similarity(similarity, *(side.origin.get("similarity") for side in sides))
    return chosen.for_shapes(*(side.shape or tuple(side.embedding.shape) for side in sides))


def _score_table(
    similarity: Similarity, a: Decomposition, b: Decomposition
) -> Float[Tensor, "inputs_a inputs_b"]:
    """Return the scores of both inputs, whole (number 0) and covered at each region, in float64."""
    p, q = (torch.cat([d.embedding[None], d.embedding - d.parts]).double() for d in (a, b))
    if not similarity.needs_only_products or similarity.has_self_terms:
        return torch.tensor([[similarity.score(x, y) for y in q] for x in p], dtype=torch.float64)
    if similarity.unit_form is not None:
        p, q = (torch.nn.functional.normalize(each, dim=1) for each in (p, q))
    return p @ q.T


def _embed_covered(side: TracedInput, fill: Fill | None, bar: Progress) -> Float[Tensor, "regions h"]:
    """Return the embedding of the input with each of its regions covered."""
    bar.start("covering regions", side.regions.count)
    if fill is None:
        fill = "delete" if isinstance(side.item.view, Text) and side.item.model_input is None else "mean"
    if fill == "delete":
        return _embed_without(side, bar)
    filled, forward = _fill_values(side.x, fill), side.encoder.forward_fn(side.item.model_input)
    labels = side.regions.labels.to(side.x.device)
    embeddings = []
    for numbers in torch.arange(side.regions.count).split(BATCH_INPUTS):
        inside = labels == numbers.to(labels).reshape(-1, *[1] * labels.dim())
        embeddings.append(forward(torch.where(inside, filled, side.x)).reshape(len(numbers), -1))
        bar.advance(len(numbers))
    return torch.cat(embeddings)


def _embed_without(side: TracedInput, bar: Progress) -> Float[Tensor, "regions h"]:
    """Return the embedding of the sequence without the tokens of each region, in batches of equal length."""
    labels = side.regions.labels
    whole_tokens = labels.dim() == 2 and bool((labels == labels[:, :1]).all())
    if not whole_tokens or side.item.model_input is not None or side.regions.count < 2:
        raise InputError(
            "fill='delete' needs a sequence (1, tokens, width), at least two regions of whole tokens, and an encoder of "
            "token embeddings: use fill='mean'"
        )
    owners = labels[:, 0]
    kept = [(owners != number).nonzero()[:, 0] for number in range(side.regions.count)]
    lengths = torch.tensor([len(each) for each in kept])
    embeddings = side.x.new_zeros(side.regions.count, side.tape.result.numel())
    for length in lengths.unique():
        for numbers in (lengths == length).nonzero()[:, 0].split(BATCH_INPUTS):
            batch = torch.stack([side.x[0, kept[number]] for number in numbers])
            embeddings[numbers] = side.encoder.module(batch).reshape(len(numbers), -1)
            bar.advance(len(numbers))
    return embeddings


def _fill_values(x: Tensor, fill: Fill) -> Tensor:
    """Return what replaces covered values, shaped like x."""
    if isinstance(fill, str):
        if fill != "mean":
            raise InputError(f"unknown fill {fill!r}: use 'mean', 'delete', a number, a tensor or a function")
        axes = {3: (1,), 4: (2, 3)}.get(x.dim())
        return torch.zeros_like(x) if axes is None else x.mean(axes, keepdim=True).expand_as(x)
    filled = fill(x) if callable(fill) else torch.as_tensor(fill, dtype=x.dtype, device=x.device)
    try:
        return filled.expand_as(x)
    except RuntimeError:
        raise InputError(
            f"a fill of shape {tuple(filled.shape)} does not fit an input of shape {tuple(x.shape)}: "
            "give a number, or a tensor that broadcasts to both inputs"
        ) from None
