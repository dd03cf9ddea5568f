"""A format of one's own: a row given to `save`, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

import bilrp
from bilrp.cli import options
from bilrp.errors import InputError
from bilrp.explanation import FORMATS


def write_csv(explanation: bilrp.Explanation, path: Path, **_: object) -> Path:
    Path(path).write_text(
        "\n".join(",".join(f"{v:g}" for v in row) for row in explanation.relevance.tolist())
    )
    return Path(path)


def test_a_format_of_ones_own_needs_one_row(tmp_path: Path) -> None:
    explanation = bilrp.explain(
        torch.nn.Linear(3, 2, bias=False), torch.ones(1, 3), torch.ones(1, 3), similarity="dot"
    )
    with pytest.raises(InputError, match=r"\.png, .*\.safetensors"):
        explanation.save(tmp_path / "why.own")
    path = explanation.save(tmp_path / "why.own", formats={**FORMATS, ".own": write_csv})
    assert len(path.read_text().splitlines()) == 3
    assert explanation.save(tmp_path / "why.npz", formats={**FORMATS, ".csv": write_csv}).exists()


def test_help_names_every_format() -> None:
    help_text = get_args(options.Output)[1].help
    assert [suffix for suffix in FORMATS if suffix not in help_text] == []
