"""Does the first step of a refinement agree with the last one? python benchmarks/first_picture.py A B [A B …]

For each pair of photographs: of the relevance in the six strongest positive findings of the exact explanation, how much is
in the strongest tenth of the pairs of the first step (16 × 16 regions), and how much in its own findings?
"""

from __future__ import annotations

import sys

import numpy as np
import torch

import bilrp
from bilrp.decomposition import Decomposition

MAX_FINDINGS, STRONGEST_FRACTION = 6, 0.1


def coarse_regions(coarse: Decomposition, fine: Decomposition) -> np.ndarray:
    """Return the coarse region of each fine one."""
    region = np.zeros(fine.regions.count, int)
    region[fine.regions.labels.flatten().numpy()] = coarse.regions.labels.flatten().numpy()
    return region


def measure_agreement(first: bilrp.Explanation, last: bilrp.Explanation) -> tuple[float, float]:
    """Return the shares of the last findings' relevance in the strongest tenth and in the findings of the first step."""
    rows, columns = coarse_regions(first.a, last.a), coarse_regions(first.b, last.b)
    coarse, fine = first.relevance.numpy(), last.relevance.numpy()
    strongest = coarse >= np.quantile(coarse, 1 - STRONGEST_FRACTION)
    in_findings = np.zeros_like(strongest)
    for finding in first.findings():
        in_findings[np.ix_(finding.a, finding.b)] |= finding.relevance > 0
    sums = np.zeros(3)
    for finding in (f for f in last.findings(MAX_FINDINGS) if f.relevance > 0):
        part, place = fine[np.ix_(finding.a, finding.b)], np.ix_(rows[finding.a], columns[finding.b])
        sums += part.sum(), part[strongest[place]].sum(), part[in_findings[place]].sum()
    return sums[1] / sums[0], sums[2] / sums[0]


def main(*files: str) -> None:
    encoder, rows = bilrp.encoders.vgg16(31), []
    with torch.no_grad():
        for a, b in zip(files[::2], files[1::2], strict=True):
            first, last = (
                bilrp.pair(*(take(each) for each in (a, b)), similarity="dot")
                for take in (
                    lambda x: next(bilrp.refine(encoder, x)),
                    lambda x: bilrp.decompose(encoder, x),
                )
            )
            rows.append(measure_agreement(first, last))
            print(
                f"{a} {b}: {rows[-1][0]:.2f} in the strongest tenth, {rows[-1][1]:.2f} in its findings",
                flush=True,
            )
    strongest, findings = np.mean(rows, 0)
    print(
        f"mean of {len(rows)} pairs: {strongest:.2f} in the strongest tenth, {findings:.2f} in its findings"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
