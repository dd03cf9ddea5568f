"""Folders of small random image models, saved as people save them: every architecture, with its image processor."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as t
from torch import nn

SIDE = 32
TOKENS: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": SIDE, "patch_size": 8,
}  # fmt: skip
SQUARE = {"height": SIDE, "width": SIDE}
MIDDLE: dict[str, Any] = {"size": {"shortest_edge": 40}, "crop_size": SQUARE}


@dataclass(frozen=True)
class Architecture:
    """A model by its configuration, its processor (None: transformers has none without torchvision), its pooling."""

    name: str
    model: Callable[[], Any]
    processor: Callable[[], Any] | None
    pooling: str
    regions: int

    def save(self, folder: Path) -> Path:
        """Save the model, random but lively, and how it prepares pictures."""
        torch.manual_seed(0)
        model = self.model()
        randomize_weights(model)
        model.save_pretrained(folder)
        if self.processor is not None:
            self.processor().save_pretrained(folder)
        else:
            config = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": SQUARE}
            (folder / "preprocessor_config.json").write_text(json.dumps(config))
        return folder


def run_once(model: nn.Module) -> None:
    """Run once in training, so that norms keep the statistics of what passes."""
    model.train()(pixel_values=torch.randn(8, 3, SIDE, SIDE))


def randomize_weights(model: nn.Module, run: Callable[[nn.Module], object] = run_once) -> nn.Module:
    """Weights of a size that lets the input through, norms that are not 1 and 0, statistics of what was seen."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "grn" not in name:
                weight.copy_(torch.randn_like(weight) / max(weight[0].numel(), 1) ** 0.5)
            else:
                weight.add_(0.1 * torch.randn_like(weight))
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = None  # the plain mean over all that is seen
        if norms:
            run(model)
    return model.eval()


ARCHITECTURES = (
    Architecture(
        "vit", lambda: t.ViTModel(t.ViTConfig(**TOKENS)), lambda: t.ViTImageProcessorPil(size=SQUARE), "cls", 16
    ),
    Architecture(
        "dinov2", lambda: t.Dinov2Model(t.Dinov2Config(**TOKENS)), lambda: t.BitImageProcessorPil(**MIDDLE), "cls", 16
    ),
    Architecture(
        "dinov2_with_registers", lambda: t.Dinov2WithRegistersModel(t.Dinov2WithRegistersConfig(**TOKENS)),
        lambda: t.BitImageProcessorPil(**MIDDLE), "cls", 16,
    ),
    Architecture("dinov3", lambda: t.DINOv3ViTModel(t.DINOv3ViTConfig(**TOKENS)), None, "cls", 16),
    Architecture(
        "swin",
        lambda: t.SwinModel(t.SwinConfig(
            image_size=SIDE, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
        )),
        lambda: t.ViTImageProcessorPil(size=SQUARE), "pooler", 64,
    ),
    Architecture(
        "resnet", lambda: t.ResNetModel(t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 1])),
        lambda: t.ConvNextImageProcessorPil(size={"shortest_edge": SIDE}), "pooler", 16,
    ),
    Architecture(
        "convnext", lambda: t.ConvNextModel(t.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)),
        lambda: t.ConvNextImageProcessorPil(size={"shortest_edge": SIDE}), "pooler", 64,
    ),
    Architecture(
        "convnextv2", lambda: t.ConvNextV2Model(t.ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)),
        lambda: t.ConvNextImageProcessorPil(size={"shortest_edge": SIDE}), "pooler", 64,
    ),
    Architecture(
        "efficientnet",
        lambda: t.EfficientNetModel(t.EfficientNetConfig(
            image_size=SIDE, width_coefficient=0.25, depth_coefficient=0.2, hidden_dim=320
        )),
        lambda: t.EfficientNetImageProcessorPil(size=SQUARE), "pooler", 16,
    ),
    Architecture(
        "mobilenet_v1", lambda: t.MobileNetV1Model(t.MobileNetV1Config(image_size=SIDE, depth_multiplier=0.25, min_depth=4)),
        lambda: t.MobileNetV1ImageProcessorPil(**MIDDLE), "pooler", 16,
    ),
    Architecture(
        "mobilenet_v2", lambda: t.MobileNetV2Model(t.MobileNetV2Config(image_size=SIDE, depth_multiplier=0.25, min_depth=4)),
        lambda: t.MobileNetV2ImageProcessorPil(**MIDDLE), "pooler", 16,
    ),
)  # fmt: skip
