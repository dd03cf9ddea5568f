"""How a saved model prepares pictures, as its preprocessor_config.json says: resize, cut out the middle, normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilrp.encoder import Readable
from bilrp.encoders import images
from bilrp.encoders.hf_checkpoint import read_json
from bilrp.errors import InputError
from bilrp.inputs import Image, Item

if TYPE_CHECKING:
    from PIL import Image as Pillow

FILE = "preprocessor_config.json"
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BILINEAR, BICUBIC = 2, 3  # as Pillow numbers them

# What each kind of processor does where its file does not say: those of transformers, by name.
USUAL: Mapping[str, Mapping[str, Any]] = {
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
USUAL = {**USUAL, "ChineseCLIP": USUAL["CLIP"], "MobileNetV2": USUAL["MobileNetV1"]}
SWITCHES = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order", "do_reduce_labels")


@dataclass(frozen=True)
class Preparation:
    """A picture → (1, 3, height, width): resized, its middle cut out, then pixel · factor + shift for each channel.

    `size` is (height, width), or one number for the shorter side; `crop` is (height, width). `smooth` resizes numbers
    instead of bytes, as DINOv3 does.

    >>> Preparation(size=(32, 32), crop=None, resample=2, factor=(1.0,) * 3, shift=(0.0,) * 3).resized((64, 48))
    (32, 32)
    """

    size: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: int
    factor: tuple[float, ...]
    shift: tuple[float, ...]
    smooth: bool = False

    def __call__(self, thing: Readable) -> Item:
        """The picture as the model sees it, and as people see it."""
        photograph = images.opened(thing)
        wide, high = self.resized(photograph.size)
        if wide * high > images.MOST_OF_AN_INPUT:
            raise InputError(
                f"a picture of {photograph.size[0]}×{photograph.size[1]} would be resized to {wide}×{high}: too large"
            )
        crop_high, crop_wide = self.crop or (high, wide)
        left, top = (wide - crop_wide) // 2, (high - crop_high) // 2
        place = (left, top, left + crop_wide, top + crop_high)
        pixels = self._pixels(photograph, (wide, high), place)
        factor, shift = (
            torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (self.factor, self.shift)
        )
        x = (pixels * factor + shift).float().unsqueeze(0)
        across, down = photograph.size[0] / wide, photograph.size[1] / high
        box = (place[0] * across, place[1] * down, place[2] * across, place[3] * down)
        return Item(x, view=Image.of(photograph, box), name=images.called(thing))

    def resized(self, picture: tuple[int, int]) -> tuple[int, int]:
        """(width, height) that a picture of that (width, height) is brought to before its middle is cut out."""
        if self.size is None:
            return picture
        if isinstance(self.size, tuple):
            return self.size[1], self.size[0]
        wide, high = picture
        long = int(self.size * max(wide, high) / min(wide, high))
        return (self.size, long) if wide <= high else (long, self.size)

    def picture(self, x: Tensor) -> np.ndarray:
        """The way back, for drawing: (1, 3, H, W) → uint8 H×W×3."""
        factor, shift = (
            torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (self.factor, self.shift)
        )
        pixels = (x.detach().cpu().double()[0] - shift) / factor
        return pixels.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()

    def _pixels(
        self, photograph: Pillow.Image, size: tuple[int, int], place: tuple[int, int, int, int]
    ) -> Tensor:
        """The pixels at that (width, height), 0 … 255, cut to a place; what lies beyond the picture is black."""
        if not self.smooth:
            seen = photograph.resize(size, self.resample).crop(place)
            return torch.from_numpy(np.array(seen, dtype=np.uint8)).permute(2, 0, 1).double()
        whole = torch.from_numpy(np.array(photograph, dtype=np.uint8)).permute(2, 0, 1).float()
        mode = "bicubic" if self.resample == BICUBIC else "bilinear"
        resized = torch.nn.functional.interpolate(
            whole[None], (size[1], size[0]), mode=mode, antialias=True, align_corners=False
        )[0]
        left, top, right, bottom = place
        beyond = (-left, right - size[0], -top, bottom - size[1])  # negative: cut off
        return torch.nn.functional.pad(resized, beyond).double()


def preparation(folder: Path) -> Preparation:
    """What a folder's preprocessor_config.json says (or the image half of its processor_config.json).

    >>> preparation(Path("dinov2-small")).size  # doctest: +SKIP
    256
    """
    path = folder / FILE
    said = read_json(path, {}) or read_json(folder / "processor_config.json", {})
    said = said.get("image_processor", said) if isinstance(said, dict) else said
    if not said:
        raise InputError(
            f"{folder} has no {FILE}, so how pictures are prepared is unknown: save the model's image processor there too"
        )
    if not isinstance(said, dict):
        raise InputError(f"{path} is no image processor's configuration")
    kind = _kind(said)
    if kind not in USUAL:
        raise InputError(
            f"{path}: an image processor of type {kind or 'unknown'} cannot be followed; known are {', '.join(USUAL)}"
        )
    on = [name for name in SWITCHES if said.get(name)]
    if on:
        raise InputError(f"{path}: {on[0]} cannot be followed; save an image processor without it")
    try:
        return _made(kind, {**USUAL[kind], **{k: v for k, v in said.items() if v is not None}})
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise InputError(f"{path} does not say how pictures are prepared ({error!r})") from None


def _kind(said: Mapping[str, Any]) -> str:
    name = str(said.get("image_processor_type") or said.get("feature_extractor_type") or "")
    for ending in ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(ending)
    return name


def _made(kind: str, said: Mapping[str, Any]) -> Preparation:
    square = isinstance(USUAL[kind]["size"], dict) and "height" in USUAL[kind]["size"]
    size = _size(said["size"], square=square) if said.get("do_resize", True) else None
    crop = _pair(said["crop_size"]) if said.get("do_center_crop") else None
    if kind == "ConvNext" and isinstance(
        size, int
    ):  # its own way: larger, then cut; at 384 and above stretched
        size, crop = (int(size / said["crop_pct"]), (size, size)) if size < 384 else ((size, size), crop)
    scale = float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0
    offset = 1.0 if said.get("rescale_offset") else 0.0
    mean, std = (0.0,) * 3, (1.0,) * 3
    if said.get("do_normalize", True):
        mean, std = _three(said["image_mean"]), _three(said["image_std"])
    again = _three(said["image_std"]) if said.get("include_top") and kind == "EfficientNet" else (1.0,) * 3
    factor = tuple(scale / (s * t) for s, t in zip(std, again, strict=True))
    shift = tuple((-offset - m) / (s * t) for m, s, t in zip(mean, std, again, strict=True))
    if not all(map(math.isfinite, (*factor, *shift))) or 0.0 in factor:
        raise ValueError("mean and std are no numbers to normalise by")
    resample = int(said["resample"])
    if resample not in range(6):
        raise ValueError(f"resample {resample}")
    return Preparation(size, crop, resample, factor, shift, smooth=kind == "DINOv3ViT")


def _size(given: Any, *, square: bool) -> int | tuple[int, int]:
    if isinstance(given, Mapping) and "shortest_edge" in given and not given.get("longest_edge"):
        return _side(given["shortest_edge"])
    if isinstance(given, int) and not square:
        return _side(given)
    return _pair(given)


def _pair(given: Any) -> tuple[int, int]:
    if isinstance(given, Mapping):
        given = given["height"], given["width"]
    high, wide = (given, given) if isinstance(given, int) else given
    if int(high) * int(wide) > images.MOST_OF_AN_INPUT:
        raise ValueError(f"an input of {high}×{wide} is too large")
    return _side(high), _side(wide)


def _side(given: Any) -> int:
    if not 1 <= int(given) <= 100_000:
        raise ValueError(f"a side of {given} pixels")
    return int(given)


def _three(given: Any) -> tuple[float, float, float]:
    values = (given,) * 3 if isinstance(given, int | float) else tuple(given)
    first, second, third = map(float, values)
    return first, second, third
