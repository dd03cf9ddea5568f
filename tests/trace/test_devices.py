"""Decompositions on simulated devices: no mixed devices, few synchronizations, the same values as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bilrp
from bilrp import composites
from bilrp.engine.plan_context import PlanContext
from bilrp.errors import InputError, RuleError, TapeError
from bilrp.evaluation.metrics import conservation
from bilrp.rules.freezing import freeze
from bilrp.rules.verification import verify_substitute
from bilrp.trace import devices
from bilrp.trace.checksum import GROUP_BYTES, compute_checksum, view_bytes
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from devices import CPU, FIRST, NARROW, SECOND, MixedDevices, Simulated
from models import CASES, Case, Lambda, randomize_norms

MODES = ("push", "pull", "auto")
NAMED = {case.name: case for case in CASES}
WAITS = 14  # how often the host may wait for a device in one decomposition, whatever the network
COMPOSITES = {
    "default": None,
    "gamma": composites.uniform(0.25),
    "gradients": composites.hessian_product(),
    "attnlrp": composites.attnlrp(0.25),
}


def parts(model: Any, x: Tensor, **options: Any) -> Tensor:
    return bilrp.decompose(model, x, regions=bilrp.regions.features(), **options).parts.detach().cpu()


# ---------------------------------------------------------------- the simulation itself


def test_a_simulated_device_refuses_what_a_real_one_does() -> None:
    with Simulated() as device:
        here, there = torch.ones(2, 2, device=FIRST), torch.ones(2, 2).to(SECOND)
        for mixed in (
            lambda: here + there,
            lambda: here @ torch.ones(2, 2),
            lambda: torch.cat([here, torch.ones(1, 2)]),
            lambda: torch.func.vjp(lambda t: t * there, here),
            lambda: torch.func.vmap(lambda t: t + torch.ones(2))(here),
        ):
            with pytest.raises(MixedDevices):
                mixed()
        for impossible in (here.numpy, lambda: torch.ones(2, device=NARROW).double()):
            with pytest.raises(TypeError):
                impossible()
        assert device.waits == 0
        assert (here * torch.tensor(2.0)).device == here.relu()[0].device == FIRST
        assert bool(here.any()) and here.tolist() == here.cpu().tolist() and here.cpu().device == CPU
        assert device.syncs == {"__bool__": 1, "tolist": 1, "cpu": 2} and device.bytes_read == 32


# ---------------------------------------------------------------- whole decompositions


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name",
    ["vgg", "residual", "inception", "selecting", "bert-sdpa", "vit-sdpa", "clip-sdpa"],
)
def test_a_device_gives_the_numbers_of_the_cpu_with_few_synchronizations(name: str, mode: str) -> None:
    case = NAMED[name]
    expected = parts(case.model(), case.input(), mode=mode)
    with Simulated() as device:
        model, x = move_to(case.model(), FIRST), case.input().to(FIRST)
        parts(model, x, mode=mode)  # the first time, weights are hashed on the host
        device.forget()
        actual = parts(model, x, mode=mode)
    assert torch.allclose(actual, expected, rtol=1e-9, atol=1e-12)
    assert 0 < device.waits <= WAITS, device.syncs


@pytest.mark.parametrize("composite", COMPOSITES)
@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("build", ["convolutions", "residual", "attention"])
def test_the_host_waits_no_more_often_for_a_deeper_network(build: str, mode: str, composite: str) -> None:
    waits = []
    for depth in (2, 6):
        x = torch.rand(1, *DEEP[build][1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with Simulated() as device:
            model, x = DEEP[build][0](depth).to(FIRST), x.to(FIRST)
            parts(model, x, mode=mode, composite=COMPOSITES[composite])
            device.forget()
            parts(model, x, mode=mode, composite=COMPOSITES[composite])
            waits.append(device.waits)
    assert waits[0] == waits[1] <= WAITS


def convolutions(depth: int) -> nn.Module:
    layers = [
        layer
        for _ in range(depth)
        for layer in (
            nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 1),
            nn.GELU(),
        )
    ]
    return build_seeded(lambda: nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()))


class Residual(nn.Module):
    """Blocks in which a copy goes by, with clamping and a mean at the end."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU6()) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = nn.functional.hardtanh(torch.cat([x[:, :1] + 1, (x + block(x))[:, 1:]], 1), -3, 3)
        return x.mean((2, 3))


