"""Compare the embedding of an adapted object with the object's own, at first use."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bilrp.encoder import MODEL_RUN_LOCK
from bilrp.errors import InputError

TOLERANCE = 1e-5  # of the largest coordinate, or absolute where all are below 1

# Options of each live object for which the comparison succeeded; an object leaves it when it is freed.
_VERIFIED: WeakKeyDictionary[Any, set[Hashable]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class FirstUseCheck:
    """Raise at first use if the adapted embedding is not the object's own.

    Args:
        owner: the live object.
        options: what the result depends on besides the object; another value is checked again.
        compute_own: text -> embedding, by the object itself.
        source: the call that gives the object's own embedding, for the message.
        advice: what to do if they differ.
    """

    owner: object
    options: Hashable
    compute_own: Callable[[str], object]
    source: str
    advice: str

    def verify(self, raw_input: str, compute_ours: Callable[[], Tensor]) -> None:
        """Compare both embeddings of an input, unless this was done before."""
        verified = _VERIFIED.setdefault(self.owner, set())
        if self.options in verified:
            return
        with MODEL_RUN_LOCK, torch.no_grad():
            own = to_tensor(self.compute_own(raw_input), self.source)
            ours = compute_ours()
        own, ours = own.detach().flatten().double().cpu(), ours.detach().flatten().double().cpu()
        if own.shape != ours.shape:
            difference = f"{ours.numel()} coordinates in place of {own.numel()}"
        else:
            largest = float((own - ours).abs().max())
            if largest <= TOLERANCE * max(1.0, float(own.abs().max())):
                verified.add(self.options)
                return
            difference = f"coordinates differ by up to {largest:.2g}"
        in_training = isinstance(self.owner, nn.Module) and self.owner.training
        advice = "the model is in training mode, call model.eval() first" if in_training else self.advice
        raise InputError(f"the embedding is not that of {self.source} ({difference}): {advice}")


def to_tensor(embedding: object, source: str) -> Tensor:
    """Return an embedding that is a tensor, an array or a list of one of them as a tensor."""
    value = embedding[0] if isinstance(embedding, list | tuple) and len(embedding) == 1 else embedding
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{source} returned {type(embedding).__name__}, not an embedding: return a tensor [1, h]"
        ) from None
