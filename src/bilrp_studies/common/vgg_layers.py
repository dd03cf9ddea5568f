"""VGG-16 as one similarity model per layer: features, Gram matrices and decompositions, cached on disk."""

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
from bilrp.progress import Progress
from bilrp.rules import composites
from bilrp_studies.common.cache import Cache, compute_key, hash_array, hash_weights
from bilrp_studies.common.result_cache import load_decomposition, save_decomposition

GRAM_BLOCK_BYTES = 512e6  # float32 features in memory at once for each side of a Gram matrix
MAX_HALF_VALUE = 60_000.0  # float16 overflows at 65,504


@dataclass(frozen=True, eq=False)
class LayeredVGG:
    """One encoder evaluated at several layers: y^(ℓ)(x, x') = ⟨VGG_:ℓ(x), VGG_:ℓ(x')⟩.

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
        """Convert uint8 pixels (H, W, 3) to the encoder's input."""
        return read_tensor(self.encoder, pixels)


def load_layered_vgg(
    layers: Sequence[int] = vgg.POOLING_LAYERS,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    cache_folder: str | Path | None = None,
    progress: bool = False,
) -> LayeredVGG:
    """Load VGG-16 up to the highest of the given layers.

    Args:
        layers: Layers to evaluate, counted from 1.
        weights: Weight file or state dict; by default the cached or downloaded weights.
        cache_folder: Folder of the cache; None disables it.
        progress: Show the progress of a download.
    """
    chosen = tuple(sorted(set(layers)))
    if not chosen:
        raise InputError("name at least one layer, for example 17,31")
    encoder = vgg.vgg16(chosen[-1], weights=weights, size=None, progress=progress)
    cache = Cache(None if cache_folder is None else Path(cache_folder))
    return LayeredVGG(encoder, chosen, hash_weights(encoder.module), cache)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Features of many images: `vector(i, layer)` returns one vector.

    Stored as float16 where that does not overflow: the rounding averages out in the Gram matrix of thousands of coordinates
    (relative error about 10⁻⁵), and 65,000 coordinates per image stay affordable.
    """

    count: int
    vector: Callable[[int, int], Tensor]
    key: str


def compute_features(model: LayeredVGG, pictures: Sequence[np.ndarray], bar: Progress) -> LayerFeatures:
    """Compute φ^(ℓ) of every image at every layer, in one forward pass per image.

    Args:
        model: The layers, and the cache for the features.
        pictures: uint8 images (H, W, 3).
        bar: Progress bar.
    """
    origin = {"what": "features", "weights": model.weights_hash, "layers": model.layers, "mean": images.MEAN}
    keys = [compute_key(hash_array(pixels), origin) for pixels in pictures]
    missing = list({key: i for i, key in enumerate(keys) if not model.cache.has("features", key)}.values())
    held: dict[str, dict[str, Tensor]] = {}
    if missing:
        bar.start("features", len(missing))

    def made(i: int) -> dict[str, Tensor]:
        # A batch of one: results would otherwise depend on the batch by rounding, and recomputation would differ.
        result = compute_activations(model, model.to_input(pictures[i]))
        tensors = {str(layer): to_half_if_safe(values[0]) for layer, values in result.items()}
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
        tensors = made(i) if stored is None else stored[0]  # recompute if damaged or deleted
        return tensors[str(layer)].float()

    return LayerFeatures(len(pictures), of, compute_key("|".join(keys), origin))


@torch.inference_mode()
def compute_activations(model: LayeredVGG, batch: Tensor) -> dict[int, Tensor]:
    """Return the flattened activations of a batch at every layer, from one forward pass."""
    result, values = {}, batch
    for number, module in enumerate(model.network, start=1):
        values = module(values)
        if number in model.layers:
            result[number] = values.flatten(1).clone()  # the next module may be in-place
    return result


def to_half_if_safe(values: Tensor) -> Tensor:
    """Convert to float16 if the values fit, else return a copy."""
    return values.half() if float(values.abs().max()) < MAX_HALF_VALUE else values.clone()


def compute_gram(
    model: LayeredVGG, features: LayerFeatures, layer: int, bar: Progress | None = None
) -> np.ndarray:
    """Compute K[i, j] = ⟨φ(x_i), φ(x_j)⟩ block by block with bounded memory, as float64; cached on disk.

    Args:
        model: Provides the cache.
        features: Features of the images.
        layer: The layer.
        bar: Progress bar, advanced once per row of blocks.
    """
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
    """Compute the Gram matrix of the images at every layer, which is all that a linear SVM needs.

    Args:
        model: The layers, and the cache for features and matrices.
        pictures: uint8 images (H, W, 3).
        bar: Progress bar.
    """
    result = compute_features(model, pictures, bar)
    bar.start("similarities", len(model.layers))
    matrices = {}
    for layer in model.layers:
        matrices[layer] = compute_gram(model, result, layer)
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
    """Decompose one image at several layers in one pass; results are cached.

    Args:
        model: The layers, and the cache.
        pixels: uint8 image (H, W, 3).
        regions: Side of a region in pixels.
        layers: Layers to decompose; None for all layers of the model.
        project: Number of random projection dimensions; None is exact.
    """
    expected = tuple(model.layers if layers is None else layers)
    keys = {layer: _cache_key(model, pixels, layer, regions, project) for layer in expected}
    result: dict[int, Decomposition] = {}
    for layer in expected:
        earlier = load_decomposition(model.cache, keys[layer])
        if earlier is not None:
            result[layer] = earlier
    missing = [layer for layer in expected if layer not in result]
    if missing:
        built = decompose_in_one_pass(
            model, model.to_input(pixels), missing, regions=regions, project=project
        )
        for layer, decomposition in built.items():
            save_decomposition(model.cache, keys[layer], decomposition)
            result[layer] = decomposition
    return {layer: result[layer] for layer in expected}


def is_cached(model: LayeredVGG, pixels: np.ndarray, *, regions: int, project: int | None = None) -> bool:
    """Return whether the decompositions of this image at all layers are cached on disk.

    Args:
        model, pixels, regions, project: As for `decompose_layers`.
    """
    keys = (_cache_key(model, pixels, layer, regions, project) for layer in model.layers)
    return all(model.cache.has("decomposition", key) for key in keys)


def explain_layers(
    model: LayeredVGG, a: np.ndarray, b: np.ndarray, *, regions: int, project: int | None = None
) -> dict[int, Explanation]:
    """Explain one pair of images at every layer; with a cache on disk, one layer's parts are in memory at a time.

    Args:
        model: The layers, and the cache.
        a: uint8 image (H, W, 3).
        b: The other image.
        regions, project: As for `decompose_layers`.
    """
    for pixels in (a, b):
        if not is_cached(model, pixels, regions=regions, project=project) and model.cache.folder is not None:
            decompose_layers(model, pixels, regions=regions, project=project)
    by_name = {}
    for layer in model.layers:
        left, right = (
            decompose_layers(model, pixels, regions=regions, layers=[layer], project=project)[layer]
            for pixels in (a, b)
        )
        by_name[layer] = drop_parts(bilrp.pair(left, right, similarity="dot"))
    return by_name


def drop_parts(explanation: Explanation) -> Explanation:
    """Return the explanation without the parts of its sides (hundreds of megabytes), with relevance, score and images."""
    sides = (
        # new tensors: an empty view would keep the whole storage alive
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
    """Decompose at several layers in one pass of the regions through the network, without the cache.

    Args:
        model: Provides the encoder.
        x: The encoder's input.
        layers: Layers to decompose.
        regions: Side of a region in pixels.
        project: Number of random projection dimensions; None is exact.
    """
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
