"""VGG-16's convolutional part up to any of the paper's layers 1 … 31."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bilrp.encoders import images
from bilrp.encoders import vgg_weights as weights
from bilrp.errors import InputError

if TYPE_CHECKING:
    from bilrp.encoder import Encoder
    from bilrp.trace.tape import Tape

NUM_LAYERS = 31
POOLING_LAYERS = (5, 10, 17, 24, 31)


class VGG16(nn.Module):
    """VGG_{:layer}: convolutions, ReLUs and poolings in torchvision's order and with its names."""

    def __init__(self, layer: int = NUM_LAYERS) -> None:
        super().__init__()
        if not (isinstance(layer, int) and 1 <= layer <= NUM_LAYERS):
            raise InputError(f"VGG-16 has layers 1 … {NUM_LAYERS} (31 is the last pooling), got {layer!r}")
        self.features = nn.Sequential(*_build_layers()[:layer])

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


def vgg16(
    layer: int = NUM_LAYERS,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    size: int | tuple[int, int] | None = 128,
    resize: str = images.DEFAULT_RESIZE,
    progress: bool = False,
) -> Encoder:
    """Return the paper's image encoder, VGG-16 up to `layer`, with the paper's composite.

    γ = 0.5, 0.25, 0.1, 0 for layers 2–10, 11–17, 18–24, 25–31, and z^B at layer 1.

    Args:
        layer: number of layers, 1 … 31; convolutions, ReLUs and poolings count.
        weights: a file, a state dict, or None to download them.
        size: side of the input in pixels, (height, width), or None to keep the image's size.
        resize: "crop", "pad" or "stretch".
        progress: show a progress bar while downloading.

    >>> bilrp.explain(vgg16(31), "cat.jpg", "dog.jpg").score
    """
    from bilrp import regions
    from bilrp.encoder import Encoder
    from bilrp.rules import composites

    min_side = 2 ** sum(pooling <= layer for pooling in POOLING_LAYERS)  # every pooling halves the side
    if size is not None and min(size if isinstance(size, tuple) else (size,)) < min_side:
        raise InputError(
            f"layer {layer} of VGG-16 needs images of at least {min_side} pixels a side, got {size}"
        )
    low, high = images.pixel_bounds()
    return Encoder(
        module=load_module(layer, weights=weights, progress=progress),
        read=partial(images.read_with_view, size=size, resize=resize),
        composite=composites.paper_vgg(low=low, high=high),
        regions=regions.grid(8),
        name=f"vgg16:{layer}",
        to_image=images.to_image,
        layers=_layer_output,
        similarity="dot",  # as in the paper
    )


def _layer_output(tape: Tape, layer: int) -> int:
    """Return the output of a 1-based layer; each layer is one step of the tape."""
    if not (isinstance(layer, int) and 1 <= layer <= len(tape.steps)):
        raise InputError(
            f"this VGG-16 has layers 1 … {len(tape.steps)}, got {layer!r}: use vgg16({NUM_LAYERS}) for all layers"
        )
    return tape.steps[layer - 1].output


def load_module(
    layer: int = NUM_LAYERS,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    progress: bool = False,
) -> VGG16:
    """Return VGG_{:layer} with pretrained weights, in evaluation mode and without gradients.

    Args:
        layer, weights, progress: as for `vgg16`.
    """
    with torch.device("meta"):  # skips the random initialisation
        network = VGG16(layer)
    tensors = weights if isinstance(weights, Mapping) else _load_weights(weights, progress=progress)
    network.load_state_dict({name: tensors[name].clone() for name in network.state_dict()}, assign=True)
    return network.eval().requires_grad_(False)


def _load_weights(path: str | Path | None, *, progress: bool) -> Mapping[str, Tensor]:
    return weights.load(path, progress=progress)


def _build_layers() -> list[nn.Module]:
    """Return layers 1 … 31: torchvision's `features`."""
    layers: list[nn.Module] = []
    for number, inputs, outputs in weights.CONVOLUTIONS:
        if len(layers) < number:  # the index skips one where there is a pooling
            layers.append(nn.MaxPool2d(2, 2))
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
    return [*layers, nn.MaxPool2d(2, 2)]
