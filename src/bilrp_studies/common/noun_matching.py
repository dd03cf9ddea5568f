"""Noun matching: the upper half of the encoder is trained to count the nouns two sentences share, a known ground truth.

y = ⟨φ(a), φ(b)⟩ should be the number of pairs of equal nouns, and an explanation should be concentrated on those pairs.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder
from bilrp.encoders.sentence_encoder import SentenceModel
from bilrp.encoders.text.heads import Pooling
from bilrp.errors import InputError
from bilrp.progress import Progress
from bilrp_studies.common import sts_data
from bilrp_studies.common.cache import Cache, compute_key, hash_weights
from bilrp_studies.common.word_subsets import read_text

BATCH_PAIRS = 16  # the loss uses all pairs of their 32 sentences
LEARNING_RATE, HEAD_LEARNING_RATE = 3e-4, 1.5e-3
CACHE_KIND, CACHE_VERSION = "matcher", 1


@dataclass(frozen=True, eq=False)
class NounMatcher:
    """The trained encoder, the same with position embeddings in the input, and its explained variance on new pairs."""

    encoder: Encoder
    with_positions: Encoder
    explained_variance: float


def load_or_train(
    encoders: tuple[Encoder, Encoder],
    texts: list[str],
    test: list[tuple[str, str]],
    *,
    steps: int,
    seed: int,
    bar: Progress,
    cache: Cache,
) -> NounMatcher:
    """Train the upper layers and a linear head on Φ Φᵀ = counts of common nouns; a batch holds sentences of one length.

    The trained weights are cached.

    Args:
        encoders: The encoder, and the same with position embeddings in its input.
        texts: Sentences to train on.
        test: Pairs of sentences on which the explained variance is measured.
        steps: Number of training steps.
        seed: Seed of the batches.
        bar: Progress bar of the training.
        cache: Stores the trained weights.
    """
    plain, summed = encoders
    assert isinstance(plain.module, SentenceModel) and isinstance(summed.module, SentenceModel)
    transformer = copy.deepcopy(plain.module.transformer)
    pooling = next(head for head in plain.module.heads if isinstance(head, Pooling))
    inputs = {text: read_text(plain, text).x for text in texts}
    module = SentenceModel(transformer, [pooling, _head(SentenceModel(transformer, [pooling]), inputs)])
    upper, head = _upper_parameters(transformer), list(module.heads[1].parameters())
    learning = {
        name: each for name, each in module.named_parameters() if any(each is p for p in (*upper, *head))
    }
    key = compute_key(
        json.dumps(texts),
        {"weights": hash_weights(module), "steps": steps, "seed": seed, "version": CACHE_VERSION},
    )
    stored = cache.get(CACHE_KIND, key)
    if stored is None or stored[0].keys() != learning.keys():
        _train(module, upper, head, inputs, steps=steps, seed=seed, bar=bar)
        cache.put(CACHE_KIND, key, {name: each.detach() for name, each in learning.items()})
    else:
        for name, each in learning.items():
            each.data.copy_(stored[0][name])
    name = f"{plain.name}, trained to match nouns"
    result = replace(plain, module=module, name=name)
    with_positions = SentenceModel(transformer, list(module.heads), summed.module.embedding_offset)
    return NounMatcher(
        result, replace(summed, module=with_positions, name=name), _explained_variance(result, test)
    )


def _train(
    module: nn.Module,
    upper: list[nn.Parameter],
    head: list[nn.Parameter],
    inputs: dict[str, Tensor],
    *,
    steps: int,
    seed: int,
    bar: Progress,
) -> None:
    for parameter in (*upper, *head):
        parameter.requires_grad_(True)
    optimiser = torch.optim.Adam(
        [{"params": upper, "lr": LEARNING_RATE}, {"params": head, "lr": HEAD_LEARNING_RATE}]
    )
    slowing = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    bar.start("training to match nouns", steps)
    with torch.enable_grad():
        for batch in _batches(inputs, steps, random.Random(seed)):
            embedded = module(torch.cat([inputs[text] for text in batch]))
            loss = _loss(embedded @ embedded.T, _match_counts(batch))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            slowing.step()
            bar.advance()
    module.requires_grad_(False)


def _batches(inputs: dict[str, Tensor], steps: int, rng: random.Random) -> Iterator[list[str]]:
    by_length: dict[int, list[str]] = {}
    for text, x in inputs.items():
        by_length.setdefault(x.shape[1], []).append(text)
    groups = [texts for texts in by_length.values() if len(texts) > 1]
    if not groups:
        raise InputError("no two sentences have the same number of tokens: train on more sentences")
    for _ in range(steps):
        (texts,) = rng.choices(groups, weights=[len(group) for group in groups])
        yield [text for pair in sts_data.draw_partners(texts, BATCH_PAIRS, rng) for text in pair]


def _match_counts(texts: list[str]) -> Tensor:
    split = [sts_data.split_words(text) for text in texts]
    return torch.tensor([[sts_data.count_matches(a, b) for b in split] for a in split])


def _loss(scores: Tensor, counts: Tensor) -> Tensor:
    """Squared error; pairs with and pairs without a common noun have the same total weight."""
    some = counts > 0
    weights = some / some.sum().clamp(min=1) + ~some / (~some).sum().clamp(min=1)
    return (weights * (scores - counts).square()).sum()


def _explained_variance(encoder: Encoder, test: list[tuple[str, str]]) -> float:
    """1 − mean squared error / variance of the counts, over new pairs."""
    with torch.no_grad():
        scores = [
            encoder.module(read_text(encoder, a).x)[0] @ encoder.module(read_text(encoder, b).x)[0]
            for a, b in test
        ]
    expected = torch.tensor(
        [sts_data.count_matches(sts_data.split_words(a), sts_data.split_words(b)) for a, b in test]
    )
    return 1 - float(
        (torch.stack(scores) - expected).square().mean() / expected.var(unbiased=False).clamp(min=1e-9)
    )


def _head(module: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    """Return a linear head initialised to a multiple of the identity, so that scores have the magnitude of counts."""
    with torch.no_grad():
        some = torch.cat([module(x) for x in list(inputs.values())[:16]])
    head = nn.Linear(some.shape[1], some.shape[1], bias=False)
    head.weight.data = torch.eye(some.shape[1]) / some.norm(dim=1).mean()
    return head


def _upper_parameters(transformer: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the upper half of the layers; the lower half stays fixed, which makes training cheap."""
    layers = max(
        (part for part in transformer.modules() if isinstance(part, nn.ModuleList)), key=len, default=None
    )
    if layers is None:
        return list(transformer.parameters())
    return [parameter for layer in list(layers)[len(layers) // 2 :] for parameter in layer.parameters()]
