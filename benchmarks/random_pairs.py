"""Measure the baselines of random pairs in `bilrp.findings.random_baseline`: cosines of all pairs of a reference set.

    python benchmarks/random_pairs.py minilm                     60 everyday sentences, and 20 paragraphs
    python benchmarks/random_pairs.py mobilenet PHOTOGRAPHS      64 photographs of a folder

It prints the hash of the weights, the number of pairs and their quantiles, and for photographs the mean of their embeddings,
which it also writes to src/bilrp/encoders/photograph_means.safetensors if the embedding is pooled over positions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bilrp
from bilrp.encoder import read_item
from bilrp.encoders.photograph_means import MEANS_FILE, hash_module
from bilrp.encoders.sentence_encoder import read_everyday_paragraphs, read_everyday_sentences
from bilrp.findings.random_baseline import RandomBaseline, compute_baseline
from bilrp.findings.reference_likeness import measure_mean

PHOTOGRAPH_COUNT = 64


def embed_inputs(encoder: bilrp.Encoder, inputs: Sequence[str | Path]) -> torch.Tensor:
    """Return the embeddings of inputs, [inputs, h] in float64.

    Args:
        encoder: the encoder.
        inputs: texts or image files.
    """
    rows = []
    for each in inputs:
        item = read_item(encoder, each)
        with torch.no_grad():
            rows.append(encoder.forward_fn(item.model_input)(item.x).flatten().double())
    return torch.stack(rows)


def measure_baseline(encoder: bilrp.Encoder, inputs: Sequence[str | Path]) -> RandomBaseline:
    """Return the baseline of all pairs of these inputs.

    Args:
        encoder: the encoder.
        inputs: texts or image files, which should have nothing to do with each other.
    """
    rows = embed_inputs(encoder, inputs)
    unit = torch.nn.functional.normalize(rows)
    return compute_baseline((unit @ unit.T)[tuple(torch.triu_indices(len(rows), len(rows), 1))].numpy())


def main(name: str, folder: str | None = None) -> None:
    """Print the baseline of an encoder.

    Args:
        name: of the encoder.
        folder: with photographs; None: the reference sentences.
    """
    encoder = bilrp.encoders.load(name)
    if folder is None:
        inputs: Sequence[str | Path] = read_everyday_sentences()
    else:
        files = sorted(Path(folder).glob("*.jpg"))
        inputs = files[:: max(1, len(files) // PHOTOGRAPH_COUNT)][:PHOTOGRAPH_COUNT]
    baseline = measure_baseline(encoder, inputs)
    if folder is None:
        paragraphs = measure_baseline(encoder, read_everyday_paragraphs())
        print(f"paragraphs: ({', '.join(f'{quantile:.3f}' for quantile in paragraphs.quantiles)})")
        both = [embed_inputs(encoder, texts) for texts in (inputs, read_everyday_paragraphs())]
        cosines = torch.nn.functional.normalize(both[0]) @ torch.nn.functional.normalize(both[1]).T
        mixed = compute_baseline(cosines.flatten().numpy())
        print(f"sentence and paragraph: ({', '.join(f'{quantile:.3f}' for quantile in mixed.quantiles)})")
    item = read_item(encoder, inputs[0])
    weights = bilrp.decompose(encoder, item, regions=None).origin["weights"]
    print(f"{name}, weights {weights}, input {tuple(item.x.shape)}: {baseline.pair_count:,} pairs")
    print(f"({', '.join(f'{quantile:.3f}' for quantile in baseline.quantiles)})")
    if folder is not None:
        rows = embed_inputs(encoder, inputs)
        print(measure_mean(list(rows.numpy())))
        if isinstance(encoder.module, nn.Module) and encoder.similarity == "cosine":
            store_mean(getattr(encoder.module, "model", encoder.module), rows)


def store_mean(module: nn.Module, rows: torch.Tensor) -> None:
    """Add the mean of normalized embeddings to the file of means.

    Args:
        module: the network whose weights identify the mean.
        rows: the embeddings.
    """
    means = load_file(MEANS_FILE) if MEANS_FILE.exists() else {}
    means[hash_module(module)] = torch.nn.functional.normalize(rows).mean(0).float()
    save_file(dict(sorted(means.items())), MEANS_FILE)


if __name__ == "__main__":
    main(*sys.argv[1:])
