"""Composites assign a rule to each step. A composite is a plain function step → rule (None: no rule).

>>> composite = first_match(("classifier*", rules.epsilon(1e-4)), ("conv2d", rules.gamma(0.1)), otherwise=uniform(0.0))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, cast, get_args

from torch import nn

from bilrp import rules
from bilrp.errors import RuleError, to_printable
from bilrp.rules.attnlrp import split_attention, split_product
from bilrp.rules.reference_inputs import Reference, ReferenceLike, as_reference
from bilrp.rules.rule import Rule, format_number
from bilrp.trace.fingerprint import hash_code
from bilrp.trace.layer_weights import extract_weights, is_convolution
from bilrp.trace.tape import Step, Tape

CompositeFunction = Callable[[Step], Rule | None]
Condition = str | Callable[[Step], bool]

CompositeLike: TypeAlias = CompositeFunction | Rule
"""A composite (a function step -> rule), or one rule for every step with weights."""

GradedBias: TypeAlias = Literal["position", "inputs", "rest"]
"""Where the biases of a convolutional network go, see `graded`."""

GRADED_BIAS_OPTIONS: tuple[GradedBias, ...] = get_args(GradedBias)
DEFAULT_GAMMAS = (0.5, 0.25, 0.1, 0.0)  # the paper's, for VGG-16

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGENET_LOW = tuple(round((0 - m) / s, 6) for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True))
IMAGENET_HIGH = tuple(round((1 - m) / s, 6) for m, s in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True))


@dataclass(frozen=True)
class Composite:
    """A composite with a name, so that a decomposition can say which rules made it.

    Args:
        name: Stored in the decomposition's origin.
        choose_rule: Function step → rule.
        reference: A reference input x₀; the composite's rules then decompose φ(x) − φ(x₀).
        bind: Function tape → composite, for a composite whose choice depends on the whole tape.
        locate_remainder: Attribute what is left at the last feature map to regions by position (`engine.remainder`).
        is_centered: Decompose φ(x) − μ‖φ(x)‖, see `centered`.
    """

    name: str
    choose_rule: CompositeFunction
    reference: Reference | None = None
    bind: Callable[[Tape], CompositeFunction] | None = None
    locate_remainder: bool = False
    is_centered: bool = False

    def __call__(self, step: Step) -> Rule | None:
        return self.choose_rule(step)


def uniform(gamma: float = 0.25) -> Composite:
    """LRP-γ with one γ for every weighted step; everything else by its default rule. γ = 0 is LRP-0.

    >>> uniform(0.09).name
    'uniform(0.09)'
    """
    weighted = rules.zero() if gamma == 0 else rules.gamma(gamma)
    return Composite(
        f"uniform({format_number(gamma)})",
        lambda step: weighted if is_weighted(step) else rules.default_rule(step),
    )


def hessian_product() -> Composite:
    """Use true gradients everywhere: parts are gradient × input, and pairs give the Hessian×Product baseline."""

    def choose(step: Step) -> Rule | None:
        if is_weighted(step):
            return rules.zero()
        # ReLU, max pooling and rearrangements: their default rule is the true derivative
        is_exact = step.operation.rule in {"gate", "select"} or step.operation.mask == "moves"
        default = rules.default_rule(step)
        return default if is_exact or (default and default.name == "linear") else rules.jacobian()

    return Composite("hessian_product", choose)


def paper_vgg(low: tuple[float, ...] = IMAGENET_LOW, high: tuple[float, ...] = IMAGENET_HIGH) -> Composite:
    """The paper's rules for VGG-16: γ by 1-based layer (2–10: .5, 11–17: .25, 18–24: .1, 25–31: 0), z^B first.

    The layer of a step is the last number in its name plus one: features.10 is layer 11. A weighted step without a
    number in its name has no rule.

    Args:
        low: Lower bound of a normalised pixel, one per channel.
        high: Upper bound of a normalised pixel, one per channel.
    """
    first = rules.zbox(low, high)
    # other bounds must appear in the name
    usual = first.name == rules.zbox(IMAGENET_LOW, IMAGENET_HIGH).name

    def choose(step: Step) -> Rule | None:
        if not is_weighted(step):
            return rules.default_rule(step)
        layer = layer_number(step)
        if layer is None:
            return None  # γ is unknown; a guess would be silently wrong
        return first if layer == 1 else rules.gamma(paper_gamma(layer))

    return Composite("paper_vgg" if usual else f"paper_vgg({first.name})", choose)


def paper_gamma(layer: int) -> float:
    """Return γ of a VGG-16 layer, numbered from 1 as in the paper.

    >>> [paper_gamma(n) for n in (2, 10, 11, 17, 18, 24, 25, 31)]
    [0.5, 0.5, 0.25, 0.25, 0.1, 0.1, 0.0, 0.0]
    """
    return 0.5 if layer <= 10 else 0.25 if layer <= 17 else 0.1 if layer <= 24 else 0.0


def layer_number(step: Step) -> int | None:
    """Return the 1-based position of a step's module in its `nn.Sequential`, from its name; None without a number."""
    numbers = re.findall(r"\d+", step.name)
    return int(numbers[-1]) + 1 if numbers else None


