"""One sentence of the study: its words, the embedding of any subset of them, and exact Shapley values.

Words are deleted, not masked: two sentences full of [MASK] are similar because of their masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bilrp.encoder import Encoder
from bilrp.inputs import Item, Text
from bilrp.regions import Regions

BATCH_SUBSETS = 128  # subsets per forward pass


@dataclass(frozen=True, eq=False)
class StudySentence:
    """A sentence with an encoder, and with the variant whose input includes the position embeddings."""

    encoder: Encoder
    with_positions: Encoder
    text: str
    _embeddings: dict[tuple[bool, ...], Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def encoder_input(self) -> Item:
        """The sentence as read by the encoder; its regions are words and special tokens."""
        return read_text(self.encoder, self.text)

    @cached_property
    def words(self) -> list[int]:
        """The regions that are words; the others are special tokens."""
        assert isinstance(self.encoder_input.view, Text)
        return [region for region, span in enumerate(self.encoder_input.view.spans) if span is not None]

    @property
    def names(self) -> list[str]:
        """The words as text."""
        assert isinstance(self.encoder_input.view, Text)
        return [self.encoder_input.view.region_texts[region] for region in self.words]

    @cached_property
    def word_of_token(self) -> Tensor:
        """Index of the word that each token belongs to; −1 for special tokens."""
        position = {region: word for word, region in enumerate(self.words)}
        assert isinstance(self.encoder_input.regions, Regions)
        return torch.tensor(
            [position.get(int(label), -1) for label in self.encoder_input.regions.labels[:, 0]]
        )

    @cached_property
    def embedding(self) -> Float[Tensor, " h"]:
        """φ of the whole sentence."""
        return self.embed(torch.ones(1, len(self.words), dtype=torch.bool))[0]

    def embed(self, subsets: Bool[Tensor, "selections words"]) -> Float[Tensor, "selections h"]:
        """Return φ of the sentence reduced to each subset of words; special tokens are kept. Embeddings are cached."""
        rows = [tuple(row) for row in subsets.tolist()]
        new = torch.tensor(sorted({row for row in rows if row not in self._embeddings}), dtype=torch.bool)
        if len(new):
            self._embeddings.update(zip(map(tuple, new.tolist()), self._embed_new(new), strict=True))
        return torch.stack([self._embeddings[row] for row in rows])

    def _embed_new(self, subsets: Bool[Tensor, "selections words"]) -> Float[Tensor, "selections h"]:
        """Embed subsets in batches of equal token count."""
        tokens = torch.where(self.word_of_token >= 0, subsets[:, self.word_of_token.clamp(min=0)], True)
        sizes = tokens.sum(1)
        result: dict[int, Tensor] = {}
        with torch.no_grad():
            for size in sizes.unique():
                rows = (sizes == size).nonzero()[:, 0]
                for block in rows.split(BATCH_SUBSETS):
                    x = torch.stack([self.encoder_input.x[0][tokens[row]] for row in block])
                    result |= dict(zip(block.tolist(), self.encoder.module(x), strict=True))
        return torch.stack([result[row] for row in range(len(subsets))])

    @cached_property
    def all_subsets(self) -> tuple[Bool[Tensor, "selections words"], Float[Tensor, "selections h"]]:
        """All 2ⁿ subsets of words (subset s keeps the words of its 1 bits), and their embeddings in float64."""
        count = len(self.words)
        mask = (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1
        return mask, self.embed(mask).double()

    def shapley_values(self) -> Float[Tensor, "words h"]:
        """Exact Shapley values of every coordinate: Σ_S |S|! (n−|S|−1)! / n! · (φ(S ∪ w) − φ(S)).

        ⟨φ, φ'⟩ is bilinear, so the product of two sentences' values is the exact value of each pair of words.
        """
        mask, embedded = self.all_subsets
        count = mask.shape[1]
        sizes = mask.sum(1)
        weights = torch.tensor(
            [math.factorial(k) * math.factorial(count - k - 1) / math.factorial(count) for k in range(count)],
            dtype=torch.float64,
        )
        items = []
        for word in range(count):
            without = (~mask[:, word]).nonzero()[:, 0]
            gain = embedded[without + 2**word] - embedded[without]
            items.append(weights[sizes[without]] @ gain)
        return torch.stack(items)

    def sample_shapley_values(self, orders: int, *, seed: int = 0) -> Float[Tensor, "words h"]:
        """Estimate Shapley values by what each word adds in random orders of all words, and in the same orders backwards.

        Unbiased (Castro et al. 2009), and exact in sum: the values add up to φ of the sentence − φ without words.

        Args:
            orders: number of random orders.
            seed: seed of the orders.
        """
        count = len(self.words)
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randperm(count, generator=generator) for _ in range(orders)]
        total = None
        for order in [each for one in drawn for each in (one, one.flip(0))]:
            place = order.argsort()
            embedded = self.embed(place[None] < torch.arange(count + 1)[:, None]).double()
            gains = embedded.diff(dim=0)[place]
            total = gains if total is None else total + gains
        assert total is not None, "at least one order"
        return total / (2 * orders)


def read_text(encoder: Encoder, text: str) -> Item:
    """Return the text as an item of a text encoder."""
    assert encoder.read is not None
    item = encoder.read(text)
    assert isinstance(item, Item)
    return item
