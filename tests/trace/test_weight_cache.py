"""The weight cache: results are reused for the next input, and dropped when the weights change."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bilrp
from bilrp.trace.weight_cache import MAX_RATIO, cache_tensor, use_weight_cache


def net(seed: int = 0) -> nn.Sequential:
    """Convolutions with batch norm between them that has seen something."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        model(torch.randn(8, 2, 9, 9))
    return model.double().eval()


def picture(seed: int = 1) -> Tensor:
    return torch.rand(1, 2, 9, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(model: nn.Module, x: Tensor, gamma: float = 0.25) -> Tensor:
    return bilrp.decompose(model, x, regions=3, composite=bilrp.composites.uniform(gamma)).parts


def by_numpy(weight: Tensor) -> None:
    weight.detach().numpy()[:] *= 2


def by_data(weight: Tensor) -> None:
    weight.data[0] += 1


def in_place(weight: Tensor) -> None:
    with torch.no_grad():
        weight.mul_(1.5)


@pytest.mark.parametrize("change", [by_numpy, by_data, in_place])
@pytest.mark.parametrize("place", ["0.weight", "1.weight", "1.running_var", "3.weight"])
def test_changed_weights_are_seen(change: Callable[[Tensor], None], place: str) -> None:
    model, x = net(), picture()
    before = parts(model, x)
    change(model.state_dict(keep_vars=True)[place])
    fresh = net()
    fresh.load_state_dict(model.state_dict())
    assert torch.allclose(parts(model, x), parts(fresh, x), rtol=1e-12, atol=1e-15)
    assert not torch.allclose(parts(model, x), before)


class Made(TorchDispatchMode):
    """Counts the tensors of |W| and of batch norm's W · scale that are made."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shapes, self.count = {p.shape for p in model.parameters() if p.dim() == 4}, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        makes = func.overloadpacket in {torch.ops.aten.abs, torch.ops.aten.mul}
        self.count += makes and isinstance(out, Tensor) and out.shape in self.shapes
        return out


@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_a_second_input_finds_what_the_first_left(gamma: float) -> None:
    model = net()
    with Made(model) as first:
        parts(model, picture(1), gamma)
    with Made(model) as second:
        result = parts(model, picture(2), gamma)
    assert first.count > 0 == second.count
    assert torch.allclose(result, parts(net(), picture(2), gamma), rtol=1e-12, atol=1e-15)


def there_and_back(model: nn.Module) -> None:
    model.float().double()


def other_tensors(model: nn.Module) -> None:
    model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()}, assign=True)


def last_first(model: nn.Module) -> None:
    for p in reversed(list(model.parameters())):
        p.data = p.data.clone()


@pytest.mark.parametrize("move", [there_and_back, other_tensors, last_first])
@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_weights_that_move_are_not_taken_for_each_other(
    move: Callable[[nn.Module], None], gamma: float
) -> None:
    """The same numbers elsewhere: layers of one shape often come to lie where another lay."""
    for seed in range(8):
        torch.manual_seed(seed)
        layers = [layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.float())
        model.double()
        x = torch.rand(1, 8, 6, 6, dtype=torch.float64)
        before = parts(model, x, gamma)
        move(model)
        assert torch.allclose(parts(model, x, gamma), before, rtol=1e-9, atol=1e-12)


def test_many_inputs_see_weights_that_change_between_them() -> None:
    class Turning(nn.Module):
        """Turns its weights around before its fourth run, where no version counts it."""

        def __init__(self) -> None:
            super().__init__()
            self.net, self.runs = net(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            if self.runs == 4:
                self.net.get_parameter("0.weight").data.neg_()
            return self.net(x)

    model, x = Turning(), picture()
    result = list(bilrp.decompose_many(model, [x] * 6, regions=3, workers=1))
    last = bilrp.decompose(model, x, regions=3)
    for each in result[3:]:
        assert torch.allclose(each.parts, last.parts, rtol=1e-12, atol=1e-15) and each.origin == last.origin
    assert result[0].origin == result[2].origin != last.origin


def test_weights_made_during_the_run_are_not_taken_for_the_models() -> None:
    """A parametrised weight is computed for each input, often in the same memory."""
    torch.manual_seed(0)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.by = nn.Parameter(torch.randn(4, 2, 3, 3).double()), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, self.weight * self.by).relu().flatten(1)

    model, x = Scaled(), picture()
    first = parts(model, x)
    model.by = 3.0
    assert torch.allclose(parts(model, x), 3 * first)


def test_it_holds_as_much_as_the_weights_take_and_goes_with_the_model() -> None:
    model, result = net(), []
    weights = list(model.parameters())
    for name in range(5 * len(weights)):
        with use_weight_cache(model, weights, "state"):
            result.append(weakref.ref(cache_tensor(name, [weights[0]], weights[0].abs)))
    alive = sum(t.numel() for t in (ref() for ref in result) if t is not None)
    assert 0 < alive <= MAX_RATIO * sum(w.numel() for w in weights) + weights[0].numel()
    del model, weights
    gc.collect()
    assert all(ref() is None for ref in result)


def test_what_was_written_to_is_made_again() -> None:
    model = net()
    weight = model.get_parameter("0.weight").detach()
    with use_weight_cache(model, [weight], "state"):
        cache_tensor("size", [weight], weight.abs).zero_()
        assert torch.equal(cache_tensor("size", [weight], weight.abs), weight.abs())
