"""Read texts for a live model: the token ids are the model's own, each with its characters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoders.live.first_use import FirstUseCheck
from bilrp.encoders.text.reader import TOKENIZER_LOCK, TextReader, read_text
from bilrp.encoders.text.segmentation import CharSpan, TokenizedText
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import Regions
from bilrp.trace.intermediate_input import run_from_module


@dataclass(frozen=True, eq=False)
class LiveTextReader(TextReader):
    """Text → Item whose `x` are the rows of the token embedding, and whose `model_input` the model is called with.

    Args:
        model: the model, called with the item's `model_input`.
        input_layer: name of its token embedding.
        check: compares the first embedding with the object's own.
        own_token_ids: text with prompt -> token ids as the object computes them, padding included; None: the tokenizer's.
        takes_text: the model is called with the bytes of the text instead of token ids.
    """

    model: nn.Module | None = None
    input_layer: str = ""
    check: FirstUseCheck | None = None
    own_token_ids: Callable[[str], Sequence[int]] | None = None
    takes_text: bool = False

    @property
    def identity(self) -> tuple[object, Hashable]:
        """The live object, and what its embeddings depend on besides its weights."""
        assert self.check is not None
        return self.check.owner, self.check.options

    def __call__(self, raw_input: object) -> Item:
        assert self.model is not None and self.check is not None
        text = read_text(raw_input)
        token_ids, tokens, notes = self.tokenize(text)
        padding = self._find_padding(text, token_ids)
        item = self.make_item(token_ids, tokens, notes)
        if padding:
            item = _pad(item, self.embed_tokens(padding))
        ids = torch.tensor([[*token_ids, *padding]], device=item.x.device)
        model_input = text_to_bytes(text) if self.takes_text else ids
        item = replace(item, model_input=model_input)
        run = run_from_module(self.model, self.input_layer, model_input)
        self.check.verify(text, lambda: run(item.x))
        return item

    def embed_tokens(self, token_ids: list[int]) -> Tensor:
        """Return the selected rows of the weights: what the first call that uses them returns, without later scaling."""
        weight = next(self.embed.parameters())
        with torch.no_grad():
            return nn.functional.embedding(torch.tensor([token_ids], device=weight.device), weight)

    def tokenize(self, text: str) -> tuple[list[int], TokenizedText, dict[str, str]]:
        """Return token ids, spans and notes; where the object strips the text or makes it lower case, so does this."""
        first = super().tokenize(text)
        if self.own_token_ids is None:
            return first
        own = self._read_own_ids(text)
        if _begins_with(own, first[0]):
            return first
        start = len(text) - len(text.lstrip()) if not self.prompt else 0
        for changed in (text[start:].rstrip(), text[start:].rstrip().lower(), text.lower()):
            offset = start if len(changed) <= len(text) - start else 0
            if changed == text or not changed or len(changed) > len(text) - offset:
                continue
            token_ids, tokens, notes = super().tokenize(changed)
            is_aligned = len(changed) == len(text[offset:].rstrip()) or len(changed) == len(text)
            if is_aligned and _begins_with(own, token_ids):
                spans = tuple(span and (span[0] + offset, span[1] + offset) for span in tokens.spans)
                return token_ids, TokenizedText(text, spans, tokens.special_tokens), notes
        raise InputError(
            f"the model's own tokens of this text are not those of its tokenizer with character offsets ({len(own)} and "
            f"{len(first[0])} tokens): pass (transformers model, tokenizer), or the text as the model sees it"
        )

    def _find_padding(self, text: str, token_ids: list[int]) -> list[int]:
        return self._read_own_ids(text)[len(token_ids) :]

    def _read_own_ids(self, text: str) -> list[int]:
        if self.own_token_ids is None:
            return []
        with TOKENIZER_LOCK:
            return list(self.own_token_ids(self.prompt + text))


def text_to_bytes(text: str) -> Tensor:
    """Return a text as a tensor of bytes, for `Item.model_input`."""
    return torch.tensor([list(text.encode())], dtype=torch.uint8)


def bytes_to_text(data: Tensor) -> str:
    """Invert `text_to_bytes`.

    >>> bytes_to_text(text_to_bytes("π"))
    'π'
    """
    return bytes(data.flatten().tolist()).decode()


def _begins_with(own: list[int], token_ids: list[int]) -> bool:
    """Return whether these are the object's ids, apart from padding by one id at the end."""
    return own[: len(token_ids)] == token_ids and len(set(own[len(token_ids) :])) <= 1