def resnet(gamma: float = 0.25) -> Composite:
    """For residual networks: γ on convolutions (batch norm is folded into them), LRP-0 on linear layers."""
    convolution = rules.gamma(gamma)

    def choose(step: Step) -> Rule | None:
        if is_convolution(step) and is_weighted(step):
            return convolution
        return rules.zero() if is_weighted(step) else rules.default_rule(step)

    return Composite(f"resnet({format_number(gamma)})", choose)


def bias_to_inputs(gamma: float = 0.25) -> Composite:
    """For networks with batch norm: γ on every weighted step, and its bias distributed over its inputs by |w·a|.

    >>> bias_to_inputs().name
    'bias_to_inputs(0.25)'
    """
    weighted = rules.gamma(gamma, bias="inputs")
    return Composite(
        f"bias_to_inputs({format_number(gamma)})",
        lambda step: weighted if is_weighted(step) else rules.default_rule(step),
    )


def graded(gammas: Sequence[float] = DEFAULT_GAMMAS, *, bias: GradedBias = "position") -> Composite:
    """The paper's schedule for any convolutional network: γ falls with depth and is 0 at the last feature maps.

    A layer's depth is the size of its feature map: the last γ is for the network's smallest map, the one before it for
    maps of twice that side, and so on; the first is for all larger ones. The defaults are the paper's values for VGG-16.

    Args:
        gammas: γ by map, from the largest map to the smallest.
        bias: What happens to biases, which batch norm makes large. "position": those of layers with γ > 0 are distributed
            to the inputs of the layer in proportion to |w·a|; what is left unattributed at the last feature map goes to
            the regions at its positions. "inputs": all go to the inputs. "rest": all are left unattributed.

    >>> graded().name, graded((0.25,), bias="rest").name
    ('graded(0.5, 0.25, 0.1, 0)', 'graded(0.25, bias=rest)')
    """
    if not gammas:
        raise RuleError("graded needs at least one gamma, as in graded((0.5, 0.25, 0.1, 0.0))")
    if bias not in GRADED_BIAS_OPTIONS:
        raise RuleError(f"unknown bias={bias!r} for graded: use one of {', '.join(GRADED_BIAS_OPTIONS)}")
    by_level = [
        rules.gamma(
            value, bias="inputs" if bias == "inputs" or (bias == "position" and value > 0) else "rest"
        )
        for value in reversed(gammas)
    ]
    suffix = "" if bias == "position" else f", bias={bias}"
    name = f"graded({', '.join(map(format_number, gammas))}{suffix})"

    def bind(tape: Tape) -> CompositeFunction:
        smallest = min((side for step in tape.steps if (side := map_side(step)) is not None), default=1.0)

        def choose(step: Step) -> Rule | None:
            if not is_weighted(step):
                return rules.default_rule(step)
            level = round(math.log2((map_side(step) or smallest) / smallest))
            return by_level[min(max(level, 0), len(by_level) - 1)]

        return Composite(name, choose)

    def refuse(step: Step) -> Rule | None:
        raise RuleError(f"{name} chooses by the whole tape: bind it with bind_to_tape(composite, tape)")

    return Composite(name, refuse, bind=bind, locate_remainder=bias == "position")


def map_side(step: Step) -> float | None:
    """Return the side in pixels of the feature map that a step with weights makes; None without one, or of one pixel.

    The map is (1, C, H, W) after a convolution and (1, H, W, C) after a linear layer, as in ConvNeXt.
    """
    shape = step.result.shape
    if not is_weighted(step) or len(shape) != 4:
        return None
    height, width = shape[2:] if is_convolution(step) else shape[1:3]
    return None if height * width == 1 else math.sqrt(height * width)


def bind_to_tape(composite: CompositeFunction, tape: Tape) -> CompositeFunction:
    """Return the composite for this tape; most composites look at single steps and are returned unchanged."""
    bind = getattr(composite, "bind", None)
    return composite if bind is None else bind(tape)