def attention(depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    return build_seeded(lambda: nn.Sequential(encoder, Lambda(lambda y: y.mean(1))))


def build_seeded(build: Callable[[], nn.Module]) -> nn.Module:
    model = build()
    generator = torch.Generator().manual_seed(5)
    for p in model.parameters():
        p.data.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return randomize_norms(model)


DEEP: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "convolutions": (convolutions, (3, 6, 6)),
    "residual": (lambda depth: build_seeded(lambda: Residual(depth)), (3, 6, 6)),
    "attention": (attention, (4, 8)),
}


def move_to(model: Any, device: torch.device) -> Any:
    return model.to(device) if isinstance(model, nn.Module) else model


@pytest.mark.parametrize("composite", ["default", "gamma"])
@pytest.mark.parametrize("name", ["vgg", "residual", "bert-sdpa"])
def test_a_model_may_be_moved_between_explanations(name: str, composite: str) -> None:
    """What was made of its weights on one device is not used on another."""
    case = NAMED[name]
    options = {"composite": COMPOSITES[composite], "regions": bilrp.regions.features(), "similarity": "dot"}
    model, x, y = case.model(), case.input(1), case.input(2)
    assert isinstance(model, nn.Module)
    with Simulated():
        expected = bilrp.explain(model, x, y, **options).relevance
        for device in (FIRST, SECOND, CPU):
            model.to(device)
            actual = bilrp.explain(model, x.to(device), y.to(device), **options)
            assert actual.relevance.device == device
            assert torch.allclose(actual.relevance.cpu(), expected, rtol=1e-9, atol=1e-12)


def test_decompositions_of_two_devices_have_one_origin() -> None:
    case = NAMED["vgg"]
    model, x = case.model(), case.input()
    assert isinstance(model, nn.Module)
    with Simulated():
        here = bilrp.decompose(model, x, regions=4)
        there = bilrp.decompose(model.to(FIRST), x.to(FIRST), regions=4)
    assert here.origin == there.origin


# ---------------------------------------------------------------- weights


def test_weights_stay_on_their_device_once_they_are_hashed() -> None:
    case = Case("wide", lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 4)), (64,))
    with Simulated() as device:
        model, x = move_to(case.model(), FIRST), case.input().to(FIRST)
        bilrp.decompose(model, x, regions=bilrp.regions.labels(torch.arange(64) % 4))
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        assert device.bytes_read >= weights
        device.forget()
        bilrp.decompose(model, x, regions=bilrp.regions.labels(torch.arange(64) % 4))
    assert device.bytes_read < weights / 1000


@pytest.mark.parametrize("place", ["first", "last", "bias"])
def test_a_device_notices_weights_changed_behind_their_version(place: str) -> None:
    with Simulated():
        net, x = nn.Linear(200, 100).to(FIRST), torch.rand(1, 200).to(FIRST)
        before = bilrp.decompose(net, x).origin["weights"]
        changed = {"first": net.weight.data[0], "last": net.weight.data[-1, -1:], "bias": net.bias.data[7:8]}[
            place
        ]
        changed += 1
        assert bilrp.decompose(net, x).origin["weights"] != before