def _pad(item: Item, padding: Tensor) -> Item:
    """Return the item with padding tokens that are in no region."""
    segment_text, regions = item.segment, item.regions
    assert segment_text is not None and isinstance(regions, Regions)

    def extend(regions: Regions) -> Regions:
        labels = regions.labels.new_full((padding.shape[1], regions.labels.shape[1]), -1)
        return replace(regions, labels=torch.cat([regions.labels, labels]))

    def segment(spec: Any) -> Any:
        regions, view = segment_text(spec)
        return extend(regions), view

    return replace(item, x=torch.cat([item.x, padding], 1), regions=extend(regions), segment=segment)


@dataclass(frozen=True, eq=False)
class FastTokenizerLike:
    """A wrapped tokenizer with the attributes of a fast tokenizer of transformers that `TextReader` uses."""

    tokenizer: Any
    is_fast: bool = True
    unk_token_id: int | None = None
    model_max_length: int = 10**30
    all_special_ids: tuple[int, ...] = ()


class BackendTokenizer(FastTokenizerLike):
    """A `tokenizers.Tokenizer`."""

    def __call__(
        self, text: str, *, truncation: bool = False, max_length: int | None = None, **_: Any
    ) -> Mapping[str, Any]:
        encoding = self.tokenizer.encode(text)
        if truncation and max_length is not None:
            raise InputError(
                f"the text has more than {max_length} tokens: call tokenizer.enable_truncation({max_length})"
            )
        return {
            "input_ids": encoding.ids,
            "offset_mapping": encoding.offsets,
            "special_tokens_mask": encoding.special_tokens_mask,
        }

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.tokenizer.id_to_token(token_id)


class BytePairTokenizer(FastTokenizerLike):
    """A tokenizer without offsets, such as open_clip's, that can decode single tokens: each is found again in the text.

    Args:
        tokenizer: callable, text -> ids [1, length]; with `encode`, `decode`, `sot_token_id` and `eot_token_id`.
    """

    def __call__(
        self, text: str, *, truncation: bool = False, max_length: int | None = None, **_: Any
    ) -> Mapping[str, Any]:
        ids = [int(n) for n in self.tokenizer.encode(text)]
        if truncation and max_length is not None:
            ids = ids[: max_length - 2]
        spans = align_pieces(text, [self.tokenizer.decode([n]) for n in ids])
        return {
            "input_ids": [self.tokenizer.sot_token_id, *ids, self.tokenizer.eot_token_id],
            "offset_mapping": [(0, 0), *spans, (len(text), len(text))],
            "special_tokens_mask": [1, *[0] * len(ids), 1],
        }

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id]).strip()


def align_pieces(text: str, pieces: Sequence[str]) -> list[CharSpan]:
    """Return the characters of each decoded token, in order; raise if one is not in the text.

    Pieces may be lower case; bytes that are not a whole character (�) take part of the next unmatched character.

    >>> align_pieces("A cat's  hat", ["a ", "cat", "'s ", "hat "])
    [(0, 1), (2, 5), (5, 7), (9, 12)]
    """
    lower, place, spans = _lower_each(text), 0, []
    for piece in (piece.strip() for piece in pieces):
        while place < len(text) and text[place].isspace():
            place += 1
        if not piece or "\ufffd" in piece:  # some bytes of one character: the next piece may have the others
            spans.append((place, min(place + 1, len(text))))
            continue
        start = lower.find(_lower_each(piece), place)
        inside = lower[place:start] if start >= 0 else ""
        if start < 0 or len(inside.strip()) > 4:
            raise InputError(
                f"the token {piece!r} is not found in the text, which the tokenizer changes before it splits it: pass the "
                "text in plain characters"
            )
        spans.append((start, start + len(piece)))
        place = start + len(piece)
    return spans


def _lower_each(text: str) -> str:
    """Return the text in lower case, character by character, so that it keeps its length."""
    return "".join(low if len(low := c.lower()) == 1 else c for c in text)
