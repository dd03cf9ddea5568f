"""The compared methods: each computes relevance on the pairs of words of two sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp import composites
from bilrp.decomposition import Decomposition
from bilrp.encoders.sentence_encoder import SentenceModel
from bilrp.evaluation.baselines import integrated_hessians
from bilrp.pipeline import decompose
from bilrp.rules.composites import Composite
from bilrp_studies.common.word_subsets import StudySentence

Parts = Float[Tensor, "words h"]
Relevance = Float[Tensor, "words_a words_b"]
OUR_METHOD = "transformer(0)"


@dataclass(frozen=True, eq=False)
class PairRelevance:
    """Relevance on pairs of words; for composites also the shares of the score on words, special tokens and unattributed."""

    relevance: Relevance
    score_shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method's name, its description for the report, and its function (sentence, sentence) → relevance.

    `decompose` decomposes one sentence; only methods based on a composite have it.
    """

    name: str
    description: str
    explain: Callable[[StudySentence, StudySentence], PairRelevance]
    decompose: Callable[[StudySentence], Decomposition] | None = None


def all_methods(integration_steps: int) -> list[Method]:
    """Return all methods; `integration_steps` is the number of points of integrated Jacobians."""
    return [
        composite_method(
            OUR_METHOD,
            "LRP-0; attention weights, scales of norms and activations detached",
            composites.transformer(0),
        ),
        composite_method(
            "transformer(0), sum",
            "the same, positions counted with their words",
            composites.transformer(0),
            with_positions=True,
        ),
        composite_method(
            "γ = 0.25", "LRP-γ on every linear step, all else the same", composites.uniform(0.25)
        ),
        composite_method(
            "AttnLRP", "¼ of attention to queries, ¼ to keys, ½ to values", composites.attnlrp()
        ),
        composite_method("Hessian×Product", "true gradients", composites.hessian_product()),
        integrated_jacobians(integration_steps),
        one_sided_method("occlusion", "what is lost when one word of each sentence is deleted", occlusion),
        one_sided_method("hidden states", "products of the last hidden states", hidden_states),
    ]


def composite_method(
    name: str, description: str, composite: Composite, *, with_positions: bool = False
) -> Method:
    """Return BiLRP with a composite as a method.

    Args:
        name: Name of the method.
        description: Description for the report.
        composite: The rules.
        with_positions: Attribute position embeddings to their words.
    """

    def whole(subject: StudySentence) -> Decomposition:
        encoder = subject.with_positions if with_positions else subject.encoder
        return decompose(encoder, subject.text, composite=composite)

    def found(a: StudySentence, b: StudySentence) -> PairRelevance:
        left, right = whole(a), whole(b)
        every = (left.parts @ right.parts.T).double()
        on_words = every[a.words][:, b.words]
        score, inside, on_all = (
            float(x) for x in (left.embedding @ right.embedding, on_words.sum(), every.sum())
        )
        shares = {
            "words": inside / score,
            "special tokens": (on_all - inside) / score,
            "unattributed": 1 - on_all / score,
        }
        return PairRelevance(on_words, shares)

    return Method(name, description, found, whole)


def one_sided_method(name: str, description: str, compute_parts: Callable[[StudySentence], Parts]) -> Method:
    """Return a method that computes parts of one sentence at a time; relevance is the product of two sentences' parts.

    Args:
        name: Name of the method.
        description: Description for the report.
        compute_parts: Returns the parts [words, h] of a sentence.
    """
    return Method(name, description, lambda a, b: PairRelevance(compute_parts(a) @ compute_parts(b).T))


def integrated_jacobians(steps: int) -> Method:
    """Integrated Jacobians from the zero vector as in xsbert, but exact at every layer."""

    def found(a: StudySentence, b: StudySentence) -> PairRelevance:
        every = integrated_hessians(
            a.encoder, a.text, b.text, steps=steps, similarity="dot"
        ).relevance.double()
        return PairRelevance(every[a.words][:, b.words])

    return Method("integrated Jacobians", f"gradients along the way from zero, {steps} points", found)


def occlusion(sentence: StudySentence) -> Parts:
    """Return φ minus φ without the word, for each word."""
    without = ~torch.eye(len(sentence.words), dtype=torch.bool)
    return (sentence.embedding - sentence.embed(without)).double()


def hidden_states(sentence: StudySentence) -> Parts:
    """Return the last hidden states summed over each word's tokens, weighted like mean pooling; ignores the lower layers."""
    module = sentence.encoder.module
    assert isinstance(module, SentenceModel)
    with torch.no_grad():
        states = module.encode_tokens(sentence.encoder_input.x)[0].double()
    words = states.new_zeros(len(sentence.words), states.shape[1])
    inside = sentence.word_of_token >= 0
    return words.index_add_(0, sentence.word_of_token[inside], states[inside]) / len(states)
