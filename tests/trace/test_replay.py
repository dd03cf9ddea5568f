"""Verification by replay: what it detects, and what it costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from bilrp.errors import TapeError
from bilrp.trace.recorder import record
from bilrp.trace.replay import verify_tape


def share_of_the_run(model, x) -> float:
    """Cost of the replay relative to the run."""
    tape = record(model, x)
    with FlopCounterMode(display=False) as run:
        model(x)
    with FlopCounterMode(display=False) as second:
        verify_tape(tape)
    return second.get_total_flops() / run.get_total_flops()


class Drifting(nn.Module):
    """Changes the memory of its weights outside torch, after it has used them."""

    def __init__(self, change, outputs: int = 128) -> None:
        super().__init__()
        self.memory = np.random.default_rng(0).standard_normal((outputs, 8)).astype(np.float32)
        self.change = change

    def forward(self, x):
        out = F.linear(x, torch.from_numpy(self.memory))
        self.change(self.memory)
        return out


def halve(memory):
    memory *= 0.5


def spoil_one(memory):
    memory[5, 3] += 1.0


@pytest.mark.parametrize("outputs", [16, 128])
def test_weights_that_change_unseen_are_noticed(outputs):
    with pytest.raises(TapeError, match="gives other numbers"):
        record(Drifting(halve, outputs), torch.ones(1, 8))


@pytest.mark.parametrize("by_name", [False, True])
def test_channels_by_themselves_are_looked_at_in_part(by_name):
    """A sixteenth of a convolution that takes each channel alone; what changes unseen is actual there too."""
    memory = np.random.default_rng(0).standard_normal((64, 1, 3, 3)).astype(np.float32)
    x, changes = torch.rand(1, 64, 8, 8), [False]

    def model(x):
        weight = torch.from_numpy(memory)
        named = {"weight": weight, "padding": 1, "groups": 64}
        out = F.conv2d(x, **named) if by_name else F.conv2d(x, weight, None, 1, 1, 1, 64)
        if changes[0]:
            halve(memory)
        return out

    tape = record(model, x)
    with FlopCounterMode(display=False) as counter:
        verify_tape(tape)
    assert counter.get_total_flops() == 2 * 4 * 64 * 9  # of 64 channels four
    changes[0] = True
    with pytest.raises(TapeError, match="gives other numbers"):
        record(model, x)


@pytest.mark.parametrize(
    "settings", [{}, {"padding": 1, "stride": 2}, {"padding": (2, 0), "dilation": (1, 2)}]
)
@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 64)])
def test_a_change_in_any_output_of_a_wide_convolution_is_seen(settings, bias):
    """Few weights, many values: all outputs are looked at, for the price of two."""
    memory = np.random.default_rng(0).standard_normal((64, 6, 3, 3)).astype(np.float32)
    x, spoiled = torch.rand(1, 6, 48, 40), []

    def model(x):
        out = F.conv2d(x, torch.from_numpy(memory), bias, **settings)
        for output in spoiled:
            memory[output, 1, 2, 0] += 0.1
        return out

    assert 0 < share_of_the_run(model, x) <= 1 / 5
    for output in range(0, 64, 9):
        spoiled[:] = [output]
        with pytest.raises(TapeError, match="gives other numbers"):
            record(model, x)


class Spoiled(nn.Module):
    """Changes its second convolution's numbers outside torch, after it has used them."""

    def __init__(self, spoil) -> None:
        super().__init__()
        draw = np.random.default_rng(0)
        self.first = nn.Conv2d(6, 6, 1)
        self.weight = draw.standard_normal((64, 6, 3, 3)).astype(np.float32)
        self.bias, self.spoil = draw.standard_normal(64).astype(np.float32), spoil

    def forward(self, x):
        x = self.first(x).relu()
        out = F.conv2d(x, torch.from_numpy(self.weight), torch.from_numpy(self.bias))
        self.spoil(self)
        return out.relu().flatten(1)


def more_bias(model):
    model.bias += 5


def more_weight(model):
    model.weight += 1


def masked_and_tripled(model):
    """A channel with a bias of −∞ gives −∞ always; the check still sees the others."""
    model.weight *= 3


@pytest.mark.parametrize("spoil", [more_bias, more_weight, masked_and_tripled])
def test_a_change_that_all_outputs_share_is_seen(spoil):
    model = Spoiled(spoil)
    if spoil is masked_and_tripled:
        model.bias[3] = -np.inf
    with pytest.raises(TapeError, match="gives other numbers"):
        record(model, torch.rand(1, 6, 40, 40))


def test_every_picture_of_a_batch_is_looked_at():
    """Crops folded into the batch axis, of which the first shows nothing."""
    memory = np.random.default_rng(0).standard_normal((64, 8, 3, 3)).astype(np.float32)
    x = torch.rand(1, 32, 24, 24)
    x[:, :8] = 0

    def model(x):
        out = F.conv2d(x.reshape(4, 8, 24, 24), torch.from_numpy(memory)).flatten().unsqueeze(0)
        memory[:] *= 3
        return out

    with pytest.raises(TapeError, match="gives other numbers"):
        record(model, x)


