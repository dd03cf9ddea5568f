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
from bilrp.encoder import Encoder, read_tensor
from bilrp.encoders import images, vgg
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.io.cache import Cache, compute_key, hash_array, hash_weights
from bilrp.progress import Progress
from bilrp.rules import composites
from bilrp_studies.common.result_cache import load_decomposition, save_decomposition

GRAM_BLOCK_BYTES = 512e6  # of float32 features held at once for each side of a Gram matrix
MAX_HALF_VALUE = 60_000.0


@dataclass(frozen=True, eq=False)
class LayeredVGG:
    """One encoder read at several layers: y^(ℓ)(x, x') = ⟨VGG_:ℓ(x), VGG_:ℓ(x')⟩.

    >>> load_layered_vgg((17, 31)).layers
    (17, 31)
    """

    encoder: Encoder
    layers: tuple[int, ...]
    weights_hash: str
    cache: Cache

    @property
    def network(self) -> nn.Sequential:
        """The layers in order."""
        return self.encoder.module.features  # type: ignore[attr-defined]

    def to_input(self, pixels: np.ndarray) -> Tensor:
        """uint8 pixels (H, W, 3) as the encoder's input."""
        return read_tensor(self.encoder, pixels)


def load_layered_vgg(
    layers: Sequence[int] = vgg.POOLING_LAYERS,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    cache_folder: str | Path | None = None,
    progress: bool = False,
) -> LayeredVGG:
    """VGG-16 up to its highest wanted layer, and a cache in `cache_folder` (None: nothing is kept)."""
    chosen = tuple(sorted(set(layers)))
    if not chosen:
        raise InputError("name at least one layer, for example 17,31")
    encoder = vgg.vgg16(chosen[-1], weights=weights, size=None, progress=progress)
    kept = Cache(None if cache_folder is None else Path(cache_folder))
    return LayeredVGG(encoder, chosen, hash_weights(encoder.module), kept)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Features of many pictures: `vector(i, layer)` is one vector. Kept as 16-bit floats: the Gram matrix of thousands of
    coordinates averages that rounding away (about one part in 10⁵), and 65,000 coordinates stay cheap."""

    count: int
    vector: Callable[[int, int], Tensor]
    key: str


def compute_features(model: LayeredVGG, pictures: Sequence[np.ndarray], bar: Progress) -> LayerFeatures:
    """φ^(ℓ) of every picture at every layer, computed once: one forward pass passes all layers."""
    origin = {"what": "features", "weights": model.weights_hash, "layers": model.layers, "mean": images.MEAN}
    keys = [compute_key(hash_array(pixels), origin) for pixels in pictures]
    missing = list({key: i for i, key in enumerate(keys) if not model.cache.has("features", key)}.values())
    held: dict[str, dict[str, Tensor]] = {}
    if missing:
        bar.start("features", len(missing))

    def made(i: int) -> dict[str, Tensor]:
        # Each by itself: in a batch it would be rounded by its company, and what is made again would differ.
        found = compute_activations(model, model.to_input(pictures[i]))
        tensors = {str(layer): to_half_if_safe(values[0]) for layer, values in found.items()}
        model.cache.put("features", keys[i], tensors)
        return tensors

    for i in missing:
        tensors = made(i)
        if model.cache.folder is None:
            held[keys[i]] = tensors
        bar.advance()

    def of(i: int, layer: int) -> Tensor:
        if keys[i] in held:
            return held[keys[i]][str(layer)].float()
        stored = model.cache.get("features", keys[i], only=str(layer))
        tensors = made(i) if stored is None else stored[0]  # damaged or deleted since: made again
        return tensors[str(layer)].float()

    return LayerFeatures(len(pictures), of, compute_key("|".join(keys), origin))


@torch.inference_mode()
def compute_activations(model: LayeredVGG, batch: Tensor) -> dict[int, Tensor]:
    """Flattened values of a batch at every layer of the ladder, from one pass."""
    found, values = {}, batch
    for number, module in enumerate(model.network, start=1):
        values = module(values)
        if number in model.layers:
            found[number] = values.flatten(1).clone()  # the next module may work in place
    return found


def to_half_if_safe(values: Tensor) -> Tensor:
    """16-bit floats where they can hold the values."""
    return values.half() if float(values.abs().max()) < MAX_HALF_VALUE else values.clone()


def compute_gram(
    model: LayeredVGG, features: LayerFeatures, layer: int, bar: Progress | None = None
) -> np.ndarray:
    """K[i, j] = ⟨φ(x_i), φ(x_j)⟩ in float64, block by block, so that memory stays bounded; kept on disk."""
    key = compute_key(features.key, {"what": "gram", "layer": layer})
    stored = model.cache.get("gram", key)
    if stored is not None:
        return stored[0]["gram"].numpy()
    size = max(1, int(GRAM_BLOCK_BYTES // (4 * features.vector(0, layer).numel())))
    matrix = np.empty((features.count, features.count))
    starts = range(0, features.count, size)
    rows = {s: slice(s, min(s + size, features.count)) for s in starts}
    for s in starts:
        left = torch.stack([features.vector(i, layer) for i in range(rows[s].start, rows[s].stop)])
        for t in range(s, features.count, size):
            right = (
                left if t == s else torch.stack([features.vector(i, layer) for i in range(t, rows[t].stop)])
            )
            block = (left @ right.T).double().numpy()
            matrix[rows[s], rows[t]], matrix[rows[t], rows[s]] = block, block.T
        if bar is not None:
            bar.advance()
    matrix = (matrix + matrix.T) / 2
    model.cache.put("gram", key, {"gram": torch.from_numpy(matrix)})
    return matrix


def compute_grams(model: LayeredVGG, pictures: Sequence[np.ndarray], bar: Progress) -> dict[int, np.ndarray]:
    """The Gram matrix of some pictures at every layer: all that a linear machine needs of 65,000-dimensional features."""
    found = compute_features(model, pictures, bar)
    bar.start("similarities", len(model.layers))
    matrices = {}
    for layer in model.layers:
        matrices[layer] = compute_gram(model, found, layer)
        bar.advance()
    return matrices


def decompose_layers(
    model: LayeredVGG,
    pixels: np.ndarray,
    *,
    regions: int,
    layers: Sequence[int] | None = None,
    project: int | None = None,
) -> dict[int, Decomposition]:
    """Decompositions of one picture at several layers, computed once in one sweep and kept."""
    wanted = tuple(model.layers if layers is None else layers)
    keys = {layer: _cache_key(model, pixels, layer, regions, project) for layer in wanted}
    found: dict[int, Decomposition] = {}
    for layer in wanted:
        earlier = load_decomposition(model.cache, keys[layer])
        if earlier is not None:
            found[layer] = earlier
    missing = [layer for layer in wanted if layer not in found]
    if missing:
        made = decompose_in_one_pass(model, model.to_input(pixels), missing, regions=regions, project=project)
        for layer, decomposition in made.items():
            save_decomposition(model.cache, keys[layer], decomposition)
            found[layer] = decomposition
    return {layer: found[layer] for layer in wanted}


def is_cached(model: LayeredVGG, pixels: np.ndarray, *, regions: int, project: int | None = None) -> bool:
    """Are all decompositions of this picture on disk already?"""
    keys = (_cache_key(model, pixels, layer, regions, project) for layer in model.layers)
    return all(model.cache.has("decomposition", key) for key in keys)


def explain_layers(
    model: LayeredVGG, a: np.ndarray, b: np.ndarray, *, regions: int, project: int | None = None
) -> dict[int, Explanation]:
    """One pair of pictures explained at every layer; one layer's parts in memory at a time where they are kept."""
    for pixels in (a, b):
        if not is_cached(model, pixels, regions=regions, project=project) and model.cache.folder is not None:
            decompose_layers(model, pixels, regions=regions, project=project)
    found = {}
    for layer in model.layers:
        left, right = (
            decompose_layers(model, pixels, regions=regions, layers=[layer], project=project)[layer]
            for pixels in (a, b)
        )
        found[layer] = drop_parts(bilrp.pair(left, right, similarity="dot"))
    return found


def drop_parts(explanation: Explanation) -> Explanation:
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


def decompose_in_one_pass(
    model: LayeredVGG, x: Tensor, layers: Sequence[int], *, regions: int, project: int | None
) -> dict[int, Decomposition]:
    """Decompositions at several layers, from one pass of the regions through the network."""
    spec = bilrp.regions.grid(regions)
    return bilrp.decompose(model.encoder, x, regions=spec, project=project, layers=list(layers))


def _cache_key(model: LayeredVGG, pixels: np.ndarray, layer: int, regions: int, project: int | None) -> str:
    origin: dict[str, Any] = {
        "what": "decomposition",
        "weights": model.weights_hash,
        "layer": layer,
        "composite": composites.composite_name(composites.as_composite(model.encoder.composite)),
        "regions": regions,
        "projection": project,
    }
    return compute_key(hash_array(pixels), origin)
