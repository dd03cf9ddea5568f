"""Image encoders from a folder in transformers' layout: DINOv2, ViT, Swin, ResNet, ConvNeXt, EfficientNet, MobileNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp import regions
from bilrp.encoder import Encoder
from bilrp.encoders import hf_checkpoint
from bilrp.encoders.image_processor import preparation
from bilrp.errors import InputError
from bilrp.regions import Regions, Spec

# Models whose first token is trained to stand for the whole image; others say what does by their own pooling.
BY_FIRST_TOKEN = {
    "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn",
}  # fmt: skip
POOLINGS = ("cls", "pooler", "mean")
SIDE = 8  # pixels of a region where a model has no patches
MOST = 32 * 32  # regions: beyond that, patches are taken together


class Vision(nn.Module):
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


def vision(folder: str | Path, *, pooling: str | None = None, dtype: torch.dtype = torch.float32) -> Encoder:
    """An image encoder from a folder made by `save_pretrained`: the model's own patches are its regions.

    Size, mean and standard deviation are those of preprocessor_config.json. The embedding is what the model is trained
    for: the first token of DINOv2, DINOv3 and ViT, the pooled map of Swin, ResNet, ConvNeXt, EfficientNet and MobileNet;
    `pooling` ("cls", "pooler", "mean") asks for another.

    >>> bilrp.explain(vision("dinov2-small"), "cat.jpg", "dog.jpg").score  # doctest: +SKIP
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"{folder}: there is no such folder; give one with a saved image model")
    config = hf_checkpoint.config_of(root)
    transformers = hf_checkpoint.library("vision", "image encoders")
    hf_checkpoint.refuse_what_runs_code(root, config, transformers)
    if "vision_config" in config and "text_config" in config:
        raise InputError(
            f"{root} holds an image and a text tower: use bilrp.encoders.clip, or -e clip:{folder}"
        )
    kind = config["model_type"]
    chosen = _pooling(pooling, kind)
    prepare = preparation(root)
    with hf_checkpoint.quiet(transformers), hf_checkpoint.one_line(root):
        spare = "pooler" if chosen != "pooler" else None
        model: Any = hf_checkpoint.model(root, transformers.AutoModel, dtype, spare=spare)
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        raise InputError(f"{root} holds a model that reads {model.main_input_name}, not pictures ({kind})")
    if chosen != "pooler" and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = (
            None if chosen == "cls" else model.pooler
        )  # a head for another task, or of random weights
    return Encoder(
        module=Vision(model, chosen).eval(),
        read=prepare if dtype == torch.float32 else _in(prepare, dtype),
        regions=patches(config.get("patch_size")),
        name=f"vision:{folder}" + (f" (pooling={pooling})" if pooling else ""),
        picture=prepare.picture,
    )


def _pooling(given: str | None, kind: str) -> str:
    if given is not None and given not in POOLINGS:
        raise InputError(f"unknown pooling {given!r}: use {', '.join(POOLINGS)}")
    return given or ("cls" if kind in BY_FIRST_TOKEN else "pooler")


def _in(prepare: Any, dtype: torch.dtype) -> Any:
    from dataclasses import replace

    def read(thing: Any) -> Any:
        item = prepare(thing)
        return replace(item, x=item.x.to(dtype))

    return read


def patches(side: Any) -> Spec:
    """The patches a model cuts its input into, or 8×8 pixels; four are taken together while there are more than 1,024.

    >>> patches(16)(torch.zeros(1, 3, 224, 224)).count, patches(4)(torch.zeros(1, 3, 224, 224)).count
    (196, 784)
    """

    def spec(x: Tensor) -> Regions:
        high, wide = _sides(side)
        while -(-x.shape[2] // high) * -(-x.shape[3] // wide) > MOST:
            high, wide = 2 * high, 2 * wide
        return regions.grid((high, wide) if high != wide else high)(x)

    return spec


def _sides(side: Any) -> tuple[int, int]:
    """(height, width) of a patch as a configuration may say it."""
    first, second = side if isinstance(side, list | tuple) and len(side) == 2 else (side, side)
    if isinstance(first, int) and isinstance(second, int) and min(first, second) >= 1:
        return first, second
    return SIDE, SIDE
