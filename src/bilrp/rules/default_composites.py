"""The default composite, chosen by the operations on the tape.

On all-MiniLM-L6-v2, parts under `transformer(0)` agree with exact Shapley values at .94 where γ = 0.25 reaches .79, at
half of the cost (`bilrp study sentences`, docs/sentences.md).

In networks with batch norm, γ = 0.25 everywhere leaves up to 99 % of a score to the biases that batch norm makes.
`graded()` leaves nothing, and is right more often about where things match: docs/rules.md has the figures on ResNet-50,
MobileNetV2 and EfficientNet-Lite0 with ImageNet weights. Where batch norm is folded into the convolutions, or written as
a product and a sum (FrozenBatchNorm2d of torchvision), the network is the same function, but nothing on the tape is
called batch norm: it is known by maps that shrink to an eighth, without other norms.
"""

from __future__ import annotations

from bilrp.engine.maps.base import is_image
from bilrp.rules.attnlrp import is_unfused_attention
from bilrp.rules.composites import Composite, conv_attention, graded, map_side, transformer, uniform
from bilrp.trace.layer_weights import expand_to_rank, extract_weights, is_convolution
from bilrp.trace.tape import Step, Tape

MIN_SHRINKING = 8.0  # side of the largest map over that of the smallest, of a deep network without norms


def choose_composite(tape: Tape) -> Composite:
    """Return the default composite for the operations on a tape.

    - `conv_attention(0.25)` for attention and convolutions whose windows overlap (a patch embedding is not counted);
    - `transformer(0)` for attention without such convolutions;
    - `graded()` for convolutions on an image with batch norm, or without any norm if their maps shrink to an eighth;
    - `uniform(0.25)` for everything else.

    >>> import torch
    >>> from bilrp.trace.recorder import record
    >>> attend = lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> choose_composite(record(attend, torch.rand(1, 3, 2))).name
    'transformer(0)'
    """
    if any(step.operation.kind == "attention" or is_unfused_attention(step) for step in tape.steps):
        overlapping = any(_is_overlapping_convolution(step) for step in tape.steps)
        return conv_attention() if overlapping else transformer()
    return graded() if is_image(tape.x.shape) and _is_deep_convolutional(tape) else uniform()


def _is_deep_convolutional(tape: Tape) -> bool:
    """Return whether convolutions have batch norm, or none of any kind and maps that shrink by MIN_SHRINKING."""
    sides = [side for step in tape.steps if (side := map_side(step)) is not None]
    # of maps, not of the embedding: a network may end in `normalize`
    norms = {step.operation.kind for step in tape.steps if step.result.dim() == 4} & {"statistics", "norm"}
    if not sides or "statistics" in norms:
        return bool(sides)
    return not norms and max(sides) >= MIN_SHRINKING * min(sides)


def _is_overlapping_convolution(step: Step) -> bool:
    """Return whether the step is a convolution whose windows overlap."""
    if not is_convolution(step) or extract_weights(step) is None:
        return False
    kernel = tuple(step.argument(1, "weight").shape[2:])
    return expand_to_rank(step.argument(3, "stride", 1), len(kernel)) != kernel
