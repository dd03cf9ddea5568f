"""Feature maps and hidden states of a recorded run: vectors at positions, and the share of each region in a position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp import rules
from bilrp.engine.maps.base import is_image
from bilrp.engine.program import Key, Link, Program, chunks, position_weights, pull_to, push_from
from bilrp.errors import InputError
from bilrp.regions import Regions
from bilrp.rules.composites import Composite, CompositeFunction, is_weighted, uniform
from bilrp.rules.freezing import freeze, prepare_tape
from bilrp.trace.layer_weights import is_convolution
from bilrp.trace.tape import Step, Tape

MAX_PUSHED_REGIONS = 64  # regions whose vectors are pushed at once
MAX_PREFIX_TOKENS = 8  # tokens of a vision transformer before those of the patches: [CLS], registers


@dataclass(frozen=True, eq=False)
class Positions:
    """One value of a run on which all later steps depend and nothing else.

    Args:
        value: F, a feature map (1, C, h, w) or hidden states (1, tokens, width).
        tail: the frozen steps from F to the embedding.
        key: the tangent of F.
        program: the frozen tape.
        patches: (h, w) of the feature map, or of the patches that the last h·w tokens stand for; None for a text.
    """

    value: Tensor
    tail: tuple[Link, ...]
    key: Key
    program: Program
    patches: tuple[int, int] | None

    @property
    def vectors(self) -> Float[Tensor, "positions channels"]:
        """F as one vector for each position."""
        return self.value[0].flatten(1).T if is_image(self.value.shape) else self.value[0]

    def region_shares(self, regions: Regions) -> Float[Tensor, "regions positions"]:
        """Return the fraction of each position's input features that is in each region."""
        labels = regions.labels.to(self.value.device)
        if self.patches is None:
            numbers = torch.arange(regions.count, device=labels.device)
            return (labels == numbers[:, None, None]).to(self.value).mean(2)
        rows, columns = position_weights(self.program.x.shape, (1, 1, *self.patches), self.value)
        shares = []
        for chunk in chunks(regions.count, MAX_PUSHED_REGIONS):
            numbers = torch.arange(chunk.start, chunk.stop, device=labels.device)
            masks = (labels == numbers[:, None, None, None]).to(self.value).mean(1)
            shares.append((rows @ masks @ columns.T).flatten(1))
        every = torch.cat(shares)
        prefix = len(self.vectors) - every.shape[1]
        return torch.cat([every.new_zeros(len(every), prefix), every], dim=1)

    def push_regions(self, regions: Regions) -> Float[Tensor, "regions h"]:
        """Return T(share_I ⊙ F) of each region, where T is the frozen map from F to the embedding."""
        shares = self.region_shares(regions)
        layout = (1, 1, *self.value.shape[2:]) if is_image(self.value.shape) else (1, len(self.vectors), 1)
        output = self.program.output
        parts = []
        for chunk in chunks(len(shares), MAX_PUSHED_REGIONS):
            start = {self.key: shares[chunk].reshape(-1, *layout) * self.value}
            parts.append(push_from(self.tail, start, {output})[output].flatten(1))
        return torch.cat(parts)

    def pull_gradient(self, vector: Float[Tensor, " h"]) -> Float[Tensor, "positions channels"]:
        """Return Tᵀ v at each position: multiplied by F and summed, what it contributes to ⟨φ, v⟩."""
        cotangent = vector.reshape(1, *self.program.result.shape).to(self.value)
        back = pull_to(replace(self.program, links=self.tail), cotangent).get(self.key)
        if back is None:
            return torch.zeros_like(self.vectors)
        return replace(self, value=back[0]).vectors


def find_last(tape: Tape) -> Positions:
    """Return the last feature map of an image, or the last hidden states of a sequence of tokens."""
    return next(iter(_find_all(tape, lrp_zero())))


def find_middle(tape: Tape, composite: CompositeFunction) -> Positions:
    """Return the last feature map of twice the side of the very last one, or the hidden states halfway to the last."""
    every = list(_find_all(tape, composite))
    last = every[0]
    if is_image(last.value.shape):
        return next((each for each in every if len(each.vectors) >= 4 * len(last.vectors)), last)
    longest = max(len(each.tail) for each in every)
    return min(every, key=lambda each: abs(len(each.tail) - longest / 2))


def lrp_zero() -> Composite:
    """LRP-0, and gradients for steps without a rule."""
    return Composite("lrp_zero", lambda step: uniform(0.0)(step) or rules.jacobian())


def zplus_convolutions() -> Composite:
    """z⁺ on convolutions and LRP-0 elsewhere, as PAIR-X propagates relevance."""

    def choose(step: Step) -> rules.Rule | None:
        convolution = is_convolution(step) and is_weighted(step)
        return rules.zplus() if convolution else lrp_zero()(step)

    return Composite("zplus_convolutions", choose)


def _find_all(tape: Tape, composite: CompositeFunction) -> Iterator[Positions]:
    """Yield the values with positions on which all later steps depend and nothing else, last first."""
    tape = prepare_tape(tape, composite)
    program = freeze(tape, composite)
    links, count = program.links, 0
    patches = _patch_grid(program)
    for index in _cut_indices(links):
        shape = links[index].shape
        if is_image(tape.x.shape):
            grid = (shape[2], shape[3]) if is_image(shape) and shape[2] * shape[3] > 1 else None
            if grid is None and patches is not None and _are_patch_tokens(shape, patches):
                grid = patches
            usable = grid is not None
        else:
            grid = None
            usable = len(shape) == len(tape.x.shape) == 3 and shape[:2] == tape.x.shape[:2]
        if usable:
            key = links[index].target
            yield Positions(tape.read_value(key.value), links[index + 1 :], key, program, grid)
            count += 1
    if not count:
        raise InputError(
            f"an input of shape {tuple(tape.x.shape)} has no feature map or hidden states that the embedding is made of: "
            "use hessian_product or occlusion"
        )


def _cut_indices(links: tuple[Link, ...]) -> Iterator[int]:
    """Yield the links, last first, whose target and later values are all that later links read."""
    number = {link.target: index for index, link in enumerate(links)}
    earliest = len(links)  # the first link that a later one reads
    for index in range(len(links) - 1, -1, -1):
        if earliest >= index:
            yield index
        earliest = min([earliest, *(number.get(source, -1) for source in links[index].sources)])


def _patch_grid(program: Program) -> tuple[int, int] | None:
    """Return (h, w) of the smallest feature map of more than one pixel, None without one."""
    grids = [
        link.shape[2:] for link in program.links if is_image(link.shape) and link.shape[2] * link.shape[3] > 1
    ]
    smallest = min(grids, key=lambda size: size[0] * size[1], default=None)
    return None if smallest is None else (smallest[0], smallest[1])


def _are_patch_tokens(shape: torch.Size, patches: tuple[int, int]) -> bool:
    """Return whether a shape is (1, tokens, width) with a token for each patch after a few others."""
    return len(shape) == 3 and shape[0] == 1 and 0 <= shape[1] - patches[0] * patches[1] <= MAX_PREFIX_TOKENS
