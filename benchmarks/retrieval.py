"""What highlighted hits cost, as multiples of encoding the same passages once, on the descriptions of installed packages.

    python benchmarks/retrieval.py                       MiniLM
    python benchmarks/retrieval.py sentence:gte-small    a folder
    python benchmarks/retrieval.py --max-tokens 128      only passages of prose, about 100 tokens each
    python benchmarks/retrieval.py --equality            200 pairs against the parts of `bilrp.decompose`
    python benchmarks/retrieval.py --synthetic 100000    a collection of so many passages: build, filter, search, highlight

Times are CPU seconds on one thread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bilrp
from bilrp.encoder import read_item
from bilrp.encoders.sentence_encoder import read_everyday_paragraphs
from bilrp.highlights import highlight

WORDS_PER_PASSAGE = 70
BATCH_SIZE = 8
QUESTIONS = (
    "How do I install this package?",
    "Which licence does it have?",
    "How do I parse a file?",
    "How can I run the tests?",
    "What has changed since the last release?",
)


def read_passages(words: int = WORDS_PER_PASSAGE) -> list[str]:
    """Return the descriptions of the installed packages in passages of so many words, each once."""
    passages = dict[str, None]()
    for package in sorted(distributions(), key=lambda each: str(each.metadata["Name"]).lower()):
        metadata: Any = package.metadata
        tokens = str(metadata.get_payload() or metadata.get("Description") or "").split()
        for start in range(0, len(tokens) - words + 1, words):
            passages[" ".join(tokens[start : start + words])] = None
    return list(passages)


def measure(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def encode(encoder: bilrp.Encoder, passages: Sequence[str]) -> np.ndarray:
    """Return the normalized embeddings of passages [n, h], run in padded batches of similar length, without explanation.

    Args:
        encoder: A sentence encoder.
        passages: The texts.
    """
    items = [read_item(encoder, passage, quiet=True) for passage in passages]
    order = sorted(range(len(items)), key=lambda n: items[n].x.shape[1])
    rows = dict[int, torch.Tensor]()
    for start in range(0, len(order), BATCH_SIZE):
        numbers = order[start : start + BATCH_SIZE]
        lengths = [items[n].x.shape[1] for n in numbers]
        x = items[numbers[0]].x.new_zeros(1, len(numbers), max(lengths), items[numbers[0]].x.shape[2])
        for row, n in enumerate(numbers):
            x[0, row, : lengths[row]] = items[n].x[0]
        with torch.no_grad():
            embeddings = encoder.module.make_batch_module([items[n] for n in numbers])(x)  # type: ignore[attr-defined]
        rows |= dict(zip(numbers, torch.nn.functional.normalize(embeddings), strict=True))
    return torch.stack([rows[n] for n in range(len(items))]).numpy()


def report_costs(encoder: bilrp.Encoder, passages: Sequence[str]) -> None:
    """Print CPU times of encoding, of a plain search, and of 1, 10 and 100 highlighted hits.

    Args:
        encoder: A sentence encoder.
        passages: The corpus.
    """
    highlight(encoder, QUESTIONS[0], passages[:2])  # the mean embedding, and derived weights
    vectors = np.zeros((0, 0), np.float32)

    def encode_all() -> None:
        nonlocal vectors
        vectors = encode(encoder, passages)

    whole = measure(encode_all)
    print(f"{len(passages)} passages encoded once: {whole:.1f} s, {1000 * whole / len(passages):.1f} ms each")
    query = encode(encoder, QUESTIONS[:1])[0]
    plain = measure(lambda: np.argsort(-(vectors @ encode(encoder, QUESTIONS[:1])[0]))[:100])
    print(f"plain search: {1000 * plain:.1f} ms")
    ranked = np.argsort(-(vectors @ query)).tolist()
    for count in (1, 10, 100):
        hits: list[str] = [passages[int(n)] for n in ranked[:count]]
        once = min(measure(partial(encode, encoder, hits)) for _ in range(2))
        full = min(measure(partial(highlight, encoder, QUESTIONS[0], hits)) for _ in range(2))
        print(f"{count} highlighted: {full:.2f} s, {full / once:.2f} × encoding them once ({once:.2f} s)")


def report_equality(encoder: bilrp.Encoder, passages: Sequence[str], pairs: int = 200) -> None:
    """Print the largest difference of highlights from ⟨P_J, φ(q)⟩ / (‖φ(d)‖‖φ(q)‖), with the parts of `bilrp.decompose`.

    Args:
        encoder: A sentence encoder.
        passages: The corpus; every twentieth pair takes another passage.
        pairs: Number of pairs.
    """
    queries = read_everyday_paragraphs()[:20]
    spec, largest, count = bilrp.regions.words(punctuation="join"), 0.0, 0
    asked = [bilrp.decompose(encoder, query, regions="sentences").embedding for query in queries]
    for passage in passages[:: max(1, len(passages) * len(queries) // pairs)]:
        parts = bilrp.decompose(encoder, passage, regions=spec)
        for query, vector in zip(queries, asked, strict=True):
            values = highlight(encoder, query, [passage])[0].values
            expected = parts.parts @ vector / (parts.embedding.norm() * vector.norm())
            largest, count = max(largest, float((values - expected).abs().max())), count + 1
            if count == pairs:
                break
        if count == pairs:
            break
    print(f"{count} pairs: largest difference {largest:.1e}")


def report_synthetic(encoder: bilrp.Encoder, passages: Sequence[str], count: int) -> None:
    """Print CPU times and memory of a collection of many passages with vectors of the user's own.

    Args:
        encoder: A sentence encoder.
        passages: Real passages, repeated with a number.
        count: Number of passages.
    """
    texts = [f"{n}. {passages[n % len(passages)]}" for n in range(count)]
    width = encode(encoder, texts[:4]).shape[1]
    vectors = np.random.default_rng(0).standard_normal((count, width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:4] = encode(encoder, texts[:4])  # the rows that are compared with the encoder
    records = [{"id": str(n), "text": text, "year": 1990 + n % 30} for n, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "passages.lance"
        before = _peak_megabytes()
        seconds = measure(lambda: bilrp.collection.build(records, encoder, path, embeddings=vectors))
        print(f"build {count} passages: {seconds:.1f} s; peak memory +{_peak_megabytes() - before:.0f} MB")
        before = _peak_megabytes()
        made = bilrp.collection.open(path, encoder)
        print(f"search: {measure(lambda: made.nearest(vectors[9], 10)):.2f} s (first, reads the vectors)")
        print(f"search: {measure(lambda: made.nearest(vectors[10], 10)):.3f} s")
        print(f"20 searches together: {measure(lambda: made.nearest_many(vectors[:20], 10)):.3f} s")
        print(f"filter: {measure(lambda: made.nearest(vectors[11], 10, where='year > 2015')):.2f} s")
        hits = made.nearest(vectors[12], 10)
        print(f"10 highlights: {measure(lambda: made.highlight(QUESTIONS[0], hits)):.2f} s")
        print(
            f"peak memory of searching +{_peak_megabytes() - before:.0f} MB ({vectors.nbytes / 1e6:.0f} MB of vectors)"
        )


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encoder", nargs="?", default="minilm")
    parser.add_argument("--passages", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, help="leave out longer passages, of links and tables")
    parser.add_argument("--equality", action="store_true")
    parser.add_argument("--synthetic", type=int, metavar="COUNT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder, passages = bilrp.encoders.load(options.encoder), read_passages()
    assert isinstance(encoder, bilrp.Encoder)
    counts = {
        text: read_item(encoder, text, quiet=True).x.shape[1] for text in passages[: 4 * options.passages]
    }
    passages = [text for text, count in counts.items() if count <= (options.max_tokens or count)]
    passages = passages[: options.passages]
    print(
        f"{len(passages)} passages, {sum(counts[text] for text in passages) / len(passages):.0f} tokens each"
    )
    if options.equality:
        report_equality(encoder, passages)
    elif options.synthetic:
        report_synthetic(encoder, passages, options.synthetic)
    else:
        report_costs(encoder, passages)


if __name__ == "__main__":
    main()
