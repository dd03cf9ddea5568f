"""The default composite, chosen by the operations on the tape.

On all-MiniLM-L6-v2, parts of `transformer(0)` agree with exact Shapley values at .94, those of γ = 0.25 at .79 and
at twice the cost (`bilrp study sentences`, docs/sentences.md). On convolutional networks γ counteracts shattered
gradients.

In MobileNetV2, γ = 0.25 leaves the whole score unattributed, in the biases that batch norm produces. With biases
distributed over the inputs, 62 % is unattributed; secants to the blurred image leave 15 %, all of it interactions with
the reference. A planted patch is found at 11.3 times chance with secants, 8.2 with distributed biases, and 14.3 with
plain γ, which however does not explain the score (`bilrp study vision`, docs/vision.md).
"""

from __future__ import annotations

from bilrp.rules.attnlrp import is_unfused_attention
from bilrp.rules.composites import Composite, bias_to_inputs, conv_attention, secant, transformer, uniform
from bilrp.rules.secants import has_secant
from bilrp.trace.layer_weights import expand_to_rank, extract_weights, is_convolution
from bilrp.trace.tape import Step, Tape


def choose_composite(tape: Tape) -> Composite:
    """Choose the default composite for the operations on a tape.

    - With attention: `transformer(0)`, or `conv_attention(0.25)` if there are convolutions with overlapping windows too.
      A patch embedding, whose windows do not overlap, counts as a linear layer.
    - With batch norm and depthwise convolutions, but no attention: `secant('blurred')`, or `bias_to_inputs(0.25)` if a
      step has no secant or the input is not an image.
    - Otherwise: `uniform(0.25)`.

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
    """Return whether the step is a convolution with overlapping windows."""
    if not is_convolution(step) or extract_weights(step) is None:
        return False
    kernel = tuple(step.argument(1, "weight").shape[2:])
    return expand_to_rank(step.argument(3, "stride", 1), len(kernel)) != kernel


def _is_depthwise_convolution(step: Step) -> bool:
    """Return whether the step is a depthwise convolution, as in MobileNet and EfficientNet."""
    if not is_convolution(step) or extract_weights(step) is None:
        return False
    return 1 < step.argument(6, "groups", 1) == step.argument(1, "weight").shape[0]
