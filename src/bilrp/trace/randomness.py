"""Random numbers that a model draws while it runs: harmless until something live, or a number read out, depends on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bilrp.errors import InputError
from bilrp.trace.operation import Op
from bilrp.trace.tape import collect_tensors, get_storage_pointer

# Calls that give no tensor and read no numbers of theirs, beside those that begin with `is_`.
METADATA_CALLS = {
    "__len__",
    "data_ptr",
    "element_size",
    "get_device",
    "itemsize",
    "layout",
    "nbytes",
    "ndimension",
    "nelement",
    "numel",
    "requires_grad",
    "storage_offset",
    "stride",
}


class RandomCallDetector(TorchDispatchMode):
    """Notices random numbers; with `refusal`, refuses them before they are drawn.

    Modes belong to one thread; the generator belongs to all of them, so it is neither looked at nor put back.
    """

    def __init__(self, make_error: Callable[[], InputError] | None = None):
        super().__init__()
        self.make_error, self.detected = make_error, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would load its compiler (800 modules, two seconds) to keep it out of here, where nothing is compiled."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _uses_global_generator(func, args, kwargs):
            self.detected = True
            if self.make_error is not None:
                raise self.make_error()
        with (
            torch._C.DisableTorchFunction()
        ):  # this is below the tape: it must not see the call a second time
            return func(*args, **kwargs)


class RandomTensors:
    """The memory that holds random numbers of this run, or what was made of them.

    `training`: a module of the model is in training mode; None where no module is known.
    """

    def __init__(self, training: bool | None):
        self.training = training
        self.tensors_by_storage: dict[
            int, Tensor
        ] = {}  # by storage, kept alive so that no other tensor comes to lie there

    def has_any(self, tensors: Sequence[Tensor]) -> bool:
        """Does one of them hold such numbers?"""
        return bool(self.tensors_by_storage) and any(
            get_storage_pointer(t) in self.tensors_by_storage for t in tensors
        )

    def update(
        self, op: Op, is_random: bool, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """After a call on constants: what it made, or wrote into, holds random numbers if it drew or was given any."""
        if not is_random and (op.kind == "like" or not self.has_any(collect_tensors((args, kwargs)))):
            return
        made = collect_tensors(result)
        if result is None and args:  # x[...] = y
            made = collect_tensors(args[0])
        elif not made and not (op.name in METADATA_CALLS or op.name.startswith("is_")):
            raise self.make_error(op.name)
        for t in made:
            self.tensors_by_storage[get_storage_pointer(t)] = t

    def make_error(self, name: str) -> InputError:
        """Why the model cannot be explained, with advice that helps in the mode that it is in."""
        way = (
            "draw them once outside the model and keep them as a buffer, or draw them with a torch.Generator seeded in "
            "each call"
        )
        if self.training is not False:
            way = (
                "call model.eval() first"
                if self.training
                else f"call model.eval() first; in eval mode, {way}"
            )
        return InputError(
            f"the embedding depends on random numbers that the model draws as it runs ('{name}' uses them), "
            f"so it is not fixed: {way}"
        )


def _uses_global_generator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Would this call draw from the shared generator? Not with one of its own, nor where dropout is off."""
    arguments = func._schema.arguments
    given = {each.name: each.default_value for each in arguments if each.has_default_value()}
    given |= dict(zip((each.name for each in arguments), args, strict=False)) | kwargs
    trained = given.get("train", given.get("training", True))
    rate = given.get("dropout_p", given.get("dropout", given.get("p") if "train" in given else None))
    return given.get("generator") is None and trained is not False and rate != 0
