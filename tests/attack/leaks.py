"""Two hundred runs in one process: memory, open files, threads, hooks and temporary files end where they began."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import warnings
from pathlib import Path

import torch

import bilrp
from attack.table import Row
from attack.threads import NETS
from bilrp import composites
from bilrp.render import figure
from bilrp.render.page import render_html

RUNS, FIRST = 200, 40  # the first runs fill caches that torch and Python keep
MOST_BYTES = 25_000_000  # that the memory may grow in the runs after them


def attack(seed: int, path: Path) -> Row:
    row = Row("leaks")
    torch.manual_seed(seed)
    models = {name: make().eval() for name, make in NETS.items()}
    inputs = [torch.rand(1, 5, 6) - 0.3 for _ in range(4)]
    before = _state(models)
    for run in range(RUNS):
        if run == FIRST:
            before = _state(models)
        try:
            _once(run, list(models.values()), inputs, path)
        except Exception as error:
            row.failed("unexpected error", f"run {run}: {type(error).__name__}: {error}")
        else:
            row.right += 1
    after = _state(models)
    grown = after.pop("memory") - before.pop("memory")
    if grown > MOST_BYTES:
        row.failed("leftover files", f"seed {seed}: {grown / 1e6:.0f} MB more after {RUNS - FIRST} runs")
    if before != after:
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        row.failed("leftover files", f"seed {seed}: {changed}")
    row.note = f"memory grew by {grown / 1e6:.1f} MB"
    return row


def _once(run: int, models: list[torch.nn.Module], inputs: list[torch.Tensor], path: Path) -> None:
    """Explain, save, load, draw; and something that is refused on the way."""
    model = models[run % len(models)]
    composite = composites.hessian_product() if run % 2 else composites.uniform(0.25)
    explanation = bilrp.explain(
        model, inputs[run % 4], inputs[(run + 1) % 4], composite=composite, similarity="dot"
    )
    bilrp.Explanation.load(explanation.save(path / "why.npz"))
    if run % 10 == 0:
        render_html(explanation)
        figure.write(explanation, path / "why.png")
    for broken in (torch.full((1, 5, 6), float("nan")), torch.ones(1, 2)):
        try:
            bilrp.decompose(model, broken)
            raise AssertionError("it should be refused")
        except (bilrp.errors.BilrpError, RuntimeError):  # the model's own error stays its own
            pass


def _state(models: dict[str, torch.nn.Module]) -> dict[str, int]:
    gc.collect()
    modules = [module for model in models.values() for module in model.modules()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules)
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    handles = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    temporary = sum(name.startswith(".bilrp-partial-") for name in os.listdir(tempfile.gettempdir()))
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"), "open files": handles, "threads": threading.active_count(),
        "hooks": hooks, "temporary files": temporary, "warning filters": len(warnings.filters),
    }  # fmt: skip
