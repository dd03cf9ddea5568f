"""Link styles and colour palettes by name. Does not import torch, for fast shell completion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from bilrp.errors import InputError


@dataclass(frozen=True)
class Style:
    """Parameters of Algorithm 1 (Appendix F) for drawing links.

    Args:
        name: Name of the style.
        size, pool: Input size and region size in pixels that the paper used with it.
        low: l; weaker links are not drawn.
        high: h; links of this strength have full opacity.
        power: p; larger values fade weak links.
    """

    name: str
    size: int
    pool: int
    low: float | int
    high: float | int
    power: float | int

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.high and self.power > 0):
            raise InputError(f"a style needs 0 ≤ l < h and p > 0, got {self.low}, {self.high}, {self.power}")


# Table "Parameters used on each dataset for rendering" of Appendix F
STYLES = {
    style.name: style
    for style in (
        Style("pascal_voc", size=128, pool=8, low=0.25, high=13, power=2),
        Style("faces", size=64, pool=4, low=0.3, high=60, power=1),
        Style("ucf", size=128, pool=8, low=0.25, high=20, power=1),
        Style("illustrations", size=96, pool=6, low=0.25, high=15, power=2),
        Style("tables", size=140, pool=20, low=0.01, high=4, power=2),
    )
}


def resolve_style(
    name: str | Style = "auto",
    *,
    pairs: int | None = None,
    low: float | int | None = None,
    high: float | int | None = None,
    power: float | int | None = None,
) -> Style:
    """Return a style by name, with any of its three parameters replaced.

    "auto" is pascal_voc with h scaled by the fourth root of the number of pairs (1 at 256 × 256 pairs), because a single
    link among n pairs is n^(1/4) after normalization.

    Args:
        name: A key of STYLES, "auto", or a style.
        pairs: Number of pairs of regions, for "auto".
        low, high, power: Replace l, h and p.

    >>> resolve_style("faces", power=2).high
    60
    """
    if isinstance(name, Style):
        style = name
    elif name == "auto":
        paper = STYLES["pascal_voc"]
        scale = 1.0 if pairs is None else (pairs / 256**2) ** 0.25
        style = replace(paper, name="auto", high=max(paper.high * scale, 2 * paper.low))
    elif name in STYLES:
        style = STYLES[name]
    else:
        raise InputError(f"no style {name!r}: use one of auto, {', '.join(STYLES)}")
    changes = {"low": low, "high": high, "power": power}
    return replace(style, **{key: value for key, value in changes.items() if value is not None})


@dataclass(frozen=True)
class Palette:
    """Colours of positive and negative relevance; `dashed` draws negative lines dashed, for print without colour."""

    positive: str
    negative: str
    dashed: bool = False


PALETTES = {
    "paper": Palette("#d7191c", "#2166d1"),
    # vermilion and blue of Okabe and Ito's colour-blind-safe set
    "safe": Palette("#d55e00", "#0072b2", dashed=True),
}


def resolve_palette(name: str) -> Palette:
    """Return a palette by name: "paper" (red and blue) or "safe" (vermilion and blue, negative links dashed)."""
    if name not in PALETTES:
        raise InputError(f"no palette {name!r}: use one of {', '.join(PALETTES)}")
    return PALETTES[name]


Show = Literal["matches", "differences"]


def check_show(name: str) -> Show:
    """Return what a figure or page shows, "matches" or "differences"; raise InputError for another name."""
    for known in get_args(Show):
        if name == known:
            return known
    raise InputError(f"cannot show {name!r}: use one of {', '.join(get_args(Show))}")
