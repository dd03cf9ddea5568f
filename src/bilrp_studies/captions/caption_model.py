"""A small dual encoder of scenes and captions, trained contrastively like CLIP, and its bilrp encoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp.encoder import DualEncoder, Encoder
from bilrp.errors import InputError
from bilrp.inputs import Image, Item, Text
from bilrp.progress import Progress
from bilrp.regions import grid, tokens
from bilrp_studies.captions.scenes import (
    COLORS,
    MAX_OBJECTS,
    SCENE_PIXELS,
    SHAPES,
    VOCABULARY,
    Scene,
    draw_scene,
    stack_pixels,
)
from bilrp_studies.common.cache import Cache, compute_key, hash_weights

EMBED_DIM, NUM_HEADS, NUM_LAYERS = 48, 4, 2
PATCH_PIXELS = 8  # stride of the image tower's last feature map, and side of a scene's regions
MAX_CAPTION_WORDS = 3 * MAX_OBJECTS + 2 * (MAX_OBJECTS - 1)
BATCH_SCENES, SAME_COLOR_SCENES = 64, 4  # batch size, and number of consecutive scenes with the same colours
LEARNING_RATE, LOGIT_SCALE = 2e-3, 20.0
CACHE_KIND, CACHE_VERSION = "captions-model", 2


class ImageEncoder(nn.Module):
    """Pixels (n, 3, 64, 64) → unit embeddings: convolutions, learned position embeddings, mean over 8×8 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, EMBED_DIM, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(EMBED_DIM, EMBED_DIM, 3, padding=1),
        )
        self.positions = nn.Parameter(
            torch.zeros(1, EMBED_DIM, SCENE_PIXELS // PATCH_PIXELS, SCENE_PIXELS // PATCH_PIXELS)
        )
        self.pointwise = nn.Conv2d(EMBED_DIM, 2 * EMBED_DIM, 1)
        self.head = nn.Linear(2 * EMBED_DIM, EMBED_DIM)
        for layer in (*self.backbone, self.pointwise):
            if isinstance(layer, nn.Conv2d):  # torch's default init shrinks activations layer by layer
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def hidden_states(self, x: Tensor) -> Tensor:
        """Return the last features of each position, (n, positions, 2·EMBED_DIM)."""
        return F.relu(self.pointwise(F.relu(self.backbone(x) + self.positions))).flatten(2).mT

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.head(self.hidden_states(x).mean(1)), dim=-1)


class AttentionBlock(nn.Module):
    """Pre-norm transformer block: self-attention and a two-layer MLP, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(EMBED_DIM) for _ in range(2))
        self.qkv, self.out_proj = nn.Linear(EMBED_DIM, 3 * EMBED_DIM), nn.Linear(EMBED_DIM, EMBED_DIM)
        self.fc1, self.fc2 = nn.Linear(EMBED_DIM, 2 * EMBED_DIM), nn.Linear(2 * EMBED_DIM, EMBED_DIM)

    def forward(self, x: Tensor, word_mask: Tensor | None) -> Tensor:
        n, words, _ = x.shape
        parts = (
            self.qkv(self.norms[0](x))
            .reshape(n, words, 3, NUM_HEADS, EMBED_DIM // NUM_HEADS)
            .permute(2, 0, 3, 1, 4)
        )
        mask = None if word_mask is None else word_mask[:, None, None]
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=mask)
        x = x + self.out_proj(seen.transpose(1, 2).reshape(n, words, EMBED_DIM))
        return x + self.fc2(F.gelu(self.fc1(self.norms[1](x))))


class TextEncoder(nn.Module):
    """Word embeddings (n, words, EMBED_DIM) → unit embeddings: two attention blocks, then the mean over words.

    `word_mask` (n, words) is True for words and False for padding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(len(VOCABULARY), EMBED_DIM)
        self.positions = nn.Parameter(0.1 * torch.randn(1, MAX_CAPTION_WORDS, EMBED_DIM))
        self.blocks = nn.ModuleList(AttentionBlock() for _ in range(NUM_LAYERS))
        self.final_norm, self.head = nn.LayerNorm(EMBED_DIM), nn.Linear(EMBED_DIM, EMBED_DIM)

    def hidden_states(self, x: Tensor, word_mask: Tensor | None = None) -> Tensor:
        """Return the last hidden state of each word, (n, words, EMBED_DIM)."""
        x = x + self.positions[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x, word_mask)
        return self.final_norm(x)

    def forward(self, x: Tensor, word_mask: Tensor | None = None) -> Tensor:
        states = self.hidden_states(x, word_mask)
        if word_mask is None:
            return F.normalize(self.head(states.mean(1)), dim=-1)
        weights = word_mask.to(x.dtype) / word_mask.sum(1, keepdim=True)
        return F.normalize(self.head((weights[:, None] @ states)[:, 0]), dim=-1)


