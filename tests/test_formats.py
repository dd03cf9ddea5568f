"""A format of one's own: a row given to `save`, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image

import bilrp
from bilrp import groups
from bilrp.answers.explanations import build_explain
from bilrp.cli import contrast, options, sets
from bilrp.cli.outputs import DrawOptions, check_outputs, write_outputs
from bilrp.errors import InputError
from bilrp.explanation_files import FORMATS, WriterOptions


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


def test_json_is_what_the_command_prints(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 2, bias=False)
    explanation = bilrp.explain(net, torch.ones(1, 3), torch.ones(1, 3), similarity="dot")
    answer = json.loads(explanation.save(tmp_path / "why.json", names=("first", "second")).read_text())
    assert answer == build_explain(explanation, names=("first", "second"), encoder=answer["encoder"])


@pytest.mark.parametrize("show", ["matches", "differences"])
def test_commands_pass_only_named_options_to_a_writer(
    show: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(explanation: bilrp.Explanation, path: Path, **options: object) -> Path:
        assert options.keys() <= WriterOptions.__optional_keys__
        assert options.get("show", "matches") == show
        return write_csv(explanation, path)

    monkeypatch.setattr("bilrp.explanation.FORMATS", {".own": write})
    net = torch.nn.Linear(3, 2, bias=False)
    explanation = bilrp.explain(net, torch.ones(1, 3), torch.ones(1, 3), similarity="dot")
    write_outputs(explanation, [tmp_path / "why.own"], DrawOptions(show=show), names=None, quiet=True)
    assert (tmp_path / "why.own").exists()


def test_help_names_every_format() -> None:
    help_text = get_args(options.Output)[1].help
    assert [suffix for suffix in FORMATS if suffix not in help_text] == []


def test_commands_on_several_inputs_accept_what_their_results_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new format of explanations is not one of contrasts and sets: it is refused before the work."""
    monkeypatch.setattr("bilrp.explanation.FORMATS", {**FORMATS, ".csv": write_csv})
    photo = tmp_path / "a.png"
    Image.new("RGB", (32, 32)).save(photo)
    one, path = str(photo), str(tmp_path / "why.csv")
    for command, inputs in ((contrast.contrast, (one, one, one)), (sets.sets, (one, one))):
        with pytest.raises(InputError, match=r"the suffix must be one of \.html"):
            command(*inputs, encoder="vgg16:5", weights=str(tmp_path / "absent.pt"), output=[path])
    net = torch.nn.Linear(3, 2, bias=False)
    sides = [bilrp.decompose(net, torch.rand(1, 3)) for _ in range(3)]
    result = bilrp.contrast(*sides, similarity="dot")
    for suffix in groups.GROUP_SUFFIXES:
        (checked,) = check_outputs([str(tmp_path / f"why{suffix}")], formats=groups.GROUP_SUFFIXES)
        assert result.save(checked).stat().st_size > 0
    with pytest.raises(InputError, match="use one of"):
        result.save(path)
