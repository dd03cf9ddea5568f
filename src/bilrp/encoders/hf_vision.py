"""Image encoders from transformers model folders: DINOv2, ViT, Swin, ResNet, ConvNeXt, EfficientNet, MobileNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bilrp import regions
from bilrp.encoder import Encoder
from bilrp.encoders import hf_checkpoint
from bilrp.encoders.image_processor import load_image_processor
from bilrp.encoders.images import position_regions
from bilrp.encoders.photograph_means import find_photograph_mean
from bilrp.errors import InputError
from bilrp.regions import RegionFunction, Regions

# Models whose first token is trained as the embedding of the image; the others have a pooler.
CLS_TOKEN_MODELS = {
    "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn",
}  # fmt: skip
VisionPooling = Literal["cls", "pooler", "mean"]
MAX_REGIONS = 32 * 32  # patches are merged if there are more


class PooledVisionModel(nn.Module):
    """Pixels (1, 3, H, W) → (1, width): the first token ("cls"), the model's pooler output, or the mean of its outputs."""

    def __init__(self, model: nn.Module, pooling: str):
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(pixel_values=x)
        if self.pooling == "pooler":
            return output.pooler_output.flatten(1)
        hidden = output.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        return hidden.flatten(2).mean(2) if hidden.dim() == 4 else hidden.mean(1)

    def extra_repr(self) -> str:
        return f"pooling={self.pooling}"


def vision(
    source: str | Path, *, pooling: VisionPooling | None = None, dtype: torch.dtype = torch.float32
) -> Encoder:
    """Return an image encoder from a folder written by `save_pretrained`; its regions are the model's patches.

    Preprocessing is that of preprocessor_config.json.

    Args:
        source: the folder.
        pooling: "cls", "pooler" or "mean"; by default the first token of DINOv2, DINOv3 and ViT, and the pooler output of
            other models.
        dtype: of weights and inputs.

    >>> bilrp.explain(vision("dinov2-small"), "cat.jpg", "dog.jpg").score  # doctest: +SKIP
    """
    root = Path(source).expanduser()
    if not root.is_dir():
        raise InputError(f"{source}: no such folder; pass a folder with a saved image model")
    config = hf_checkpoint.read_config(root)
    transformers = hf_checkpoint.import_transformers("vision", "image encoders")
    hf_checkpoint.check_checkpoint(root, config, transformers)
    if "vision_config" in config and "text_config" in config:
        raise InputError(f"{root} is an image-text model: use bilrp.encoders.clip, or -e clip:{source}")
    kind = config["model_type"]
    chosen = choose_pooling(pooling, kind)
    processor = load_image_processor(root, dtype)
    with hf_checkpoint.silence_transformers(transformers), hf_checkpoint.wrap_load_errors(root):
        unused = "pooler" if chosen != "pooler" else None
        model: Any = hf_checkpoint.load_model(root, transformers.AutoModel, dtype, ignore_missing=unused)
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise InputError(f"{root}: the model ({kind}) reads {model.main_input_name}, not images")
    if chosen != "pooler" and isinstance(getattr(model, "pooler", None), nn.Module):
        # the pooler is for another task, or has random weights
        model.pooler = None if chosen == "cls" else model.pooler
    return Encoder(
        module=PooledVisionModel(model, chosen).eval(),
        read=processor,
        regions=patch_regions(config.get("patch_size")),
        name=f"vision:{source}" + (f" (pooling={pooling})" if pooling else ""),
        to_image=processor.to_image,
        similarity="cosine",
        mean_embedding=find_photograph_mean(model) if chosen == "pooler" else None,
    )


def choose_pooling(pooling: str | None, model_type: str) -> str:
    """Return the pooling that was asked for, else the one of this kind of model."""
    if pooling is not None and pooling not in get_args(VisionPooling):
        raise InputError(f"unknown pooling {pooling!r}: use {', '.join(get_args(VisionPooling))}")
    return pooling or ("cls" if model_type in CLS_TOKEN_MODELS else "pooler")


def patch_regions(patch_size: object) -> RegionFunction:
    """Return the model's patches as regions, or 7×7 regions; 2×2 patches are merged while there are more than 1,024."""

    def spec(x: Tensor) -> Regions:
        sides = _patch_sides(patch_size)
        if sides is None:
            return position_regions(x)
        height, width = sides
        while -(-x.shape[2] // height) * -(-x.shape[3] // width) > MAX_REGIONS:
            height, width = 2 * height, 2 * width
        return regions.grid((height, width) if height != width else height)(x)

    return spec


def _patch_sides(patch_size: object) -> tuple[int, int] | None:
    """Return (height, width) of a patch from a configuration's number or pair; None if it has no patches."""
    first, second = (
        patch_size
        if isinstance(patch_size, list | tuple) and len(patch_size) == 2
        else (patch_size, patch_size)
    )
    if isinstance(first, int) and isinstance(second, int) and min(first, second) >= 1:
        return first, second
    return None
