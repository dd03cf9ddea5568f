"""VGG-16 as a ladder of similarity models: features, Gram matrices and decompositions by layer, kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bilrp
from bilrp.decomposition import Decomposition
from bilrp.io.cache import Cache, content_of, key_of, weights_of
from bilrp.encoder import Encoder, read_input
from bilrp.encoders import images, vgg
from bilrp.progress import Progress
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.rules import composites
from bilrp_studies.common.result_cache import keep, kept

BLOCK_BYTES = 512e6  # of float32 features held at once for each side of a Gram matrix
LARGEST_HALF = 60_000.0


@dataclass(frozen=True, eq=False)
class Ladder:
    """One encoder read at several layers: y^(ℓ)(x, x') = ⟨VGG_:ℓ(x), VGG_:ℓ(x')⟩.

    >>> ladder((17, 31)).layers
    (17, 31)
    """

    encoder: Encoder
    layers: tuple[int, ...]
    weights: str
    cache: Cache

    @property
    def network(self) -> nn.Sequential:
        """The layers in order."""
        return self.encoder.module.features  # type: ignore[attr-defined]

    def tensor(self, pixels: np.ndarray) -> Tensor:
        """uint8 pixels (H, W, 3) as the encoder's input."""
        return read_input(self.encoder, pixels)


def ladder(
    layers: Sequence[int] = vgg.POOLINGS,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    folder: str | Path | None = None,
    progress: bool = False,
) -> Ladder:
    """VGG-16 up to its highest wanted layer, and a cache in `folder` (None: nothing is kept)."""
    chosen = tuple(sorted(set(layers)))
    if not chosen:
        raise InputError("name at least one layer, for example 17,31")
    encoder = vgg.vgg16(chosen[-1], weights=weights, size=None, progress=progress)
    kept = Cache(None if folder is None else Path(folder))
    return Ladder(encoder, chosen, weights_of(encoder.module), kept)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Features:
    """Features of many pictures: `of(i, layer)` is one vector. Kept as 16-bit floats: the Gram matrix of thousands of
    coordinates averages that rounding away (about one part in 10⁵), and 65,000 coordinates stay cheap."""

    count: int
    of: Callable[[int, int], Tensor]
    key: str


def features(ladder: Ladder, pictures: Sequence[np.ndarray], bar: Progress) -> Features:
    """φ^(ℓ) of every picture at every layer, computed once: one forward pass passes all layers."""
    origin = {"what": "features", "weights": ladder.weights, "layers": ladder.layers, "mean": images.MEAN}
    keys = [key_of(content_of(pixels), origin) for pixels in pictures]
    missing = list({key: i for i, key in enumerate(keys) if not ladder.cache.has("features", key)}.values())
    held: dict[str, dict[str, Tensor]] = {}
    if missing:
        bar.start("features", len(missing))

    def made(i: int) -> dict[str, Tensor]:
        # Each by itself: in a batch it would be rounded by its company, and what is made again would differ.
        found = activations(ladder, ladder.tensor(pictures[i]))
        tensors = {str(layer): compact(values[0]) for layer, values in found.items()}
        ladder.cache.put("features", keys[i], tensors)
        return tensors

    for i in missing:
        tensors = made(i)
        if ladder.cache.folder is None:
            held[keys[i]] = tensors
        bar.advance()

    def of(i: int, layer: int) -> Tensor:
        if keys[i] in held:
            return held[keys[i]][str(layer)].float()
        stored = ladder.cache.get("features", keys[i], only=str(layer))
        tensors = made(i) if stored is None else stored[0]  # damaged or deleted since: made again
        return tensors[str(layer)].float()

    return Features(len(pictures), of, key_of("|".join(keys), origin))


@torch.inference_mode()
def activations(ladder: Ladder, batch: Tensor) -> dict[int, Tensor]:
    """Flattened values of a batch at every layer of the ladder, from one pass."""
    found, values = {}, batch
    for number, module in enumerate(ladder.network, start=1):
        values = module(values)
        if number in ladder.layers:
            found[number] = values.flatten(1).clone()  # the next module may work in place
    return found


def compact(values: Tensor) -> Tensor:
    """16-bit floats where they can hold the values."""
    return values.half() if float(values.abs().max()) < LARGEST_HALF else values.clone()


