"""Image preprocessing of a saved model, from its preprocessor_config.json: resize, centre crop, normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.encoder import InputLike
from bilrp.encoders import images
from bilrp.encoders.hf_checkpoint import read_json
from bilrp.errors import InputError
from bilrp.inputs import Image, Item

if TYPE_CHECKING:
    from PIL import Image as Pillow

CONFIG_FILENAME = "preprocessor_config.json"
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BILINEAR, BICUBIC = 2, 3  # Pillow's constants

# Defaults of transformers' image processors, by class name without "ImageProcessor".
PROCESSOR_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {"size": {"height": 224, "width": 224}, "resample": BILINEAR, "image_mean": HALF, "image_std": HALF},
    "DeiT": {
        "size": {"height": 256, "width": 256}, "resample": BICUBIC, "do_center_crop": True, "crop_size": 224,
        "image_mean": HALF, "image_std": HALF,
    },
    "Beit": {
        "size": {"height": 256, "width": 256}, "resample": BICUBIC, "do_center_crop": True, "crop_size": 224,
        "image_mean": HALF, "image_std": HALF,
    },
    "Bit": {
        "size": {"shortest_edge": 224}, "resample": BICUBIC, "do_center_crop": True, "crop_size": 224,
        "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    },
    "CLIP": {
        "size": {"shortest_edge": 224}, "resample": BICUBIC, "do_center_crop": True, "crop_size": 224,
        "image_mean": CLIP_MEAN, "image_std": CLIP_STD,
    },
    "Siglip": {"size": {"height": 224, "width": 224}, "resample": BICUBIC, "image_mean": HALF, "image_std": HALF},
    "ConvNext": {
        "size": {"shortest_edge": 384}, "resample": BICUBIC, "crop_pct": 224 / 256, "image_mean": HALF,
        "image_std": HALF,
    },
    "EfficientNet": {
        "size": {"height": 346, "width": 346}, "resample": BICUBIC, "crop_size": 289, "include_top": True,
        "image_mean": HALF, "image_std": HALF,
    },
    "MobileNetV1": {
        "size": {"shortest_edge": 256}, "resample": BILINEAR, "do_center_crop": True, "crop_size": 224,
        "image_mean": HALF, "image_std": HALF,
    },
    "DINOv3ViT": {
        "size": {"height": 224, "width": 224}, "resample": BILINEAR, "image_mean": images.MEAN, "image_std": images.STD,
    },
}  # fmt: skip
PROCESSOR_DEFAULTS = {
    **PROCESSOR_DEFAULTS,
    "ChineseCLIP": PROCESSOR_DEFAULTS["CLIP"],
    "MobileNetV2": PROCESSOR_DEFAULTS["MobileNetV1"],
}
UNSUPPORTED_SWITCHES = (
    "do_pad",
    "do_thumbnail",
    "do_align_long_axis",
    "do_flip_channel_order",
    "do_reduce_labels",
)


@dataclass(frozen=True)
class ImageProcessor:
    """Image → (1, 3, height, width): resize, centre crop, then pixel · factor + shift for each channel.

    Args:
        size: (height, width), one number for the shorter side, or None to keep the size.
        crop: (height, width) of the centre crop, or None.
        resample: Pillow's resampling filter.
        factor, shift: scale and offset of each channel.
        resize_as_float: resize floats instead of bytes, as DINOv3 does.
        round_crop: round half a pixel of the crop's place to even, as torchvision does, instead of down.
        dtype: of the input tensor.
    """

    size: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: int
    factor: tuple[float, ...]
    shift: tuple[float, ...]
    resize_as_float: bool = False
    round_crop: bool = False
    dtype: torch.dtype = torch.float32

    def __call__(self, raw_input: InputLike) -> Item:
        """Return the model's input, with the original image for display."""
        image = images.open_image(raw_input)
        wide, high = self.compute_resized_size(image.size)
        if wide * high > images.MAX_INPUT_PIXELS:
            raise InputError(
                f"an image of {image.size[0]}×{image.size[1]} would be resized to {wide}×{high}: too large"
            )
        crop_high, crop_wide = self.crop or (high, wide)
        left, top = (wide - crop_wide) // 2, (high - crop_high) // 2
        if self.round_crop:
            left, top = round((wide - crop_wide) / 2), round((high - crop_high) / 2)
        crop_box = (left, top, left + crop_wide, top + crop_high)
        pixels = self._resize_and_crop(image, (wide, high), crop_box)
        factor, shift = (
            torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (self.factor, self.shift)
        )
        x = (pixels * factor + shift).float().unsqueeze(0).to(self.dtype)
        across, down = image.size[0] / wide, image.size[1] / high
        box = (crop_box[0] * across, crop_box[1] * down, crop_box[2] * across, crop_box[3] * down)
        return Item(x, view=Image.from_image(image, box), name=images.input_name(raw_input))

    def compute_resized_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (width, height) before the crop, for an image of this (width, height)."""
        if self.size is None:
            return image_size
        if isinstance(self.size, tuple):
            return self.size[1], self.size[0]
        wide, high = image_size
        long = int(self.size * max(wide, high) / min(wide, high))
        return (self.size, long) if wide <= high else (long, self.size)

    def to_image(self, x: Tensor) -> np.ndarray:
        """Invert the preprocessing for display: (1, 3, H, W) → uint8 H×W×3."""
        factor, shift = (
            torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (self.factor, self.shift)
        )
        pixels = (x.detach().cpu().double()[0] - shift) / factor
        return pixels.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()

    def _resize_and_crop(
        self, image: Pillow.Image, size: tuple[int, int], crop_box: tuple[int, int, int, int]
    ) -> Tensor:
        """Return the pixels 0 … 255, resized to (width, height) and cropped; black outside of the image."""
        if not self.resize_as_float:
            cropped = image.resize(size, self.resample).crop(crop_box)
            return torch.from_numpy(np.array(cropped, dtype=np.uint8)).permute(2, 0, 1).double()
        pixels = torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1).float()
        mode = "bicubic" if self.resample == BICUBIC else "bilinear"
        resized = torch.nn.functional.interpolate(
            pixels[None], (size[1], size[0]), mode=mode, antialias=True, align_corners=False
        )[0]
        left, top, right, bottom = crop_box
        padding = (-left, right - size[0], -top, bottom - size[1])  # negative: crop
        return torch.nn.functional.pad(resized, padding).double()


def load_image_processor(folder: Path, dtype: torch.dtype = torch.float32) -> ImageProcessor:
    """Read a folder's preprocessor_config.json, or the image part of its processor_config.json."""
    path = folder / CONFIG_FILENAME
    config = read_json(path, {}) or read_json(folder / "processor_config.json", {})
    config = config.get("image_processor", config) if isinstance(config, dict) else config
    if not config:
        raise InputError(f"{folder} has no {CONFIG_FILENAME}: save the model's image processor there too")
    if not isinstance(config, dict):
        raise InputError(f"{path} is not an image processor's configuration")
    return build_image_processor(config, str(path), dtype)


