"""peers: one LRP pass for one coordinate by other libraries, where they are installed, for the benchmark to time.

Each is used as its documentation shows, on a copy of the layers (two of them change the model). None of them explains
pairs without such a pass for every coordinate, so 100 passes is what 100 projected coordinates cost with it.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.rules.books import IMAGENET_HIGH, IMAGENET_LOW, paper_gamma

Pass = Callable[[Tensor], Tensor]


def installed(layers: Sequence[nn.Module], place: tuple[int, int, int]) -> dict[str, Pass]:
    """Name → a function x → relevance of the coordinate (channel, y, x), for every library that is here."""
    makers = {"zennit": _zennit_pass, "captum": _captum_pass, "autolrp": _autolrp_pass}
    return {
        name: make(nn.Sequential(*copy.deepcopy(list(layers))).eval(), place)
        for name, make in makers.items()
        if importlib.util.find_spec(name) is not None
    }


def zennit() -> Any:
    """zennit with its rules and composites, entered without its own __init__.

    That file imports torchvision, which does not import beside a CPU-only torch and which the rules do not need.
    """
    found = importlib.util.find_spec("zennit")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("zennit is not installed: pip install --no-deps zennit")
    package = types.ModuleType("zennit")
    package.__path__, package.__spec__ = list(found.submodule_search_locations), found
    sys.modules["zennit"] = package
    for part in ("rules", "composites"):
        setattr(package, part, importlib.import_module(f"zennit.{part}"))
    return package


def _zennit_pass(net: nn.Sequential, place: tuple[int, int, int]) -> Pass:
    library = zennit()
    low, high = (torch.tensor(bound).reshape(1, -1, 1, 1) for bound in (IMAGENET_LOW, IMAGENET_HIGH))
    rules = [([name], library.rules.Gamma(paper_gamma(int(name) + 1))) for name in _convolutions(net)[1:]]
    composite = library.composites.NameMapComposite([(["0"], library.rules.ZBox(low, high)), *rules])

    def one(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        with torch.enable_grad(), composite.context(net) as changed:
            out = changed(x)[0][place]
            return torch.autograd.grad(out, x, grad_outputs=out.detach())[0]

    return one


def _captum_pass(net: nn.Sequential, place: tuple[int, int, int]) -> Pass:
    from captum.attr import LRP  # type: ignore[import-not-found]
    from captum.attr._utils.lrp_rules import GammaRule  # type: ignore[import-not-found]

    def one(x: Tensor) -> Tensor:
        fresh = copy.deepcopy(net)  # a second call on the same modules gives another answer
        for name in _convolutions(fresh):
            fresh.get_submodule(name).rule = GammaRule(gamma=paper_gamma(int(name) + 1))  # type: ignore[assignment]
        with torch.enable_grad():
            return LRP(fresh).attribute(x.clone().requires_grad_(), target=place).detach()

    return one


def _autolrp_pass(net: nn.Sequential, place: tuple[int, int, int]) -> Pass:
    import autolrp  # type: ignore[import-not-found]

    rules = {**autolrp.BASE, "ConvolutionBackward": ("gamma", {"gamma": 0.25})}
    config = autolrp.LRPConfig(rule=rules)
    for layer in net:
        if isinstance(layer, nn.ReLU):
            layer.inplace = False

    def one(x: Tensor) -> Tensor:
        wrapped = autolrp.tensor(x.clone())
        with torch.enable_grad():
            net(wrapped)[0][place].lrp(config=config)
        return wrapped.relevance

    return one


def _convolutions(net: nn.Sequential) -> list[str]:
    return [name for name, layer in net.named_children() if isinstance(layer, nn.Conv2d)]
