"""Small convolutional networks with batch norm and real weights: MobileNetV2 and EfficientNet-Lite0."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp import regions
from bilrp.encoder import Encoder
from bilrp.encoders import images, packages
from bilrp.encoders.downloads import Package, WeightsError, fetch
from bilrp.errors import InputError

if TYPE_CHECKING:
    Weights = Mapping[str, Tensor]

# (expansion, channels, repeats, stride of the first, kernel) of each stage of blocks
MOBILENET_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)  # fmt: skip
EFFICIENTNET_STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
EMBEDDING_SIZE = 1280
MIN_SIDE_PIXELS = 32  # pixels: five layers halve the side


@dataclass(frozen=True)
class Architecture:
    """One of the two networks: its stages, how it pads, its norms' ε, and where its weights come from under which names."""

    name: str
    stages: tuple[tuple[int, int, int, int, int], ...]
    symmetric_padding: bool  # pads both sides alike; else one more at the end, as TensorFlow does
    eps: float
    package: Package
    layer_names: Callable[[], Iterator[tuple[str, str]]]
    mean: tuple[float, float, float] = images.MEAN
    std: tuple[float, float, float] = images.STD


class ConvNormActivation(nn.Module):
    """Convolution, batch norm and, but for a block's last, min(max(z, 0), 6)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1, groups: int = 1,
                 activation: bool = True, architecture: Architecture):  # fmt: skip
        super().__init__()
        self.symmetric_padding, self.activation = architecture.symmetric_padding, activation
        padding = kernel_size // 2 if architecture.symmetric_padding else 0
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=architecture.eps)

    def forward(self, x: Tensor) -> Tensor:
        if not self.symmetric_padding:
            pads = [p for n in (x.shape[3], x.shape[2]) for p in self._same_padding(n)]
            x = F.pad(x, pads) if any(pads) else x
        z = self.norm(self.conv(x))
        return F.relu6(z) if self.activation else z

    def _same_padding(self, side: int) -> tuple[int, int]:
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return total // 2, total - total // 2


class InvertedResidual(nn.Module):
    """Inverted residual: widen, convolve each channel by itself, narrow; the input is added where shapes allow."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int,
        expansion: int,
        architecture: Architecture,
    ):
        super().__init__()
        wide = in_channels * expansion
        self.adds_input = stride == 1 and in_channels == out_channels
        widen = [ConvNormActivation(in_channels, wide, 1, architecture=architecture)] if expansion > 1 else []
        apart = ConvNormActivation(
            wide, wide, kernel_size, stride=stride, groups=wide, architecture=architecture
        )
        self.layers = nn.Sequential(
            *widen,
            apart,
            ConvNormActivation(wide, out_channels, 1, activation=False, architecture=architecture),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds_input else self.layers(x)


class MobileCNN(nn.Module):
    """Pixels (1, 3, H, W) → (1, 1280): what the classifier sees, the mean over the last map."""

    def __init__(self, architecture: Architecture):
        super().__init__()
        self.stem = ConvNormActivation(3, 32, 3, stride=2, architecture=architecture)
        blocks, inputs = [], 32
        for expansion, outputs, repeats, stride, kernel in architecture.stages:
            for number in range(repeats):
                step = stride if number == 0 else 1
                blocks.append(
                    InvertedResidual(
                        inputs, outputs, kernel, stride=step, expansion=expansion, architecture=architecture
                    )
                )
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNormActivation(inputs, EMBEDDING_SIZE, 1, architecture=architecture)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x))).mean((2, 3))


def mobilenet(
    *,
    weights: str | Path | None = None,
    size: int | tuple[int, int] | None = 128,
    resize: str = images.DEFAULT_RESIZE,
    pretrained: bool = True,
    progress: bool = False,
) -> Encoder:
    """MobileNetV2 with ImageNet's weights (fetched once, 13 MB): photographs → the 1280 numbers its classifier sees.

    >>> bilrp.explain(mobilenet(), "cat.jpg", "dog.jpg").score  # doctest: +SKIP
    """
    return _build_encoder(MOBILENET, weights, size, resize, pretrained, progress)


def efficientnet(
    *,
    weights: str | Path | None = None,
    size: int | tuple[int, int] | None = 128,
    resize: str = images.DEFAULT_RESIZE,
    pretrained: bool = True,
    progress: bool = False,
) -> Encoder:
    """EfficientNet-Lite0 with ImageNet's weights (fetched once, 17 MB), as `mobilenet`.

    >>> bilrp.explain(efficientnet(), "cat.jpg", "dog.jpg").score  # doctest: +SKIP
    """
    return _build_encoder(EFFICIENTNET, weights, size, resize, pretrained, progress)


