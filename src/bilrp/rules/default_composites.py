"""Which rules where nobody chose any: by what is on the tape.

On all-MiniLM-L6-v2, parts under `transformer(0)` agree with exact Shapley values at .94 where γ = 0.25 reaches .79, at
half of the cost (`bilrp study sentences`, docs/sentences.md). On convolutional networks γ is what keeps gradients from
shattering.

In MobileNetV2 γ = 0.25 leaves all of the score to the biases that batch norm makes. Handed to the inputs, 62 % are left;
secants to the blurred picture leave 15 %, all of it known to be against the reference, and find a planted patch at 11.3
times chance, where handed biases have 8.2 and γ alone, of a score it does not explain, 14.3 (`bilrp study vision`,
docs/vision.md).
"""

from __future__ import annotations

from bilrp.rules.attnlrp import written_out
from bilrp.rules.composites import Book, absorbing, mixed, secant, transformer, uniform
from bilrp.rules.secants import has_secant
from bilrp.trace.tape import Step, Tape
from bilrp.trace.layer_weights import convolves, spread, weights_of


def default_book(tape: Tape) -> Book:
    """`transformer(0)` where the tape has attention, `mixed(0.25)` where convolutions too, else `uniform(0.25)`;
    `secant('blurred')` where there is batch norm behind convolutions that take each channel by itself, but no attention
    (`absorbing(0.25)` where a step of such a network has no secant, or its input is no image).

    A patch embedding, whose windows don't overlap, is a linear step on patches and makes no network convolutional.

    >>> import torch
    >>> from bilrp.trace.recorder import record
    >>> attend = lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> default_book(record(attend, torch.rand(1, 3, 2))).name
    'transformer(0)'
    """
    if not any(step.operation.kind == "attention" or written_out(step) for step in tape.steps):
        normed = any(step.operation.kind == "statistics" for step in tape.steps)
        if not normed or not any(_apart(step) for step in tape.steps):
            return uniform()
        return secant("blurred") if tape.x.dim() == 4 and all(map(has_secant, tape.steps)) else absorbing()
    return mixed() if any(_convolves(step) for step in tape.steps) else transformer()


def _convolves(step: Step) -> bool:
    """A convolution whose windows overlap."""
    if not convolves(step) or weights_of(step) is None:
        return False
    kernel = tuple(step.argument(1, "weight").shape[2:])
    return spread(step.argument(3, "stride", 1), len(kernel)) != kernel


def _apart(step: Step) -> bool:
    """A convolution that takes each channel by itself, as in MobileNet and EfficientNet."""
    if not convolves(step) or weights_of(step) is None:
        return False
    return 1 < step.argument(6, "groups", 1) == step.argument(1, "weight").shape[0]
