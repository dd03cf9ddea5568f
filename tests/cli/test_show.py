"""bilrp show: saved numbers are printed and drawn as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import bilrp


@pytest.fixture
def show(bilrp_command, tmp_path, monkeypatch):
    """`bilrp show …`, standing in a folder with a saved explanation: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    a, b = torch.rand(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4)).eval()
    explanation = bilrp.explain(net, a, b, regions=8, similarity="dot")
    explanation.save("why.npz")
    explanation.save("why.safetensors")

    return lambda *arguments: bilrp_command("show", *arguments)


@pytest.mark.parametrize("name", ["why.npz", "why.safetensors"])
def test_saved_numbers_are_shown_again(show, name):
    stored = bilrp.Explanation.load(name)
    code, out, err = show(name, "--json", "--top", "2")
    about = json.loads(out)
    assert code == 0 and err == ""
    assert about["score"] == stored.score and about["unattributed"] == stored.unattributed
    assert [m["relevance"] for m in about["top"]] == [m.relevance for m in stored.top(2)]
    assert about["seconds"] is None
    assert "16 × 16 regions" in show(name)[1]


def test_a_loaded_explanation_can_be_drawn(show):
    code, out, _ = show(
        "why.npz", "-o", "again.html", "-o", "again.png", "-o", "again.npz", "--title", "Again"
    )
    assert code == 0 and out.count("wrote again") == 3
    assert "<title>Again" in Path("again.html").read_text()
    second, stored = bilrp.Explanation.load("again.npz"), bilrp.Explanation.load("why.npz")
    assert torch.equal(second.relevance, stored.relevance) and second.score == stored.score


def test_what_cannot_be_shown_is_one_line(show, tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"nothing")
    (tmp_path / "text.txt").write_text("x")
    cases = {
        ("broken.npz",): "not a readable",
        ("absent.npz",): "no file absent.npz",
        ("text.txt",): "has no stored numbers",
        ("why.npz", "-o", "why.npz"): "would be overwritten",
        ("why.npz", "--link-preset", "nope"): "no style",
        ("why.npz", "--open"): "add -o why.html",
    }
    for arguments, expected in cases.items():
        code, out, err = show(*arguments)
        assert code == 2 and out == "" and err.count("\n") == 1 and expected in err, (arguments, err)
