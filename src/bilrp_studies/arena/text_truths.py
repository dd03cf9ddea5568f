"""Known matches between texts: aligned chunks of iSTS, planted words and synonyms, shared nouns."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bilrp.encoder import Encoder
from bilrp.errors import InputError
from bilrp.inputs import Text
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.truth import Case
from bilrp_studies.common import sts_data
from bilrp_studies.common.word_subsets import read_text

UNMATCHED_TYPES = ("NOALI", "ALIC")  # of iSTS: not aligned, or only in context
MIN_CHUNKS = 2  # of a sentence: with one chunk there is nothing to tell apart


@dataclass(frozen=True)
class AlignedPair:
    """Two sentences of words with spaces between, their chunks as numbers of words from 0, and the aligned chunks."""

    a: str
    b: str
    chunks_a: tuple[tuple[int, ...], ...]
    chunks_b: tuple[tuple[int, ...], ...]
    aligned: frozenset[tuple[int, int]]


def chunk_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield pairs of iSTS: aligned chunks should have more relevance than chunks that are not aligned."""
    for number, each in enumerate(choose_aligned_pairs(settings)):
        units = (
            words_to_units(encoder, each.a, each.chunks_a),
            words_to_units(encoder, each.b, each.chunks_b),
        )
        match = torch.zeros(len(each.chunks_a), len(each.chunks_b))
        for i, j in each.aligned:
            match[i, j] = 1
        yield Case(
            "iSTS", each.a, each.b, match, torch.ones_like(match), group=number, units=units, cover=True
        )


