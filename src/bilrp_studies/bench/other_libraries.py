"""One LRP pass for one coordinate by other installed libraries (zennit, captum, autolrp), for the benchmark to time.

Each library is used as its documentation shows, in a subprocess (`python -m bilrp_studies.bench.other_libraries`): two
of them modify the model, and zennit is imported without running its `__init__`. None of them explains pairs without one
pass per coordinate, so 100 projected coordinates cost 100 passes.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.errors import InputError
from bilrp.io import store
from bilrp.rules.composites import IMAGENET_HIGH, IMAGENET_LOW, paper_gamma
from bilrp_studies.bench.timing import measure_cost

LrpPass = Callable[[Tensor], Tensor]
Coordinate = tuple[int, int, int]
TASK_FILE, ANSWER_FILE = "task.safetensors", "answer.safetensors"


@dataclass(frozen=True, eq=False)
class TimedPass:
    """One LRP pass of another library: its relevance, its seconds, and its peak memory above the start in MB."""

    relevance: Tensor
    seconds: float
    peak_mb: float


def list_installed() -> list[str]:
    """Return the names of the installed libraries, without importing them.

    >>> set(list_installed()) <= {"zennit", "captum", "autolrp"}
    True
    """
    return [name for name in PASS_BUILDERS if importlib.util.find_spec(name) is not None]


def time_pass(name: str, layers: Iterable[nn.Module], x: Tensor, coordinate: Coordinate) -> TimedPass:
    """Time one LRP pass for one output coordinate in a subprocess.

    Args:
        name: "zennit", "captum" or "autolrp".
        layers: Convolutions, ReLUs and max-poolings, in order.
        x: The input, with a batch axis of 1.
        coordinate: (channel, row, column) of the output.
    """
    net = nn.Sequential(*layers)
    about = {"kind": "task", "library": name, "layers": json.dumps([_describe_layer(layer) for layer in net])}
    about |= {"place": json.dumps(coordinate), "threads": str(torch.get_num_threads())}
    with tempfile.TemporaryDirectory(prefix="bilrp-") as folder:
        store.write(Path(folder) / TASK_FILE, {**net.state_dict(), "x": x}, about)
        done = subprocess.run(
            [sys.executable, "-m", "bilrp_studies.bench.other_libraries", folder],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise InputError(f"{name} could not be timed: {reason}")
        tensors, words = store.read(Path(folder) / ANSWER_FILE, kind="answer")
    return TimedPass(tensors["relevance"], float(words["seconds"]), float(words["peak_mb"]))


def main(folder: str) -> None:
    """Entry point of the subprocess: read the task from the folder, run one pass, write the result."""
    tensors, about = store.read(Path(folder) / TASK_FILE, kind="task")
    torch.set_num_threads(int(about["threads"]))
    x = tensors.pop("x")
    net = nn.Sequential(*(_build_layer(layer) for layer in json.loads(about["layers"])))
    net.load_state_dict(tensors)
    channel, row, column = json.loads(about["place"])
    one = PASS_BUILDERS[about["library"]](net.eval(), (channel, row, column))
    with torch.no_grad():
        net(x)  # warm-up: torch's one-time initialisation is not part of the measurement
    result: list[Tensor] = []
    seconds, peak = measure_cost(lambda: result.append(one(x)))
    words = {"kind": "answer", "seconds": repr(seconds), "peak_mb": repr(peak)}
    store.write(Path(folder) / ANSWER_FILE, {"relevance": result[0]}, words)


def _describe_layer(layer: nn.Module) -> list[Any]:
    """Return a layer's kind and sizes, JSON-serialisable; `_build_layer` rebuilds it from them."""
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding if isinstance(layer.padding, str) else list(layer.padding)
        return ["conv", layer.in_channels, layer.out_channels, list(layer.kernel_size), padding]
    if isinstance(layer, nn.MaxPool2d):
        return ["pool", layer.kernel_size]
    if isinstance(layer, nn.ReLU):
        return ["relu"]
    raise InputError(
        f"rivals are timed on convolutions, ReLUs and max-poolings, not on {type(layer).__name__}"
    )


def _build_layer(description: list[Any]) -> nn.Module:
    kind, *sizes = description
    if kind == "conv":
        inputs, outputs, kernel, padding = sizes
        return nn.Conv2d(inputs, outputs, kernel, padding=padding)
    return nn.MaxPool2d(sizes[0]) if kind == "pool" else nn.ReLU()


def import_zennit() -> Any:
    """Import zennit's rules and composites without running its __init__; for use in a subprocess.

    zennit's __init__ imports torchvision, which fails to import with a CPU-only torch and which the rules do not need.
    """
    result = importlib.util.find_spec("zennit")
    if result is None or result.submodule_search_locations is None:
        raise ImportError("zennit is not installed: pip install --no-deps zennit")
    package = types.ModuleType("zennit")
    package.__path__, package.__spec__ = list(result.submodule_search_locations), result
    sys.modules["zennit"] = package
    for part in ("rules", "composites"):
        setattr(package, part, importlib.import_module(f"zennit.{part}"))
    return package


def _zennit_pass(net: nn.Sequential, coordinate: Coordinate) -> LrpPass:
    library = import_zennit()
    low, high = (torch.tensor(bound).reshape(1, -1, 1, 1) for bound in (IMAGENET_LOW, IMAGENET_HIGH))
    rules = [([name], library.rules.Gamma(paper_gamma(int(name) + 1))) for name in _convolutions(net)[1:]]
    composite = library.composites.NameMapComposite([(["0"], library.rules.ZBox(low, high)), *rules])

    def one(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with torch.enable_grad(), composite.context(net) as changed:
            out = changed(x)[0][coordinate]
            return torch.autograd.grad(out, x, grad_outputs=out.detach())[0]

    return one


def _captum_pass(net: nn.Sequential, coordinate: Coordinate) -> LrpPass:
    from captum.attr import LRP  # type: ignore[import-not-found]
    from captum.attr._utils.lrp_rules import GammaRule  # type: ignore[import-not-found]

    def one(x: Tensor) -> Tensor:
        fresh = copy.deepcopy(net)  # captum's LRP gives a different result on a second call
        for name in _convolutions(fresh):
            fresh.get_submodule(name).rule = GammaRule(gamma=paper_gamma(int(name) + 1))  # type: ignore[assignment]
        with torch.enable_grad():
            return LRP(fresh).attribute(x.clone().requires_grad_(), target=coordinate).detach()

    return one


def _autolrp_pass(net: nn.Sequential, coordinate: Coordinate) -> LrpPass:
    import autolrp  # type: ignore[import-not-found]

    rules = {**autolrp.BASE, "ConvolutionBackward": ("gamma", {"gamma": 0.25})}
    config = autolrp.LRPConfig(rule=rules)
    for layer in net:
        if isinstance(layer, nn.ReLU):
            layer.inplace = False

    def one(x: Tensor) -> Tensor:
        wrapped = autolrp.tensor(x.clone())
        with torch.enable_grad():
            net(wrapped)[0][coordinate].lrp(config=config)
        relevance = wrapped.relevance
        assert isinstance(relevance, Tensor)
        return relevance

    return one


def _convolutions(net: nn.Sequential) -> list[str]:
    return [name for name, layer in net.named_children() if isinstance(layer, nn.Conv2d)]


PASS_BUILDERS: dict[str, Callable[[nn.Sequential, Coordinate], LrpPass]] = {
    "zennit": _zennit_pass,
    "captum": _captum_pass,
    "autolrp": _autolrp_pass,
}

if __name__ == "__main__":
    main(sys.argv[1])
