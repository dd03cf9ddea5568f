"""Correctness of an explanation: the share of its relevance that links regions with the same bigram."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from bilrp_studies.tables.page_layout import LAYOUT_SCALE
from bilrp_studies.tables.table_blocks import TableBlock

DIGIT_REACH_PIXELS = (6.2, 7.5)
"""How far a digit's place goes, in network pixels: halfway to its neighbour, across a decimal point too."""


@dataclass(frozen=True)
class BlockRegions:
    """Regions of a block: one for each printed digit, then ruled lines, then everything else.

    `labels` [height, width] holds the region of each pixel; `digits` and `bigrams` are the class of each digit and the
    bigrams 10 j + k it belongs to; `rule_region` and `rest_region` are the last regions' numbers, or −1.
    """

    labels: np.ndarray
    digits: np.ndarray
    bigrams: np.ndarray
    rule_region: int
    rest_region: int
    window: tuple[int, int, int, int]

    @property
    def count(self) -> int:
        return int(self.labels.max()) + 1


def segment_block(block: TableBlock, *, size: tuple[int, int]) -> BlockRegions:
    """Divide a block's window, enlarged to size (height, width), into regions."""
    x0, y0 = _window_corner(block, size)
    d = block.page.digits
    inside = (d.row >= block.rows[0]) & (d.row < block.rows[1])
    inside &= (d.column >= block.columns[0]) & (d.column < block.columns[1])
    own = d.select(inside)
    labels = np.full(size, -1)
    x, y = np.arange(size[1]) + 0.5, np.arange(size[0]) + 0.5
    nearest = np.full(size, np.inf)
    for i in range(len(own)):
        dx, dy = np.abs(x - (own.x[i] - x0))[None], np.abs(y - (own.y[i] - y0))[:, None]
        far = np.maximum(dx / DIGIT_REACH_PIXELS[0], dy / DIGIT_REACH_PIXELS[1]) * np.ones(size)
        better = (far <= 1) & (far < nearest)
        labels[better], nearest[better] = i, far[better]
    # A stroke of a digit may be mistaken for a ruled line; the digit keeps its core.
    rules = _downscale_mask(block.page.layout.rules, x0, y0, size) & (nearest > 0.4)
    labels, rule_regions = _label_rest(labels, rules, len(own))
    member = np.zeros((len(own), 100), bool)
    for a, b in own.bigrams():
        member[[a, b], 10 * own.value[a] + own.value[b]] = True
    return BlockRegions(labels, own.value, member, *rule_regions, (x0, y0, x0 + size[1], y0 + size[0]))


def _window_corner(block: TableBlock, size: tuple[int, int]) -> tuple[int, int]:
    x0, y0, x1, y1 = block.window
    return round((x0 + x1 - size[1]) / 2), round((y0 + y1 - size[0]) / 2)


def _label_rest(labels: np.ndarray, rules: np.ndarray, digits: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Number the ruled lines and the rest after the digits; a region without pixels gets no number.

    Pixels that belong to both a ruled line and a digit are assigned to the line.
    """
    labels, following = labels.copy(), digits
    rule_regions = []
    for mask in (rules, (labels < 0) & ~rules):
        rule_regions.append(following if mask.any() else -1)
        labels[mask] = following
        following += int(mask.any())
    return labels, (rule_regions[0], rule_regions[1])


def _downscale_mask(mask: np.ndarray, x0: int, y0: int, size: tuple[int, int]) -> np.ndarray:
    rows = np.arange(y0 * LAYOUT_SCALE, (y0 + size[0]) * LAYOUT_SCALE)
    columns = np.arange(x0 * LAYOUT_SCALE, (x0 + size[1]) * LAYOUT_SCALE)
    known = ((rows >= 0) & (rows < mask.shape[0]))[:, None] & (columns >= 0) & (columns < mask.shape[1])
    full = mask[np.ix_(rows.clip(0, mask.shape[0] - 1), columns.clip(0, mask.shape[1] - 1))] & known
    return full.reshape(size[0], LAYOUT_SCALE, size[1], LAYOUT_SCALE).any(axis=(1, 3))


def crop_window(
    page: np.ndarray, window: tuple[int, int, int, int], *, pad_mode: str = "constant"
) -> np.ndarray:
    """Crop a window of a page at network scale; outside the page it is padded.

    Args:
        page: The page, [height, width].
        window: (x0, y0, x1, y1), possibly beyond the page.
        pad_mode: "constant" pads with zeros (no ink), "edge" repeats the border.
    """
    x0, y0, x1, y1 = window
    height, width = page.shape
    pad = ((max(-y0, 0), max(y1 - height, 0)), (max(-x0, 0), max(x1 - width, 0)))
    part = page[max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
    return np.pad(part, pad, mode="edge") if pad_mode == "edge" else np.pad(part, pad)


@dataclass(frozen=True)
class BigramAgreement:
    """Shares of an explanation's total positive relevance.

    `bigram`: between two digits that belong to the same bigram on both pages. `digit`: between two equal digits. `both`:
    between equal digits of the same bigram. `rules`, `off`: with one end on a ruled line, with one end anywhere off the
    digits (ruled lines included). `chance`: the value of `bigram` if relevance were spread evenly over all pairs of digits;
    `shuffled`: if each region kept its marginal relevance and partners were random.
    """

    bigram: float
    digit: float
    both: float
    rules: float
    off: float
    chance: float
    shuffled: float


def measure_agreement(relevance: np.ndarray, a: BlockRegions, b: BlockRegions) -> BigramAgreement:
    """Score the relevance [regions of a, regions of b] of one explanation.

    precision = Σ_{II' same bigram} R⁺_{II'} / Σ_{II'} R⁺_{II'}

    Args:
        relevance: Relevance of the pair.
        a: Regions of the first block.
        b: Regions of the second block.
    """
    positive = np.clip(relevance, 0, None)
    total = float(positive.sum()) or 1.0
    same_digit, same_bigram = _same_masks(a, b)
    on_rules = _touching_mask(positive.shape, [a.rule_region], [b.rule_region])
    off = _touching_mask(positive.shape, [a.rule_region, a.rest_region], [b.rule_region, b.rest_region])
    apart = positive.sum(1, keepdims=True) * positive.sum(0, keepdims=True) / total

    def share(mask: np.ndarray, values: np.ndarray = positive) -> float:
        return float(values[mask].sum()) / total

    return BigramAgreement(
        bigram=share(same_bigram),
        digit=share(same_digit),
        both=share(same_bigram & same_digit),
        rules=share(on_rules),
        off=share(off),
        chance=float(same_bigram[: len(a.digits), : len(b.digits)].mean()),
        shuffled=share(same_bigram, apart),
    )


def _same_masks(a: BlockRegions, b: BlockRegions) -> tuple[np.ndarray, np.ndarray]:
    digit, bigram = np.zeros((a.count, b.count), bool), np.zeros((a.count, b.count), bool)
    digits = slice(0, len(a.digits)), slice(0, len(b.digits))
    digit[digits] = a.digits[:, None] == b.digits[None]
    bigram[digits] = a.bigrams.astype(int) @ b.bigrams.astype(int).T > 0
    return digit, bigram


def _touching_mask(shape: tuple[int, ...], rows: list[int], columns: list[int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[[r for r in rows if r >= 0]] = True
    mask[:, [c for c in columns if c >= 0]] = True
    return mask


def mean_agreement(agreements: list[BigramAgreement]) -> dict[str, float]:
    """Return the mean of each share over several explanations."""
    return {f.name: float(np.mean([getattr(a, f.name) for a in agreements])) for f in fields(BigramAgreement)}
