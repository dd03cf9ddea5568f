"""BERT and BiLRP for it, layer by layer from the weights file in NumPy: slow, plain, and nothing of bilrp or torch in it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

gelu = np.vectorize(lambda a: a * 0.5 * (1 + math.erf(a / math.sqrt(2))))


def parts_and_embedding(
    folder: Path, numbers: list[int], *, normalise: bool, features: str = "word"
) -> tuple[np.ndarray, np.ndarray]:
    """Parts [tokens, h] of the mean-pooled embedding under LRP-0 with attention weights, norms and activations detached."""
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name.removeprefix("bert."): w.astype(np.float64)
        for name, w in load_file(folder / "model.safetensors").items()
    }
    count, heads, eps = len(numbers), config["num_attention_heads"], config["layer_norm_eps"]
    word = weights["embeddings.word_embeddings.weight"][numbers]
    value = word + weights["embeddings.position_embeddings.weight"][:count]
    value = value + weights["embeddings.token_type_embeddings.weight"][0]
    each = np.zeros(
        (count, count, word.shape[1])
    )  # each[t]: what of the value at every token comes from token t
    for token in range(count):
        each[token, token] = word[token] if features == "word" else value[token]

    def norm(name: str, value: np.ndarray, each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        spread = np.sqrt(value.var(-1, keepdims=True) + eps)
        centred = (value - value.mean(-1, keepdims=True)) / spread * weight + bias
        return centred, (each - each.mean(-1, keepdims=True)) / spread * weight

    def linear(name: str, value: np.ndarray, each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return value @ weight.T + bias, each @ weight.T

    value, each = norm("embeddings.LayerNorm", value, each)
    for number in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{number}"
        query, key = (linear(f"{at}.attention.self.{name}", value, each)[0] for name in ("query", "key"))
        values, from_each = linear(f"{at}.attention.self.value", value, each)
        size = values.shape[1] // heads
        mixed, mixed_each = np.zeros_like(values), np.zeros_like(from_each)
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            scores = query[:, own] @ key[:, own].T / math.sqrt(size)
            looks = np.exp(scores - scores.max(-1, keepdims=True))
            looks /= looks.sum(-1, keepdims=True)
            mixed[:, own] = looks @ values[:, own]
            for token in range(count):
                mixed_each[token][:, own] = looks @ from_each[token][:, own]
        mixed, mixed_each = linear(f"{at}.attention.output.dense", mixed, mixed_each)
        value, each = norm(f"{at}.attention.output.LayerNorm", value + mixed, each + mixed_each)
        inside, inside_each = linear(f"{at}.intermediate.dense", value, each)
        factor = gelu(inside) / inside
        out, out_each = linear(f"{at}.output.dense", inside * factor, inside_each * factor)
        value, each = norm(f"{at}.output.LayerNorm", value + out, each + out_each)
    embedding, parts = value.mean(0), each.mean(1)
    length = np.linalg.norm(embedding) if normalise else 1.0
    return parts / length, embedding / length
