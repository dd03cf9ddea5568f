"""Every pass keeps push, pull and the values it must keep, and leaves the program it was given as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bilrp import composites
from bilrp.engine.passes import PASSES, Pass, rewrite
from bilrp.engine.program import Program, pull, push
from bilrp.rules.freezing import freeze
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify


class Block(nn.Module):
    """An activation, a max-pooling, a block with channels last between convolutions, a matrix, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.zeroth, self.first = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.wide, self.narrow, self.head = nn.Linear(6, 12), nn.Linear(12, 6), nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.max_pool2d(torch.tanh(self.zeroth(x)), 2, stride=1)
        y = self.first(y)
        y = y + self.narrow(torch.relu(self.wide(self.norm(y.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)
        return self.head(y).mean((2, 3))


@pytest.fixture(scope="module")
def program() -> Program:
    x = torch.randn(1, 3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return freeze(simplify(record(Block().double(), x)), composites.uniform(0.0))


def check_same(one: Program, other: Program) -> None:
    generator = torch.Generator().manual_seed(2)
    masks = torch.randint(0, 2, (4, *one.x.shape), generator=generator).double()
    cotangents = torch.randn(4, *one.result.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(
            push(other, masks)[other.output], push(one, masks)[one.output], rtol=1e-11, atol=1e-12
        )
        torch.testing.assert_close(pull(other, cotangents), pull(one, cotangents), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.__name__)
def test_a_pass_keeps_push_and_pull(each: Pass, program: Program) -> None:
    links = program.links
    rewritten = each(program, frozenset())
    assert program.links is links and rewritten.links != links, "this network has something for every pass"
    check_same(program, rewritten)


def test_all_passes_keep_what_they_must(program: Program) -> None:
    check_same(program, rewrite(program, frozenset()))
    masks = torch.ones_like(program.x)[None]
    for link in program.links:
        rewritten = rewrite(program, frozenset({link.target}))
        with torch.no_grad():
            before, after = (push(p, masks, {link.target})[link.target] for p in (program, rewritten))
        torch.testing.assert_close(after, before, rtol=1e-11, atol=1e-12)


def test_no_pass_changes_nothing(program: Program) -> None:
    assert rewrite(program, frozenset(), passes=()) is program
