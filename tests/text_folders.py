"""Folders of small random text models, saved as people save them: every architecture, with a tokenizer of its kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "A cat sat on the mat.", "The kittens rested on a rug!", "Two dogs run through the snow; one jumps.",
    "Unbelievably, nobody's car was parked in 1,000 streets?", "שלום עולם", "猫が好きです。", "It rains. Stay in!",
]  # fmt: skip
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 70,
}  # fmt: skip
T5_SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}


def word_pieces() -> tuple[Tokenizer, dict[str, str]]:
    """BERT's kind: lower case, [CLS] … [SEP], ## inside words. Padding is number 1, as MPNet takes for granted."""
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    special_tokens: dict[str, str] = dict(
        zip(names, ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), strict=True)
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=110, special_tokens=list(special_tokens.values()))
    )
    return _add_special_tokens(tokenizer, "[CLS]", "[SEP]"), special_tokens


def byte_pairs() -> tuple[Tokenizer, dict[str, str]]:
    """RoBERTa's and Qwen's kind: bytes, a word's space before it."""
    special_tokens = {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "mask_token": "<mask>",
    }
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=list(special_tokens.values()), initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _add_special_tokens(tokenizer, "<s>", "</s>"), special_tokens


def sentence_pieces() -> tuple[Tokenizer, dict[str, str]]:
    """XLM-R's and T5's kind: ▁ before words."""
    special_tokens = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=list(special_tokens.values()), unk_token="<unk>"
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _add_special_tokens(tokenizer, None, "</s>"), special_tokens


def _add_special_tokens(tokenizer: Tokenizer, first: str | None, last: str) -> Tokenizer:
    single = f"{first} $A {last}" if first else f"$A {last}"
    named = [(mark, tokenizer.token_to_id(mark)) for mark in (first, last) if mark]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    return tokenizer


@dataclass(frozen=True)
class Architecture:
    """A transformers model by its configuration, its tokenizer's kind, and how it pools where no file says it."""

    name: str
    config: str
    tokenizer: Callable[[], tuple[Tokenizer, dict[str, str]]]
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    pooling: str = "mean"
    encoder_only: bool = False

    def save(self, folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Path:
        """A folder as `save_pretrained` writes it."""
        import transformers

        backend, special_tokens = self.tokenizer()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)
        pad = tokenizer.pad_token_id
        config = getattr(transformers, self.config)(
            **self.sizes, vocab_size=len(tokenizer), pad_token_id=pad, bos_token_id=None, eos_token_id=None
        )
        maker = transformers.AutoModelForTextEncoding if self.encoder_only else transformers.AutoModel
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = maker.from_config(config).to(dtype)
            for name, weight in model.named_parameters():
                if weight.dim() == 1:  # norms and biases that are not the trivial 1 and 0
                    weight.data.uniform_(0.5, 1.5) if name.endswith("weight") else weight.data.uniform_(
                        -0.2, 0.2
                    )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


ARCHITECTURES = [
    Architecture("bert", "BertConfig", word_pieces),
    Architecture("roberta", "RobertaConfig", byte_pairs),
    Architecture("mpnet", "MPNetConfig", word_pieces),
    Architecture(
        "distilbert", "DistilBertConfig", word_pieces,
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 70},
    ),
    Architecture("xlm-r", "XLMRobertaConfig", sentence_pieces),
    Architecture("modernbert", "ModernBertConfig", byte_pairs, {**SIZES, "cls_token_id": 2, "sep_token_id": 3}),
    Architecture("gte", "GteConfig", word_pieces),
    Architecture("t5", "T5Config", sentence_pieces, T5_SIZES, encoder_only=True),
    Architecture(
        "t5-gated", "T5Config", sentence_pieces, {**T5_SIZES, "feed_forward_proj": "gated-gelu"}, encoder_only=True
    ),
    Architecture("qwen2", "Qwen2Config", byte_pairs, {**SIZES, "num_key_value_heads": 1}, "last"),
    Architecture("qwen3", "Qwen3Config", byte_pairs, {**SIZES, "num_key_value_heads": 1, "head_dim": 8}, "last"),
]  # fmt: skip


def sentence_transformers(
    folder: Path,
    *,
    pooling: dict[str, Any],
    normalise: bool = False,
    limit: int | None = None,
    lower: bool = False,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    dense: tuple[int, int, str] | None = None,
) -> Path:
    """The files that sentence-transformers puts around a transformers folder."""
    parts: list[tuple[str, str]] = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write_json(folder / "1_Pooling" / "config.json", pooling)
    if dense is not None:
        from safetensors.torch import save_file

        inputs, outputs, activation = dense
        generator = torch.Generator().manual_seed(1)
        parts.append(("2_Dense", "Dense"))
        about = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": True,
            "activation_function": activation,
        }
        write_json(folder / "2_Dense" / "config.json", about)
        weight = torch.randn(outputs, inputs, generator=generator)
        save_file(
            {"linear.weight": weight, "linear.bias": weight[:, 0].clone()},
            folder / "2_Dense" / "model.safetensors",
        )
    if normalise:
        parts.append((f"{len(parts)}_Normalize", "Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(folder / "modules.json", listed)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": lower})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts or {}, "default_prompt_name": default_prompt},
    )
    return folder


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
