"""Is an explanation right? Which share of its relevance joins places that carry the same bigram."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from bilrp_studies.tables.table_blocks import Block
from bilrp_studies.tables.page_layout import ZOOM

REACH = (6.2, 7.5)
"""How far a digit's place goes, in network pixels: halfway to its neighbour, across a decimal point too."""


@dataclass(frozen=True)
class Places:
    """A block cut into places: one for each printed digit, then rules, then everything else.

    `labels` [height, width] numbers them; `value` and `bigrams` say what the digits are and which pairs
    10 j + k of neighbouring digits each belongs to; `rules` and `rest` are the last places' numbers, or −1.
    """

    labels: np.ndarray
    value: np.ndarray
    bigrams: np.ndarray
    rules: int
    rest: int
    window: tuple[int, int, int, int]

    @property
    def count(self) -> int:
        return int(self.labels.max()) + 1


def places(block: Block, *, size: tuple[int, int]) -> Places:
    """Cut a block's window, widened to size (height, width), into places."""
    x0, y0 = _corner(block, size)
    d = block.page.digits
    inside = (d.row >= block.rows[0]) & (d.row < block.rows[1])
    inside &= (d.column >= block.columns[0]) & (d.column < block.columns[1])
    own = d.where(inside)
    labels = np.full(size, -1)
    x, y = np.arange(size[1]) + 0.5, np.arange(size[0]) + 0.5
    nearest = np.full(size, np.inf)
    for i in range(len(own)):
        dx, dy = np.abs(x - (own.x[i] - x0))[None], np.abs(y - (own.y[i] - y0))[:, None]
        far = np.maximum(dx / REACH[0], dy / REACH[1]) * np.ones(size)
        better = (far <= 1) & (far < nearest)
        labels[better], nearest[better] = i, far[better]
    # A stroke of the digit itself may pass for a rule; its core stays the digit's.
    rules = _shrink(block.page.layout.rules, x0, y0, size) & (nearest > 0.4)
    labels, marks = _mark_rest(labels, rules, len(own))
    member = np.zeros((len(own), 100), bool)
    for a, b in own.bigrams():
        member[[a, b], 10 * own.value[a] + own.value[b]] = True
    return Places(labels, own.value, member, *marks, (x0, y0, x0 + size[1], y0 + size[0]))


def _corner(block: Block, size: tuple[int, int]) -> tuple[int, int]:
    x0, y0, x1, y1 = block.window
    return round((x0 + x1 - size[1]) / 2), round((y0 + y1 - size[0]) / 2)


def _mark_rest(labels: np.ndarray, rules: np.ndarray, digits: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Number the rules and the rest after the digits; a place without pixels gets no number.

    Rules come first: where one touches a digit, its pixels are the rule's.
    """
    labels, following = labels.copy(), digits
    marks = []
    for mask in (rules, (labels < 0) & ~rules):
        marks.append(following if mask.any() else -1)
        labels[mask] = following
        following += int(mask.any())
    return labels, (marks[0], marks[1])


def _shrink(mask: np.ndarray, x0: int, y0: int, size: tuple[int, int]) -> np.ndarray:
    rows = np.arange(y0 * ZOOM, (y0 + size[0]) * ZOOM)
    columns = np.arange(x0 * ZOOM, (x0 + size[1]) * ZOOM)
    known = ((rows >= 0) & (rows < mask.shape[0]))[:, None] & (columns >= 0) & (columns < mask.shape[1])
    full = mask[np.ix_(rows.clip(0, mask.shape[0] - 1), columns.clip(0, mask.shape[1] - 1))] & known
    return full.reshape(size[0], ZOOM, size[1], ZOOM).any(axis=(1, 3))


def crop(page: np.ndarray, window: tuple[int, int, int, int], *, outside: str = "constant") -> np.ndarray:
    """A window of a page at network scale; beyond the page comes paper."""
    x0, y0, x1, y1 = window
    height, width = page.shape
    pad = ((max(-y0, 0), max(y1 - height, 0)), (max(-x0, 0), max(x1 - width, 0)))
    part = page[max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
    return np.pad(part, pad, mode="edge") if outside == "edge" else np.pad(part, pad)


@dataclass(frozen=True)
class Agreement:
    """Shares of an explanation's positive relevance, all of the same total.

    `bigram`: joins two digits that belong to the same bigram on both pages. `digit`: joins two equal
    digits. `both`: equal digits of the same bigram. `rules`, `off`: an end on a ruled line, an end
    anywhere off the digits (rules included). `chance`: `bigram`, if relevance were spread evenly over all
    pairs of digits; `shuffled`: if each place kept its share of it but partners were drawn at random.
    """

    bigram: float
    digit: float
    both: float
    rules: float
    off: float
    chance: float
    shuffled: float


def agreement(relevance: np.ndarray, a: Places, b: Places) -> Agreement:
    """Score the relevance [places of a, places of b] of one explanation.

    precision = Σ_{II' same bigram} R⁺_{II'} / Σ_{II'} R⁺_{II'}
    """
    positive = np.clip(relevance, 0, None)
    total = float(positive.sum()) or 1.0
    same_digit, same_bigram = _same(a, b)
    on_rules = _ends(positive.shape, [a.rules], [b.rules])
    off = _ends(positive.shape, [a.rules, a.rest], [b.rules, b.rest])
    apart = positive.sum(1, keepdims=True) * positive.sum(0, keepdims=True) / total

    def share(mask: np.ndarray, values: np.ndarray = positive) -> float:
        return float(values[mask].sum()) / total

    return Agreement(
        bigram=share(same_bigram),
        digit=share(same_digit),
        both=share(same_bigram & same_digit),
        rules=share(on_rules),
        off=share(off),
        chance=float(same_bigram[: len(a.value), : len(b.value)].mean()),
        shuffled=share(same_bigram, apart),
    )


def _same(a: Places, b: Places) -> tuple[np.ndarray, np.ndarray]:
    digit, bigram = np.zeros((a.count, b.count), bool), np.zeros((a.count, b.count), bool)
    digits = slice(0, len(a.value)), slice(0, len(b.value))
    digit[digits] = a.value[:, None] == b.value[None]
    bigram[digits] = a.bigrams.astype(int) @ b.bigrams.astype(int).T > 0
    return digit, bigram


def _ends(shape: tuple[int, ...], rows: list[int], columns: list[int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[[r for r in rows if r >= 0]] = True
    mask[:, [c for c in columns if c >= 0]] = True
    return mask


def mean_agreement(found: list[Agreement]) -> dict[str, float]:
    """The mean of each share over several explanations."""
    return {f.name: float(np.mean([getattr(a, f.name) for a in found])) for f in fields(Agreement)}
