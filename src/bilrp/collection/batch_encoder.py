"""The encoder on many inputs: embeddings in batches, and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.decomposition import check_embedding
from bilrp.encoder import Encoder
from bilrp.errors import BilrpError, InputError, describe_error
from bilrp.inputs import Item

MAX_BATCH_SIZE = 16  # inputs of one shape that run at once


@dataclass
class BatchEncoder:
    """The encoder on many inputs: those of one shape at once, where that gives what one at a time gives."""

    encoder: Encoder
    supports_batches: bool | None = None  # not known yet

    def encode(self, items: Sequence[Item]) -> list[Tensor | str]:
        """φ of each item, or why the encoder could not."""
        shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            shapes[tuple(_module_input(item).shape)].append(number)
        found: dict[int, Tensor | str] = {}
        with torch.no_grad():  # what inference mode makes, autograd refuses for ever
            for numbers in shapes.values():
                for at in range(0, len(numbers), MAX_BATCH_SIZE):
                    few = numbers[at : at + MAX_BATCH_SIZE]
                    found |= zip(
                        few, self._encode_same_shape([_module_input(items[n]) for n in few]), strict=True
                    )
        return [found[number] for number in range(len(items))]

    def _encode_same_shape(self, inputs: Sequence[Tensor]) -> Iterable[Tensor | str]:
        if len(inputs) > 1 and self.supports_batches is not False:
            together = self._encode_together(inputs)
            if together is not None:
                return together
        return [self._encode_one(x) for x in inputs]

    def _encode_one(self, x: Tensor) -> Tensor | str:
        try:
            return _validate(self.encoder.module(x).flatten().cpu())
        except BilrpError as error:
            return str(error)
        except Exception as error:  # an encoder may raise anything
            return f"{type(error).__name__}: {describe_error(error)}"

    def _encode_together(self, inputs: Sequence[Tensor]) -> list[Tensor | str] | None:
        """All at once; None where the first shows that the model takes one at a time."""
        try:
            together = self.encoder.module(torch.cat(list(inputs))).flatten(1).cpu()
        except Exception:  # a model written for a batch of one may fail in any way, as on one broken input
            return None
        if self.supports_batches is None:
            alone = self.encoder.module(inputs[-1]).flatten().cpu()
            self.supports_batches = len(together) == len(inputs) and torch.allclose(
                together[-1], alone, rtol=1e-3, atol=1e-5 * float(alone.abs().max())
            )
        return list(map(_validate, together)) if self.supports_batches else None


def _validate(embedding: Tensor) -> Tensor | str:
    try:
        check_embedding(embedding)
        return embedding
    except InputError as error:
        return str(error)


def _module_input(item: Item) -> Tensor:
    """What the whole module is called with, where what is explained begins inside it."""
    return item.x if item.model_input is None else item.model_input
