"""Exclude the special tokens of a tokenizer ([CLS], </s>) from regions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bilrp.inputs import Text, View
from bilrp.regions import Regions


def exclude_special_tokens(regions: Regions, view: View | None) -> list[int]:
    """Return the numbers of the regions that are not special tokens; all, if every region is one."""
    special = set(view.special_tokens) if isinstance(view, Text) else set()
    every = range(regions.count)
    return [region for region in every if region not in special] or list(every)


def select_regions(regions: Regions, selected: Sequence[int]) -> Regions:
    """Return only these regions, in this order; features of the others are in no region."""
    if len(selected) == regions.count:
        return regions
    new_label = torch.full((regions.count + 1,), -1, device=regions.labels.device)  # the last: label −1
    new_label[list(selected)] = torch.arange(len(selected), device=new_label.device)
    boxes = None if regions.boxes is None else regions.boxes[list(selected)]
    names = None if regions.names is None else tuple(regions.names[region] for region in selected)
    return Regions(new_label[regions.labels], len(selected), regions.kind, boxes, names)
