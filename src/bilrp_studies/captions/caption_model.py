"""A small two-tower model of scenes and captions, trained as CLIP is, and the encoders that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp.io.cache import Cache, key_of, weights_of
from bilrp.encoder import Encoder, Towers
from bilrp.progress import Progress
from bilrp.errors import InputError
from bilrp.inputs import Image, Item, Text
from bilrp.regions import grid, tokens
from bilrp_studies.captions.scenes import COLOURS, MOST, SHAPES, SIDE, WORDS, Scene, draw, pixels_in

WIDTH, HEADS, LAYERS = 48, 4, 2
PATCH = 8  # pixels: the places of the image tower's last features, and the regions of a scene
LONGEST = 3 * MOST + 2 * (MOST - 1)  # words of a caption
BATCH, ALIKE = 64, 4  # scenes of a step, and how many of them share their colours
SPEED, SHARPNESS = 2e-3, 20.0
KIND, VERSION = "captions-model", 1


class Pictures(nn.Module):
    """Pixels (n, 3, 64, 64) → embeddings of length 1: convolutions, learnt places added, the mean over 8×8 places."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, WIDTH, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        )
        self.places = nn.Parameter(torch.zeros(1, WIDTH, SIDE // PATCH, SIDE // PATCH))
        self.above = nn.Conv2d(WIDTH, 2 * WIDTH, 1)
        self.head = nn.Linear(2 * WIDTH, WIDTH)
        for layer in (*self.below, self.above):
            if isinstance(layer, nn.Conv2d):  # torch's own start shrinks what passes from layer to layer
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def states(self, x: Tensor) -> Tensor:
        """The last features of each place, (n, places, 2·width)."""
        return F.relu(self.above(F.relu(self.below(x) + self.places))).flatten(2).mT

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.head(self.states(x).mean(1)), dim=-1)


class Block(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and beside a way past it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixed, self.mixing = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, kept: Tensor | None) -> Tensor:
        n, words, _ = x.shape
        parts = (
            self.mixed(self.norms[0](x)).reshape(n, words, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        )
        mask = None if kept is None else kept[:, None, None]
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=mask)
        x = x + self.mixing(seen.transpose(1, 2).reshape(n, words, WIDTH))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Captions(nn.Module):
    """Word vectors (n, words, width) → embeddings of length 1: two attention blocks, the mean over words.

    `kept` (n, words) says which words there are, where captions of several lengths lie in one batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(len(WORDS), WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(1, LONGEST, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def states(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """The last state of each word, (n, words, width)."""
        x = x + self.places[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x, kept)
        return self.last(x)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        states = self.states(x, kept)
        if kept is None:
            return F.normalize(self.head(states.mean(1)), dim=-1)
        weights = kept.to(x.dtype) / kept.sum(1, keepdim=True)
        return F.normalize(self.head((weights[:, None] @ states)[:, 0]), dim=-1)


@dataclass(frozen=True, eq=False)
class Model:
    """The two towers as modules, and as encoders of one space."""

    pictures: Pictures
    captions: Captions

    @cached_property
    def towers(self) -> Towers:
        """Patches of 8×8 pixels against words, by the package's default rules.

        >>> untrained(0).towers.text.name
        'captions (text)'
        """
        space = f"captions {weights_of(self.pictures)} {weights_of(self.captions)}"
        image = Encoder(self.pictures, self.scene, regions=grid(PATCH), name="captions (image)", space=space)
        text = Encoder(self.captions, self.text, regions=tokens(), name="captions (text)", space=space)
        return Towers(image, text, "captions")

    def scene(self, scene: Any) -> Item:
        if not isinstance(scene, Scene):
            raise InputError(f"this encoder reads drawn scenes, not {type(scene).__name__}")
        return Item(pixels_in([scene]), Image.of(scene.pixels))

    def text(self, caption: str) -> Item:
        words = caption.split()
        x = self.captions.vectors(numbers([caption])[0][0])[None].detach()
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        spans = tuple((int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True))
        return Item(x, Text(caption, spans), tokens(words)(x))

    def read(self, captions: Sequence[str]) -> Tensor:
        """Embeddings of captions of any lengths."""
        ids, kept = numbers(captions)
        return self.captions(self.captions.vectors(ids), kept)


def numbers(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The numbers of the words of captions, (n, longest), and which of them are there.

    >>> [each.tolist() for each in numbers(["a red"])]
    [[[0, 1]], [[True, True]]]
    """
    split = [caption.split() for caption in captions]
    for word in {word for words in split for word in words} - set(WORDS):
        raise InputError(f"no caption has the word {word!r}: the words are {', '.join(WORDS)}")
    longest = max(map(len, split))
    if longest > LONGEST or not all(split):
        raise InputError(f"a caption has from one to {LONGEST} words")
    ids = torch.zeros(len(split), longest, dtype=torch.long)
    kept = torch.zeros(len(split), longest, dtype=torch.bool)
    for row, words in enumerate(split):
        ids[row, : len(words)] = torch.tensor([WORDS.index(word) for word in words])
        kept[row, : len(words)] = True
    return ids, kept


def untrained(seed: int) -> Model:
    """Random weights, the same for the same seed; the generator of everyone else is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(Pictures().requires_grad_(False), Captions().requires_grad_(False))


def trained(*, steps: int, seed: int, cache: Cache, bar: Progress) -> Model:
    """Symmetric cross-entropy over batches of new scenes; what was learnt is kept in the cache.

    A caption that is true of another scene of the batch too (all it names is there) is no wrong answer there.
    """
    model = untrained(seed)
    towers = {"pictures": model.pictures, "captions": model.captions}
    start = [weights_of(tower) for tower in towers.values()]
    key = key_of(
        "captions", {"start": start, "steps": steps, "seed": seed, "batch": BATCH, "version": VERSION}
    )
    found = cache.get(KIND, key)
    if found is None:
        fit(model, batches(seed, steps), steps, bar)
        learnt = {f"{n}.{k}": v for n, tower in towers.items() for k, v in tower.state_dict().items()}
        cache.put(KIND, key, learnt)
    else:
        for name, tower in towers.items():
            tower.load_state_dict({k: found[0][f"{name}.{k}"] for k in tower.state_dict()})
    return model


def batches(seed: int, steps: int) -> Iterator[list[Scene]]:
    """New scenes for every step: one to four objects, of which all or some are named.

    Four at a time have as many objects and the same colours, or colours alone would tell scenes apart for long.
    """
    generator = np.random.default_rng([seed, 1])
    for _ in range(steps):
        batch: list[Scene] = []
        while len(batch) < BATCH:
            objects = int(generator.integers(1, MOST + 1))
            named = int(generator.integers(1, objects + 1))
            colours = generator.permutation(list(COLOURS))[:objects].tolist()
            batch += [draw(generator, objects=objects, named=named, colours=colours) for _ in range(ALIKE)]
        yield batch


def fit(model: Model, made: Iterator[list[Scene]], steps: int, bar: Progress) -> None:
    """Train both towers in place on these batches; afterwards they are frozen."""
    learning = [*model.pictures.parameters(), *model.captions.parameters()]
    for parameter in learning:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(learning, SPEED, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, SPEED, total_steps=steps + 1, pct_start=0.1)
    bar.start("training on scenes and captions", steps)
    with torch.enable_grad():
        for batch in made:
            optimiser.zero_grad()
            loss(model, batch).backward()
            optimiser.step()
            schedule.step()
            bar.advance()
    for parameter in learning:
        parameter.requires_grad_(False)


def loss(model: Model, batch: Sequence[Scene]) -> Tensor:
    """Symmetric cross-entropy: each scene is to find its caption, each caption its scene."""
    scores = SHARPNESS * model.pictures(pixels_in(batch)) @ model.read([scene.caption for scene in batch]).T
    own = torch.arange(len(batch))
    also = true_of(batch).fill_diagonal_(False)
    return F.cross_entropy(scores.masked_fill(also, -torch.inf), own) + F.cross_entropy(
        scores.T.masked_fill(also.T, -torch.inf), own
    )


def true_of(batch: Sequence[Scene]) -> Tensor:
    """[scene, caption]: is everything that the caption names in the scene?"""

    def marked(things: Sequence[Any]) -> Tensor:
        marks = torch.zeros(len(COLOURS) * len(SHAPES))
        for thing in things:
            marks[list(COLOURS).index(thing.colour) * len(SHAPES) + SHAPES.index(thing.shape)] = 1
        return marks

    there = torch.stack([marked(scene.things) for scene in batch])
    named = torch.stack([marked(scene.named) for scene in batch])
    return there @ named.T == named.sum(1)
