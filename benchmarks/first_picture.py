"""Does the first picture of a refinement point where the last one does? python benchmarks/first_picture.py A B [A B …]

For each pair of photographs: of the relevance in the exact explanation's six strongest findings that speak for the
similarity, how much lies in the strongest tenth of the first picture's pairs (16 × 16 regions), and how much in its own
findings?
"""

from __future__ import annotations

import sys

import numpy as np
import torch

import bilrp
from bilrp.decomposition import Decomposition

FINDINGS, TENTH = 6, 0.1


def owners(coarse: Decomposition, fine: Decomposition) -> np.ndarray:
    """The coarse region of each fine one."""
    found = np.zeros(fine.regions.count, int)
    found[fine.regions.labels.flatten().numpy()] = coarse.regions.labels.flatten().numpy()
    return found


def inside(first: bilrp.Explanation, last: bilrp.Explanation) -> tuple[float, float]:
    """Shares of the last findings' relevance in the first picture's strongest tenth, and in its findings."""
    rows, columns = owners(first.a, last.a), owners(first.b, last.b)
    coarse, fine = first.relevance.numpy(), last.relevance.numpy()
    strongest = coarse >= np.quantile(coarse, 1 - TENTH)
    shown = np.zeros_like(strongest)
    for finding in first.findings():
        shown[np.ix_(finding.a, finding.b)] |= finding.relevance > 0
    sums = np.zeros(3)
    for finding in (f for f in last.findings(FINDINGS) if f.relevance > 0):
        part, place = fine[np.ix_(finding.a, finding.b)], np.ix_(rows[finding.a], columns[finding.b])
        sums += part.sum(), part[strongest[place]].sum(), part[shown[place]].sum()
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
            rows.append(inside(first, last))
            print(
                f"{a} {b}: {rows[-1][0]:.2f} in the strongest tenth, {rows[-1][1]:.2f} in its findings",
                flush=True,
            )
    tenth, shown = np.mean(rows, 0)
    print(f"mean of {len(rows)} pairs: {tenth:.2f} in the strongest tenth, {shown:.2f} in its findings")


if __name__ == "__main__":
    main(*sys.argv[1:])