def test_a_pooling_is_looked_at_in_part():
    tape = record(nn.MaxPool2d(3, 2), torch.rand(1, 64, 12, 12))
    looks = []
    step = tape.steps[0]
    watched = replace(
        step, call=lambda x, *args, **kwargs: looks.append(x.shape[1]) or step.call(x, *args, **kwargs)
    )
    verify_tape(replace(tape, steps=(watched,)))
    assert looks == [4]
    step.result.numpy()[:] += 1
    with pytest.raises(TapeError, match="gives other numbers"):
        verify_tape(tape)


def test_few_outputs_are_all_looked_at():
    with pytest.raises(TapeError, match="gives other numbers"):
        record(Drifting(spoil_one, 16), torch.ones(1, 8))


def test_steps_without_weights_are_run_as_they_are():
    memory = np.ones(128, dtype=np.float32)

    def model(x):
        out = x * torch.from_numpy(memory)
        memory[77] = 3.0
        return out

    with pytest.raises(TapeError, match="gives other numbers"):
        record(model, torch.ones(1, 128))


def deep(kind: str) -> tuple[nn.Module, torch.Tensor]:
    if kind == "linear":
        layers = [nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 64)]
        return nn.Sequential(*layers).eval(), torch.randn(1, 128)
    if kind == "conv":
        layers = [nn.Conv2d(3, 64, 3, padding="same"), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, bias=False)]
        return nn.Sequential(*layers, nn.Flatten()).eval(), torch.randn(1, 3, 16, 16)
    return nn.Sequential(nn.Conv1d(4, 96, 5, dilation=2), nn.GELU(), nn.Flatten()).eval(), torch.randn(
        1, 4, 40
    )


@pytest.mark.parametrize("kind", ["linear", "conv", "conv1d"])
def test_it_takes_a_tenth_of_the_run(kind):
    model, x = deep(kind)
    assert 0 < share_of_the_run(model, x) <= 1 / 10


def test_rounding_never_refuses_a_model():
    """Sums that cancel: asked for some outputs only, torch may round otherwise. Then all are asked for."""
    model = nn.Linear(4096, 256)
    with torch.no_grad():
        model.weight.copy_(torch.randn(256, 4096) * 1e4)
        model.weight -= model.weight.mean(1, keepdim=True)
        model.bias.zero_()
    assert len(record(model, torch.full((3, 4096), 1e3) + torch.rand(3, 4096)).steps) == 1


@torch.jit.script
def spoil(weight: torch.Tensor):
    weight[100] += 1.0


def test_what_torch_counts_as_written_is_run_whole():
    """Scripted code writes into a weight after its last use: no later call would notice."""
    weight = torch.randn(128, 128)

    def model(x):
        out = F.linear(x, weight)
        spoil(weight)
        return out

    with pytest.raises(TapeError, match="gives other numbers"):
        record(model, torch.rand(1, 128))


def test_writes_in_place_that_are_seen_cost_no_second_run():
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(inplace=True), nn.Linear(256, 256)).eval()
    x = torch.randn(1, 128)
    assert 0 < share_of_the_run(model, x) <= 1 / 10


@pytest.mark.parametrize("bias", [torch.randn(1), torch.tensor(0.5), torch.randn(1, 128)])
def test_biases_of_other_shapes(bias):
    weight = torch.randn(128, 5)
    assert len(record(lambda x: F.linear(x, weight, bias), torch.rand(1, 5)).steps) == 1
    square = torch.randn(128, 128)
    assert record(lambda x: F.linear(x.expand(128, 128), square, square), torch.rand(1, 128)).steps


def test_attention_is_replayed_for_some_queries():
    """A sixteenth of the queries, against all keys; a mask that changes unseen is noticed."""
    hidden = np.zeros((128, 128), dtype=np.float32)
    changes = [False]

    def model(x):
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads, torch.from_numpy(hidden))
        if changes[0]:
            hidden[:, ::2] -= 1.0
        return out.transpose(1, 2).flatten(2)

    x = torch.randn(1, 128, 8, generator=torch.Generator().manual_seed(0))
    tape, queries = record(model, x), []

    class Counter(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.scaled_dot_product_attention:
                queries.append(args[0].shape[-2])
            return func(*args, **(kwargs or {}))

    with Counter():
        verify_tape(tape)
    assert queries == [128 // 16]
    changes[0] = True
    with pytest.raises(TapeError, match="gives other numbers"):
        record(model, x)


@pytest.mark.parametrize("causal", [False, True])
def test_norms_activations_and_attention_are_replayed_by_rows(causal):
    """What is sampled agrees with the whole: a tape of all of them verifies, with any mask."""
    mask = None if causal else torch.ones(80, 80).tril().bool()

    def model(x):
        x = F.gelu(F.layer_norm(x, (8,)))
        return F.scaled_dot_product_attention(x, x, x, mask, is_causal=causal)

    tape = record(model, torch.randn(1, 80, 8, generator=torch.Generator().manual_seed(0)))
    wrong = tuple(replace(step, result=step.result * 1.01) for step in tape.steps)
    for step in range(len(wrong)):
        steps = (*tape.steps[:step], wrong[step], *tape.steps[step + 1 :])
        with pytest.raises(TapeError, match="gives other numbers"):
            verify_tape(replace(tape, steps=steps))