def _build_encoder(
    architecture: Architecture, weights: str | Path | None, size: int | tuple[int, int] | None, resize: str,
    pretrained: bool,
    progress: bool,
) -> Encoder:  # fmt: skip
    if size is not None and min(size if isinstance(size, tuple) else (size,)) < MIN_SIDE_PIXELS:
        raise InputError(
            f"{architecture.name} needs images of at least {MIN_SIDE_PIXELS} pixels a side, got {size}"
        )
    module = MobileCNN(architecture)
    if pretrained:
        _assign_weights(module, architecture, _load_state_dict(architecture, weights, progress=progress))
    return Encoder(
        module=module.eval().requires_grad_(False),
        read=partial(
            images.read_with_view, size=size, resize=resize, mean=architecture.mean, std=architecture.std
        ),
        regions=regions.grid(8),
        name=architecture.name,
        to_image=partial(images.to_image, mean=architecture.mean, std=architecture.std),
        similarity="cosine",
    )


def _load_state_dict(architecture: Architecture, path: str | Path | None, *, progress: bool) -> Weights:
    """The published state dict: from a file, or of the package; torch reads it as plain tensors only."""
    if path is not None and not Path(path).is_file():
        raise InputError(f"{path}: no such weights file")
    (data,) = (Path(path).read_bytes(),) if path else fetch(architecture.package, progress=progress).values()
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds on files that are not its own
        raise WeightsError(f"{path or architecture.name}: not a torch file of plain tensors") from None
    if not isinstance(found, Mapping):
        raise WeightsError(f"{path or architecture.name}: expected a state dict, got {type(found).__name__}")
    return found


def _assign_weights(module: MobileCNN, architecture: Architecture, state_dict: Weights) -> None:
    """Every weight under its published name; a classifier is left out."""
    ours = [name for name, layer in module.named_modules() if isinstance(layer, ConvNormActivation)]
    own = module.state_dict()
    for name, (conv, norm) in zip(ours, architecture.layer_names(), strict=True):
        for here, there in ((f"{name}.conv", conv), (f"{name}.norm", norm)):
            for kind in ("weight", "bias", "running_mean", "running_var"):
                wanted = own.get(f"{here}.{kind}")
                if wanted is None:
                    continue
                given = state_dict.get(f"{there}.{kind}")
                if not isinstance(given, Tensor) or given.shape != wanted.shape:
                    raise WeightsError(
                        f"these are not {architecture.name}'s weights: {there}.{kind} is missing or of another shape"
                    )
                if not bool(torch.isfinite(given).all()):
                    raise WeightsError(f"{architecture.name}: {there}.{kind} holds NaN or infinite values")
                own[f"{here}.{kind}"] = given.float()
    module.load_state_dict(own)


def _torchvision_layer_names() -> Iterator[tuple[str, str]]:
    """(convolution, norm) of each layer in torchvision's MobileNetV2."""
    yield "features.0.0", "features.0.1"
    for number in range(1, 18):
        inner = range(1) if number == 1 else range(2)
        yield from ((f"features.{number}.conv.{n}.0", f"features.{number}.conv.{n}.1") for n in inner)
        yield f"features.{number}.conv.{len(inner)}", f"features.{number}.conv.{len(inner) + 1}"
    yield "features.18.0", "features.18.1"


def _lite0_layer_names() -> Iterator[tuple[str, str]]:
    """(convolution, norm) of each layer in the published EfficientNet-Lite0."""
    yield "_conv_stem", "_bn0"
    for number in range(16):
        kinds = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        yield from ((f"_blocks.{number}.{c}", f"_blocks.{number}.{n}") for c, n in kinds[number == 0 :])
    yield "_conv_head", "_bn1"


MOBILENET = Architecture(
    "mobilenet",
    MOBILENET_STAGES,
    symmetric_padding=True,
    eps=1e-5,
    package=packages.MOBILENET,
    layer_names=_torchvision_layer_names,
)
EFFICIENTNET = Architecture(
    "efficientnet", EFFICIENTNET_STAGES, symmetric_padding=False, eps=1e-3, package=packages.EFFICIENTNET,
    layer_names=_lite0_layer_names,
    mean=(127 / 255, 127 / 255, 127 / 255), std=(128 / 255, 128 / 255, 128 / 255),
)  # fmt: skip
