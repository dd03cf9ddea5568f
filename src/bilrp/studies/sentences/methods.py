"""The methods compared: each takes an embedding apart into its words, so that a pair is a product of parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp import rulebooks
from bilrp.decomposition import Decomposition, decompose
from bilrp.encoders.sentences import Sentence
from bilrp.judge.baselines import integrated_hessians
from bilrp.rules.books import Book
from bilrp.studies.sentences.subject import Subject

Parts = Float[Tensor, "words h"]
OURS = "transformer(0)"
SHAPLEY = "Shapley"


@dataclass(frozen=True)
class Method:
    """A name, what it is in words, and the parts of two sentences. `whole`, for rules, also has what is left over."""

    name: str
    about: str
    parts: Callable[[Subject, Subject], tuple[Parts, Parts]]
    whole: Callable[[Subject], Decomposition] | None = None


def methods(path: int) -> list[Method]:
    """All of them; `path` is the number of points of integrated Jacobians."""
    return [
        by_rules(OURS, "LRP-0, attention, norms and activations frozen", rulebooks.transformer(0)),
        by_rules(
            "transformer(0), sum",
            "the same, positions counted with their words",
            rulebooks.transformer(0),
            positions=True,
        ),
        by_rules("γ = 0.25", "LRP-γ on every linear step, all else frozen", rulebooks.uniform(0.25)),
        by_rules("AttnLRP", "¼ of attention to queries, ¼ to keys, ½ to values", rulebooks.attnlrp()),
        by_rules("Hessian×Product", "true gradients", rulebooks.hessian_product()),
        integrated(path),
        each("occlusion", "what is lost when one word of each sentence is deleted", occlusion),
        each("hidden states", "products of the last hidden states", hidden),
    ]


def by_rules(name: str, about: str, book: Book, *, positions: bool = False) -> Method:
    """BiLRP under a rule book; with `positions`, what positions contribute counts with their words."""

    def whole(subject: Subject) -> Decomposition:
        encoder = subject.with_positions if positions else subject.encoder
        return decompose(encoder, subject.text, rules=book)

    def parts(subject: Subject) -> Parts:
        return whole(subject).parts[subject.words].double()

    return Method(name, about, lambda a, b: (parts(a), parts(b)), whole)


def each(name: str, about: str, parts: Callable[[Subject], Parts]) -> Method:
    """A method that looks at one sentence at a time."""
    return Method(name, about, lambda a, b: (parts(a), parts(b)))


def integrated(steps: int) -> Method:
    """Integrated Jacobians from the zero vector, as xsbert's, but exact on every layer."""

    def parts(a: Subject, b: Subject) -> tuple[Parts, Parts]:
        found = integrated_hessians(a.encoder, a.text, b.text, steps=steps)
        return found.a.parts[a.words].double(), found.b.parts[b.words].double()

    return Method("integrated Jacobians", f"gradients along the way from zero, {steps} points", parts)


def occlusion(subject: Subject) -> Parts:
    """φ − φ without the word, for each word."""
    without = ~torch.eye(len(subject.words), dtype=torch.bool)
    return (subject.whole - subject.embed(without)).double()


def hidden(subject: Subject) -> Parts:
    """The last hidden states of each word's tokens, as the pooling weighs them: nothing of the layers below."""
    module = subject.encoder.module
    assert isinstance(module, Sentence)
    with torch.no_grad():
        states = module.hidden(subject.item.x)[0].double()
    words = states.new_zeros(len(subject.words), states.shape[1])
    inside = subject.owner >= 0
    return words.index_add_(0, subject.owner[inside], states[inside]) / len(states)
