"""zennit as an oracle: one LRP pass for each coordinate, by another library's code, on a plain convolutional net."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions, rules
from bilrp_studies.bench import other_libraries


@pytest.fixture(scope="module")
def zennit():
    try:
        yield other_libraries.import_zennit()
    except ImportError as error:
        pytest.skip(f"needs zennit: {error}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "zennit"]:
        del sys.modules[name]


def net() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4, 5)),
    ).double()


STABILISER = 1e-12
CASES = {
    "epsilon": (lambda z: z.Epsilon(epsilon=0.1), rules.epsilon(0.1)),
    "gamma": (lambda z: z.Gamma(gamma=0.3, stabilizer=STABILISER), rules.gamma(0.3)),
    "alphabeta": (lambda z: z.AlphaBeta(2.0, 1.0, stabilizer=STABILISER), rules.alphabeta(2.0, 1.0)),
    "zplus": (lambda z: z.ZPlus(stabilizer=STABILISER), rules.zplus()),
}
FIRST = {
    "zbox": (lambda z: z.ZBox(-4.0, 4.0, stabilizer=STABILISER), rules.zbox(-4.0, 4.0)),
    "flat": (lambda z: z.Flat(stabilizer=STABILISER), rules.flat()),
    # zennit counts the squared bias as one more feature, the paper that introduced the rule does not
    "wsquare": (lambda z: z.WSquare(stabilizer=STABILISER, zero_params="bias"), rules.wsquare()),
}


def by_zennit(zennit, model: nn.Module, x: Tensor, names: dict[str, object]) -> Tensor:
    composite = zennit.composites.NameMapComposite([([name], rule) for name, rule in names.items()])
    rows = []
    with composite.context(model) as modified:
        for m in range(5):
            start = x.clone().requires_grad_()
            out = modified(start)
            seed = torch.zeros_like(out).index_copy_(1, torch.tensor([m]), out.detach()[:, m : m + 1])
            (relevance,) = torch.autograd.grad(out, start, seed)
            rows.append(relevance.flatten())
    return torch.stack(rows, 1)


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "positive"])
@pytest.mark.parametrize("name", [*CASES, *FIRST])
def test_agrees_with_zennit(zennit, name: str, signed: bool) -> None:
    model = net()
    x = torch.rand(1, 2, 7, 7, dtype=torch.float64)
    x = 4 * x - 2 if signed else x
    build, ours = (CASES | FIRST)[name]
    if name in CASES:
        theirs = {layer: build(zennit.rules) for layer in ("0", "2", "6")}
        composite = ours
    else:
        theirs = {
            "0": build(zennit.rules),
            **{n: zennit.rules.Gamma(0.3, stabilizer=STABILISER) for n in ("2", "6")},
        }
        composite = composites.first_match(("0", ours), otherwise=composites.uniform(0.3))
    theirs |= {n: zennit.rules.Pass() for n in ("1", "3")}
    expected = by_zennit(zennit, model, x, theirs)
    assert expected.abs().max() > 1e-3
    parts = bilrp.decompose(model, x, regions=regions.features(), composite=composite).parts
    torch.testing.assert_close(parts, expected, rtol=1e-6, atol=1e-9)
