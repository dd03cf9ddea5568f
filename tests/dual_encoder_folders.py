"""Folders of small random two-tower models, saved as people save them: CLIP, SigLIP, Chinese-CLIP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as t

from text_folders import byte_pairs, sentence_pieces, word_pieces
from vision_folders import MIDDLE, SQUARE, TOKENS, randomize_weights

TEXT: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A two-tower model by its configuration, its tokenizer and processor."""

    name: str
    config: str
    tokenizer: Callable[[], Any]
    processor: Callable[[], Any]

    def save(self, folder: Path, *, seed: int = 0) -> Path:
        backend, special_tokens = self.tokenizer()
        tokenizer = t.PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)
        end = tokenizer.convert_tokens_to_ids("</s>") if self.name == "clip" else None
        text = {
            **TEXT,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": end,
        }
        size = {"projection_dim": 12} if self.name != "siglip" else {}
        config = getattr(t, self.config)(text_config=text, vision_config=dict(TOKENS), **size)
        torch.manual_seed(seed)
        model = t.AutoModel.from_config(config).double()
        randomize_weights(model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self.processor().save_pretrained(folder)
        return folder


PAIRS = (
    Pair("clip", "CLIPConfig", byte_pairs, lambda: t.CLIPImageProcessorPil(**MIDDLE)),
    Pair("siglip", "SiglipConfig", sentence_pieces, lambda: t.SiglipImageProcessorPil(size=SQUARE)),
    Pair("chinese_clip", "ChineseCLIPConfig", word_pieces, lambda: t.ChineseCLIPImageProcessorPil(**MIDDLE)),
)