@dataclass(frozen=True, eq=False)
class CaptionModel:
    """The image and text towers, as modules and as a DualEncoder."""

    image_encoder: ImageEncoder
    text_encoder: TextEncoder

    @cached_property
    def dual_encoder(self) -> DualEncoder:
        """Dual encoder with regions of 8×8 pixels and of words, and the default composites.

        >>> init_model(0).dual_encoder.text.name
        'captions (text)'
        """
        space = f"captions {hash_weights(self.image_encoder)} {hash_weights(self.text_encoder)}"
        image = Encoder(
            self.image_encoder,
            self.read_scene,
            regions=grid(PATCH_PIXELS),
            name="captions (image)",
            embedding_space=space,
        )
        text = Encoder(
            self.text_encoder,
            self.read_caption,
            regions=tokens(),
            name="captions (text)",
            embedding_space=space,
        )
        return DualEncoder(image, text, "captions")

    def read_scene(self, scene: Any) -> Item:
        if not isinstance(scene, Scene):
            raise InputError(f"this encoder reads drawn scenes, not {type(scene).__name__}")
        return Item(stack_pixels([scene]), Image.from_image(scene.pixels))

    def read_caption(self, caption: str) -> Item:
        words = caption.split()
        x = self.text_encoder.token_embedding(tokenize([caption])[0][0])[None].detach()
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        spans = tuple((int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True))
        return Item(x, Text(caption, spans), tokens(words)(x))

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Return the embeddings of captions of any lengths."""
        ids, mask = tokenize(captions)
        return self.text_encoder(self.text_encoder.token_embedding(ids), mask)


def tokenize(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return token ids, padded to the longest caption, and the mask of tokens that are not padding.

    >>> [each.tolist() for each in tokenize(["a red"])]
    [[[0, 1]], [[True, True]]]
    """
    split = [caption.split() for caption in captions]
    for word in {word for words in split for word in words} - set(VOCABULARY):
        raise InputError(f"no caption has the word {word!r}: the words are {', '.join(VOCABULARY)}")
    longest = max(map(len, split))
    if longest > MAX_CAPTION_WORDS or not all(split):
        raise InputError(f"a caption has from one to {MAX_CAPTION_WORDS} words")
    ids = torch.zeros(len(split), longest, dtype=torch.long)
    mask = torch.zeros(len(split), longest, dtype=torch.bool)
    for row, words in enumerate(split):
        ids[row, : len(words)] = torch.tensor([VOCABULARY.index(word) for word in words])
        mask[row, : len(words)] = True
    return ids, mask


