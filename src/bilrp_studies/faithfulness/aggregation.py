"""Aggregate the measures over pairs: means, intervals, and paired comparisons of BiLRP with each other method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilrp_studies.common.bootstrap import block_bootstrap_mean as interval
from bilrp_studies.common.warps import WARPS
from bilrp_studies.faithfulness.methods import METHODS
from bilrp_studies.faithfulness.settings import FaithfulnessSettings

# Number of consecutive pairs that are resampled together: neighbours in the chain share an image. A block of this length
# contains every kind of warp once, so that the bootstrap does not resample the mix of warps.
BLOCK_PAIRS = len(WARPS)


@dataclass(frozen=True)
class Measure:
    """One column of the table; `direction` is +1 if more is better, −1 if less is better, 0 if neither."""

    key: str
    title: str
    direction: int


MEASURES = (
    Measure("unattributed", "unattributed share of the score", -1),
    Measure("negative", "negative share of relevance", 0),
    Measure("deletion", "pair deletion, area", -1),
    Measure("insertion", "pair insertion, area", 1),
    Measure("warp_positive", "known warp: positive share on matches", 1),
    Measure("warp_signed", "known warp: signed share on matches", 1),
    Measure("planted_positive", "planted patch: positive share", 1),
    Measure("planted_signed", "planted patch: signed share", 1),
    Measure("randomisation", "rank correlation with random weights", -1),
    Measure("stability", "cosine under noise", 1),
)


def collect_results(rows: Sequence[Mapping[str, Any]], settings: FaithfulnessSettings) -> dict[str, Any]:
    """Return the content of results.json: every measure with its interval, and BiLRP compared with each other method."""
    options = {"block": BLOCK_PAIRS, "resamples": settings.resamples, "seed": settings.seed}

    def values(layer: int, method: str, key: str) -> list[float] | None:
        result = [row["layers"][str(layer)][method][key] for row in rows]
        return None if any(v is None for v in result) else result

    randomised = [row["cascade"] for row in rows if "cascade" in row]
    table: dict[str, Any] = {}
    compared: dict[str, Any] = {}
    for layer in settings.layers:
        table[str(layer)] = {
            method: {
                m.key: None if (v := values(layer, method, m.key)) is None else interval(v, **options)
                for m in MEASURES
            }
            for method in METHODS
        }
        compared[str(layer)] = {}
        for m in (m for m in MEASURES if m.direction):
            ours = values(layer, "bilrp", m.key)
            compared[str(layer)][m.key] = {
                method: compare_methods(ours, values(layer, method, m.key), m.direction, options)
                for method in METHODS[1:]
            }
    return {
        "pairs": len(rows),
        "table": table,
        "bilrp_against": compared,
        "chance": {key: float(np.mean([row["chance"][key] for row in rows])) for key in ("warp", "planted")},
        "warps": {
            kind: {
                str(layer): {
                    method: {
                        key: float(np.mean([r["layers"][str(layer)][method][key] for r in some]))
                        for key in ("warp_positive", "warp_signed")
                    }
                    for method in METHODS
                }
                for layer in settings.layers
            }
            for kind, _ in WARPS
            if (some := [row for row in rows if row["warp"] == kind])
        },
        "cascade": _summarize_cascades(randomised, settings),
        "cascade_pairs": len(randomised),
        "per_pair": list(rows),
    }


def _summarize_cascades(rows: Sequence[Mapping[str, Any]], settings: FaithfulnessSettings) -> dict[str, Any]:
    """Return every step of the cascading randomisation with its interval; these pairs share no image."""
    if not rows:
        return {}
    return {
        layer: {
            method: {
                block: interval(
                    [each[layer][method][block] for each in rows],
                    resamples=settings.resamples,
                    seed=settings.seed,
                )
                for block in steps
            }
            for method, steps in methods.items()
        }
        for layer, methods in rows[0].items()
    }


def compare_methods(
    ours: Sequence[float] | None, theirs: Sequence[float] | None, direction: int, options: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return the mean paired difference, BiLRP minus another method, with its interval and verdict; None if not comparable.

    Args:
        ours: Values of BiLRP, one per pair.
        theirs: Values of the other method on the same pairs.
        direction: +1 if more is better, −1 if less is better.
        options: Arguments of the block bootstrap.
    """
    if ours is None or theirs is None:
        return None
    difference = interval([x - y for x, y in zip(ours, theirs, strict=True)], **options)
    low, high = sorted((direction * difference["low"], direction * difference["high"]))
    return {**difference, "verdict": "wins" if low > 0 else "loses" if high < 0 else "no clear difference"}
