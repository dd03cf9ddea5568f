"""What searches of a collection take and return: `Query`, `Neighbour`, `MeanContrast`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from torch import Tensor

from bilrp.collection.table_rows import Scalar
from bilrp.decomposition import Decomposition
from bilrp.encoder import InputLike
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

Query: TypeAlias = int | InputLike | Decomposition
"""A position, an id, a path, anything the encoder reads, or a decomposition of it."""


class ItemRow(NamedTuple):
    """What is stored of an item besides its name: its text, None for an image, its group, and the other columns."""

    text: str | None
    group: str
    metadata: dict[str, Scalar]


@dataclass(frozen=True, eq=False)
class Neighbour:
    """An item near a query, with its score; `share`, `text` and `metadata` are read on first access."""

    id: str
    name: str
    score: float
    position: int
    _share: Callable[[], Tensor] = field(repr=False)
    _row: Callable[[], ItemRow] = field(repr=False)

    @property
    def text(self) -> str | None:
        """The whole text; None for an image."""
        return self._row().text

    @property
    def group(self) -> str:
        """The group of the item: its folder, or its value in the column of groups; '' without one."""
        return self._row().group

    @property
    def metadata(self) -> dict[str, Scalar]:
        """The other columns of the item's record."""
        return dict(self._row().metadata)

    @cached_property
    def share(self) -> Float[Tensor, " regions"]:
        """⟨P_I, φ(x')⟩ of each region I of the query; with the unattributed remainder they sum to the dot product."""
        return self._share()


@dataclass(frozen=True, eq=False)
class MeanContrast:
    """The direction m₁ − m₂ between the mean embeddings of two groups."""

    direction: Float[Tensor, " h"]
    _share: Callable[[Query], Tensor] = field(repr=False)

    def share(self, query: Query) -> Float[Tensor, " regions"]:
        """Return ⟨P_I, m₁ − m₂⟩: positive if region I of the query resembles the first group more than the second."""
        return self._share(query)


def make_neighbours(
    collection: Collection, positions: np.ndarray, scores: np.ndarray, share: Callable[[int], Tensor]
) -> list[Neighbour]:
    """Return the neighbours at some positions; their texts and metadata are read together, on first access.

    Args:
        collection: The collection.
        positions: Positions of the items, best first.
        scores: Their scores.
        share: Position → what each region of the query contributes.
    """
    numbers = [int(position) for position in positions]
    rows = cache(partial(collection.read_rows, numbers))
    return [
        Neighbour(
            collection.ids[i], collection.names[i], float(score), i, partial(share, i), lambda n=n: rows()[n]
        )
        for n, (i, score) in enumerate(zip(numbers, scores, strict=True))
    ]


def check_count(k: object) -> None:
    """Raise `InputError` unless k is a number of neighbours: a whole number of at least 1."""
    if not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number and at least 1, got {k!r}")
