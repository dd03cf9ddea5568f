"""Records: check ids, metadata and embeddings of the user's own before they are indexed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.ingest import read_source_item
from bilrp.collection.sources import SourceItem
from bilrp.collection.table_rows import Scalar
from bilrp.encoder import Encoder
from bilrp.errors import InputError, MismatchError, to_printable

MAX_COLUMNS = 256
CHECKED_ROWS = 4  # embeddings that are compared with the encoder's own
MAX_RELATIVE_ERROR = 2e-3  # of such an embedding: float16 vectors pass


def infer_columns(source_items: Iterable[SourceItem]) -> dict[str, str]:
    """Return {column: type} of the metadata: bool, int64, double or string; columns of mixed types are strings."""
    kinds: dict[str, set[str]] = {}
    for each in source_items:
        for name, value in each.metadata.items():
            kinds.setdefault(name, set()).update(set() if value is None else {type(value).__name__})
    if len(kinds) > MAX_COLUMNS:
        raise InputError(f"the records have {len(kinds)} columns of metadata, at most {MAX_COLUMNS} are kept")
    types = {"bool": "bool", "int": "int64", "float": "double"}
    return {
        name: types.get(next(iter(kind)), "string")
        if len(kind) == 1
        else ("double" if kind == {"int", "float"} else "string")
        for name, kind in kinds.items()
    }


def convert_metadata(
    metadata: Mapping[str, Scalar], columns: Mapping[str, str], path: str
) -> dict[str, Scalar]:
    """Return metadata in the types of the collection's columns.

    Args:
        metadata, columns: values by column, and {column: type}.
        path: the collection, for messages.
    """
    unknown = [name for name in metadata if name not in columns and metadata[name] is not None]
    if unknown:
        raise InputError(
            f"{path} has no column {unknown[0]!r} (its columns: {', '.join(columns) or 'none'}): leave it out, or build a "
            "new collection"
        )
    row: dict[str, Scalar] = {}
    for name, value in metadata.items():
        kind = columns.get(name)
        allowed = {"bool": bool, "int64": int, "double": int | float}.get(str(kind))
        if value is None or kind is None:
            continue
        if allowed is None:
            row[name] = value if isinstance(value, str) else json.dumps(value)
        elif isinstance(value, allowed) and (kind == "bool" or not isinstance(value, bool)):
            row[name] = float(value) if kind == "double" else value
        else:
            raise InputError(f"{path}: the column {name!r} is {kind}, and a record has {value!r}")
    return row


def attach_embeddings(source_items: Sequence[SourceItem], embeddings: ArrayLike | Tensor) -> list[SourceItem]:
    """Return the inputs with the rows of a matrix [n, h] as their embeddings."""
    matrix = embeddings.detach().cpu().numpy() if isinstance(embeddings, Tensor) else np.asarray(embeddings)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or len(matrix) != len(source_items):
        raise InputError(
            f"embeddings must be numbers [{len(source_items)}, h], one row for each record, got {matrix.dtype} "
            f"{list(matrix.shape)}"
        )
    matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    return [replace(each, embedding=row) for each, row in zip(source_items, matrix, strict=True)]


def check_records(source_items: Sequence[SourceItem], encoder: Encoder, batch_encoder: BatchEncoder) -> None:
    """Raise for two records of one id, for embeddings that are not finite, and where the first are not the encoder's.

    Args:
        source_items: The inputs.
        encoder, batch_encoder: Read and run them.
    """
    seen: dict[str, int] = {}
    for number, each in enumerate(source_items):
        if each.key and seen.setdefault(each.key, number) != number:
            raise InputError(
                f"records {seen[each.key]} and {number} have the same id {to_printable(each.key)!r}: ids must be unique"
            )
        if each.embedding is not None and not np.isfinite(each.embedding).all():
            raise InputError(f"the embedding of record {number} has NaN or infinite values")
    with_vector = [each for each in source_items if each.embedding is not None]
    reads = (read_source_item(encoder, each) for each in with_vector)
    first = [r for _, r in zip(range(CHECKED_ROWS), (r for r in reads if r.item is not None), strict=False)]
    own = batch_encoder.encode([r.item for r in first if r.item is not None])
    for result, embedding in zip(first, own, strict=True):
        given = result.source_item.embedding
        if given is None or isinstance(embedding, str):
            continue
        _compare(given, embedding.float().numpy(), to_printable(result.source_item.name), encoder.name)


def _compare(given: np.ndarray, own: np.ndarray, name: str, encoder: str) -> None:
    if given.shape != own.shape:
        raise MismatchError(
            f"the embeddings have {given.size} coordinates, and {encoder} gives {own.size}: pass the encoder that made them"
        )
    norms = float(np.linalg.norm(given)), float(np.linalg.norm(own))
    if float(np.linalg.norm(given - own)) <= MAX_RELATIVE_ERROR * norms[1]:
        return
    cosine = float(given @ own) / ((norms[0] * norms[1]) or 1.0)
    if cosine > 1 - MAX_RELATIVE_ERROR**2 * 8:
        raise MismatchError(
            f"the embedding of {name!r} has length {norms[0]:.4g} and that of {encoder} {norms[1]:.4g}: they are scaled; "
            "multiply yours, or use an encoder with normalize=True (encoders.sentence, from_transformers)"
        )
    raise MismatchError(
        f"the embedding of {name!r} is not that of {encoder} (cosine {cosine:.3f}): pass the encoder that made it, with the "
        "same prompt and pooling, and the rows in the order of the records"
    )
