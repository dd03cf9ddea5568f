"""x[index] = y and other writes into shared memory are followed: gradients, push = pull, models that do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions
from bilrp.errors import TapeError
from bilrp.trace.recorder import record

GENERATOR = torch.Generator().manual_seed(5)
W = torch.randn(6, 6, dtype=torch.float64, generator=GENERATOR)
X = torch.randn(1, 6, dtype=torch.float64, generator=GENERATOR)
MASK = torch.tensor([[True, False, True, True, False, False]])


def into_live(x: Tensor) -> Tensor:
    y = x @ W
    y[:, 0] = 0
    return y


def into_constant(x: Tensor) -> Tensor:
    buffer = torch.zeros(1, 8, dtype=x.dtype)
    buffer[:, :6] = x @ W
    return buffer


def read_between(x: Tensor) -> Tensor:
    y = x @ W
    early = y.relu()
    y[:, 2:4] = x[:, :2]
    middle = y * 2
    y[:, 3] = early[:, 0]
    return early + middle + y


def filled_in_a_loop(x: Tensor) -> Tensor:
    rows = torch.empty(4, 6, dtype=x.dtype)
    state = x[0]
    for i in range(4):
        state = torch.relu(W @ state)
        rows[i] = state
    return rows.sum(0, keepdim=True)


def by_masks_and_lists(x: Tensor) -> Tensor:
    y = (x @ W).clone()
    y[MASK] = x[~MASK] * 3
    y[..., [1, 5]] = x[0, :2]
    y[MASK.flip(1)] = -1.0
    y[:, torch.tensor([4])] = x[:, None, :1].reshape(1, 1, 1)
    return y


def several_in_one_place(x: Tensor) -> Tensor:
    y = torch.zeros(6, dtype=x.dtype)
    y[torch.tensor([0, 0, 1, 1, 2, 2])] = x[0]
    return y[None]


def augmented(x: Tensor) -> Tensor:
    y = x @ W
    y[:, :3] *= 2
    y[:, 1] += x[:, 4]
    buffer = torch.ones(1, 6, dtype=x.dtype)
    buffer[:, 2:] -= y[:, 2:]
    buffer[MASK] += x[MASK]
    return y + buffer


def through_a_view(x: Tensor) -> Tensor:
    y = x @ W
    y.view(-1)[:3].mul_(3)
    return y


def view_of_a_constant(x: Tensor) -> Tensor:
    buffer = torch.ones(2, 6, dtype=x.dtype)
    buffer[0].copy_(x[0])
    buffer[1:, 2:].add_(x[:, 2:])
    return F.linear(buffer, W).sum(0, keepdim=True)


def base_after_view(x: Tensor) -> Tensor:
    y = x @ W
    v = y[:, :3]
    y.mul_(2)
    return v


def views_of_views(x: Tensor) -> Tensor:
    y = (x @ W).reshape(2, 3)
    transposed, row = y.T, y[1]
    transposed[2] = x[0, :2]
    row[0] = 5 * x[0, 0]
    y[0, 0] += row[2]
    return torch.cat([transposed.reshape(1, 6), row[None] * 2, y.reshape(1, 6)], 1)


def next_to_the_write(x: Tensor) -> Tensor:
    y = x @ W
    left, right = y[:, :3], y[:, 3:]
    left[:, 0] = 0
    return left * right


def rounded(x: Tensor) -> Tensor:
    y = torch.zeros(1, 6, dtype=torch.float32)
    y[:, 1:] = x[:, 1:]
    return y.double()


def strided(x: Tensor) -> Tensor:
    """Windows that overlap, as Longformer makes them, of a tensor that does not lie in order."""
    return (x @ W).reshape(2, 3).T.as_strided((2, 3), (2, 1), 1).reshape(1, 6)


FOLLOWED = [
    *(into_live, into_constant, read_between, filled_in_a_loop, by_masks_and_lists, several_in_one_place),
    *(augmented, through_a_view, view_of_a_constant, base_after_view, views_of_views, next_to_the_write),
    *(rounded, strided),
]


def differences(function: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-6) -> Tensor:
    """gradient × input [features, outputs] by central differences: torch's derivatives have no say."""
    rows = []
    for feature in range(x.numel()):
        moved = []
        for sign in (1, -1):
            there = x.clone()
            there.view(-1)[feature] *= 1 + sign * step
            moved.append(function(there).flatten())
        rows.append((moved[0] - moved[1]) / (2 * step))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("function", FOLLOWED, ids=lambda f: f.__name__)
