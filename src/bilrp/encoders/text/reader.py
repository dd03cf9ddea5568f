"""Reading a text: tokens, their embeddings, and where each lies in the text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoders.text.segmentation import CharSpan, TextRegionSpec, TokenizedText
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.io import files

TOKENIZER_LOCK = threading.Lock()  # a tokenizer keeps on itself where it cuts: threads call it one at a time
MAX_TEXT_BYTES = 4_000_000  # of a text: more than any encoder reads


@dataclass(frozen=True, eq=False)
class TextReader:
    """Text → Item: the token embeddings x_t = E[token t] (+ what the model adds to them, where given), cut into regions.

    A prompt is put before every text and is one mark. Texts of more than `limit` tokens are cut there, and noted.
    """

    embed: nn.Module
    tokenizer: Any
    prompt: str
    max_seq_length: int | None
    regions: TextRegionSpec
    embedding_offset: Tensor | None = None

    def __call__(self, raw_input: Any) -> Item:
        numbers, tokens, notes = self.tokenize(_read_text(raw_input))
        x = self.embed_tokens(numbers)
        cut = partial(tokens.segment, width=x.shape[2])
        regions, view = cut(self.regions)
        return Item(x, view=view, regions=regions, segment=cut, notes=notes)

    def embed_tokens(self, token_ids: list[int]) -> Tensor:
        """(1, tokens, width): the embeddings of these token numbers."""
        weight = next(self.embed.parameters())
        with torch.no_grad():
            x = self.embed(torch.tensor([token_ids], device=weight.device))
        return x if self.embedding_offset is None else x + self.embedding_offset[:, : x.shape[1]]

    def tokenize(self, text: str) -> tuple[list[int], TokenizedText, dict[str, str]]:
        """The number of each token, where it lies in the text, and what is to be said of the text."""
        if not text.strip():
            raise InputError("the text is empty: there are no words to explain")
        given = self._encode(self.prompt + text)
        numbers: list[int] = given["input_ids"]
        notes: dict[str, str] = {}
        if self.max_seq_length is not None and len(numbers) > self.max_seq_length:
            notes["truncated"] = (
                f"a text of {len(numbers)} tokens is read up to token {self.max_seq_length}, as this encoder does; "
                "the rest is left out"
            )
            given = self._encode(self.prompt + text, truncation=True, max_length=self.max_seq_length)
            numbers = given["input_ids"]
        spans: list[CharSpan | None] = []
        marks: list[str] = []
        for number, offsets, special in zip(
            numbers, given["offset_mapping"], given["special_tokens_mask"], strict=True
        ):
            start, stop = (place - len(self.prompt) for place in offsets)
            mark = self.tokenizer.convert_ids_to_tokens(number) if special and start == stop else ""
            if not mark and stop <= 0 < len(self.prompt):
                mark = self.prompt.strip()
            spans.append(None if mark else (max(start, 0), stop))
            marks.append(mark)
        if all(span is None for span in spans):
            raise InputError("the tokenizer finds no words in this text: there is nothing to explain")
        words = [number for number, span in zip(numbers, spans, strict=True) if span is not None]
        unknown = words.count(self.tokenizer.unk_token_id)
        if 2 * unknown >= len(words):
            notes["unknown"] = (
                f"{unknown} of the {len(words)} words of a text are unknown to the tokenizer, and all the same to the model"
            )
        return numbers, TokenizedText.from_spans(text, spans, marks), notes

    def count_prompt_tokens(self) -> int:
        """How many positions at the beginning belong to the prompt, the opening mark included."""
        numbers: list[int] = self._encode(self.prompt)["input_ids"]
        closing = numbers[-1] in self.tokenizer.all_special_ids if numbers else False
        return len(numbers) - closing

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
            raise InputError(f"the text holds what is no Unicode character ({str(error)[:80]})") from None


def _read_text(raw_input: Any) -> str:
    if isinstance(raw_input, Path):
        return files.read_text(raw_input, kind="text", max_bytes=MAX_TEXT_BYTES)
    if not isinstance(raw_input, str):
        raise InputError(f"a text encoder reads text, got {type(raw_input).__name__}: pass a string")
    return raw_input


def find_embedding_offset(transformer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """What a transformer adds to its input before anything else happens to it (positions, token types); None: nothing.

    It is read off the tape: constants added to the input one after another.
    """
    from bilrp.trace.recorder import record
    from bilrp.trace.rewrite import drop_identities
    from bilrp.trace.tape import Slot

    with torch.no_grad():
        tape = drop_identities(record(transformer, x))
    users, value, total = tape.consumers(), tape.input, None
    while len(users.get(value, ())) == 1:
        (step,) = users[value]
        constants = [given for given in step.args if isinstance(given, Tensor)]
        plain = step.op == "add" and len(step.args) == 2 and not step.kwargs and len(constants) == 1
        if not plain or not any(isinstance(given, Slot) for given in step.args):
            break
        total = constants[0] if total is None else total + constants[0]
        value = step.output
    return None if total is None else total.expand_as(x).clone()
