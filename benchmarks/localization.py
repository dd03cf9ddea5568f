"""Does an explanation match what corresponds? python benchmarks/localization.py ENCODER PHOTOGRAPHS [COUNT [COMPOSITE]]

Each photograph is compared with itself shifted, mirrored, rotated and enlarged, so that the true partner of every region is
known. Prints a row of a table: the unattributed share of what is specific to the pair (median), relevance on true matches
(positive relevance as a multiple of chance, and signed), and hits (how often the strongest partner of a region is a true
match). A match is true within one region of the exact position. Baselines: products of positions of the last feature map,
PAIR-X, and the same place. `bilrp study arena` has more of both, and counts only what moves by more than a region.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import bilrp
from bilrp import composites
from bilrp.encoder import Encoder, read_tensor
from bilrp.evaluation import correspondences, hit_rate, relevance_share
from bilrp.regions import Regions, grid

SIZE, REGION_SIDE = 224, 32
WARPS = {
    "shifted": {"shift": (28.0, 28.0)},
    "mirrored": {"flip": True},
    "rotated": {"rotate": 20.0},
    "enlarged": {"zoom": 1.25},
}
TOLERANCE = 0.5  # of a region beyond its border: the centre is within one region of the exact position


def measure(relevance: Tensor, pixel_map: Tensor, regions: Regions) -> tuple[float, float, float]:
    """Return (multiple of chance, signed share, hits) of a relevance matrix."""
    match, mask = correspondences.match_regions(pixel_map, regions, regions, tolerance=TOLERANCE)
    share = relevance_share(relevance, match, mask=mask)
    return share.lift, share.signed, hit_rate(relevance, match, mask=mask)


def compare(
    encoder: Encoder, paths: Sequence[Path], composite: composites.Composite | None
) -> dict[str, list[list[float]]]:
    """Return {method: [[unattributed, multiple, signed, hits] of each pair]}."""
    rows: dict[str, list[list[float]]] = {"bilrp": [], "last layer": [], "PAIR-X": [], "same place": []}
    for path in paths:
        x = read_tensor(encoder, path)
        a = bilrp.decompose(encoder, x, regions=grid(REGION_SIDE), composite=composite)
        for options in WARPS.values():
            matrix = correspondences.affine_matrix(**options, size=(SIZE, SIZE))
            pixel_map, y = (
                correspondences.warp_pixel_map(matrix, (SIZE, SIZE)),
                correspondences.warp_image(x, matrix),
            )
            b = bilrp.decompose(encoder, y, regions=grid(REGION_SIDE), composite=composite)
            explanations = {
                "bilrp": bilrp.pair(a, b, similarity="cosine"),
                "last layer": bilrp.baselines.last_layer(
                    encoder, x, y, regions=REGION_SIDE, similarity="cosine"
                ),
                "PAIR-X": bilrp.baselines.pairx(encoder, x, y, regions=REGION_SIDE, similarity="cosine"),
            }
            for name, explanation in explanations.items():
                terms = explanation.breakdown
                unattributed = (terms.unattributed - terms.shared) / terms.specific
                rows[name].append([unattributed, *measure(explanation.relevance, pixel_map, a.regions)])
            rows["same place"].append([0.0, *measure(torch.eye(a.regions.count), pixel_map, a.regions)])
    return rows


def main(name: str, folder: str, count: str = "21", composite: str = "") -> None:
    photographs = sorted(Path(folder).rglob("*.jpg"))
    step = max(1, len(photographs) // int(count))
    chosen = photographs[step // 2 :: step][: int(count)]
    encoder = (
        bilrp.encoders.load(name) if name.startswith("vision:") else bilrp.encoders.load(name, size=SIZE)
    )
    composite_function = eval(composite, {"composites": composites}) if composite else None
    for method, rows in compare(encoder, chosen, composite_function).items():
        if rows:
            values = torch.tensor(rows)
            mean = values.mean(0)
            cells = [f"{values[:, 0].median():.2f}", *(f"{value:.2f}" for value in mean[1:])]
            print(
                "|",
                " | ".join([Path(name).name, method, *cells, f"{len(chosen)} photographs"]),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
