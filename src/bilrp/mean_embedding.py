"""Embeddings of unrelated inputs: what all embeddings of an encoder share, and how similar random pairs are."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.encoder import MODEL_RUN_LOCK, Encoder, read_item
from bilrp.errors import InputError
from bilrp.findings.random_baseline import QUANTILE_PERCENTS
from bilrp.inputs import Item

_lock = threading.Lock()
# Of each encoder or live object: {its options: (fingerprint of the weights, embeddings)}.
_computed: WeakKeyDictionary[object, dict[Hashable, tuple[str, TypicalEmbeddings]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class TypicalEmbeddings:
    """The mean of normalized embeddings in float64, and the sorted cosines of all pairs of them."""

    mean: Float[Tensor, " h"]
    cosines: tuple[float, ...]

    def summarize_cosines(self) -> dict[str, object]:
        """Return the number of pairs and the quantiles of their cosines by percent, as JSON for the origin of parts."""
        quantiles = np.percentile(self.cosines, QUANTILE_PERCENTS) if self.cosines else []
        rounded = {
            str(p): round(float(q), 3)
            for p, q in zip(QUANTILE_PERCENTS, quantiles, strict=bool(len(quantiles)))
        }
        return {"pairs": len(self.cosines), "quantiles": rounded}


def find_typical_embeddings(encoder: Encoder, fingerprint: str) -> TypicalEmbeddings | None:
    """Return what is known or was computed for these weights, or None."""
    if encoder.mean_embedding is not None:
        return TypicalEmbeddings(encoder.mean_embedding.double().flatten(), ())
    owner, options = _identify(encoder)
    with _lock:
        known, embeddings = _computed.get(owner, {}).get(options, ("", None))
    return embeddings if known == fingerprint else None


def _identify(encoder: Encoder) -> tuple[object, Hashable]:
    """Return the encoder, or the live object and its options: each call with a live object makes another encoder of it."""
    return getattr(encoder.read, "identity", (encoder, None))


def compute_typical_embeddings(encoder: Encoder, fingerprint: str) -> TypicalEmbeddings:
    """Embed the encoder's typical inputs, and keep the result for these weights."""
    if not encoder.typical_inputs:
        raise InputError(
            f"composites.centered needs unrelated inputs of {encoder.name or 'the encoder'} for the mean embedding: "
            "bilrp.Encoder(..., typical_inputs=(...)), or mean_embedding="
        )
    unit = torch.nn.functional.normalize(embed_typical_inputs(encoder).double(), dim=1)
    pairs = (unit @ unit.T)[tuple(torch.triu_indices(len(unit), len(unit), 1))]
    computed = TypicalEmbeddings(unit.mean(0), tuple(np.sort(pairs.cpu().numpy()).tolist()))
    owner, options = _identify(encoder)
    with _lock:
        _computed.setdefault(owner, {})[options] = fingerprint, computed
    return computed


def embed_typical_inputs(encoder: Encoder) -> Float[Tensor, "n h"]:
    """Return the embeddings of the encoder's typical inputs; those of one shape are run together where the model allows."""
    items = [read_item(encoder, each, quiet=True) for each in encoder.typical_inputs]
    by_shape: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        by_shape[tuple(item.x.shape)].append(number)
    embeddings: dict[int, Tensor] = {}
    with torch.no_grad(), MODEL_RUN_LOCK:
        for numbers in by_shape.values():
            rows = _embed_together(encoder, [items[number] for number in numbers])
            embeddings |= dict(zip(numbers, rows, strict=True))
    return torch.stack([embeddings[number] for number in range(len(items))])


def _embed_together(encoder: Encoder, items: list[Item]) -> list[Tensor]:
    """Embed inputs of one shape in one run, or one by one where the model does not return one row for each."""
    first = encoder.forward_fn(items[0].model_input)(items[0].x)
    rest = items[1:]
    if rest and all(item.model_input is None for item in items) and first.dim() == 2:
        rows = encoder.module(torch.cat([item.x for item in rest]))
        if rows.shape == (len(rest), *first.shape[1:]):
            return [first.flatten(), *rows]
    return [first.flatten(), *(encoder.forward_fn(item.model_input)(item.x).flatten() for item in rest)]
