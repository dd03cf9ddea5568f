"""Push = pull: pooling the reverse relevance over regions equals pushing the masked regions. The strongest test there is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bilrp
from bilrp import composites, regions, rules
from bilrp.encoder import CompositeLike
from bilrp.engine import executor as execute
from bilrp.engine import plan
from bilrp.engine.costs import all_schedules
from bilrp.regions import RegionFunction
from bilrp.rules.freezing import freeze
from bilrp.sparse_parts import densify
from bilrp.trace.operation_table import INPUT_OP
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify
from bilrp.trace.tape import Step
from models import HUGGING, PLAIN, Case


def is_first(step: Step) -> bool:
    return step.sources == (INPUT_OP,) and composites.is_weighted(step)


FIRST_LAYER = composites.first_match((is_first, rules.wsquare()), otherwise=composites.resnet(0.1))
COMPOSITES: dict[str, CompositeLike] = {
    "lrp-0": composites.uniform(0.0),
    "gamma": composites.uniform(0.25),
    "epsilon": rules.epsilon(0.1),
    "alphabeta": rules.alphabeta(2.0, 1.0),
    "gradients": composites.hessian_product(),
    "first-layer": FIRST_LAYER,
}
# Their input enters a step without weights (a pooling, an addition, a norm, an attention).
NO_FIRST_LAYER = {
    "inception", "transformer-first", "transformer-seq", "transformer-norm-first", "bert-eager", "bert-sdpa",
}  # fmt: skip


def partitions(x: Tensor) -> dict[str, RegionFunction]:
    """Single features, a random partition with some features in no region, and patches for images."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.randint(-1, 4, x.shape[1:], generator=generator)
    mask.view(-1)[:4] = torch.arange(4)
    specs: dict[str, RegionFunction] = {"features": regions.features(), "labels": regions.labels(mask)}
    if x.dim() == 4:
        specs["grid"] = regions.grid(3)
    return specs


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest expected number (or of 1, if that is larger)."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))


EVERY = [(case, composite) for case in PLAIN if "transformer-" not in case.name for composite in COMPOSITES]
DEEP = [*(case for case in PLAIN if "transformer-" in case.name), *HUGGING]
LEAN = [(case, composite) for case in DEEP for composite in ("lrp-0", "gamma", "gradients", "first-layer")]
PAIRS = [
    (case, composite)
    for case, composite in [*EVERY, *LEAN]
    if composite != "first-layer" or case.name not in NO_FIRST_LAYER
]


@pytest.mark.parametrize(("case", "composite"), PAIRS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_push_equals_pull(case: Case, composite: str) -> None:
    model, x = case.model(), case.input()
    chosen = COMPOSITES[composite]
    with torch.no_grad():
        expected = model(x).flatten()
    for name, spec in partitions(x).items():
        pushed = bilrp.decompose(model, x, regions=spec, composite=chosen, mode="push")
        pulled = bilrp.decompose(model, x, regions=spec, composite=chosen, mode="pull")
        # Eager attention takes its softmax in float32, and so is its derivative.
        single = composite == "gradients" and case.name.endswith("eager")
        assert difference(pushed.parts, pulled.parts) < (1e-7 if single else 1e-9), name
        assert difference(pushed.embedding, expected) < 1e-12
        assert pushed.parts.abs().max() > 1e-6, "parts that are all zero would agree too"
        total = pushed.parts.sum(0) + pushed.unattributed
        assert difference(total, expected) < 1e-12


@pytest.mark.parametrize("case", [*PLAIN, *HUGGING], ids=lambda case: case.name)
def test_no_first_layer_names_exactly_the_models_without_one(case: Case) -> None:
    steps = simplify(record(case.model(), case.input())).steps
    entering = [step for step in steps if INPUT_OP in step.sources and step.operation.mask != "moves"]
    assert entering
    assert all(map(is_first, entering)) == (case.name not in NO_FIRST_LAYER)


@pytest.mark.parametrize("name", ["vgg", "residual", "upsampling"])
def test_every_plan_gives_the_same_parts(name: str) -> None:
    """Wherever windowed, sparse and dense push and pull take over from each other: the parts of a plain pull."""
    case = next(case for case in PLAIN if case.name == name)
    model, x = case.model(), case.input()
    mask = torch.randint(-1, 4, x.shape[2:], generator=torch.Generator().manual_seed(4))
    mask.view(-1)[:4] = torch.arange(4)
    for composite in (
        composites.uniform(0.25),
        FIRST_LAYER if name in {"vgg", "residual"} else composites.uniform(0.0),
    ):
        with torch.no_grad():
            program = freeze(simplify(record(model, x)), composite)
            for spec in (regions.grid(3), regions.labels(mask)):
                context = plan.PlanContext(program, spec(x), program.result.numel())
                expected = densify(
                    execute.execute_plan(context, plan.make_plan(context, "pull"))[program.output]
                )
                options = list(dict.fromkeys(all_schedules(context)))
                for schedule in [*options[:: max(1, len(options) // 12)], options[-1]]:
                    chosen = plan.plan_for(context, schedule)
                    parts = densify(execute.execute_plan(context, chosen)[program.output])
                    assert difference(parts, expected) < 1e-9, schedule


def test_an_embedding_may_be_a_single_number() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).double()
    torch.nn.init.uniform_(net.get_parameter("0.weight"))  # so that the ReLU lets something through
    x = torch.rand(1, 4, dtype=torch.float64)
    pushed, pulled = (bilrp.decompose(lambda v: net(v).sum(), x, mode=mode) for mode in ("push", "pull"))
    assert pushed.parts.shape == (pushed.regions.count, 1)
    torch.testing.assert_close(pushed.parts, pulled.parts, rtol=1e-9, atol=1e-12)
