"""Detect random numbers that a model draws while it runs, and raise if the embedding depends on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bilrp.errors import InputError
from bilrp.trace.operation import Op
from bilrp.trace.tape import collect_tensors, get_storage_pointer

# Calls that return no tensor and read no values, besides those that begin with `is_`.
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
    """Detect calls that draw random numbers; with `make_error`, raise before they do.

    The state of the generator is neither compared nor restored, because all threads share it.
    """

    def __init__(self, make_error: Callable[[], InputError] | None = None):
        super().__init__()
        self.make_error, self.detected = make_error, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid the import of torch's compiler, which takes two seconds and is not needed here."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _uses_global_generator(func, args, kwargs):
            self.detected = True
            if self.make_error is not None:
                raise self.make_error()
        with torch._C.DisableTorchFunction():  # the recorder has already seen this call
            return func(*args, **kwargs)


class RandomTensors:
    """The tensors of a run that contain random numbers or were computed from them.

    Args:
        training: a module of the model is in training mode; None if the model has no known module.
    """

    def __init__(self, training: bool | None):
        self.training = training
        self.tensors_by_storage: dict[int, Tensor] = {}  # kept alive, so that their memory is not reused

    def has_any(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether one of the tensors contains random numbers."""
        return bool(self.tensors_by_storage) and any(
            get_storage_pointer(t) in self.tensors_by_storage for t in tensors
        )

    def update(
        self, op: Op, is_random: bool, args: tuple[object, ...], kwargs: Mapping[str, object], result: object
    ) -> None:
        """Mark the result of a call on constants as random if the call drew random numbers or used random tensors.

        Args:
            op: the operation.
            is_random: the call drew random numbers.
            args, kwargs, result: the call and its result.
        """
        if not is_random and (op.kind == "like" or not self.has_any(collect_tensors((args, kwargs)))):
            return
        results = collect_tensors(result)
        if result is None and args:  # x[...] = y
            results = collect_tensors(args[0])
        elif not results and not (op.name in METADATA_CALLS or op.name.startswith("is_")):
            raise self.make_error(op.name)
        for t in results:
            self.tensors_by_storage[get_storage_pointer(t)] = t

    def make_error(self, name: str) -> InputError:
        """Return the error, with advice for the model's training mode."""
        advice = (
            "draw them once outside the model and keep them as a buffer, or draw them with a torch.Generator seeded in "
            "each call"
        )
        if self.training is None:
            advice = f"call model.eval() first; in eval mode, {advice}"
        elif self.training:
            advice = "call model.eval() first"
        return InputError(
            f"the embedding depends on random numbers that the model draws as it runs ('{name}' uses them), "
            f"so it is not fixed: {advice}"
        )


def _uses_global_generator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call draws from the global generator: not with its own generator, nor with inactive dropout."""
    schema = func._schema.arguments
    values = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    values |= dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
    training = values.get("train", values.get("training", True))
    rate = values.get("dropout_p", values.get("dropout", values.get("p") if "train" in values else None))
    return values.get("generator") is None and training is not False and rate != 0
