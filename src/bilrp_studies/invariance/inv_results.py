"""Numerical results of the invariance study, by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilrp_studies.common.image_folders import FolderContents
from bilrp_studies.invariance import inv_score
from bilrp_studies.invariance.explained_frames import LINK_KINDS, ExplainedFrames, compute_clip_shares
from bilrp_studies.invariance.inv_score import Band
from bilrp_studies.invariance.settings import InvarianceSettings


@dataclass(frozen=True, eq=False)
class InvResults:
    """All numbers of the report, by layer."""

    inv: Mapping[int, float]
    inv_interval: Mapping[int, tuple[float, float] | None]
    clip_shares: Mapping[int, Mapping[str, np.ndarray]]
    mean_shares: Mapping[int, Mapping[str, float]]
    inv_by_kind: Mapping[int, Mapping[str, float]]
    moving_inv_interval: Mapping[int, tuple[float, float] | None]
    clip_contributions: np.ndarray
    static_ranking: np.ndarray


def compute_results(
    settings: InvarianceSettings,
    band: Band,
    kernels: Mapping[int, np.ndarray],
    cases: Sequence[ExplainedFrames],
) -> InvResults:
    """Compute INV, its interval and its split by kind of link, for every layer.

    Args:
        settings: Bootstrap settings.
        band: Clip and time of each frame.
        kernels: Gram matrix of all frames, by layer.
        cases: Explained pairs of frames; may be empty.
    """
    count = int(band.clip.max()) + 1
    options: dict[str, Any] = {"resamples": settings.resamples, "seed": settings.seed}
    shares = {layer: compute_clip_shares(cases, layer, count) for layer in kernels} if cases else {}
    filled = {layer: _fill_missing(by_kind) for layer, by_kind in shares.items()}
    last = max(kernels)
    restricted = {
        layer: {
            kind: inv_score.compute_kind_inv(kernels[layer], band, values)
            for kind, values in filled[layer].items()
        }
        for layer in filled
    }
    inv = {layer: inv_score.compute_inv(kernel, band) for layer, kernel in kernels.items()}
    static = shares[last]["static"] if shares else np.zeros(0)
    return InvResults(
        inv=inv,
        inv_interval={
            layer: inv_score.bootstrap_inv(kernel, band, **options) for layer, kernel in kernels.items()
        },
        clip_shares=shares,
        mean_shares={n: {kind: v / inv[n] for kind, v in restricted[n].items()} for n in restricted},
        inv_by_kind=restricted,
        moving_inv_interval={
            n: inv_score.bootstrap_inv(kernels[n], band, share=filled[n]["moving"], **options) for n in filled
        },
        clip_contributions=inv_score.clip_contributions(kernels[last], band),
        static_ranking=np.argsort(-np.nan_to_num(static, nan=-np.inf), kind="stable"),
    )


def _fill_missing(by_kind: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Count a clip without a split (its frames have zero similarity at this layer) as unattributed."""
    return {
        kind: np.where(np.isnan(values), float(kind == "unattributed"), values)
        for kind, values in by_kind.items()
    }


def collect_results(
    contents: FolderContents, settings: InvarianceSettings, band: Band, inv_results: InvResults
) -> dict[str, Any]:
    """Return the content of results.json.

    Args:
        contents: The clips read, with skipped files and notes.
        settings: The settings of the study.
        band: Clip and time of each frame.
        inv_results: Output of `compute_results`.
    """
    names = [clip.name for clip in contents.items]
    last = max(inv_results.inv)
    built: dict[str, Any] = {
        "inv": {str(n): value for n, value in inv_results.inv.items()},
        "frames": len(band.clip),
        "clips": len(names),
        "inv_interval": {str(n): value for n, value in inv_results.inv_interval.items()},
        "contribution": dict(zip(names, inv_results.clip_contributions.tolist(), strict=True)),
    }
    if inv_results.clip_shares:
        for kind in LINK_KINDS:
            built[f"{kind}_share"] = {
                str(n): inv_results.mean_shares[n][kind] for n in inv_results.mean_shares
            }
        built["moving_point_share"] = {
            str(n): inv_results.mean_shares[n]["point"] for n in inv_results.mean_shares
        }
        built["inv_moving"] = {str(n): v["moving"] for n, v in inv_results.inv_by_kind.items()}
        built["inv_static"] = {str(n): v["static"] for n, v in inv_results.inv_by_kind.items()}
        built["inv_moving_interval"] = {str(n): v for n, v in inv_results.moving_inv_interval.items()}
        built["by_clip"] = {
            name: {
                kind: {str(n): inv_results.clip_shares[n][kind][c] for n in inv_results.clip_shares}
                for kind in LINK_KINDS
            }
            for c, name in enumerate(names)
        }
        built["clever_hans"] = [
            {"clip": names[c], "static_share": inv_results.clip_shares[last]["static"][c]}
            | {
                "moving_share": inv_results.clip_shares[last]["moving"][c],
                "contribution": inv_results.clip_contributions[c],
            }
            for c in inv_results.static_ranking
        ]
    return built | {
        "notes": contents.notes,
    }
