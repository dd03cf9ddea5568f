"""Image encoders from a folder in transformers' layout: DINOv2, ViT, Swin, ResNet, ConvNeXt, EfficientNet, MobileNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp import regions
from bilrp.encoder import Encoder
from bilrp.encoders import hf_checkpoint
from bilrp.encoders.image_processor import load_image_processor
from bilrp.errors import InputError
from bilrp.regions import RegionFunction, Regions

# Models whose first token is trained to stand for the whole image; others say what does by their own pooling.
CLS_TOKEN_MODELS = {
    "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn",
}  # fmt: skip
POOLING_MODES = ("cls", "pooler", "mean")
DEFAULT_PATCH_PIXELS = 8  # pixels of a region where a model has no patches
MAX_REGIONS = 32 * 32  # regions: beyond that, patches are taken together


class PooledVisionModel(nn.Module):
    """Pixels (1, 3, H, W) → (1, width): the first token ("cls"), the model's own pooling, or the mean of what it gives."""

    def __init__(self, model: nn.Module, pooling: str):
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, x: Tensor) -> Tensor:
        found = self.model(pixel_values=x)
        if self.pooling == "pooler":
            return found.pooler_output.flatten(1)
        hidden = found.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        return hidden.flatten(2).mean(2) if hidden.dim() == 4 else hidden.mean(1)

    def extra_repr(self) -> str:
        return f"pooling={self.pooling}"


def vision(source: str | Path, *, pooling: str | None = None, dtype: torch.dtype = torch.float32) -> Encoder:
    """An image encoder from a folder made by `save_pretrained`: the model's own patches are its regions.

    Size, mean and standard deviation are those of preprocessor_config.json. The embedding is what the model is trained
    for: the first token of DINOv2, DINOv3 and ViT, the pooled map of Swin, ResNet, ConvNeXt, EfficientNet and MobileNet;
    `pooling` ("cls", "pooler", "mean") asks for another.

    >>> bilrp.explain(vision("dinov2-small"), "cat.jpg", "dog.jpg").score  # doctest: +SKIP
    """
    root = Path(source).expanduser()
    if not root.is_dir():
        raise InputError(f"{source}: there is no such folder; give one with a saved image model")
    config = hf_checkpoint.read_config(root)
    transformers = hf_checkpoint.import_transformers("vision", "image encoders")
    hf_checkpoint.check_checkpoint(root, config, transformers)
    if "vision_config" in config and "text_config" in config:
        raise InputError(
            f"{root} holds an image and a text tower: use bilrp.encoders.clip, or -e clip:{source}"
        )
    kind = config["model_type"]
    chosen = _choose_pooling(pooling, kind)
    prepare = load_image_processor(root)
    with hf_checkpoint.silence_transformers(transformers), hf_checkpoint.wrap_load_errors(root):
        spare = "pooler" if chosen != "pooler" else None
        model: Any = hf_checkpoint.load_model(root, transformers.AutoModel, dtype, ignore_missing=spare)
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise InputError(f"{root} holds a model that reads {model.main_input_name}, not pictures ({kind})")
    if chosen != "pooler" and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = (
            None if chosen == "cls" else model.pooler
        )  # a head for another task, or of random weights
    return Encoder(
        module=PooledVisionModel(model, chosen).eval(),
        read=prepare if dtype == torch.float32 else _cast_reader(prepare, dtype),
        regions=patch_regions(config.get("patch_size")),
        name=f"vision:{source}" + (f" (pooling={pooling})" if pooling else ""),
        to_image=prepare.to_image,
        similarity="cosine",
    )


def _choose_pooling(pooling: str | None, model_type: str) -> str:
    if pooling is not None and pooling not in POOLING_MODES:
        raise InputError(f"unknown pooling {pooling!r}: use {', '.join(POOLING_MODES)}")
    return pooling or ("cls" if model_type in CLS_TOKEN_MODELS else "pooler")


def _cast_reader(processor: Any, dtype: torch.dtype) -> Any:
    from dataclasses import replace

    def read(raw_input: Any) -> Any:
        item = processor(raw_input)
        return replace(item, x=item.x.to(dtype))

    return read


def patch_regions(patch_size: Any) -> RegionFunction:
    """The patches a model cuts its input into, or 8×8 pixels; four are taken together while there are more than 1,024.

    >>> patch_regions(16)(torch.zeros(1, 3, 224, 224)).count, patch_regions(4)(torch.zeros(1, 3, 224, 224)).count
    (196, 784)
    """

    def spec(x: Tensor) -> Regions:
        high, wide = _patch_sides(patch_size)
        while -(-x.shape[2] // high) * -(-x.shape[3] // wide) > MAX_REGIONS:
            high, wide = 2 * high, 2 * wide
        return regions.grid((high, wide) if high != wide else high)(x)

    return spec


def _patch_sides(patch_size: Any) -> tuple[int, int]:
    """(height, width) of a patch as a configuration may say it."""
    first, second = (
        patch_size
        if isinstance(patch_size, list | tuple) and len(patch_size) == 2
        else (patch_size, patch_size)
    )
    if isinstance(first, int) and isinstance(second, int) and min(first, second) >= 1:
        return first, second
    return DEFAULT_PATCH_PIXELS, DEFAULT_PATCH_PIXELS
