"""The tokenizer's own marks, [CLS] or </s>: which regions are none, and regions without them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bilrp.inputs import Text, View
from bilrp.regions import Regions


def unmarked(regions: Regions, view: View | None) -> list[int]:
    """The regions that are no mark; all, where there is nothing else.

    >>> from bilrp.regions import tokens
    >>> unmarked(tokens()(torch.zeros(1, 4, 2)), Text("A cat", (None, (0, 1), (2, 5), None)))
    [1, 2]
    """
    own = set(view.marks) if isinstance(view, Text) else set()
    every = range(regions.count)
    return [region for region in every if region not in own] or list(every)


def only(regions: Regions, kept: Sequence[int]) -> Regions:
    """These regions alone, in this order; the features of the others are in none.

    >>> from bilrp.regions import tokens
    >>> only(tokens(("[CLS]", "cat"))(torch.zeros(1, 2, 3)), [1]).names
    ('cat',)
    """
    if len(kept) == regions.count:
        return regions
    place = torch.full((regions.count + 1,), -1, device=regions.labels.device)  # the last: in no region
    place[list(kept)] = torch.arange(len(kept), device=place.device)
    boxes = None if regions.boxes is None else regions.boxes[list(kept)]
    names = None if regions.names is None else tuple(regions.names[region] for region in kept)
    return Regions(place[regions.labels], len(kept), regions.kind, boxes, names)
