"""A user's own model, operations, rules and maps: the right factor detached, or one line that says what to do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites, rules
from bilrp.engine.maps import Map, Scale
from bilrp.errors import InputError, MismatchError, RuleError
from bilrp.rules import Rule
from bilrp.trace.operation import activation, elementwise_nonzero

X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
UNIFORM = composites.uniform(0.25)
GATES = {
    "relu6(t + 3) / 6": lambda t: F.relu6(t + 3) / 6,
    "clamp(t / 6 + 1/2)": lambda t: (t / 6 + 0.5).clamp(0, 1),
    "tanh(t)²": lambda t: torch.tanh(t) ** 2,
    "atan": lambda t: 0.5 + torch.atan(t) / math.pi,
    "relu": lambda t: F.relu(t + 2),
}


class Excited(nn.Module):
    """Features from a ReLU, scaled by a number for each channel, or for each position."""

    def __init__(self, gate, spatial: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Conv2d(3, 4, 3, bias=False)
        self.squeeze = nn.Conv2d(4, 1 if spatial else 4, 1)
        self.gate, self.spatial = gate, spatial

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.features(x))
        squeezed = x if self.spatial else x.mean((2, 3), keepdim=True)
        return (x * self.gate(self.squeeze(squeezed))).mean((2, 3))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("spatial", [False, True])
def test_what_is_broadcast_over_the_features_is_the_scale(gate: str, spatial: bool) -> None:
    model = Excited(GATES[gate], spatial).eval()
    decomposition = bilrp.decompose(model, X)
    torch.testing.assert_close(
        decomposition.parts.sum(0), decomposition.embedding
    )  # no bias is on the way of the features
    row = next(row for row in bilrp.ops(model, X) if row.op == "mul" and len(row.inputs) == 2)
    assert row.rule == "product(freeze=1)"
    assert row.note is not None and row.note.endswith("detached, relu live")


def test_factors_of_one_shape_are_chosen_as_ever() -> None:
    def gated(x: Tensor) -> Tensor:
        return F.relu(x) * torch.atan(x.flip(1))

    assert bilrp.ops(gated, X)[-1].rule == "product(freeze=0)"
    with pytest.raises(
        RuleError, match=r"composite=bilrp.composites.first_match.*composites.uniform\(0.25\)\)"
    ):
        bilrp.decompose(lambda x: torch.atan(x) * torch.atan(x.flip(1)), X)


@pytest.mark.wrong_types
def test_rows_of_ones_own_are_part_of_the_origin() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    plain, listed, scaled = (
        bilrp.decompose(bilrp.Encoder(model, name="mine", operations=rows), X)
        for rows in ((), (activation("erfinv"),), (activation("erfinv", factor="scale"),))
    )
    assert "operations" not in plain.origin
    with pytest.raises(MismatchError, match=r"operations .*erfinv.*factor='scale'"):
        bilrp.pair(listed, scaled, similarity="dot")
    with pytest.raises(MismatchError, match="operations"):
        bilrp.pair(plain, scaled, similarity="dot")
    bilrp.pair(scaled, scaled, similarity="dot")
    with pytest.raises(InputError, match="must be a tuple"):
        bilrp.Encoder(model, operations=activation("erfinv"))  # type: ignore[arg-type]


def test_an_activation_has_to_be_elementwise() -> None:
    def running(x: Tensor) -> Tensor:
        return x.cummax(-1).values

    with pytest.raises(RuleError, match="not elementwise"):
        bilrp.decompose(bilrp.Encoder(running, operations=(activation("cummax"),)), X)
    with pytest.raises(RuleError) as raised:
        bilrp.decompose(running, X)
    assert "activation" not in str(raised.value)
    decomposition = bilrp.decompose(
        bilrp.Encoder(lambda x: torch.special.i1(x).flatten(1), operations=(activation("special_i1"),)), X
    )
    torch.testing.assert_close(decomposition.parts.sum(0), decomposition.embedding)
    with pytest.raises(RuleError, match=r"elementwise_nonzero\('special_ndtr', factor='scale'\)"):
        bilrp.decompose(torch.special.ndtr, X)
    row = elementwise_nonzero("special_ndtr", factor="scale")
    assert bilrp.decompose(bilrp.Encoder(lambda x: x * torch.special.ndtr(x), operations=(row,)), X)


ENTRIES = {
    "no pair": (("round", rules.jacobian()), "pairs"),
    "a dict": (({"round": rules.jacobian()},), "pairs"),
    "a function": ((("round", lambda step: Scale(torch.ones(()))),), r"Rule\(name, function\)"),
    "no brackets": ((("round", rules.jacobian),), r"bilrp.rules.jacobian\(\)"),
    "a string": ((("round", "jacobian"),), r"Rule\(name, function\)"),
    "a class": (((nn.Conv2d, rules.zero()),), "conv2d"),
    "a number": (((3, rules.zero()),), "pattern"),
}


@pytest.mark.wrong_types
@pytest.mark.parametrize("name", ENTRIES)
def test_entries_that_are_none(name: str) -> None:
    entries, words = ENTRIES[name]
    with pytest.raises(RuleError, match=words):
        composites.first_match(*entries, otherwise=UNIFORM)


@pytest.mark.wrong_types
def test_otherwise_is_a_composite_or_a_rule() -> None:
    with pytest.raises(RuleError, match=r"uniform\(0.25\)"):
        composites.first_match(("round", rules.jacobian()), otherwise=...)  # type: ignore[arg-type]
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
    composite = composites.first_match(("round", rules.jacobian()), otherwise=rules.gamma(0.25))
    expected = bilrp.decompose(linear, X, composite=UNIFORM).parts
    torch.testing.assert_close(bilrp.decompose(linear, X, composite=composite).parts, expected)


class Half(Map):
    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0] / 2

    def pull(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent / 2,)


class Untupled(Half):
    def pull(self, cotangent: Tensor) -> Any:
        return cotangent / 2


class Elsewhere(Half):
    slots = (1,)


class Shrunk(Half):
    def push(self, *tangents: Tensor) -> Tensor:
        return tangents[0].sum(-1)


class Duck:
    slots = (0,)
    push, pull = Half.push, Half.pull


MAPS = {
    "a tensor": (torch.ones(3), "Tensor.*inherits bilrp.engine.maps.Map"),
    "a duck": (Duck(), "Duck.*inherits bilrp.engine.maps.Map"),
    "a scale": (Scale(torch.ones(3)), r"rule 'mine'.*'relu_1'.*\(3,\)"),
    "no tuple": (Untupled(), "pull gives a tensor"),
    "another slot": (Elsewhere(), "slots"),
    "another shape": (Shrunk(), "push gives"),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_that_do_not_fit(name: str) -> None:
    linear_map, words = MAPS[name]
    composite = composites.first_match(("relu", Rule("mine", lambda step: linear_map)), otherwise=UNIFORM)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=words):
        bilrp.decompose(lambda x: F.relu(x), X, composite=composite)


def test_a_map_that_does() -> None:
    composite = composites.first_match(("relu", Rule("half", lambda step: Half())), otherwise=UNIFORM)
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(lambda x: F.relu(x).mean((2, 3)), X, composite=composite, mode=mode)
        torch.testing.assert_close(decomposition.parts.sum(0), X.mean((2, 3))[0] / 2)


@pytest.mark.parametrize("root", [torch.sqrt, lambda x: x.pow(0.5)])
def test_where_a_root_is_infinitely_steep_nothing_is_shared(root) -> None:
    """√0 / 0 is no number, and the slope there is none either: exact zeros behind a ReLU have no relevance."""
    torch.manual_seed(0)
    net = nn.Conv2d(1, 2, 3).double()

    def model(x: torch.Tensor) -> torch.Tensor:
        return root(torch.relu(net(x))).flatten(1)

    x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    results = {mode: bilrp.decompose(model, x, regions=3, mode=mode).parts for mode in ("push", "pull")}
    assert results["push"].isfinite().all() and results["push"].any()
    assert bool((model(x) == 0).any())
    torch.testing.assert_close(results["push"], results["pull"], rtol=0, atol=1e-12)


def test_gamma_on_small_numbers_of_half_precision() -> None:
    """Numbers below float16's normal ones still count."""
    torch.manual_seed(0)
    first, last = nn.Linear(6, 5), nn.Linear(5, 3)
    with torch.no_grad():
        first.weight.mul_(1e-4).abs_()
        first.bias.mul_(1e-5).abs_()
        last.weight.mul_(1e4)
    net, x = nn.Sequential(first, nn.ReLU(), last).half(), torch.rand(1, 6).half()
    parts = bilrp.decompose(net, x, composite=bilrp.composites.uniform(0.25)).parts.double()
    true = bilrp.decompose(net.double(), x.double(), composite=bilrp.composites.uniform(0.25)).parts
    assert float((parts - true).abs().max()) < 0.03 * float(true.abs().max())