def test_sums_of_a_device_tell_weights_apart() -> None:
    torch.manual_seed(0)
    words = GROUP_BYTES // 4

    def weights() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        sizes = {"empty": 0, "small": 5, "group": words, "odd": 3 * words + 1, "more": 1100 * 1021}
        return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}

    changes: list[Callable[[dict[str, Tensor]], object]] = [
        lambda w: w["small"].neg_(),
        lambda w: w["group"][-1:].neg_(),
        lambda w: w["odd"][-1:].add_(1),
        lambda w: w["odd"].neg_(),
        lambda w: w["more"][1::2].neg_(),
        lambda w: w["more"].copy_(w["more"].flip(0)),
        lambda w: w["more"].view(1100, 1021)[[0, 9]].copy_(w["more"].view(1100, 1021)[[9, 0]].clone()),
        lambda w: w["more"].view(torch.int32)[77:78].bitwise_xor_(1),
        lambda w: w["more"].view(1021, 1100).copy_(w["more"].view(1100, 1021).T.clone().reshape(1021, 1100)),
    ]
    with Simulated() as device:

        def total(given: dict[str, Tensor]) -> int:
            return compute_checksum([t.to(FIRST) for t in given.values()])

        known = {total(weights())}
        assert total(weights()) in known and compute_checksum(
            [torch.zeros(0, device=FIRST)]
        ) == compute_checksum([torch.zeros(0, device=SECOND)])
        # wherever they lie: the third of eight bytes, every second number
        shifted = torch.randn(words + 1).to(FIRST)
        assert compute_checksum([shifted[1:]]) == compute_checksum([shifted[1:].clone()])
        assert compute_checksum([shifted[::2]]) == compute_checksum([shifted[::2].clone()])
        device.forget()
        for change in changes[:6] + changes[7:]:
            now = weights()
            change(now)
            known.add(total(now))
        assert device.syncs == {"cpu": len(changes) - 1}
    assert len(known) == len(changes)


class Called(TorchDispatchMode):
    """Counts torch's operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_cpu_sums_by_its_own_code() -> None:
    weights = [torch.randn(300, 300), torch.randn(7)]
    with Called() as shown:  # to numpy, where they lie
        for weight in weights:
            view_bytes(weight)
    with Called() as called:
        compute_checksum(weights)
    assert called.count == shown.count


# ---------------------------------------------------------------- checks


def test_checks_are_read_once_and_the_first_that_fails_is_named() -> None:
    def fail(name: str) -> Callable[[], object]:
        def record_failure() -> object:
            raise InputError(name)

        return record_failure

    with Simulated() as device:
        true, false = torch.ones((), device=FIRST) > 0, torch.ones((), device=FIRST) < 0
        with devices.defer_checks():
            for _ in range(9):
                devices.require(true, fail("none"))
        assert device.waits == 1
        with devices.defer_checks():
            with devices.defer_checks():
                devices.require(true, fail("none"))
            assert device.waits == 1
        with pytest.raises(InputError, match="first"), devices.defer_checks():
            devices.require(true, fail("none"))
            devices.require(false, fail("first"))
            devices.require(false, fail("second"))
        with pytest.raises(InputError, match="before"), devices.defer_checks():
            devices.require(false, fail("before"))
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), devices.defer_checks():
            devices.require(true, fail("none"))
            raise ZeroDivisionError
        with pytest.raises(InputError, match="at once"):
            devices.require(false, fail("at once"))
    with pytest.raises(InputError, match="at once"), devices.defer_checks():
        devices.require(torch.tensor(False), fail("at once"))
        pytest.fail("the CPU is asked at once")


class Counting(nn.Module):
    """Gives other numbers at every call, behind torch's back."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch._C.DisableTorchFunction():
            self.layer.weight.data.mul_(1.5)
        return y.relu() + x


@pytest.mark.parametrize("size", [4, 200])
def test_a_run_that_cannot_be_repeated_is_refused_on_a_device(size: int) -> None:
    with Simulated(), pytest.raises(TapeError, match="gives other numbers"):
        bilrp.decompose(Counting(size).to(FIRST), torch.rand(1, size).to(FIRST))


def test_values_that_are_infinite_on_the_way_are_repeated_without_waiting() -> None:
    def model(x: Tensor) -> Tensor:
        scores = (x @ x.mT).masked_fill(torch.ones(4, 4, device=x.device).triu(1) > 0, -torch.inf)
        return (scores.softmax(-1) @ x).mean(1)

    x = torch.rand(1, 4, 6, dtype=torch.float64)
    expected = parts(model, x)
    with Simulated() as device:
        there = x.to(FIRST)
        parts(model, there)
        device.forget()
        assert torch.allclose(parts(model, there), expected, rtol=1e-9)
    assert device.waits <= WAITS


