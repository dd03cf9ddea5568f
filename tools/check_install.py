"""Try an installed bilrp without a checkout: explain two images, save and load, and compare both directions.

Needs only the core dependencies: python tools/check_install.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import bilrp
from bilrp.native import load_library


def main() -> None:
    """Explain two random images with a small network, exactly, and print how it was computed."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    ).double()  # fmt: skip
    a, b = torch.rand(2, 1, 3, 32, 32, dtype=torch.float64)
    explanation = bilrp.explain(net, a, b)
    error = abs(explanation.explained + explanation.unattributed - explanation.score)
    push, pull = (bilrp.decompose(net, a, mode=mode).parts for mode in ("push", "pull"))
    difference = float((push - pull).abs().max())
    with tempfile.TemporaryDirectory() as folder:
        path = explanation.save(Path(folder) / "why.npz")
        explanation.save(Path(folder) / "why.html")
        same = bilrp.Explanation.load(path).score == explanation.score
    kernels = "native kernels" if load_library() is not None else "torch (no native kernels)"
    print(f"bilrp {bilrp.__version__}, {kernels}: sum {error:.1e}, push against pull {difference:.1e}")
    if error > 1e-9 or difference > 1e-9 or not same:
        raise SystemExit("the installation gives wrong numbers")


if __name__ == "__main__":
    main()
