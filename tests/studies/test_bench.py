"""The benchmark's rivals compute what they are said to compute, and its report says what was measured."""

from __future__ import annotations

import json
import sys
import time
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

import bilrp
from bilrp import cli, composites, regions
from bilrp.encoder import read_item
from bilrp.encoders import sentence as sentences
from bilrp.errors import InputError
from bilrp_studies.bench import decomposition, other_libraries, sentence, timing
from bilrp_studies.bench.decomposition import BenchmarkReport, Growth, Row
from text_folders import ARCHITECTURES


@pytest.fixture(scope="module")
def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 5, 3, padding=1), nn.ReLU()),
    ]


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 3.5 - 1.7


def parts_of(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    net = nn.Sequential(*layers)
    return bilrp.decompose(
        net, x, composite=composites.paper_vgg(), regions=regions.features(), mode="pull"
    ).parts


def test_the_loop_is_lrp(layers, x):
    position = int(nn.Sequential(*layers)(x).argmax())
    seed = torch.zeros(1, 5, 4, 4).flatten().scatter(0, torch.tensor(position), 1.0).reshape(1, 5, 4, 4)
    result = decomposition.run_lrp_pass(layers, x, seed)
    torch.testing.assert_close(result.flatten(), parts_of(layers, x)[:, position], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["zennit", "captum", "autolrp"])
def test_a_rival_library_is_timed_in_a_process_of_its_own(layers, x, name):
    if name not in other_libraries.list_installed():
        pytest.skip(f"needs {name}: pip install {name}")
    before = set(sys.modules)
    out = nn.Sequential(*layers)(x)
    channel, y, column = (int(i) for i in torch.unravel_index(out.argmax(), out.shape)[1:])
    result = other_libraries.time_pass(name, layers, x, (channel, y, column))
    assert result.seconds > 0 and result.relevance.shape == x.shape
    assert not [module for module in set(sys.modules) - before if module.partition(".")[0] == name]
    if name == "zennit":  # the others have no z^B for pixels, or one γ for all layers
        truth = parts_of(layers, x)[:, int(out.argmax())]
        torch.testing.assert_close(result.relevance.flatten(), truth, rtol=1e-3, atol=1e-4)


def test_a_rival_that_fails_is_one_line(layers, x):
    with pytest.raises(InputError, match="absent could not be timed: KeyError: 'absent'"):
        other_libraries.time_pass("absent", layers, x, (0, 0, 0))
    with pytest.raises(InputError, match="not on Linear"):
        other_libraries.time_pass("zennit", [nn.Linear(2, 2)], x, (0, 0, 0))


def test_measured_sees_time_and_memory():
    def work() -> None:
        held = torch.ones(2**26)
        time.sleep(0.5)  # memory is looked at now and then: let it be seen on a busy machine too
        held.sum()

    seconds, peak = timing.measure_cost(work)
    assert seconds > 0 and (peak == 0 or peak > 128)


def test_report_as_table_file_and_plot(tmp_path):
    rows = (Row("loop (×25 of 4)", 32.0, 4.0, 1.0, 300.0), Row("bilrp, exact", 2.0, 0.25, 16.0, 200.0))
    growth = (Growth(128, 8, 256, 105.0, 2.0, 200.0), Growth(128, 4, 1024, 300.0, None, None))
    report = BenchmarkReport(rows, growth, 0.08, decomposition.describe_machine())
    built = decomposition.write_report(report, tmp_path / "bench")
    stored = json.loads(built[0].read_text())
    assert stored["rows"][1]["faster_than_loop"] == 16.0 and stored["growth"][1]["seconds"] is None
    assert built[1].read_bytes().startswith(b"\x89PNG")
    console = Console(width=120, record=True, file=StringIO())
    console.print(decomposition.build_table(report))
    console.print(decomposition.build_growth_table(report))
    text = console.export_text()
    assert "16.0×" in text and "planned only" in text


def test_a_sentence_costs_less_than_a_loop_and_than_integrated_jacobians(tmp_path, capsys, monkeypatch):
    folder = ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32)
    rows = sentence.run(sentences(folder), "The cat sat on two kittens.", rounds=1)
    once, ours, gamma, loop, integrated = rows
    assert once.relative_flops == once.relative_cpu_time == 1 and ours.slowdown == 1
    assert ours.relative_flops < gamma.relative_flops and 2 * ours.relative_flops < min(
        loop.relative_flops, integrated.relative_flops
    )
    size = sentences(folder).module(read_item(sentences(folder), "The cat").x).numel()
    assert f"each of {size} coordinates" in loop.name and loop.relative_flops > size
    monkeypatch.setattr(
        sys, "argv", ["bilrp", "bench", "The cat sat.", "--text", f"sentence:{folder}", "--rounds", "1"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = capsys.readouterr().out
    assert not ended.value.code and "The cat sat." in message and "integrated" in message and "×" in message