def secant(reference: ReferenceLike = "mean", *, gamma: float = 0.0) -> Composite:
    """Freeze every step to its secant between a reference input x₀ and x: Σ_I P_I = φ(x) − φ(x₀) exactly, without biases.

    With Δ = φ(x) − φ₀ and φ₀ = φ(x₀), a score consists of pairs, of each side with the other's reference, and of the
    references: ⟨Δ, Δ'⟩ + ⟨Δ, φ₀'⟩ + ⟨φ₀, Δ'⟩ + ⟨φ₀, φ₀'⟩.

    Args:
        reference: 'mean' (the mean colour of the image), 'blurred', 'zero', a tensor of the input's shape, or a function
            of the input.
        gamma: γ for weighted steps, applied to differences from the reference.

    >>> secant("blurred").name, secant(gamma=0.25).name
    ('secant(blurred)', 'secant(mean, 0.25)')
    """
    rule, reference_fn = rules.secant(gamma), as_reference(reference)
    name = reference_fn.name if gamma == 0 else f"{reference_fn.name}, {format_number(gamma)}"
    return Composite(f"secant({name})", lambda step: rule, reference_fn)


def transformer(gamma: float = 0.0) -> Composite:
    """For transformers: γ on linear steps; attention weights, 1/std of norms and f(a)/a of activations detached.

    This is the conservative propagation of Ali et al. 2022.
    """
    composite = uniform(gamma)
    return Composite(f"transformer({format_number(gamma)})", composite.choose_rule)


def attnlrp(gamma: float = 0.0) -> Composite:
    """AttnLRP (Achtibat et al. 2024): ¼ of attention to queries, ¼ to keys, ½ to values; other products in halves.

    Norms and activations have the rule `frozen`, as in `transformer`, and γ is for linear steps. Softmax is not
    homogeneous, so more is unattributed than with `transformer`: about half of the score on all-MiniLM-L6-v2.

    >>> attnlrp().name
    'attnlrp(0)'
    """
    weighted = rules.zero() if gamma == 0 else rules.gamma(gamma)

    def choose(step: Step) -> Rule | None:
        if is_weighted(step):
            return weighted
        if step.operation.kind == "attention":
            return split_attention()
        if step.operation.kind == "softmax":
            return rules.jacobian()
        if len(step.inputs) == 2 and step.operation.rule == "product" and not scaling(step):
            return split_product()
        return rules.default_rule(step)

    def scaling(step: Step) -> bool:
        """Return whether a factor is a scale of the other, e.g. of a norm, or both are one tensor: then it is detached."""
        return step.inputs[0] == step.inputs[1] or any(s.factor == "scale" for s in step.sources)

    return Composite(f"attnlrp({format_number(gamma)})", choose)


def centered(composite: CompositeLike) -> Composite:
    """Decompose φ(x) − μ‖φ(x)‖, with μ the mean of the normalized embeddings of unrelated inputs.

    μ is the encoder's `mean_embedding`, or computed from its `typical_inputs`. Some encoders give any two inputs a high
    cosine, because all embeddings point in one direction. μ is what they share: it is no longer attributed to regions but
    stays as the known part of `unattributed`, and the relevance of pairs adds up to what is specific to the two inputs,
    ⟨φ/‖φ‖ − μ, φ'/‖φ'‖ − μ⟩ for cosine. What the rules leave of φ(x) − μ‖φ(x)‖ is distributed evenly over the features of
    the input.

    Args:
        composite: The rules.

    >>> centered(transformer()).name
    'centered(transformer(0))'
    """
    inner = as_composite(composite)
    if composite_reference(inner) is not None:
        raise RuleError(f"{composite_name(inner)} has a reference input, so it cannot be centered as well")
    bound = getattr(inner, "bind", None)
    return Composite(
        f"centered({composite_name(inner)})",
        inner,
        None,
        None if bound is None else lambda tape: centered(bound(tape)),
        locates_remainder(inner),
        is_centered=True,
    )


def conv_attention(gamma: float = 0.25) -> Composite:
    """For networks with convolutions and attention: γ on convolutions, LRP-0 on linear steps, attention weights detached."""
    return Composite(f"conv_attention({format_number(gamma)})", resnet(gamma).choose_rule)


def first_match(*entries: tuple[Condition, Rule], otherwise: CompositeLike) -> Composite:
    """Extend a composite: use the rule of the first entry whose condition matches, else `otherwise`.

    Args:
        entries: Pairs (condition, rule). A condition is a glob pattern for the step's name or operation ('features.0',
            'layer4.*', 'softmax') or a function step → bool.
        otherwise: Composite for all other steps. If it is `centered`, so is the result.

    >>> first_match(("softmax", rules.jacobian()), otherwise=centered(transformer())).name
    'centered(first_match(softmax: jacobian, otherwise: transformer(0)))'
    """
    for entry in entries:
        check_entry(entry)
    rest = as_composite(otherwise)
    if isinstance(rest, Composite) and rest.is_centered:
        return centered(first_match(*entries, otherwise=rest.choose_rule))

    def choose(step: Step) -> Rule | None:
        return next((rule for condition, rule in entries if _matches(condition, step)), None) or rest(step)

    listed = ", ".join(f"{c if isinstance(c, str) else composite_name(c)}: {r.name}" for c, r in entries)
    bound = getattr(rest, "bind", None)
    return Composite(
        f"first_match({listed}, otherwise: {composite_name(rest)})",
        choose,
        composite_reference(rest),
        None if bound is None else lambda tape: first_match(*entries, otherwise=bound(tape)),
        locates_remainder(rest),
    )


