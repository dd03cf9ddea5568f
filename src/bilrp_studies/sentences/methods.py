"""The methods compared: what each finds on the pairs of words of two sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp import composites
from bilrp.decomposition import Decomposition, decompose
from bilrp.encoders.sentence_encoder import Sentence
from bilrp.evaluation.baselines import integrated_hessians
from bilrp.rules.composites import Book
from bilrp_studies.sentences.word_subsets import Subject

Parts = Float[Tensor, "words h"]
Relevance = Float[Tensor, "words_a words_b"]
OURS = "transformer(0)"


@dataclass(frozen=True, eq=False)
class Found:
    """Relevance on pairs of words; for rules also the account: shares of the score by what they lie on."""

    relevance: Relevance
    account: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A name, what it is in words, and what it finds on two sentences. Rules also take one sentence apart, as a `whole`."""

    name: str
    about: str
    found: Callable[[Subject, Subject], Found]
    whole: Callable[[Subject], Decomposition] | None = None


def methods(path: int) -> list[Method]:
    """All of them; `path` is the number of points of integrated Jacobians."""
    return [
        by_rules(OURS, "LRP-0, attention, norms and activations frozen", composites.transformer(0)),
        by_rules(
            "transformer(0), sum",
            "the same, positions counted with their words",
            composites.transformer(0),
            positions=True,
        ),
        by_rules("γ = 0.25", "LRP-γ on every linear step, all else frozen", composites.uniform(0.25)),
        by_rules("AttnLRP", "¼ of attention to queries, ¼ to keys, ½ to values", composites.attnlrp()),
        by_rules("Hessian×Product", "true gradients", composites.hessian_product()),
        integrated(path),
        each("occlusion", "what is lost when one word of each sentence is deleted", occlusion),
        each("hidden states", "products of the last hidden states", hidden),
    ]


def by_rules(name: str, about: str, book: Book, *, positions: bool = False) -> Method:
    """BiLRP under a rule book; with `positions`, what positions contribute counts with their words."""

    def whole(subject: Subject) -> Decomposition:
        encoder = subject.with_positions if positions else subject.encoder
        return decompose(encoder, subject.text, rules=book)

    def found(a: Subject, b: Subject) -> Found:
        left, right = whole(a), whole(b)
        every = (left.parts @ right.parts.T).double()
        on_words = every[a.words][:, b.words]
        score, inside, on_all = (
            float(x) for x in (left.embedding @ right.embedding, on_words.sum(), every.sum())
        )
        account = {
            "words": inside / score,
            "marks": (on_all - inside) / score,
            "unattributed": 1 - on_all / score,
        }
        return Found(on_words, account)

    return Method(name, about, found, whole)


def each(name: str, about: str, parts: Callable[[Subject], Parts]) -> Method:
    """A method that looks at one sentence at a time."""
    return Method(name, about, lambda a, b: Found(parts(a) @ parts(b).T))


def integrated(steps: int) -> Method:
    """Integrated Jacobians from the zero vector, as xsbert's, but exact on every layer."""

    def found(a: Subject, b: Subject) -> Found:
        every = integrated_hessians(a.encoder, a.text, b.text, steps=steps).relevance.double()
        return Found(every[a.words][:, b.words])

    return Method("integrated Jacobians", f"gradients along the way from zero, {steps} points", found)


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
