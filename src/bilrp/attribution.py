"""Attribution: what each region of one input contributes to its similarity with a whole other input, by one pull."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.encoder import (
    MODEL_RUN_LOCK,
    CompositeLike,
    Encoder,
    EncoderOrPair,
    InputLike,
    load_named,
    read_item,
    resolve_encoders,
)
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Item, Text, View
from bilrp.pipeline import PreparedInput, check_embedding, prepare
from bilrp.regions import Regions, RegionSpec
from bilrp.similarity import Similarity, resolve_similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Targets: TypeAlias = InputLike | Sequence[InputLike]
"""What an input is compared with: an input, an embedding [h], or many of either (a list, or a tensor [n, h])."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of the original text, and what they contribute.

    >>> Span(2, 5, "cat", 0.5).text
    'cat'
    """

    start: int
    end: int
    text: str
    weight: float


@dataclass(frozen=True, eq=False)
class Attribution:
    """score = values.sum(0) + unattributed: the contribution of each region of x to its similarity with y.

    Args:
        values: [regions], or [regions, n] for n inputs or embeddings y.
        score: the similarity; [n] for many.
        regions: the regions of x.
        similarity: its name.
        view: the image or text of x, to show.
        name: of x, to show.
    """

    values: Float[Tensor, "regions ..."]
    score: float | Float[Tensor, " n"]
    regions: Regions
    similarity: str = "dot"
    view: View | None = field(default=None, repr=False)
    name: str = ""

    @property
    def unattributed(self) -> Any:
        """What no region of x contributes: biases, constants, a reference, features in no region; [n] for many."""
        if isinstance(self.score, Tensor):
            return self.score - self.values.sum(0)
        return self.score - float(self.values.double().sum())

    @property
    def span_regions(self) -> list[int]:
        """The regions that have characters, in the order of `spans`; those of special tokens have none."""
        spans = self._text.spans
        return [region for region, span in enumerate(spans) if span is not None]

    def spans(self, column: int | None = None) -> list[Span]:
        """Return each region of a text as characters of the original text; special tokens ([CLS]) have none.

        Args:
            column: which of n inputs or embeddings y, where there are many.

        >>> text = Text("A cat", (None, (0, 1), (2, 5)))
        >>> regions = Regions(torch.arange(3)[:, None], 3, "words")
        >>> Attribution(torch.tensor([0.0, 0.25, 0.5]), 1.0, regions, view=text).spans()[1]
        Span(start=2, end=5, text='cat', weight=0.5)
        """
        values, view = self.column(column).tolist(), self._text
        return [
            Span(*span, view.text[slice(*span)], value)
            for span, value in zip(view.spans, values, strict=True)
            if span is not None
        ]

    def column(self, number: int | None = None) -> Float[Tensor, " regions"]:
        """Return the values for one y; of n, that with this number."""
        if self.values.dim() == 1:
            return self.values
        if number is None and self.values.shape[1] > 1:
            raise InputError(f"there are values for {self.values.shape[1]} targets: say which, e.g. column=0")
        return self.values[:, number or 0]

    def plot(self, *, column: int | None = None, title: str | None = None, palette: str = "paper") -> Figure:
        """Draw the values on the image or text of x: red raises the score, blue lowers it.

        Args:
            column: which of n inputs or embeddings y, where there are many.
            title: heading of the figure.
            palette: "paper" or "safe" (colour-blind safe).
        """
        from bilrp.render import attribution_figure

        return attribution_figure.plot(self, column=column, title=title, palette=palette)

    def _repr_html_(self) -> str:
        from bilrp.render import attribution_figure

        return attribution_figure.render_html(self)

    @property
    def _text(self) -> Text:
        if isinstance(self.view, Text):
            return self.view
        raise InputError(
            "spans are characters of a text, and this input is none, or its regions cut tokens: use values"
        )

    def __repr__(self) -> str:
        score = f"{len(self.score)} scores" if isinstance(self.score, Tensor) else f"{self.score:.6g}"
        return f"Attribution({self.similarity} = {score}, {self.regions.count} regions)"


def attribute(
    encoder: EncoderOrPair,
    x: InputLike,
    y: Targets,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpec | None = None,
    composite: CompositeLike | None = None,
) -> Attribution:
    """Attribute the similarity of x with y to the regions of x, by one backward sweep over the recorded run of x.

    values[I] = ⟨P_I(x), v⟩, where v is what the similarity pairs φ(x) with: φ(y) for the dot product,
    φ(y) / (‖φ(x)‖‖φ(y)‖) for cosine. y is not decomposed. With u' the unattributed vector of y, the same values are the
    rows of the two-sided relevance R and what u' contributes: values[I] = Σ_J R[I, J] + ⟨P_I(x), u'⟩ for dot. So they
    equal the row sums of `bilrp.explain` where y has nothing unattributed, and
    `explain(x, y).unattributed` = `attribute(x, y).unattributed` + Σ_I ⟨P_I(x), u'⟩.

    Args:
        encoder: as for `bilrp.explain`; of a tuple of two, the second reads y.
        x: the input whose regions are weighted: a tensor with a batch axis of 1, or anything that the encoder reads.
        y: an input, an embedding [h], or many of them: a list, or a tensor or array [n, h]. A tensor [1, h] that has the
            shape of x is an input.
        similarity: a name or a Similarity that is linear in φ(x); None is the encoder's own, else cosine.
        regions: the regions of x; None is the encoder's default.
        composite: the rules; None is the encoder's default.

    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.ReLU())
    >>> one, many = attribute(net, torch.rand(1, 4), torch.rand(1, 4)), attribute(net, torch.rand(1, 4), torch.rand(3, 8))
    >>> one.values.shape, many.values.shape, abs(one.unattributed) < 1e-5
    (torch.Size([4]), torch.Size([4, 3]), True)
    """
    loaded = load_named(encoder)
    reader = resolve_encoders(loaded, x, x)[0]
    item = read_item(reader, x)
    ready = prepare(reader, item, regions=regions, composite=composite)
    embedding, many = ready.embeddings[None], isinstance(y, list | tuple)
    embedded = [_embed_target(loaded, item, each, embedding.numel()) for each in (y if many else [y])]  # type: ignore[union-attr]
    targets = [target for vectors, _ in embedded for target in vectors]
    if not targets:
        raise InputError("there is nothing to compare with: give at least one input or embedding")
    readers = [owner for _, owner in embedded if owner is not None]
    chosen = resolve_similarity(similarity, *(each.similarity for each in (reader, *readers)))
    forms = [make_form(chosen, embedding, target) for target in targets]
    values = ready.pull(torch.cat([form.vectors(0) for form in forms]))
    is_table = not many and not readers and getattr(y, "ndim", 1) == 2
    return make_attribution(ready, values if many or is_table else values[:, 0], forms)


def make_attribution(ready: PreparedInput, values: Tensor, forms: Sequence[LinearForm]) -> Attribution:
    """Return the attribution of a prepared input.

    Args:
        ready: The input with its rules applied.
        values: Relevance [regions] of one form, or [regions, n] of n forms.
        forms: The forms that were pulled.
    """
    scores = [form.score for form in forms]
    score = scores[0] if values.dim() == 1 else torch.tensor(scores, dtype=torch.float64).to(values)
    return Attribution(values, score, ready.regions, forms[0].name, ready.item.view, ready.item.name)


@dataclass(frozen=True, eq=False)
class LinearForm:
    """A similarity of two embeddings as a linear form of either, with the other held fixed: score = ⟨φ, vectors⟩."""

    similarity: Similarity
    embeddings: tuple[Tensor, Tensor]

    @property
    def name(self) -> str:
        return self.similarity.name

    @property
    def score(self) -> float:
        return self.similarity.score(*self.embeddings)

    def vectors(
        self, side: Literal[0, 1], rows: Float[Tensor, "k other"] | None = None
    ) -> Float[Tensor, "k h"]:
        """Return v with ⟨P, v⟩ = the relevance of a part P of this side with each row of the other's parts.

        Args:
            side: 0 for the first embedding, 1 for the second.
            rows: parts of the other side; None is its whole embedding.
        """
        with torch.inference_mode(False), torch.enable_grad():
            a, b = (t.detach().clone() for t in self.embeddings)
            others = (a, b)[1 - side][None] if rows is None else rows.detach().clone()
            # The relevance is linear in P, so its gradient at any P is v; one P for each row.
            at = torch.zeros_like((a, b)[side]).expand(len(others), -1).clone().requires_grad_()
            sides = (at, others) if side == 0 else (others, at)
            relevance = self.similarity.relevance_fn(a, b)(*sides).diagonal().sum()
            return torch.autograd.grad(relevance, at)[0]


def make_form(similarity: Similarity, a: Tensor, b: Tensor) -> LinearForm:
    """Return the form of a similarity at two embeddings.

    Args:
        similarity: A similarity that is linear in either embedding with the other held fixed; others are refused.
        a, b: The embeddings, of any shape.
    """
    if similarity.has_self_terms:
        raise InputError(
            f"{similarity.name} is not linear in one embedding with the other held fixed, so one input alone has no "
            "attribution: use bilrp.explain, or similarity='cosine' or 'dot'"
        )
    if a.numel() != b.numel() and not similarity.any_size:
        raise MismatchError(
            f"the embeddings have {a.numel()} and {b.numel()} coordinates: give inputs of one size, or an encoder that pools"
        )
    return LinearForm(similarity.for_shapes(tuple(a.shape), tuple(b.shape)), (a.flatten(), b.flatten().to(a)))


def embed_item(encoder: Encoder, item: Item) -> Tensor:
    """Return the embedding of an input that was read, by one forward pass."""
    with torch.no_grad(), MODEL_RUN_LOCK:
        embedding = encoder.forward_fn(item.model_input)(item.x)
    check_embedding(embedding)
    return embedding


def _embed_target(
    encoder: EncoderOrPair, item: Item, y: InputLike, size: int
) -> tuple[list[Tensor], Encoder | None]:
    """Return the embeddings in y, or that of the input y with the encoder that read it.

    Args:
        encoder: reads x and y.
        item: x.
        y: an input, an embedding [size], or embeddings [n, size].
        size: the number of coordinates of φ(x).
    """
    if isinstance(y, np.ndarray) and y.dtype.kind == "f" and y.ndim <= 2:
        y = torch.from_numpy(y)
    if isinstance(y, Tensor) and y.dim() <= 2 and y.shape != item.x.shape:
        if y.dim() == 1 or y.shape[1] == size:
            return list(y) if y.dim() == 2 else [y], None
        if len(y) != 1:
            raise MismatchError(
                f"the embeddings of shape {tuple(y.shape)} do not belong to an encoder of {size} coordinates"
            )
    reader = resolve_encoders(encoder, item, y)[1]
    return [embed_item(reader, read_item(reader, y))], reader
