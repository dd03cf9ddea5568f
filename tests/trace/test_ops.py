"""`bilrp ops` and bilrp.ops: every step and its rule, on models, through the real command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

import bilrp
from bilrp import composites, rules
from bilrp.cli import app
from bilrp.encoders.registry import load
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from bilrp.trace.step_summary import guess_input_shape

ENCODERS = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))) + x

def residual():
    return Residual().eval()

def broken():
    return nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=-1), nn.Softplus())

def needs_arguments(width):
    return nn.Linear(width, 3)

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder with a module of encoders, and the module's name (one for each test: imports are remembered)."""
    name = f"encoders_of_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(ENCODERS)
    monkeypatch.chdir(tmp_path)
    return name


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x + self.attend(self.norm(x), x, x)[0])


def test_rows_are_what_decompose_does() -> None:
    model, x = Attention().eval(), torch.rand(1, 5, 8)
    rows = bilrp.ops(model, x)
    composite = composites.transformer()  # the default where there is attention
    program = freeze(simplify(record(model, x)), composite)
    used = [(link.name, link.rule) for link in program.links]
    assert [(row.name, row.rule) for row in rows if row.rule != "not needed"] == used
    assert any(row.rule == "not needed" for row in rows), (
        "the query of an attention with detached weights needs no rule"
    )
    assert all(row.problem is None for row in rows)
    assert rows[-1].op == "gelu" and rows[-1].inputs == ((1, 5, 8),) and rows[-1].output == (1, 5, 8)


def test_all_missing_rules_are_listed_at_once() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=-1), nn.Softplus())
    rows = bilrp.ops(model, torch.rand(1, 4))
    assert [(row.op, row.rule) for row in rows] == [
        ("linear", "gamma(0.25)"),
        ("softmax", "none"),
        ("softplus", "none"),
    ]
    for row in rows[1:]:
        assert row.problem is not None and row.name in row.problem and "first_match" in row.problem
    with pytest.raises(bilrp.errors.RuleError):
        bilrp.decompose(model, torch.rand(1, 4))


def test_rules_can_be_given_and_masks_are_followed() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv((x - 0.5).flip(-1))

    composite = composites.first_match(("conv", rules.zbox(-0.5, 0.5)), otherwise=composites.uniform(0.0))
    rows = bilrp.ops(Shifted(), torch.rand(1, 1, 4, 4), composite=composite)
    assert [row.rule for row in rows] == ["mask", "mask", "zbox(-0.5, 0.5)"]
    late = composites.first_match(("1", rules.flat()), otherwise=composites.uniform(0.0))
    actual = bilrp.ops(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), torch.rand(1, 3), composite=late)
    assert actual[0].rule == "none" and "first layer" in (actual[0].problem or "")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.grid_sample(torch.ones(1, 1, 4, 4), x.reshape(1, 2, 2, 2), align_corners=False),
        lambda x: torch.ldexp(torch.ones(8), x),
        lambda x: torch.linalg.multi_dot([x, x.T, x]),
    ],
    ids=["grid_sample at a live place", "ldexp by a live exponent", "a chain of live matrices"],
)
def test_operations_that_are_linear_only_sometimes(function) -> None:
    assert "none" in [row.rule for row in bilrp.ops(function, torch.rand(1, 8))]


def test_complex_numbers_are_refused_and_not_forgotten() -> None:
    """x + fft(x).real must not be taken for x plus a constant."""
    with pytest.raises(bilrp.errors.TapeError, match="'fft_fft' makes complex numbers"):
        bilrp.ops(lambda x: x + torch.fft.fft(x).real, torch.rand(1, 8))


def test_the_table_of_a_good_encoder(folder: str) -> None:
    result = CliRunner().invoke(app, ["ops", f"{folder}:residual", "--size", "16"])
    assert result.exit_code == 0, result.output
    assert "conv2d+relu" in result.output and "gamma(0)" in result.output  # folded and fused
    assert "batch_norm" not in result.output
    assert "1×3×16×16" in result.output and "2 steps, all with a rule" in result.output


def test_the_table_of_a_bad_encoder(folder: str) -> None:
    result = CliRunner().invoke(app, ["ops", f"{folder}:broken", "--shape", "1,4"])
    assert result.exit_code == 1
    assert "3 steps, 2 without a rule" in result.output
    assert "no rule in uniform(0.25) for step 'softmax_1'" in result.output


def test_red_where_there_is_none(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    result = CliRunner().invoke(app, ["ops", f"{folder}:broken", "--shape", "1,4"], color=True)
    softmax = next(line for line in result.output.splitlines() if "softmax_1" in line)
    linear = next(line for line in result.output.splitlines() if "gamma" in line)
    assert "\x1b[1;31m" in softmax and "\x1b[1;31m" not in linear


def test_images_have_the_channels_the_encoder_takes() -> None:
    assert guess_input_shape(nn.Sequential(nn.Conv2d(1, 2, 3)), 64) == "1,1,64,64"
    assert guess_input_shape(lambda x: x, 64) == "1,3,64,64"


def test_vgg_needs_no_download() -> None:
    result = CliRunner().invoke(app, ["ops", "vgg16:5", "--size", "32"], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "features.2" in result.output and "gamma(0.5)" in result.output and "zbox" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg99:3"], "cannot import 'vgg99'"),
        (["vgg16:forty"], "must be a number from 1 to 31"),
        (["vgg16:32"], "1 … 31"),
        (["nothing"], "unknown encoder 'nothing'"),
        (["{}:absent"], "has no 'absent'"),
        (["{}:number"], "not a function"),
        (["{}:needs_arguments"], "called without arguments"),
        (["{}:broken"], "give its input shape, e.g. --shape"),
        (["{}:broken", "--shape", "4"], "batch axis of 1"),
        (["{}:broken", "--shape", "one"], "integers with commas"),
    ],
)
def test_errors_are_one_line(folder: str, arguments: list[str], message: str) -> None:
    with pytest.raises(bilrp.errors.BilrpError) as raised:
        CliRunner().invoke(app, ["ops", *(a.format(folder) for a in arguments)], catch_exceptions=False)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.slow
def test_the_command_from_a_shell(folder: str) -> None:
    """The installed entry point finds modules in the current folder, and reports errors on stderr with code 2."""
    entry = "import sys; from bilrp.cli import main; sys.argv[0] = 'bilrp'; main()"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", entry, "ops", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good, bad = run(f"{folder}:residual", "--size", "8"), run("nothing")
    assert good.returncode == 0 and "all with a rule" in good.stdout, good.stderr
    assert bad.returncode == 2 and bad.stderr.startswith("bilrp: unknown encoder") and not bad.stdout


def test_loading_leaves_the_path_alone(folder: str) -> None:
    before = list(sys.path)
    assert load(f"{folder}:residual").name == f"{folder}:residual"
    assert sys.path == before
