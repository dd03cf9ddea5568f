"""Everything the invariance report says in figures, by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilrp_studies.common.image_folders import Found
from bilrp_studies.invariance import inv_score
from bilrp_studies.invariance.explained_frames import KINDS, Case, clip_shares
from bilrp_studies.invariance.settings import InvarianceSettings
from bilrp_studies.invariance.inv_score import Band


@dataclass(frozen=True, eq=False)
class Numbers:
    """Everything the report says in figures, by layer."""

    inv: Mapping[int, float]
    interval: Mapping[int, tuple[float, float] | None]
    shares: Mapping[int, Mapping[str, np.ndarray]]
    share: Mapping[int, Mapping[str, float]]
    restricted: Mapping[int, Mapping[str, float]]
    restricted_interval: Mapping[int, tuple[float, float] | None]
    contribution: np.ndarray
    ranking: np.ndarray


def measure(
    settings: InvarianceSettings, band: Band, kernels: Mapping[int, np.ndarray], cases: Sequence[Case]
) -> Numbers:
    """INV, its interval and its split, for every layer."""
    count = int(band.clip.max()) + 1
    options: dict[str, Any] = {"resamples": settings.resamples, "seed": settings.seed}
    shares = {layer: clip_shares(cases, layer, count) for layer in kernels} if cases else {}
    filled = {layer: _filled(by_kind) for layer, by_kind in shares.items()}
    last = max(kernels)
    restricted = {
        layer: {
            kind: inv_score.restricted(kernels[layer], band, values)
            for kind, values in filled[layer].items()
        }
        for layer in filled
    }
    inv = {layer: inv_score.inv(kernel, band) for layer, kernel in kernels.items()}
    static = shares[last]["static"] if shares else np.zeros(0)
    return Numbers(
        inv=inv,
        interval={layer: inv_score.interval(kernel, band, **options) for layer, kernel in kernels.items()},
        shares=shares,
        share={n: {kind: v / inv[n] for kind, v in restricted[n].items()} for n in restricted},
        restricted=restricted,
        restricted_interval={
            n: inv_score.interval(kernels[n], band, share=filled[n]["moving"], **options) for n in filled
        },
        contribution=inv_score.contributions(kernels[last], band),
        ranking=np.argsort(-np.nan_to_num(static, nan=-np.inf), kind="stable"),
    )


def _filled(by_kind: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A clip whose frames share nothing at this layer has no split: it adds nothing to any kind but the last."""
    return {
        kind: np.where(np.isnan(values), float(kind == "unattributed"), values)
        for kind, values in by_kind.items()
    }


def results(found: Found, settings: InvarianceSettings, band: Band, numbers: Numbers) -> dict[str, Any]:
    """What results.json holds."""
    names = [clip.name for clip in found.items]
    last = max(numbers.inv)
    made: dict[str, Any] = {
        "inv": {str(n): value for n, value in numbers.inv.items()},
        "frames": len(band.clip),
        "clips": len(names),
        "inv_interval": {str(n): value for n, value in numbers.interval.items()},
        "contribution": dict(zip(names, numbers.contribution.tolist(), strict=True)),
    }
    if numbers.shares:
        for kind in KINDS:
            made[f"{kind}_share"] = {str(n): numbers.share[n][kind] for n in numbers.share}
        made["moving_point_share"] = {str(n): numbers.share[n]["point"] for n in numbers.share}
        made["inv_moving"] = {str(n): v["moving"] for n, v in numbers.restricted.items()}
        made["inv_static"] = {str(n): v["static"] for n, v in numbers.restricted.items()}
        made["inv_moving_interval"] = {str(n): v for n, v in numbers.restricted_interval.items()}
        made["by_clip"] = {
            name: {kind: {str(n): numbers.shares[n][kind][c] for n in numbers.shares} for kind in KINDS}
            for c, name in enumerate(names)
        }
        made["clever_hans"] = [
            {"clip": names[c], "static_share": numbers.shares[last]["static"][c]}
            | {"moving_share": numbers.shares[last]["moving"][c], "contribution": numbers.contribution[c]}
            for c in numbers.ranking
        ]
    return made | {
        "settings": settings.decisive(),
        "skipped": [{"file": item.file, "reason": item.reason} for item in found.skipped],
        "notes": found.notes,
    }
