"""Read a text: tokens, their embeddings, and their spans of characters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bilrp.encoders.text.segmentation import CharSpan, TextRegionSpec, TokenizedText
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.io import files

TOKENIZER_LOCK = threading.Lock()  # truncation settings are state of a tokenizer, so calls must not overlap
MAX_TEXT_BYTES = 4_000_000  # more than any encoder reads


@runtime_checkable
class FastTokenizer(Protocol):
    """What a `TextReader` asks of a tokenizer: a fast tokenizer of transformers, or a wrapped one."""

    @property
    def unk_token_id(self) -> int | None: ...
    @property
    def model_max_length(self) -> int: ...
    @property
    def all_special_ids(self) -> Sequence[int]: ...
    def __call__(self, text: str, **options: Any) -> Mapping[str, Any]:
        """Return `input_ids`, `offset_mapping` and `special_tokens_mask`."""
        ...

    def convert_ids_to_tokens(self, token_id: int, /) -> str: ...


@dataclass(frozen=True, eq=False)
class TextReader:
    """Text → Item with the token embeddings x_t = E[token t] (+ `embedding_offset`) and their regions.

    Args:
        embed: the model's token embedding.
        tokenizer: gives the characters of each token.
        prompt: text before every input; it is one special token.
        max_seq_length: longer texts are truncated, with a note.
        regions: default regions of a text.
        embedding_offset: position and type embeddings to add, (1, positions, width).
    """

    embed: nn.Module
    tokenizer: FastTokenizer
    prompt: str
    max_seq_length: int | None
    regions: TextRegionSpec
    embedding_offset: Tensor | None = None

    def __call__(self, raw_input: object) -> Item:
        token_ids, tokens, notes = self.tokenize(read_text(raw_input))
        return self.make_item(token_ids, tokens, notes)

    def make_item(self, token_ids: list[int], tokens: TokenizedText, notes: dict[str, str]) -> Item:
        """Return the input with its regions.

        Args:
            token_ids: ids of the tokens.
            tokens: the text and the characters of each token.
            notes: warnings for the user by kind.
        """
        x = self.embed_tokens(token_ids)
        segment = partial(tokens.segment, width=x.shape[2])
        regions, view = segment(self.regions)
        return Item(x, view=view, regions=regions, segment=segment, notes=notes)

    def embed_tokens(self, token_ids: list[int]) -> Tensor:
        """Return the embeddings (1, tokens, width) of these token ids."""
        weight = next(self.embed.parameters())
        with torch.no_grad():
            x = self.embed(torch.tensor([token_ids], device=weight.device))
        return x if self.embedding_offset is None else x + self.embedding_offset[:, : x.shape[1]]

    def tokenize(self, text: str) -> tuple[list[int], TokenizedText, dict[str, str]]:
        """Return the token ids, the tokens with their spans, and notes for the user by kind."""
        if not text.strip():
            raise InputError("the text is empty: there is nothing to explain")
        encoding = self._encode(self.prompt + text)
        token_ids: list[int] = encoding["input_ids"]
        notes: dict[str, str] = {}
        if self.max_seq_length is not None and len(token_ids) > self.max_seq_length:
            notes["truncated"] = (
                f"a text of {len(token_ids)} tokens is truncated to the encoder's maximum of {self.max_seq_length}"
            )
            encoding = self._encode(self.prompt + text, truncation=True, max_length=self.max_seq_length)
            token_ids = encoding["input_ids"]
        spans: list[CharSpan | None] = []
        special_tokens: list[str] = []
        for token_id, offsets, is_special in zip(
            token_ids, encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True
        ):
            start, stop = (offset - len(self.prompt) for offset in offsets)
            name = self.tokenizer.convert_ids_to_tokens(token_id) if is_special and start == stop else ""
            if not name and stop <= 0 < len(self.prompt):
                name = self.prompt.strip()
            spans.append(None if name else (max(start, 0), stop))
            special_tokens.append(name)
        if all(span is None for span in spans):
            raise InputError("the tokenizer finds no words in this text: there is nothing to explain")
        words = [token_id for token_id, span in zip(token_ids, spans, strict=True) if span is not None]
        unknown_id = self.tokenizer.unk_token_id
        unknown = 0 if unknown_id is None else words.count(unknown_id)
        if 2 * unknown >= len(words):
            notes["unknown"] = (
                f"{unknown} of the {len(words)} tokens of a text are unknown to the tokenizer, and identical for the model"
            )
        return token_ids, TokenizedText.from_spans(text, spans, special_tokens), notes

    def count_prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt, with the leading special token."""
        token_ids: list[int] = self._encode(self.prompt)["input_ids"]
        ends_special = token_ids[-1] in self.tokenizer.all_special_ids if token_ids else False
        return len(token_ids) - ends_special

    def _encode(self, text: str, **options: Any) -> Any:
        try:
            with TOKENIZER_LOCK:
                return self.tokenizer(
                    text,
                    return_offsets_mapping=True,
                    return_special_tokens_mask=True,
                    verbose=False,
                    **options,
                )
        except (TypeError, UnicodeError) as error:  # half of a surrogate pair
            raise InputError(f"the text contains invalid Unicode ({str(error)[:80]})") from None


def read_text(raw_input: object) -> str:
    """Return a string unchanged, and a Path as the text of the file."""
    if isinstance(raw_input, Path):
        return files.read_text(raw_input, kind="text", max_bytes=MAX_TEXT_BYTES)
    if not isinstance(raw_input, str):
        raise InputError(f"a text encoder reads text, got {type(raw_input).__name__}: pass a string")
    return raw_input


def find_embedding_offset(transformer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """Return the constants (positions, token types) that a transformer adds to its input first, by the tape; or None."""
    from bilrp.trace.recorder import record
    from bilrp.trace.rewrite import drop_identities
    from bilrp.trace.tape import Slot

    with torch.no_grad():
        tape = drop_identities(record(transformer, x))
    consumers, value, total = tape.consumers(), tape.input, None
    while len(consumers.get(value, ())) == 1:
        (step,) = consumers[value]
        constants = [argument for argument in step.args if isinstance(argument, Tensor)]
        is_addition = step.op == "add" and len(step.args) == 2 and not step.kwargs and len(constants) == 1
        if not is_addition or not any(isinstance(argument, Slot) for argument in step.args):
            break
        total = constants[0] if total is None else total + constants[0]
        value = step.output
    return None if total is None else total.expand_as(x).clone()