def init_model(seed: int) -> CaptionModel:
    """Return a model with random weights determined by the seed; torch's global generator is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CaptionModel(ImageEncoder().requires_grad_(False), TextEncoder().requires_grad_(False))


def load_or_train(*, steps: int, seed: int, cache: Cache, bar: Progress) -> CaptionModel:
    """Train with a symmetric cross-entropy loss on batches of new scenes, or load the trained weights from the cache.

    A caption that also describes another scene of the batch (all objects it names are there) is not a negative for it.

    Args:
        steps: Number of training steps.
        seed: Determines the initial weights and the scenes.
        cache: Stores the trained weights.
        bar: Progress bar of the training.
    """
    model = init_model(seed)
    dual_encoder = {"pictures": model.image_encoder, "captions": model.text_encoder}
    start = [hash_weights(tower) for tower in dual_encoder.values()]
    key = compute_key(
        "captions",
        {"start": start, "steps": steps, "seed": seed, "batch": BATCH_SCENES, "version": CACHE_VERSION},
    )
    cached = cache.get(CACHE_KIND, key)
    if cached is None:
        train(model, draw_batches(seed, steps), steps, bar)
        learnt = {f"{n}.{k}": v for n, tower in dual_encoder.items() for k, v in tower.state_dict().items()}
        cache.put(CACHE_KIND, key, learnt)
    else:
        for name, tower in dual_encoder.items():
            tower.load_state_dict({k: cached[0][f"{name}.{k}"] for k in tower.state_dict()})
    return model


def draw_batches(seed: int, steps: int) -> Iterator[list[Scene]]:
    """Yield a batch of new scenes per step: one to four objects, of which all or some are named.

    Four consecutive scenes have the same number of objects and the same colours; otherwise the model could long tell scenes
    apart by colour alone.
    """
    generator = np.random.default_rng([seed, 1])
    for _ in range(steps):
        batch: list[Scene] = []
        while len(batch) < BATCH_SCENES:
            objects = int(generator.integers(1, MAX_OBJECTS + 1))
            named = int(generator.integers(1, objects + 1))
            colours = generator.permutation(list(COLORS))[:objects].tolist()
            batch += [
                draw_scene(generator, object_count=objects, named_count=named, colors=colours)
                for _ in range(SAME_COLOR_SCENES)
            ]
        yield batch


def train(model: CaptionModel, scene_batches: Iterator[list[Scene]], steps: int, bar: Progress) -> None:
    """Train both towers in place; their parameters need no gradients afterwards.

    Args:
        model: The model to train.
        scene_batches: One batch of scenes per step.
        steps: Number of batches, for the learning-rate schedule.
        bar: Progress bar, advanced once per step.
    """
    learning = [*model.image_encoder.parameters(), *model.text_encoder.parameters()]
    for parameter in learning:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(learning, LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, LEARNING_RATE, total_steps=steps + 1, pct_start=0.1
    )
    bar.start("training on scenes and captions", steps)
    with torch.enable_grad():
        for batch in scene_batches:
            optimiser.zero_grad()
            contrastive_loss(model, batch).backward()
            optimiser.step()
            schedule.step()
            bar.advance()
    for parameter in learning:
        parameter.requires_grad_(False)


def contrastive_loss(model: CaptionModel, batch: Sequence[Scene]) -> Tensor:
    """Symmetric cross-entropy of retrieving each scene's caption and each caption's scene."""
    scores = (
        LOGIT_SCALE
        * model.image_encoder(stack_pixels(batch))
        @ model.embed_captions([scene.caption for scene in batch]).T
    )
    own = torch.arange(len(batch))
    also = match_captions(batch).fill_diagonal_(False)
    return F.cross_entropy(scores.masked_fill(also, -torch.inf), own) + F.cross_entropy(
        scores.T.masked_fill(also.T, -torch.inf), own
    )


def match_captions(batch: Sequence[Scene]) -> Tensor:
    """Return the matrix [scene, caption]: True where the scene contains every object that the caption names."""

    def marked(items: Sequence[Any]) -> Tensor:
        present = torch.zeros(len(COLORS) * len(SHAPES))
        for item in items:
            present[list(COLORS).index(item.color) * len(SHAPES) + SHAPES.index(item.shape)] = 1
        return present

    there = torch.stack([marked(scene.objects) for scene in batch])
    named = torch.stack([marked(scene.named_objects) for scene in batch])
    return there @ named.T == named.sum(1)