def planted_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield pairs of unrelated sentences with a word in common, or a word and its synonym."""
    for name, synonyms in (("planted word", False), ("planted synonym", True)):
        pairs = sts_data.plant_words(settings.planted, synonyms=synonyms)
        for number, (a, b) in enumerate(pairs):
            first, second = sts_data.SYNONYMS[number]
            expected = {first}, {second if synonyms else first}
            yield _word_case(name, encoder, a, b, expected, number)


def noun_cases(encoder: Encoder, settings: ArenaSettings) -> Iterator[Case]:
    """Yield pairs of sentences that share nouns, for an encoder that was trained to count them."""
    texts = sts_data.select_noun_sentences(sts_data.read_pairs(settings.data / "stsb", "dev"))
    drawn = sts_data.draw_partners(texts, settings.sentences, random.Random(settings.seed + 1))
    for number, (a, b) in enumerate(drawn):
        shared = sts_data.find_nouns(a) & sts_data.find_nouns(b)
        if shared:
            words = [[word.lower() for word in _words(encoder, text)[1]] for text in (a, b)]
            match = torch.tensor([[float(x == y and x in shared) for y in words[1]] for x in words[0]])
            if bool(match.any()):
                yield Case("nouns", a, b, match, torch.ones_like(match), number, _word_units(encoder, a, b))


def _word_case(
    name: str, encoder: Encoder, a: str, b: str, expected: tuple[set[str], set[str]], group: int
) -> Case:
    inside = [
        torch.tensor([float(word.lower() in words) for word in _words(encoder, text)[1]])
        for text, words in zip((a, b), expected, strict=True)
    ]
    match = torch.outer(*inside)
    return Case(name, a, b, match, torch.ones_like(match), group, _word_units(encoder, a, b))


def _words(encoder: Encoder, text: str) -> tuple[list[int], list[str]]:
    """Return the regions that are words, and their texts; special tokens are left out."""
    view = read_text(encoder, text).view
    assert isinstance(view, Text)
    numbers = [number for number, span in enumerate(view.spans) if span is not None]
    return numbers, [view.region_texts[number] for number in numbers]


def _word_units(encoder: Encoder, a: str, b: str) -> tuple[Tensor, Tensor]:
    """Return [words, regions] of both texts: each word is a unit, special tokens are in none."""
    first, second = (
        torch.eye(len(read_text(encoder, text).view.spans))[_words(encoder, text)[0]]  # type: ignore[union-attr]
        for text in (a, b)
    )
    return first, second


def words_to_units(encoder: Encoder, text: str, chunks: Sequence[Sequence[int]]) -> Tensor:
    """Return [chunks, regions]: 1 for regions that overlap a word of the chunk.

    Args:
        encoder: its reader tells the characters of each region.
        text: words with a space between each two.
        chunks: numbers of words.
    """
    view = read_text(encoder, text).view
    assert isinstance(view, Text)
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    members = torch.zeros(len(chunks), len(view.spans))
    for region, span in enumerate(view.spans):
        for number, chunk in enumerate(chunks):
            if span is not None and any(span[0] < spans[w][1] and spans[w][0] < span[1] for w in chunk):
                members[number, region] = 1
    return members


def choose_aligned_pairs(settings: ArenaSettings) -> list[AlignedPair]:
    """Draw pairs of all files of iSTS, in equal numbers where there are enough."""
    files = sorted((settings.data / "ists").glob("*.wa"))
    rng = random.Random(settings.seed)
    drawn = []
    for path in files:
        pairs = [each for each in read_aligned_pairs(path) if is_usable(each)]
        drawn.append(rng.sample(pairs, len(pairs)))
    turns = [pair for turn in zip(*drawn, strict=False) for pair in turn]
    if len(turns) < 2:
        raise InputError(f"{settings.data / 'ists'}: no pairs of sentences with aligned chunks (*.wa)")
    return turns[: settings.sentences]


def is_usable(pair: AlignedPair) -> bool:
    """Return whether a pair has aligned chunks, chunks that are not, and at least two on each side."""
    total = len(pair.chunks_a) * len(pair.chunks_b)
    return min(len(pair.chunks_a), len(pair.chunks_b)) >= MIN_CHUNKS and 0 < len(pair.aligned) < total


def read_aligned_pairs(path: Path) -> list[AlignedPair]:
    """Read the pairs of a file of iSTS (SemEval 2016, task 2): words, chunks and alignments."""
    text = path.read_text(encoding="utf-8", errors="replace")
    items = []
    for block in re.findall(r"<sentence .*?</sentence>", text, flags=re.DOTALL):
        source, translation, alignment = (
            (re.search(rf"<{tag}>(.*?)</{tag}>", block, flags=re.DOTALL) or [None, ""])[1] or ""
            for tag in ("source", "translation", "alignment")
        )
        words = [re.findall(r"^\d+ (\S+) :", part, flags=re.MULTILINE) for part in (source, translation)]
        links = [
            (_numbers(left), _numbers(right), kind)
            for left, right, kind in re.findall(
                r"^([\d ]+)<==>([\d ]+)//\s*(\S+)", alignment, flags=re.MULTILINE
            )
        ]
        # Punctuation is not aligned by the guidelines of the corpus: it says nothing about meaning.
        chunks_a = _chunks([left for left, _, _ in links], words[0])
        chunks_b = _chunks([right for _, right, _ in links], words[1])
        aligned = frozenset(
            (chunks_a.index(left), chunks_b.index(right))
            for left, right, kind in links
            if not kind.startswith(UNMATCHED_TYPES) and left in chunks_a and right in chunks_b
        )
        items.append(
            AlignedPair(" ".join(words[0]), " ".join(words[1]), tuple(chunks_a), tuple(chunks_b), aligned)
        )
    return items


def _numbers(text: str) -> tuple[int, ...]:
    """Return numbers of words from 0; the corpus counts from 1, and 0 stands for nothing."""
    return tuple(int(each) - 1 for each in text.split() if each != "0")


def _chunks(given: list[tuple[int, ...]], words: list[str]) -> list[tuple[int, ...]]:
    """Return the different chunks that have a letter or digit, in order."""
    return sorted(
        {
            chunk
            for chunk in given
            if chunk and any(re.search(r"\w", words[n]) for n in chunk if n < len(words))
        }
    )