def test_a_function_with_weights_of_its_own_is_asked_once_which_are_masks() -> None:
    def build(depth: int) -> tuple[list[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(depth)]
        return drawn, torch.ones(6, dtype=torch.float64)

    waits = []
    for depth in (2, 8):
        weights, mask = build(depth)
        with Simulated() as device:

            def model(x: Tensor, weights: list[Tensor], mask: Tensor) -> Tensor:
                for weight in weights:
                    x = nn.functional.linear(x, weight).relu() * mask
                return x

            there = [w.to(FIRST) for w in weights]
            x, stored = torch.rand(1, 6, dtype=torch.float64), mask.to(FIRST)
            tape = record(lambda t, w=there, m=stored: model(t, w, m), x.to(FIRST))
            waits.append(device.waits)
        here = record(lambda t, w=weights, m=mask: model(t, w, m), x)
        assert len(tape.weights) == len(here.weights) == depth
    assert waits[0] == waits[1]


@pytest.mark.parametrize("off", [0.0, 0.1])
def test_what_a_rule_uses_in_place_of_a_call_is_verified_on_a_device(off: float) -> None:
    with Simulated() as device:
        (step,) = record(nn.Linear(4, 3).to(FIRST), torch.rand(1, 4).to(FIRST)).steps
        device.forget()
        with (
            nullcontext() if not off else pytest.raises(RuleError, match="another result"),
            devices.defer_checks(),
        ):
            for _ in range(5):
                verify_substitute(step, lambda a: step.run(a) + off)
        assert device.waits == 1


def test_what_is_not_an_activation_is_refused_on_a_device_too() -> None:
    from bilrp.trace.operation import activation

    with Simulated(), pytest.raises(RuleError, match="does not send 0 to 0"):
        encoder = bilrp.Encoder(
            nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()).to(FIRST), operations=(activation("sigmoid"),)
        )
        bilrp.decompose(encoder, torch.rand(1, 4).to(FIRST))


# ---------------------------------------------------------------- float64


class Writing(nn.Module):
    """Puts numbers in places, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        index = torch.tensor([[0, 2, 3, 5]], device=x.device)
        return torch.scatter(x, 1, index, y[:, :4]).relu()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["vgg", "bert-sdpa", "writing"])
def test_a_device_without_float64_explains(name: str, mode: str) -> None:
    case = Case("writing", Writing, (6,)) if name == "writing" else NAMED[name]
    model, x, y = case.model(), case.input(1).float(), case.input(2).float()
    assert isinstance(model, nn.Module)
    options = {"mode": mode, "regions": bilrp.regions.features(), "similarity": "dot"}
    expected = bilrp.explain(model.float(), x, y, **options)
    with Simulated():
        actual = bilrp.explain(model.to(NARROW), x.to(NARROW), y.to(NARROW), **options)
        assert torch.allclose(actual.relevance.cpu(), expected.relevance, rtol=1e-4, atol=1e-6)
        assert actual.summary() and actual.top(3)
        assert conservation(actual).score == actual.score
        sets = bilrp.explain_sets([actual.a], [actual.b], similarity="dot")
        assert sets.relevance.device == NARROW


# ---------------------------------------------------------------- memory


class Card:
    """What `torch.cuda` says about a card of 1000 bytes: 100 free, 700 held by torch, 300 of them in use."""

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 100, 1000

    def memory_reserved(self, device: torch.device) -> int:
        return 700

    def memory_allocated(self, device: torch.device) -> int:
        return 300


def test_what_torch_holds_and_does_not_use_is_free() -> None:
    assert devices.get_device_free_bytes(Card(), FIRST) == 100 + 700 - 300


def test_a_device_that_is_not_there_says_nothing_and_has_the_usual_budget() -> None:
    assert devices.get_free_bytes(FIRST) is None or torch.xpu.is_available()
    assert devices.get_memory_budget(CPU) == devices.DEFAULT_BUDGET_BYTES
    assert devices.get_memory_budget(FIRST) == devices.DEFAULT_BUDGET_BYTES or torch.xpu.is_available()


def test_the_budget_of_a_device_is_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "get_free_bytes", lambda device: 80 * 2**30)
    assert (
        devices.get_memory_budget(FIRST) == 20 * 2**30
        and devices.get_memory_budget(CPU) == devices.DEFAULT_BUDGET_BYTES
    )
    program = freeze(simplify(record(nn.Linear(3, 2), torch.ones(1, 3))), composites.uniform(0.0))
    assert (
        PlanContext(program, bilrp.regions.features()(torch.ones(1, 3)), 2).budget
        == devices.DEFAULT_BUDGET_BYTES
    )
