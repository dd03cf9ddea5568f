"""Eight threads against the serial answer: ReLU, GELU and attention, under three composites, push and pull alternately."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from attack.table import Row
from bilrp import composites

THREADS = 8
EACH = 12  # decompositions a thread, net and composite, in a round
MODES = ("auto", "push", "pull")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 18), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(query, key, value)).mean(1)


NETS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 5)),
    "gelu": lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.SiLU(), nn.Flatten()),
    "attention": Attention,
}
COMPOSITES = {
    "gamma": lambda: composites.uniform(0.25),
    "zero": lambda: composites.uniform(0.0),
    "hessian": composites.hessian_product,
}


def switches() -> tuple[object, ...]:
    """What belongs to the whole process, and must be as it was."""
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled(),
        torch.is_grad_enabled(), torch.get_default_dtype(), list(warnings.filters), torch.get_rng_state().tolist(),
    )  # fmt: skip


def attack(seed: int, path: Path, each: int = EACH) -> Row:
    """`each` decompositions a thread, for every net and composite."""
    row = Row("threads")
    for net, make in NETS.items():
        for composite_name, rules in COMPOSITES.items():
            torch.manual_seed(seed)
            model = make().double().eval()
            inputs = torch.rand(7, 1, 5, 6, dtype=torch.float64) - 0.3

            def work(number: int, model=model, inputs=inputs, rules=rules) -> Tensor | str:
                x, mode = inputs[number % len(inputs)], MODES[number % len(MODES)]
                try:
                    return bilrp.decompose(model, x, composite=rules(), mode=mode).parts
                except Exception as error:
                    return f"{type(error).__name__} {error}"

            serial = [work(number) for number in range(len(inputs) * len(MODES))]
            before, step = switches(), sys.getswitchinterval()
            sys.setswitchinterval(1e-4)
            try:
                with ThreadPoolExecutor(THREADS) as pool:
                    results = list(pool.map(work, range(THREADS * each)))
            finally:
                sys.setswitchinterval(step)
            for number, parts in enumerate(results):
                truth = serial[number % len(serial)]
                if isinstance(parts, str):
                    row.failed("unexpected error", f"{net} {composite_name} {number}: {parts}")
                elif isinstance(truth, Tensor) and torch.equal(parts, truth):
                    row.right += 1
                else:
                    row.failed("wrong", f"{net} {composite_name} {number}: not the serial answer")
            if switches() != before:
                row.failed("wrong", f"{net} {composite_name}: the process is not as it was")
    return row