def composite_reference(composite: CompositeFunction) -> Reference | None:
    """Return the reference input of a composite, or None."""
    return getattr(composite, "reference", None)


def locates_remainder(composite: CompositeFunction) -> bool:
    """Return whether the composite attributes what is left at the last feature map by position."""
    return bool(getattr(composite, "locate_remainder", False))


def is_centered(composite: CompositeFunction) -> bool:
    """Return whether the composite decomposes φ(x) − μ‖φ(x)‖, see `centered`."""
    return bool(getattr(composite, "is_centered", False))


def is_weighted(step: Step) -> bool:
    """Return whether a step is a linear layer or convolution with constant weights."""
    return extract_weights(step) is not None


def composite_name(composite: Callable[[Step], object]) -> str:
    """Return the name for a decomposition's origin; for a plain function its qualified name and a hash of its code."""
    name = getattr(composite, "name", None)
    return (
        name or f"{getattr(composite, '__qualname__', type(composite).__qualname__)} {hash_code(composite)}"
    )


def format_call(composite: CompositeFunction) -> str:
    """Return the Python expression that creates the composite, or '...' if it is unknown.

    >>> format_call(uniform(0.25)), format_call(secant("blurred")), format_call(first_match(otherwise=uniform()))
    ('bilrp.composites.uniform(0.25)', "bilrp.composites.secant('blurred')", '...')
    """
    name = getattr(composite, "name", "")
    if match := re.fullmatch(r"centered\((.+)\)", name):
        inner = format_call(Composite(match[1], composite))
        return "..." if inner == "..." else f"bilrp.composites.centered({inner})"
    if re.fullmatch(r"(uniform|transformer|resnet|bias_to_inputs|conv_attention|attnlrp)\([-.e\d]+\)", name):
        return f"bilrp.composites.{name}"
    if name in {"hessian_product", "paper_vgg"}:
        return f"bilrp.composites.{name}()"
    graded_gammas = re.fullmatch(r"graded\(([-.e\d, ]+)\)", name)
    if graded_gammas:
        return f"bilrp.composites.graded(({graded_gammas[1]}{',' * (',' not in graded_gammas[1])}))"
    match = re.fullmatch(r"secant\((mean|blurred|zero)\)", name)
    return f"bilrp.composites.secant('{match[1]}')" if match else "..."


def check_entry(entry: object) -> None:
    """Raise unless an entry is a pair of a condition and a rule."""
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise RuleError(
            "first_match takes pairs, as in first_match(('softmax', bilrp.rules.jacobian()), otherwise=composite), "
            f"got {type(entry).__name__} {to_printable(entry)[:60]}"
        )
    condition, rule = entry
    module = isinstance(condition, nn.Module) or (
        isinstance(condition, type) and issubclass(condition, nn.Module)
    )
    if module or not (isinstance(condition, str) or callable(condition)):
        raise RuleError(
            "a condition is a pattern for a step's name or operation ('layer4.*', 'conv2d') or a function step -> bool, "
            f"got {getattr(condition, '__name__', type(condition).__name__)}"
        )
    if not isinstance(rule, Rule):
        name = getattr(rule, "__name__", type(rule).__name__)
        ours = callable(rule) and getattr(rules, name, None) is rule
        advice = (
            f"call it, as in bilrp.rules.{name}()" if ours else "a rule is bilrp.rules.Rule(name, function)"
        )
        raise RuleError(
            f"the rule for {condition!r} is not a rule but {type(rule).__name__} {name}: {advice}"
        )


def as_composite(composite_or_rule: object) -> CompositeFunction:
    """Return a composite; a single rule applies to weighted steps, with default rules elsewhere."""
    if not isinstance(composite_or_rule, Rule):
        if not callable(composite_or_rule):
            raise RuleError(
                f"a composite is a rule, or a function step -> rule such as bilrp.composites.uniform(0.25), "
                f"got {type(composite_or_rule).__name__}"
            )
        return cast("CompositeFunction", composite_or_rule)
    return Composite(
        composite_or_rule.name,
        lambda step: composite_or_rule if is_weighted(step) else rules.default_rule(step),
    )


def _matches(condition: Condition, step: Step) -> bool:
    if callable(condition):
        return condition(step)
    return fnmatchcase(step.name, condition) or fnmatchcase(step.op, condition)
