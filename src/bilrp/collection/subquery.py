"""A query that is nothing but a part of an item, or all but that part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bilrp.decomposition import Decomposition
from bilrp.findings.special_tokens import select_regions
from bilrp.inputs import Text


def restrict_query(
    decomposition: Decomposition, *, part: Sequence[int] | None = None, without: Sequence[int] | None = None
) -> Decomposition:
    """A query that is nothing but a part: φ is Σ_{I ∈ part} P_I; without one, φ − Σ_{I ∈ without} P_I.

    >>> import torch
    >>> from bilrp import decompose
    >>> whole = decompose(torch.nn.Flatten(), torch.rand(1, 1, 2, 2), regions=1)
    >>> bool(torch.equal(restrict_query(whole, part=[1]).embedding, whole.parts[1]))
    True
    """
    out = set(without or ())
    stay = [r for r in (range(decomposition.regions.count) if part is None else part) if r not in out]
    parts, view = decomposition.parts[stay], decomposition.view
    if isinstance(view, Text):
        view = Text(view.text, tuple(view.spans[region] for region in stay))
    rest = decomposition.embedding - decomposition.parts[sorted(out)].sum(0) if part is None else parts.sum(0)
    return replace(
        decomposition,
        parts=parts,
        embedding=rest,
        regions=select_regions(decomposition.regions, stay),
        view=view,
    )
