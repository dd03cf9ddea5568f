"""Writes with repeated indices (scatter, index_put): of several values at one position, J selects the one that remains."""

from __future__ import annotations

import torch
from torch import Tensor

from bilrp.engine.maps import Map, Rearrange
from bilrp.errors import RuleError
from bilrp.trace.devices import has_float64, require
from bilrp.trace.tape import Step, fill_slots, tree_map

# Values of a write's `accumulate` or `reduce` argument: those that overwrite, and those that add.
OVERWRITE_MODES, ACCUMULATE_MODES = (
    (None, False),
    (True, "add", "sum", "mean"),
)


def is_overwrite(step: Step) -> bool:
    """Return whether the step is a write in which one value may overwrite another of the same call."""
    return (
        step.operation.accumulate_arg is not None
        and step.argument_value(step.operation.accumulate_arg) in OVERWRITE_MODES
    )


def freeze_overwrite(step: Step) -> Map:
    """Freeze a write to the selection of the values that remain: out[k] = live[winner[k]], 0 where a constant remains.

    Torch's own derivative assigns the gradient of a position to overwritten values too. The winners are found by running
    the call on addresses instead of values, in float64 (on the CPU if the device does not support it).
    """
    sizes, device = [v.numel() for v in step.values], step.result.device
    home = device if has_float64(device) else torch.device("cpu")
    addresses = torch.arange(1, sum(sizes) + 1, dtype=torch.float64, device=home)
    plain, moved = (_run_with_addresses(step, addresses + shift, sizes) for shift in (0, len(addresses)))
    live = moved - plain == len(addresses)  # a constant does not change with the addresses
    winner, live = torch.where(live, plain - 1, 0).long().to(device), live.to(device)

    def function(*tensors: Tensor) -> Tensor:
        flat = torch.cat([t.reshape(-1) for t in tensors])
        return torch.where(live, flat[winner], 0)

    def refuse() -> None:
        raise RuleError(
            f"{step.describe()} puts several numbers in one place, and which one stays is not fixed: "
            "give every place one index"
        )

    require(((function(*step.values) == step.result) | ~live).all(), refuse)
    return Rearrange(function, step.values, tuple(range(len(step.inputs))))


def _run_with_addresses(step: Step, addresses: Tensor, sizes: list[int]) -> Tensor:
    """Run the call in float64 with addresses instead of its live tensors, which have these sizes."""
    chunks = [part.reshape(v.shape) for part, v in zip(addresses.split(sizes), step.values, strict=True)]
    wide = tree_map((step.args, step.kwargs), lambda t: _to_float64(t, addresses.device))
    args, kwargs = fill_slots(wide, tuple(chunks))
    return step.call(*args, **kwargs)


def _to_float64(t: Tensor, home: torch.device) -> Tensor:
    t = t.to(home)
    return t.double() if t.is_floating_point() else t
