"""Find the module that embeds token ids, by watching which weights they select."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bilrp.errors import InputError
from bilrp.trace.tape import collect_tensors


class _SelectedWeights(TorchFunctionMode):
    """Store the matrices whose rows are selected by these token ids."""

    def __init__(self, token_ids: list[int]):
        super().__init__()
        self.token_ids, self.weights = token_ids, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype.is_floating_point:
            tensors = collect_tensors((args, kwargs))
            selects = any(self._are_token_ids(t) for t in tensors)
            self.weights += [
                t
                for t in tensors
                if selects and t.dim() == 2 and t.dtype.is_floating_point and t.shape[1] > 1
            ]
        return result

    def _are_token_ids(self, t: Tensor) -> bool:
        is_integer = t.dtype in (torch.int32, torch.int64)
        return is_integer and t.numel() == len(self.token_ids) and t.flatten().tolist() == self.token_ids


def find_token_embedding(model: nn.Module, model_input: Tensor, token_ids: list[int]) -> str:
    """Return the name of the module whose weights the token ids select when the model runs.

    Args:
        model, model_input: called with `model_input`, an input with these token ids.
        token_ids: at least two, and not all the same.
    """
    with torch.no_grad(), _SelectedWeights(token_ids) as selected:
        model(model_input)
    for weight in selected.weights:
        for name, module in model.named_modules():
            own = list(module.parameters(recurse=False))
            if own and own[0] is weight and not list(module.children()):
                return name
    raise InputError(
        f"no embedding of the token ids is visible in a run of {type(model).__name__}: the tokenizer must be the model's "
        "own, and the model must run in PyTorch (no ONNX, OpenVINO or scripted backend)"
    )
