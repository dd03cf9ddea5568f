"""Do highlights mark the words that matter? Compared with attention, leave-one-out and last hidden states.

    python benchmarks/highlight_truth.py DATA                      MiniLM; DATA has stsb and ists, as BILRP_DATA
    python benchmarks/highlight_truth.py DATA sentence:FOLDER
    python benchmarks/highlight_truth.py DATA --passages 8 --pairs 20

Planted: a sentence of the STS benchmark is the query, its paraphrase (score ≥ 4.5) is in the middle of documentation of
installed packages; AUC of its words against all others, and how often the word with the largest weight is one of them.
Aligned: words of iSTS in chunks that are aligned (EQUI, SPE, SIMI, OPPO …) against those that are not (NOALI); AUC.
Removed: Spearman correlation with the fall of the score when a word is left out, and how far the score falls when the five
words of largest weight are left out together.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from retrieval import encode, measure, read_passages

import bilrp
from bilrp.attribution import Span
from bilrp.encoder import read_item
from bilrp.evaluation import roc_auc
from bilrp.highlights import Highlight, highlight
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.text_truths import choose_aligned_pairs
from bilrp_studies.common import sts_data

METHODS = ("highlight", "leave-one-out", "last hidden states", "attention", "random")
REMOVED_WORDS = 5


@dataclass(frozen=True)
class Question:
    """A query, a passage, and the characters of the passage that answer it."""

    query: str
    passage: str
    answers: tuple[tuple[int, int], ...]

    def find_answers(self, spans: Sequence[Span]) -> np.ndarray:
        """Return for each span whether it lies in an answer."""
        return np.array(
            [any(start <= span.start < end for start, end in self.answers) for span in spans], bool
        )


def plant_answers(folder: Path, count: int) -> Iterator[Question]:
    """Yield passages of documentation with a paraphrase of the query in the middle.

    Args:
        folder: Has stsb.
        count: Number of passages.
    """
    draw = random.Random(0)
    pairs = [pair for pair in sts_data.read_pairs(folder / "stsb", "dev") if pair.score >= 4.5]
    pairs = [pair for pair in pairs if pair.a.lower() != pair.b.lower() and len(pair.b.split()) >= 6]
    passages = [
        text for text in read_passages(60) if text.isascii() and "http" not in text and "|" not in text
    ]
    for pair, passage in zip(draw.sample(pairs, count), draw.sample(passages, count), strict=True):
        words = passage.split()
        before = " ".join(words[:30]) + " "
        text = f"{before}{pair.b} {' '.join(words[30:])}"
        yield Question(pair.a, text, ((len(before), len(before) + len(pair.b)),))


def align_chunks(folder: Path, count: int) -> Iterator[Question]:
    """Yield pairs of iSTS whose second sentence has words that are aligned and words that are not.

    Args:
        folder: Has ists.
        count: Number of pairs.
    """
    yielded = 0
    for pair in choose_aligned_pairs(ArenaSettings(data=folder, sentences=12 * count)):
        aligned = {word for _, chunk in pair.aligned for word in pair.chunks_b[chunk]}
        inside = {word for chunk in pair.chunks_b for word in chunk}
        # five words are left out, so there must be some more
        if not aligned or not inside - aligned or len(pair.b.split()) <= 2 * REMOVED_WORDS:
            continue
        spans, place = [], 0
        for number, word in enumerate(pair.b.split(" ")):
            if number in aligned:
                spans.append((place, place + len(word)))
            place += len(word) + 1
        yield Question(pair.a, pair.b, tuple(spans))
        yielded += 1
        if yielded == count:
            return


def weigh_words(encoder: bilrp.Encoder, question: Question, hit: Highlight) -> dict[str, np.ndarray]:
    """Return the weight of each word of the passage by each method.

    Args:
        encoder: A sentence encoder.
        question: Query and passage.
        hit: Its highlight.
    """
    spans, numbers = hit.passage, hit.sides[1].span_regions
    item, asked = read_item(encoder, question.passage, quiet=True), encode(encoder, [question.query])[0]
    text = question.passage
    without = encode(encoder, [text[: span.start] + text[span.end :] for span in spans])
    transformer = encoder.module.transformer  # type: ignore[union-attr]
    transformer.set_attn_implementation("eager")
    with torch.no_grad():
        output = transformer(inputs_embeds=item.x, output_attentions=True)
    transformer.set_attn_implementation("sdpa")
    tokens = {
        "last hidden states": output.last_hidden_state[0] @ torch.from_numpy(asked),
        "attention": output.attentions[-1][0].mean((0, 1)),
    }
    labels = hit.sides[1].regions.labels[:, 0]
    by_token = {
        name: np.array([float(values[labels == number].sum()) for number in numbers])
        for name, values in tokens.items()
    }
    return by_token | {
        "highlight": np.array([span.weight for span in spans]),
        "leave-one-out": hit.score - without @ asked,
        "random": np.random.default_rng(len(text)).standard_normal(len(spans)),
    }


def correlate_ranks(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation."""
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def measure_removal(encoder: bilrp.Encoder, question: Question, hit: Highlight, weights: np.ndarray) -> float:
    """Return by how much the score falls without the words of largest weight.

    Args:
        encoder: A sentence encoder.
        question: Query and passage.
        hit: Its highlight, for the words.
        weights: Of the words.
    """
    text = question.passage
    for number in sorted(np.argsort(-weights)[:REMOVED_WORDS].tolist(), reverse=True):
        text = text[: hit.passage[number].start] + text[hit.passage[number].end :]
    asked, left = encode(encoder, [question.query, text])
    return hit.score - float(asked @ left)


def report(encoder: bilrp.Encoder, kind: str, questions: Sequence[Question]) -> None:
    """Print the table of one kind of truth.

    Args:
        encoder: A sentence encoder.
        kind: Its name.
        questions: Queries and passages.
    """
    rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for question in questions:
        (hit,) = highlight(encoder, question.query, [question.passage])
        truth, weights = question.find_answers(hit.passage), weigh_words(encoder, question, hit)
        words = np.array([any(map(str.isalnum, span.text)) for span in hit.passage])
        for method in METHODS:
            row, values = rows[method], weights[method]
            row["AUC"].append(roc_auc(torch.from_numpy(values[words]), torch.from_numpy(truth[words])))
            row["first word right"].append(float(truth[values.argmax()]))
            row["correlation with leave-one-out"].append(correlate_ranks(values, weights["leave-one-out"]))
            row["fall without five words"].append(measure_removal(encoder, question, hit, values))
    print(f"{kind}: {len(questions)} queries")
    for method in METHODS:
        cells = [f"{name} {np.mean(values):.2f}" for name, values in rows[method].items()]
        print(f"  {method:20} {'; '.join(cells)}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("encoder", nargs="?", default="minilm")
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = bilrp.encoders.load(options.encoder)
    assert isinstance(encoder, bilrp.Encoder)
    planted = list(plant_answers(options.data, options.passages))
    aligned = list(align_chunks(options.data, options.pairs))
    seconds = measure(lambda: [report(encoder, "planted", planted), report(encoder, "aligned", aligned)])
    print(f"{seconds:.0f} s CPU")


if __name__ == "__main__":
    main()
