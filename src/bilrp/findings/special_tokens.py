"""The tokenizer's own marks, [CLS] or </s>: which regions are none, and regions without them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bilrp.inputs import Text, View
from bilrp.regions import Regions


def exclude_special_tokens(regions: Regions, view: View | None) -> list[int]:
    """The regions that are no mark; all, where there is nothing else.

    >>> from bilrp.regions import tokens
    >>> exclude_special_tokens(tokens()(torch.zeros(1, 4, 2)), Text("A cat", (None, (0, 1), (2, 5), None)))
    [1, 2]
    """
    own = set(view.special_tokens) if isinstance(view, Text) else set()
    every = range(regions.count)
    return [region for region in every if region not in own] or list(every)


def select_regions(regions: Regions, selected: Sequence[int]) -> Regions:
    """These regions alone, in this order; the features of the others are in none.

    >>> from bilrp.regions import tokens
    >>> select_regions(tokens(("[CLS]", "cat"))(torch.zeros(1, 2, 3)), [1]).names
    ('cat',)
    """
    if len(selected) == regions.count:
        return regions
    place = torch.full((regions.count + 1,), -1, device=regions.labels.device)  # the last: in no region
    place[list(selected)] = torch.arange(len(selected), device=place.device)
    boxes = None if regions.boxes is None else regions.boxes[list(selected)]
    names = None if regions.names is None else tuple(regions.names[region] for region in selected)
    return Regions(place[regions.labels], len(selected), regions.kind, boxes, names)
