"""Counting operations and other devices: a counted run calls what any run calls, and devices differ behind one interface."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp import composites, native
from bilrp.engine import executor
from bilrp.engine.executors import sparse, sparse_native, windowed
from models import randomize_norms, vgg_like


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages and the native functions that were called, in order."""
    seen: list[str] = []

    def watch(owner: Any, name: str, describe: Any) -> None:
        function = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            seen.append(describe(*args))
            return function(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(sparse, "push_map", lambda map_, *_: f"rows {type(map_).__name__}")
    watch(windowed, "push_map", lambda map_, *_: f"windows {type(map_).__name__}")
    watch(executor, "push_from", lambda links, *_: f"dense {len(links)}")
    watch(sparse_native.NativeSparseTangent, "_call", lambda _, name, *__: f"native {name}")
    return seen


@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_a_counted_run_calls_what_any_run_calls(gamma: float, calls: list[str]) -> None:
    if native.load_library() is None:
        pytest.skip("no compiled library")
    net = randomize_norms(
        torch.nn.Sequential(vgg_like(), torch.nn.Flatten(), torch.nn.Linear(8 * 12 * 12, 5))
    )
    x = torch.rand(1, 3, 48, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options: dict[str, Any] = {"regions": 4, "composite": composites.uniform(gamma), "mode": "push"}
    plain = bilrp.decompose(net, x, **options)
    plain_calls = calls.copy()
    calls.clear()
    with FlopCounterMode(display=False) as counter:
        counted = bilrp.decompose(net, x, **options)
    assert calls == plain_calls
    assert {each.split()[0] for each in calls} == {"windows", "rows", "native", "dense"}
    assert torch.equal(plain.parts, counted.parts)
    assert plain.plan is not None and counter.get_total_flops() >= plain.plan.flops


def test_native_work_is_counted_the_first_time_too() -> None:
    with FlopCounterMode(display=False) as counter:
        native.report_multiply_adds(123)
    assert counter.get_total_flops() == 246


def test_only_one_module_of_engine_rules_and_trace_asks_for_the_kind_of_a_device() -> None:
    root = Path(bilrp.__file__).parent
    asking = set()
    for path in (path for name in ("engine", "rules", "trace") for path in (root / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("device.type"):
                asking.add(path.relative_to(root).as_posix())
    assert asking == {"trace/devices.py"}
