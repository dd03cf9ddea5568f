"""Image encoders of live objects: a transformers model with its image processor, a timm model with its transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder, InputLike
from bilrp.encoders import images
from bilrp.encoders.hf_vision import PooledVisionModel, choose_pooling, patch_regions
from bilrp.encoders.image_processor import ImageProcessor, build_image_processor
from bilrp.encoders.photograph_means import find_photograph_mean
from bilrp.errors import InputError
from bilrp.inputs import Image, Item

if TYPE_CHECKING:
    from PIL import Image as Pillow
    from transformers import PreTrainedModel
    from transformers.image_processing_utils import BaseImageProcessor

RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's constants
# Largest difference of the input tensors at which the crop is known, so that regions are drawn on the image.
PIXEL_TOLERANCE = 1e-4


class _TimmModel(nn.Module):
    """Pixels → the pooled features before the classifier."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        model: Any = self.model
        return model.forward_head(model.forward_features(x), pre_logits=True)


@dataclass(frozen=True, eq=False)
class LiveImageReader:
    """Image → Item whose tensor comes from the live object's own preprocessing.

    Args:
        prepare: Pillow image -> tensor (3, H, W) or (1, 3, H, W).
        model: sets device and dtype.
        twin: the same preprocessing by bilrp, which knows the part of the image that remains; None if there is none.
    """

    prepare: Callable[[Pillow.Image], Tensor]
    model: nn.Module
    twin: ImageProcessor | None = None

    def __call__(self, raw_input: InputLike) -> Item:
        image = images.open_image(raw_input)
        pixels = self.prepare(image)
        if not isinstance(pixels, Tensor) or pixels.dim() not in (3, 4):
            raise InputError(
                f"the preprocessing returned {type(pixels).__name__}: it must return a tensor (3, height, width)"
            )
        weight = next(self.model.parameters())
        x = (pixels if pixels.dim() == 4 else pixels[None]).to(weight)
        item = Item(x, view=_show(pixels), name=images.input_name(raw_input))
        if self.twin is None:
            return item
        shown = self.twin(image)
        same = shown.x.shape == x.shape and bool(
            torch.allclose(shown.x.to(x), x, atol=PIXEL_TOLERANCE, rtol=0)
        )
        return replace(item, view=shown.view) if same else item


def from_image_model(
    model: PreTrainedModel, processor: BaseImageProcessor, *, pooling: str | None = None
) -> Encoder:
    """Return a live transformers image model with its image processor as an encoder (see `from_transformers`).

    Args:
        model: The model.
        processor: Its image processor.
        pooling: How the last hidden states become one vector; default by the type of the model.
    """
    chosen = choose_pooling(pooling, getattr(model.config, "model_type", ""))
    reader = make_processor_reader(model, processor)
    return Encoder(
        module=_CheckedVisionModel(model, chosen),
        read=reader,
        regions=patch_regions(getattr(model.config, "patch_size", None)),
        name=f"{type(model).__name__}({getattr(model, 'name_or_path', '') or 'live'}), {chosen}",
        to_image=None if reader.twin is None else reader.twin.to_image,
        similarity="cosine",
        mean_embedding=find_photograph_mean(model) if chosen == "pooler" else None,
    )


class _CheckedVisionModel(PooledVisionModel):
    """Say which model to pass where this one has no pooled output, as models with a classifier."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except AttributeError as error:
            raise InputError(
                f"{type(self.model).__name__} returns no {self.pooling} output ({error}): pass the model without its "
                "classifier (model.base_model), or another pooling ('cls', 'pooler', 'mean')"
            ) from None


def from_timm(model: nn.Module, transform: Callable[[Pillow.Image], Tensor] | None = None) -> Encoder:
    """Return a live timm model as an encoder: the pooled features before its classifier.

    Args:
        model: the model.
        transform: Pillow image -> tensor; None: that of the model's `pretrained_cfg` in evaluation, as
            `timm.data.create_transform` makes it.

    >>> encoder = from_timm(timm.create_model("resnet18", pretrained=True))  # doctest: +SKIP
    """
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    twin = _timm_processor(config) if config else None
    if transform is None and twin is None:
        raise InputError(
            "this timm model has no pretrained_cfg: pass (model, transform) with timm.data.create_transform"
        )
    reader: Any = twin if transform is None else LiveImageReader(transform, model, twin)
    name = str(config.get("architecture") or type(model).__name__)
    tag = config.get("tag")
    return Encoder(
        module=_TimmModel(model),
        read=_ToModel(reader, model),
        regions=patch_regions(_timm_patch_size(model)),
        name=f"timm({name}.{tag})" if tag else f"timm({name})",
        to_image=None if twin is None else twin.to_image,
        similarity="cosine",
    )


@dataclass(frozen=True, eq=False)
class _ToModel:
    """Move what a reader returns to the device and dtype of a model."""

    read: Callable[[Any], Item]
    model: nn.Module

    def __call__(self, raw_input: Any) -> Item:
        item = self.read(raw_input)
        return replace(item, x=item.x.to(next(self.model.parameters())))


def make_processor_reader(model: nn.Module, processor: BaseImageProcessor) -> LiveImageReader:
    """Return a reader that calls a transformers image processor, with its twin where bilrp has one."""

    def prepare(image: Pillow.Image) -> Tensor:
        return torch.as_tensor(np.asarray(processor(images=image, return_tensors="pt")["pixel_values"]))

    try:
        config = {"image_processor_type": type(processor).__name__, **processor.to_dict()}
        twin = build_image_processor(config, type(processor).__name__)
    except (AttributeError, InputError):  # the input itself is shown
        twin = None
    return LiveImageReader(prepare, model, twin)


def _timm_processor(config: Mapping[str, Any]) -> ImageProcessor:
    """Return timm's evaluation transform: resize the shorter side to size / crop_pct, centre crop, normalise."""
    _, high, wide = config.get("input_size") or (3, 224, 224)
    part = float(config.get("crop_pct") or 0.875)
    if config.get("crop_mode", "center") != "center" or high != wide:
        raise InputError(
            f"the crop mode {config.get('crop_mode')!r} of {high}×{wide} is not supported: pass (model, transform) with "
            "timm.data.create_transform"
        )
    mean, std = config.get("mean") or images.MEAN, config.get("std") or images.STD
    return ImageProcessor(
        size=math.floor(high / part),
        crop=(high, wide),
        resample=RESAMPLING.get(str(config.get("interpolation")), RESAMPLING["bilinear"]),
        factor=tuple(1 / (255 * s) for s in std),
        shift=tuple(-m / s for m, s in zip(mean, std, strict=True)),
        round_crop=True,
    )


def _timm_patch_size(model: nn.Module) -> tuple[int, ...] | None:
    size = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    return tuple(size) if size is not None else None


def _show(pixels: Tensor) -> Image:
    """Return the input itself as an image, scaled to 0 … 255."""
    plane = (pixels[0] if pixels.dim() == 4 else pixels).detach().float().cpu()
    plane = plane[:3].expand(3, -1, -1).permute(1, 2, 0)
    low, high = plane.min(), plane.max()
    return Image.from_image(((plane - low) / (high - low).clamp(min=1e-12) * 255).round().byte().numpy())