def gram(ladder: Ladder, found: Features, layer: int, bar: Progress | None = None) -> np.ndarray:
    """K[i, j] = ⟨φ(x_i), φ(x_j)⟩ in float64, block by block, so that memory stays bounded; kept on disk."""
    key = key_of(found.key, {"what": "gram", "layer": layer})
    stored = ladder.cache.get("gram", key)
    if stored is not None:
        return stored[0]["gram"].numpy()
    size = max(1, int(BLOCK_BYTES // (4 * found.of(0, layer).numel())))
    matrix = np.empty((found.count, found.count))
    starts = range(0, found.count, size)
    rows = {s: slice(s, min(s + size, found.count)) for s in starts}
    for s in starts:
        left = torch.stack([found.of(i, layer) for i in range(rows[s].start, rows[s].stop)])
        for t in range(s, found.count, size):
            right = left if t == s else torch.stack([found.of(i, layer) for i in range(t, rows[t].stop)])
            block = (left @ right.T).double().numpy()
            matrix[rows[s], rows[t]], matrix[rows[t], rows[s]] = block, block.T
        if bar is not None:
            bar.advance()
    matrix = (matrix + matrix.T) / 2
    ladder.cache.put("gram", key, {"gram": torch.from_numpy(matrix)})
    return matrix


def grams(ladder: Ladder, pictures: Sequence[np.ndarray], bar: Progress) -> dict[int, np.ndarray]:
    """The Gram matrix of some pictures at every layer: all that a linear machine needs of 65,000-dimensional features."""
    found = features(ladder, pictures, bar)
    bar.start("similarities", len(ladder.layers))
    matrices = {}
    for layer in ladder.layers:
        matrices[layer] = gram(ladder, found, layer)
        bar.advance()
    return matrices


def decompositions(
    ladder: Ladder,
    pixels: np.ndarray,
    *,
    regions: int,
    layers: Sequence[int] | None = None,
    project: int | None = None,
) -> dict[int, Decomposition]:
    """Decompositions of one picture at several layers, computed once in one sweep and kept."""
    wanted = tuple(ladder.layers if layers is None else layers)
    keys = {layer: _key(ladder, pixels, layer, regions, project) for layer in wanted}
    found: dict[int, Decomposition] = {}
    for layer in wanted:
        earlier = kept(ladder.cache, keys[layer])
        if earlier is not None:
            found[layer] = earlier
    missing = [layer for layer in wanted if layer not in found]
    if missing:
        made = sweep(ladder, ladder.tensor(pixels), missing, regions=regions, project=project)
        for layer, decomposition in made.items():
            keep(ladder.cache, keys[layer], decomposition)
            found[layer] = decomposition
    return {layer: found[layer] for layer in wanted}


def is_kept(ladder: Ladder, pixels: np.ndarray, *, regions: int, project: int | None = None) -> bool:
    """Are all decompositions of this picture on disk already?"""
    keys = (_key(ladder, pixels, layer, regions, project) for layer in ladder.layers)
    return all(ladder.cache.has("decomposition", key) for key in keys)


def explanations(
    ladder: Ladder, a: np.ndarray, b: np.ndarray, *, regions: int, project: int | None = None
) -> dict[int, Explanation]:
    """One pair of pictures explained at every layer; one layer's parts in memory at a time where they are kept."""
    for pixels in (a, b):
        if not is_kept(ladder, pixels, regions=regions, project=project) and ladder.cache.folder is not None:
            decompositions(ladder, pixels, regions=regions, project=project)
    found = {}
    for layer in ladder.layers:
        left, right = (
            decompositions(ladder, pixels, regions=regions, layers=[layer], project=project)[layer]
            for pixels in (a, b)
        )
        found[layer] = slim(bilrp.pair(left, right))
    return found


def slim(explanation: Explanation) -> Explanation:
    """The explanation without its sides' parts (hundreds of megabytes): relevance, score, pictures and regions stay."""
    sides = (
        # new ones, because a view of nothing would still hold on to everything
        replace(
            side,
            parts=side.embedding.new_zeros(side.regions.count, 0),
            embedding=side.embedding.new_zeros(0),
            reference=None,
        )
        for side in (explanation.a, explanation.b)
    )
    a, b = sides
    return replace(explanation, a=a, b=b)


def sweep(
    ladder: Ladder, x: Tensor, layers: Sequence[int], *, regions: int, project: int | None
) -> dict[int, Decomposition]:
    """Decompositions at several layers, from one pass of the regions through the network."""
    spec = bilrp.regions.grid(regions)
    return bilrp.decompose(ladder.encoder, x, regions=spec, project=project, layers=list(layers))


def _key(ladder: Ladder, pixels: np.ndarray, layer: int, regions: int, project: int | None) -> str:
    origin: dict[str, Any] = {
        "what": "decomposition",
        "weights": ladder.weights,
        "layer": layer,
        "rules": composites.book_name(composites.as_book(ladder.encoder.rules)),
        "regions": regions,
        "projection": project,
    }
    return key_of(content_of(pixels), origin)