def build_image_processor(
    config: Mapping[str, Any], source: str, dtype: torch.dtype = torch.float32
) -> ImageProcessor:
    """Return the processor of a configuration, as in preprocessor_config.json.

    Args:
        config, source: the configuration, and where it comes from, for messages.
        dtype: of the input tensor.
    """
    kind = _processor_type(config)
    if kind not in PROCESSOR_DEFAULTS:
        raise InputError(
            f"{source}: image processors of type {kind or 'unknown'} are not supported, only "
            f"{', '.join(PROCESSOR_DEFAULTS)}"
        )
    unsupported = [name for name in UNSUPPORTED_SWITCHES if config.get(name)]
    if unsupported:
        raise InputError(f"{source}: {unsupported[0]} is not supported; save an image processor without it")
    try:
        settings = {**PROCESSOR_DEFAULTS[kind], **{k: v for k, v in config.items() if v is not None}}
        return replace(_build_processor(kind, settings), dtype=dtype)
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise InputError(f"{source} is not a valid image processor's configuration ({error!r})") from None


def _processor_type(config: Mapping[str, Any]) -> str:
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    for ending in ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(ending)
    return name


def _build_processor(processor_type: str, config: Mapping[str, Any]) -> ImageProcessor:
    square = (
        isinstance(PROCESSOR_DEFAULTS[processor_type]["size"], dict)
        and "height" in PROCESSOR_DEFAULTS[processor_type]["size"]
    )
    size = _parse_size(config["size"], square=square) if config.get("do_resize", True) else None
    crop = _parse_pair(config["crop_size"]) if config.get("do_center_crop") else None
    if processor_type == "ConvNext" and isinstance(
        size, int
    ):  # below 384: resize to more and crop; from 384: stretch
        size, crop = (int(size / config["crop_pct"]), (size, size)) if size < 384 else ((size, size), crop)
    scale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
    offset = 1.0 if config.get("rescale_offset") else 0.0
    mean, std = (0.0,) * 3, (1.0,) * 3
    if config.get("do_normalize", True):
        mean, std = _parse_channels(config["image_mean"]), _parse_channels(config["image_std"])
    second_std = (
        _parse_channels(config["image_std"])
        if config.get("include_top") and processor_type == "EfficientNet"
        else (1.0,) * 3
    )
    factor = tuple(scale / (s * t) for s, t in zip(std, second_std, strict=True))
    shift = tuple((-offset - m) / (s * t) for m, s, t in zip(mean, std, second_std, strict=True))
    if not all(map(math.isfinite, (*factor, *shift))) or 0.0 in factor:
        raise ValueError("image_mean and image_std must be finite, and image_std not zero")
    resample = int(config["resample"])
    if resample not in range(6):
        raise ValueError(f"resample {resample}")
    return ImageProcessor(size, crop, resample, factor, shift, resize_as_float=processor_type == "DINOv3ViT")


def _parse_size(value: Any, *, square: bool) -> int | tuple[int, int]:
    if isinstance(value, Mapping) and "shortest_edge" in value and not value.get("longest_edge"):
        return _parse_side(value["shortest_edge"])
    if isinstance(value, int) and not square:
        return _parse_side(value)
    return _parse_pair(value)


def _parse_pair(value: Any) -> tuple[int, int]:
    if isinstance(value, Mapping):
        value = value["height"], value["width"]
    high, wide = (value, value) if isinstance(value, int) else value
    if int(high) * int(wide) > images.MAX_INPUT_PIXELS:
        raise ValueError(f"an input of {high}×{wide} is too large")
    return _parse_side(high), _parse_side(wide)


def _parse_side(value: Any) -> int:
    if not 1 <= int(value) <= 100_000:
        raise ValueError(f"a side of {value} pixels")
    return int(value)


def _parse_channels(value: Any) -> tuple[float, float, float]:
    values = (value,) * 3 if isinstance(value, int | float) else tuple(value)
    first, second, third = map(float, values)
    return first, second, third