def test_writes_get_their_gradients(function: Callable[[Tensor], Tensor], mode: Any) -> None:
    step, slack = (1e-1, 1e-5) if function is rounded else (1e-6, 1e-7)
    result = bilrp.decompose(
        function, X, regions=regions.features(), composite=composites.hessian_product(), mode=mode
    )
    torch.testing.assert_close(result.embedding, function(X.clone()).flatten())
    torch.testing.assert_close(result.parts, differences(function, X, step), rtol=slack, atol=slack)


def test_a_number_is_assigned_in_the_type_of_the_tensor() -> None:
    def fill(x: Tensor) -> Tensor:
        y = x * 0.01
        y[:, 0] = 0.1  # no float32 number
        return y

    assert torch.equal(record(fill, X).steps[-1].run(X * 0.01), fill(X))


def test_a_loop_of_assignments_is_one_step() -> None:
    steps = record(filled_in_a_loop, X).steps
    assert [step.op for step in steps].count("__setitem__") == 1
    assert len(next(step for step in steps if step.op == "__setitem__").inputs) == 4


def test_the_models_own_memory_is_overwritten_in_every_run() -> None:
    class Cached(nn.Module):
        state: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(1, 8, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            self.state[:, :6] = x
            return self.state * 2

    model = Cached()
    first, second = (
        bilrp.decompose(model, x, regions=regions.features(), composite=composites.uniform(0.0))
        for x in (X, X + 1)
    )
    torch.testing.assert_close(first.parts[:, :6], torch.diag(2 * X[0]))
    torch.testing.assert_close(second.parts[:, :6], torch.diag(2 * X[0] + 2))


class Hidden(nn.Module):
    """Writes by index into memory that it goes on to read without torch counting the write."""

    def forward(self, x: Tensor) -> Tensor:
        y = x @ W
        apart = y.data
        apart[:, 0] = 0
        return y + x


def test_a_refusal_names_module_and_line() -> None:
    with pytest.raises(
        TapeError, match=r"overwritten through a view \(Hidden '1', test_index_assignment.py:\d+\)"
    ) as raised:
        record(nn.Sequential(nn.Identity(), Hidden()), X)
    line = int(str(raised.value).split("assignment.py:")[1].split(")")[0])
    with open(__file__, encoding="utf-8") as source:
        assert "apart[:, 0] = 0" in source.readlines()[line - 1]


# ---------------------------------------------------------------- models

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 30,
}


class Model(nn.Module):
    def __init__(self, model: nn.Module, **given: Tensor) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, x: Tensor) -> Tensor:
        return self.model(inputs_embeds=x, **self.given).last_hidden_state.mean(1)[:, :3]


def build(name: str) -> tuple[Model, int]:
    """A small model with random weights, and a number of tokens for it."""
    if name.startswith("longformer"):
        config = transformers.LongformerConfig(**SMALL, attention_window=4, max_position_embeddings=40)
        first = (torch.arange(8) == 0).long()[None]
        given = {"global_attention_mask": first} if name.endswith("global") else {}
        return Model(transformers.LongformerModel(config), **given), 8
    if name == "bigbird":
        config = transformers.BigBirdConfig(
            **SMALL, attention_type="block_sparse", block_size=2, num_random_blocks=1, sep_token_id=2
        )
        return Model(transformers.BigBirdModel(config)), 24
    config = transformers.RwkvConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, context_length=32)
    return Model(transformers.RwkvModel(config), use_cache=False), 6  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["longformer", "longformer global", "bigbird", "rwkv"])
def test_models_that_assign_by_index(name: str) -> None:
    torch.manual_seed(0)
    model, tokens = build(name)
    model = model.double().eval().requires_grad_(False)
    x = torch.randn(1, tokens, 16, dtype=torch.float64)
    start = x.clone().requires_grad_()
    outputs = model(start).flatten()
    expected = torch.stack(
        [(torch.autograd.grad(out, start, retain_graph=True)[0] * x).sum(-1)[0] for out in outputs], 1
    )
    slack = 1e-7 if name == "rwkv" else 1e-10  # its recurrence is in float32
    for mode in ("push", "pull"):
        result = bilrp.decompose(model, x, composite=composites.hessian_product(), mode=mode)
        torch.testing.assert_close(result.embedding, outputs.detach())
        torch.testing.assert_close(result.parts, expected, rtol=slack, atol=slack)
