"""Nearest neighbours among photographs, and their explanations at several layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bilrp.encoder import Encoder
from bilrp.encoders import images, vgg
from bilrp.errors import InputError
from bilrp.explanation import Explanation, pair
from bilrp.pipeline import decompose
from bilrp.regions import grid
from bilrp_studies.photos.stereo_agreement import REGION_PIXELS


@dataclass(frozen=True, eq=False)
class ExplainedPair:
    """Two photographs explained at every layer; `is_mutual_nearest` says at which layers each is the other's nearest."""

    names: tuple[str, str]
    explanations: Mapping[int, Explanation]
    is_mutual_nearest: Mapping[int, bool]


def find_photographs(data: str | Path) -> list[Path]:
    """List the photographs in `pascal_voc/images` or `images` below a folder if there is one, else all images below it."""
    folder = Path(data)
    for inner in (folder / "pascal_voc" / "images", folder / "images"):
        if inner.is_dir():
            folder = inner
            break
    result = images.list_images(folder)
    if len(result) < 2:
        raise InputError(f"{folder}: nearest neighbours need at least two images")
    return result


def filter_readable(
    paths: Sequence[Path], read: Callable[[Path], Tensor]
) -> tuple[list[Path], dict[Path, str]]:
    """Return the readable photographs, and the reason for each unreadable one; a damaged file does not stop the study."""
    readable, skipped = [], {}
    for path in paths:
        try:
            read(path)
        except InputError as error:
            skipped[path] = str(error).removeprefix(f"{path}: ")
        else:
            readable.append(path)
    if len(readable) < 2:
        first = next((f", the first: {path} ({reason})" for path, reason in skipped.items()), "")
        raise InputError(
            f"nearest neighbours need at least two images; {len(readable)} can be read, {len(skipped)} not{first}"
        )
    return readable, skipped


@dataclass(frozen=True)
class NearestNeighbours:
    """Cosine similarities of all photographs at one layer."""

    similarity: Tensor

    def nearest_to(self, i: int) -> int:
        """Return the index of the nearest other photograph."""
        row = self.similarity[i].clone()
        row[i] = -torch.inf
        return int(row.argmax())


def compute_embeddings(
    paths: Sequence[Path], layer: int, weights: Mapping[str, Tensor], read: Callable[[Path], Tensor]
) -> Tensor:
    """Return φ of each photograph, one row each.

    Args:
        paths: The photographs.
        layer: Layer of VGG-16.
        weights: State dict of VGG-16.
        read: Reads a file as the network's input.
    """
    network = vgg.load_module(layer, weights=weights)
    with torch.no_grad():
        return torch.stack([network(read(path)).flatten() for path in paths])


def find_neighbours(vectors: Tensor) -> NearestNeighbours:
    """Return cosine similarities; by dot product an image of high contrast would be similar to every other."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return NearestNeighbours((unit @ unit.T).float())


def choose_nearest_pairs(similarity: Tensor, count: int) -> list[tuple[int, int]]:
    """Return the `count` most similar pairs, each image in at most one of them."""
    upper = torch.triu(torch.ones_like(similarity, dtype=torch.bool), diagonal=1)
    order = similarity.masked_fill(~upper, -torch.inf).flatten().argsort(descending=True)
    used: set[int] = set()
    result: list[tuple[int, int]] = []
    for position in order[: int(upper.sum())].tolist():
        i, j = divmod(position, similarity.shape[1])
        if len(result) == count:
            break
        if not used & {i, j}:
            used |= {i, j}
            result.append((i, j))
    return result


def explain_at_layers(
    encoder: Encoder,
    a: Any,
    b: Any,
    layers: Sequence[int],
    similarity: str = "dot",
    *,
    composite: Any = None,
    progress: bool = False,
) -> dict[int, Explanation]:
    """Explain a pair at each layer, with one pass of the regions through the network per input.

    Args:
        encoder: VGG-16 up to the highest of the layers.
        a: The first input.
        b: The second input.
        layers: Layers to explain.
        similarity: "dot" or "cosine".
        composite: The rules; None is the encoder's default.
        progress: Show a progress bar.
    """
    options = {"regions": grid(REGION_PIXELS), "composite": composite, "layers": layers, "progress": progress}
    left, right = decompose(encoder, a, **options), decompose(encoder, b, **options)
    return {n: pair(left[n], right[n], similarity=similarity) for n in layers}
