"""Numbers put into a tensor: where several were put in one place, one stayed, and only that one counts."""

from __future__ import annotations

import torch
from torch import Tensor

from bilrp.engine.maps import Map, Rearrange
from bilrp.errors import RuleError
from bilrp.trace.devices import has_float64, require
from bilrp.trace.tape import Step, fill_slots, tree_map

OVERWRITE_MODES, ACCUMULATE_MODES = (
    (None, False),
    (True, "add", "sum", "mean"),
)  # what a write is told that overwrites, or adds to, what is there


def is_overwrite(step: Step) -> bool:
    """The step puts numbers where others may have been put by the same call."""
    return (
        step.operation.accumulate_arg is not None
        and step.argument_value(step.operation.accumulate_arg) in OVERWRITE_MODES
    )


def freeze_overwrite(step: Step) -> Map:
    """J selects, for each place, the number that stayed there: out[k] = live[winner[k]], 0 where a constant stayed.

    Torch's own derivative hands the overwritten numbers what belongs to the one that stayed. The winners come out of the
    same call when every number is its own address: in float64, on the CPU where the device has none.
    """
    sizes, device = [v.numel() for v in step.values], step.result.device
    home = device if has_float64(device) else torch.device("cpu")
    addresses = torch.arange(1, sum(sizes) + 1, dtype=torch.float64, device=home)
    plain, moved = (_run_with_addresses(step, addresses + shift, sizes) for shift in (0, len(addresses)))
    live = moved - plain == len(addresses)  # what moves with the addresses is no constant
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
    """The step's call in float64 with these numbers in the places of its live tensors."""
    chunks = [part.reshape(v.shape) for part, v in zip(addresses.split(sizes), step.values, strict=True)]
    wide = tree_map((step.args, step.kwargs), lambda t: _to_float64(t, addresses.device))
    args, kwargs = fill_slots(wide, tuple(chunks))
    return step.call(*args, **kwargs)


def _to_float64(t: Tensor, home: torch.device) -> Tensor:
    t = t.to(home)
    return t.double() if t.is_floating_point() else t
