"""A folder with an encoder and images, in which the tests of the command line run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TINY = """
import torch
from torch import nn
import torch.nn.functional as F

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return F.adaptive_avg_pool2d(F.relu(self.conv(x)), 4).flatten(1)

def tiny():
    return Tiny().eval()

def broken():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("the model broke\\nin two lines")
    return Broken()

def slow():
    import time
    class Slow(Tiny):
        def forward(self, x):
            print("started", flush=True)
            time.sleep(60)
            return super().forward(x)
    return Slow()

def unmade():
    raise ValueError("no such network\\nat all")

def number():
    return 3

def argument(x):
    return x
"""


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """A folder with an encoder and two photographs of different size, and the command line standing in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tinymodel", raising=False)
    (tmp_path / "tinymodel.py").write_text(TINY)
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (40, 60, 3)), ("b.png", (50, 50, 3))):
        Image.fromarray(rng.integers(0, 256, size, np.uint8)).save(tmp_path / name)
    return tmp_path


@pytest.fixture
def more(workdir: Path) -> Path:
    rng = np.random.default_rng(5)
    for name in ("c.png", "d.png"):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(workdir / name)
    (workdir / "left").mkdir()
    (workdir / "right").mkdir()
    for name, folder in (("a.png", "left"), ("b.png", "left"), ("c.png", "right")):
        (workdir / folder / name).write_bytes((workdir / name).read_bytes())
    return workdir
