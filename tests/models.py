"""Small models that were not written for LRP: float64, seeded, in evaluation mode, with the kind of input each one takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Case:
    """A model, and the shape of what it takes (without the batch axis)."""

    name: str
    build: Callable[[], Callable[[Tensor], Tensor]]
    shape: tuple[int, ...]
    signed: bool = True

    def model(self, seed: int = 0) -> Callable[[Tensor], Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            built = self.build()
        if isinstance(built, nn.Module):
            randomize_norms(built)
        return built

    def input(self, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, *self.shape, generator=generator, dtype=torch.float64)
        return x if self.signed else x.abs()


def randomize_norms(module: Net) -> Net:
    """float64, evaluation, and batch-norm statistics, norms' weights and biases that are not the trivial 0 and 1."""
    generator = torch.Generator().manual_seed(7)
    for name, t in [*module.named_parameters(), *module.named_buffers()]:
        if t.dim() == 1 and t.dtype.is_floating_point:
            drawn = torch.rand(t.shape, generator=generator)
            scale = name.endswith(("running_var", "norm.weight")) or ("weight" in name and t.dim() == 1)
            t.data.copy_(0.5 + drawn if scale else 0.4 * (drawn - 0.5))
    return module.double().eval()


def mlp(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 10, bias=bias),
        nn.ReLU(),
        nn.Linear(10, 8, bias=bias),
        nn.ReLU(),
        nn.Linear(8, 4, bias=bias),
    )


def vgg_like(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 6, 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, bias=bias),
            nn.ReLU(),
        ),
        nn.MaxPool2d(2),
        *(nn.Conv2d(6, 8, 3, padding=1, bias=bias), nn.ReLU(), nn.MaxPool2d(2)),
    )


class Block(nn.Module):
    """Residual, with one in-place ReLU used twice, batch norm, a grouped and dilated convolution."""

    def __init__(self, inside: int, outside: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=2, dilation=2, groups=2, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.layer1, self.layer2 = Block(8, 8), Block(8, 12, stride=2)
        self.pool, self.bn = nn.AdaptiveAvgPool2d(1), nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1))


class Inception(nn.Module):
    """Branches side by side, joined by cat."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))
        self.five = nn.Sequential(
            nn.Conv2d(3, 2, (1, 5), padding=(0, 2)), nn.Conv2d(2, 3, (5, 1), padding=(2, 0))
        )
        self.head = nn.Linear(15, 6)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        joined = torch.cat([F.relu(self.one(x)), F.relu(self.three(x)), F.relu(self.five(x)), pooled], 1)
        return self.head(F.avg_pool2d(joined, 2).mean((2, 3)))


def upsampling() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(2, 4, 3, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2),
        ),
        *(nn.ReLU(), nn.ConvTranspose2d(6, 2, 2, dilation=2, padding=1), nn.AvgPool2d(2)),
    )


class Selecting(nn.Module):
    """min, max, roll, sum: the toy kind of model."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.a(x), self.b(x)
        low, high = torch.minimum(u, v), torch.max(u, v.roll(1, -1))
        pairs = torch.stack([low, high.roll(-2, -1), x], 1)
        return torch.cat(
            [pairs.sum(1), pairs.amax(2), pairs.min(1).values, pairs.sum((1, 2), keepdim=True)[..., 0]], 1
        )


def transformer(batch_first: bool, norm_first: bool) -> Callable[[Tensor], Tensor]:
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.1, activation="gelu", batch_first=batch_first, norm_first=norm_first
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    if batch_first:
        return nn.Sequential(encoder, Lambda(lambda y: y.mean(1)))
    return nn.Sequential(Lambda(lambda x: x.transpose(0, 1)), encoder, Lambda(lambda y: y[0]))


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Output(nn.Module):
    """A `transformers` model that returns one tensor."""

    def __init__(self, model: nn.Module, pick: Callable, key: str = "pixel_values"):
        super().__init__()
        self.model, self.pick, self.key = model, pick, key

    def forward(self, x: Tensor) -> Tensor:
        return self.pick(self.model(**{self.key: x}))


def implementation(attention: str) -> dict[str, Any]:
    """The option of every configuration, which transformers' signatures do not name."""
    return {"attn_implementation": attention}


def bert(attention: str) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        **implementation(attention),
    )
    return Output(BertModel(config), lambda out: out.last_hidden_state.mean(1), "inputs_embeds")


def vit(attention: str) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=8,
        patch_size=4,
        **implementation(attention),
    )
    return Output(ViTModel(config, add_pooling_layer=False), lambda out: out.last_hidden_state[:, 0])


def dinov2(attention: str) -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        image_size=8,
        patch_size=4,
        **implementation(attention),
    )
    return Output(Dinov2Model(config), lambda out: out.pooler_output)


def clip(attention: str) -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=8,
        patch_size=4,
        projection_dim=6,
        **implementation(attention),
    )
    return Output(CLIPVisionModelWithProjection(config), lambda out: out.image_embeds)


def convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(hidden_sizes=[4, 6], depths=[1, 1], num_stages=2, patch_size=2, image_size=8)
    return Output(ConvNextModel(config), lambda out: out.pooler_output)


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=4, hidden_sizes=[8, 12], depths=[1, 2], layer_type="bottleneck")
    return Output(ResNetModel(config), lambda out: out.pooler_output)


PLAIN = [
    Case("mlp", mlp, (6,)),
    Case("vgg", vgg_like, (3, 8, 8)),
    Case("residual", Residual, (3, 8, 8)),
    Case("inception", Inception, (3, 6, 6)),
    Case("upsampling", upsampling, (2, 7, 7)),
    Case("selecting", Selecting, (8,)),
    Case("transformer-first", lambda: transformer(True, False), (5, 8)),
    Case("transformer-seq", lambda: transformer(False, False), (5, 8)),
    Case("transformer-norm-first", lambda: transformer(True, True), (5, 8)),
]
HUGGING = [
    *(Case(f"bert-{kind}", lambda kind=kind: bert(kind), (5, 8)) for kind in ("eager", "sdpa")),
    *(Case(f"vit-{kind}", lambda kind=kind: vit(kind), (3, 8, 8)) for kind in ("eager", "sdpa")),
    *(Case(f"dinov2-{kind}", lambda kind=kind: dinov2(kind), (3, 8, 8)) for kind in ("eager", "sdpa")),
    *(Case(f"clip-{kind}", lambda kind=kind: clip(kind), (3, 8, 8)) for kind in ("eager", "sdpa")),
    Case("convnext", convnext, (3, 8, 8)),
    Case("resnet-hf", resnet, (3, 16, 16)),
]
CASES = [*PLAIN, *HUGGING]
