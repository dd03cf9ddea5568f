"""VGG-16's convolutional part, cut after any of the paper's layers 1 … 31."""

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
    """VGG_{:layer}: convolutions, ReLUs and poolings in torchvision's order and under its names.

    >>> VGG16(17)(torch.rand(1, 3, 128, 128)).shape
    torch.Size([1, 256, 16, 16])
    """

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
    """The paper's image encoder: VGG-16 up to its 1-based `layer`, with its rules, regions and pixel bounds.

    γ = 0.5, 0.25, 0.1, 0 for layers 2–10, 11–17, 18–24, 25–31, and z^B at layer 1.

    >>> bilrp.explain(vgg16(31), "cat.jpg", "dog.jpg").score
    """
    from bilrp import regions
    from bilrp.encoder import Encoder
    from bilrp.rules import composites

    least = 2 ** sum(pooling <= layer for pooling in POOLING_LAYERS)  # every pooling halves the side
    if size is not None and min(size if isinstance(size, tuple) else (size,)) < least:
        raise InputError(
            f"layer {layer} of VGG-16 needs images of at least {least} pixels a side, got {size}"
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
    """The value of a 1-based layer: each is one torch call."""
    if not (isinstance(layer, int) and 1 <= layer <= len(tape.steps)):
        raise InputError(
            f"this VGG-16 has layers 1 … {len(tape.steps)}, got {layer!r}: ask vgg16({NUM_LAYERS}) for all"
        )
    return tape.steps[layer - 1].output


def load_module(
    layer: int = NUM_LAYERS,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    progress: bool = False,
) -> VGG16:
    """VGG_{:layer} with pretrained weights, in evaluation mode and without gradients."""
    with torch.device("meta"):  # no time spent on random values that are replaced at once
        network = VGG16(layer)
    tensors = weights if isinstance(weights, Mapping) else _load_weights(weights, progress=progress)
    network.load_state_dict({name: tensors[name].clone() for name in network.state_dict()}, assign=True)
    return network.eval().requires_grad_(False)


def _load_weights(path: str | Path | None, *, progress: bool) -> Mapping[str, Tensor]:
    return weights.load(path, progress=progress)


def _build_layers() -> list[nn.Module]:
    """Layers 1 … 31 in order: torchvision's `features`."""
    made: list[nn.Module] = []
    for number, inputs, outputs in weights.CONVOLUTIONS:
        if len(made) < number:  # a gap of one in the numbering is where a pooling stands
            made.append(nn.MaxPool2d(2, 2))
        made += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
    return [*made, nn.MaxPool2d(2, 2)]
