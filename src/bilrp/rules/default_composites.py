"""The default composite, chosen by the operations on the tape.

On all-MiniLM-L6-v2, parts under `transformer(0)` agree with exact Shapley values at .94 where γ = 0.25 reaches .79, at
half of the cost (`bilrp study sentences`, docs/sentences.md). On convolutional networks γ is what keeps gradients from
shattering.

In MobileNetV2 γ = 0.25 leaves all of the score to the biases that batch norm makes. Handed to the inputs, 62 % are left;
secants to the blurred picture leave 15 %, all of it known to be against the reference, and find a planted patch at 11.3
times chance, where handed biases have 8.2 and γ alone, of a score it does not explain, 14.3 (`bilrp study vision`,
docs/vision.md).
"""

from __future__ import annotations

from bilrp.rules.attnlrp import is_unfused_attention
from bilrp.rules.composites import Composite, bias_to_inputs, conv_attention, secant, transformer, uniform
from bilrp.rules.secants import has_secant
from bilrp.trace.layer_weights import expand_to_rank, extract_weights, is_convolution
from bilrp.trace.tape import Step, Tape


def choose_composite(tape: Tape) -> Composite:
    """`transformer(0)` where the tape has attention, `conv_attention(0.25)` where convolutions too, else `uniform(0.25)`;
    `secant('blurred')` where there is batch norm behind convolutions that take each channel by itself, but no attention
    (`bias_to_inputs(0.25)` where a step of such a network has no secant, or its input is no image).

    A patch embedding, whose windows don't overlap, is a linear step on patches and makes no network convolutional.

    >>> import torch
    >>> from bilrp.trace.recorder import record
    >>> attend = lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> choose_composite(record(attend, torch.rand(1, 3, 2))).name
    'transformer(0)'
    """
    if not any(step.operation.kind == "attention" or is_unfused_attention(step) for step in tape.steps):
        normed = any(step.operation.kind == "statistics" for step in tape.steps)
        if not normed or not any(_is_depthwise_convolution(step) for step in tape.steps):
            return uniform()
        return (
            secant("blurred") if tape.x.dim() == 4 and all(map(has_secant, tape.steps)) else bias_to_inputs()
        )
    return (
        conv_attention() if any(_is_overlapping_convolution(step) for step in tape.steps) else transformer()
    )


def _is_overlapping_convolution(step: Step) -> bool:
    """A convolution whose windows overlap."""
    if not is_convolution(step) or extract_weights(step) is None:
        return False
    kernel = tuple(step.argument(1, "weight").shape[2:])
    return expand_to_rank(step.argument(3, "stride", 1), len(kernel)) != kernel


def _is_depthwise_convolution(step: Step) -> bool:
    """A convolution that takes each channel by itself, as in MobileNet and EfficientNet."""
    if not is_convolution(step) or extract_weights(step) is None:
        return False
    return 1 < step.argument(6, "groups", 1) == step.argument(1, "weight").shape[0]
