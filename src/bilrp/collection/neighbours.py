"""`Neighbour`: an item near a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Neighbour:
    """An item near a query, with its score; `share`, `text` and `metadata` are read on first access."""

    id: str
    name: str
    score: float
    position: int
    _share: Callable[[], Tensor] = field(repr=False)
    _row: Callable[[], Mapping[str, Any]] = field(repr=False)

    @property
    def text(self) -> str | None:
        """The whole text; None for an image."""
        return self._row()["text"]

    @property
    def group(self) -> str:
        """The group of the item: its folder, or its value in the column of groups; '' without one."""
        return self._row()["group"]

    @property
    def metadata(self) -> dict[str, Any]:
        """The other columns of the item's record."""
        return {name: value for name, value in self._row().items() if name not in ("text", "group")}

    @cached_property
    def share(self) -> Float[Tensor, " regions"]:
        """⟨P_I, φ(x')⟩ of each region I of the query; with the unattributed remainder they sum to the dot product."""
        return self._share()
