"""Embed many inputs in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bilrp.encoder import Encoder
from bilrp.errors import BilrpError, InputError, describe_error
from bilrp.inputs import Item
from bilrp.pipeline import check_embedding

MAX_BATCH_SIZE = 16  # inputs of one shape per forward pass


@dataclass
class BatchEncoder:
    """Run an encoder on batches of equal shape, or one by one if the model does not support batches."""

    encoder: Encoder
    supports_batches: bool | None = None  # None: not tested yet

    def encode(self, items: Sequence[Item]) -> list[Tensor | str]:
        """Return φ of each item, or the error message if the encoder failed on it."""
        shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            shapes[tuple(_module_input(item).shape)].append(number)
        embeddings: dict[int, Tensor | str] = {}
        with torch.no_grad():  # not inference mode: autograd can never use its tensors
            for numbers in shapes.values():
                for start in range(0, len(numbers), MAX_BATCH_SIZE):
                    batch = numbers[start : start + MAX_BATCH_SIZE]
                    inputs = [_module_input(items[number]) for number in batch]
                    embeddings |= zip(batch, self._encode_same_shape(inputs), strict=True)
        return [embeddings[number] for number in range(len(items))]

    def _encode_same_shape(self, inputs: Sequence[Tensor]) -> Sequence[Tensor | str]:
        if len(inputs) > 1 and self.supports_batches is not False:
            embeddings = self._encode_together(inputs)
            if embeddings is not None:
                return embeddings
        return [self._encode_one(x) for x in inputs]

    def _encode_one(self, x: Tensor) -> Tensor | str:
        try:
            return _validate(self.encoder.module(x).flatten().cpu())
        except BilrpError as error:
            return str(error)
        except Exception as error:  # an encoder may raise anything
            return f"{type(error).__name__}: {describe_error(error)}"

    def _encode_together(self, inputs: Sequence[Tensor]) -> list[Tensor | str] | None:
        """Encode in one forward pass; None if the model gives other embeddings for a batch, or fails."""
        try:
            embeddings = self.encoder.module(torch.cat(list(inputs))).flatten(1).cpu()
        except Exception:  # a model for single inputs may fail in any way, also on one broken input
            return None
        if self.supports_batches is None:
            single = self.encoder.module(inputs[-1]).flatten().cpu()
            self.supports_batches = len(embeddings) == len(inputs) and torch.allclose(
                embeddings[-1], single, rtol=1e-3, atol=1e-5 * float(single.abs().max())
            )
        return list(map(_validate, embeddings)) if self.supports_batches else None


def _validate(embedding: Tensor) -> Tensor | str:
    try:
        check_embedding(embedding)
        return embedding
    except InputError as error:
        return str(error)


def _module_input(item: Item) -> Tensor:
    """Return the input of the whole module; differs from `item.x` if the explanation starts at an inner layer."""
    return item.x if item.model_input is None else item.model_input
