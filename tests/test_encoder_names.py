"""Encoders by name, and what type hints say."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args, get_type_hints

import pytest
import torch
from PIL import Image

import bilrp
from bilrp.errors import InputError
from bilrp.similarity import Similarity


def test_an_encoder_may_be_given_by_its_name() -> None:
    a, b = torch.rand(2, 1, 4)
    named = bilrp.explain("torch.nn:Identity", a, b)
    assert named.a.origin["encoder"] == "torch.nn:Identity"
    assert named.score == pytest.approx(bilrp.explain(torch.nn.Identity(), a, b).score)
    left, right = bilrp.decompose_many("torch.nn:Identity", [a, b])
    assert bilrp.pair(left, bilrp.decompose("torch.nn:Identity", b)).score == pytest.approx(named.score)
    assert bilrp.ops("torch.nn:Flatten", torch.rand(1, 2, 3))
    assert torch.equal(right.embedding, b[0])


def test_a_name_reads_what_the_command_line_reads(tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    Image.new("RGB", (16, 16), "red").save(path)
    assert bilrp.decompose("torch.nn:Flatten", path).name == "red.png"


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(InputError, match="unknown encoder 'vgg'"):
        bilrp.explain("vgg", torch.rand(1, 4), torch.rand(1, 4))


def test_type_hints_say_what_explain_takes() -> None:
    hints = get_type_hints(bilrp.explain)
    assert {bilrp.Encoder, torch.nn.Module, str} <= set(get_args(hints["encoder"]))
    assert {torch.Tensor, str, Image.Image} <= set(get_args(hints["a"])) == set(get_args(hints["b"]))
    assert {str, Similarity, type(None)} == set(get_args(hints["similarity"]))
    assert {bilrp.regions.Regions, int} <= set(get_args(hints["regions"]))
    assert bilrp.rules.Rule in get_args(hints["composite"])
    assert hints["mode"] == Literal["auto", "push", "pull"]
