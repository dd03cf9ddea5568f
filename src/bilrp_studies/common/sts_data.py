"""Sentences: pairs of the STS benchmark, words to plant, nouns to match."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bilrp.errors import InputError

SHORT_WORDS = (4, 8)  # exact Shapley values take 2ⁿ forward passes for n words
LONG_WORDS = (18, 32)
MIN_HUMAN_SCORE = 2.0  # pairs rated as unrelated have no similarity to explain

SYNONYMS = (
    ("car", "automobile"), ("doctor", "physician"), ("sofa", "couch"), ("bicycle", "bike"), ("movie", "film"),
    ("photo", "picture"), ("lawyer", "attorney"), ("gift", "present"), ("stone", "rock"), ("rabbit", "bunny"),
    ("store", "shop"), ("money", "cash"), ("ocean", "sea"), ("infant", "baby"), ("teacher", "instructor"),
    ("garbage", "trash"), ("taxi", "cab"), ("student", "pupil"), ("carpet", "rug"), ("hen", "chicken"),
    ("salary", "wage"), ("prison", "jail"), ("story", "tale"), ("flat", "apartment"), ("truck", "lorry"),
    ("trousers", "pants"), ("sweater", "pullover"), ("coach", "trainer"), ("trip", "journey"), ("medicine", "drug"),
    ("puppy", "dog"), ("kitten", "cat"), ("boat", "ship"), ("policeman", "cop"), ("forest", "woods"),
    ("pistol", "gun"), ("author", "writer"), ("kid", "child"), ("storm", "tempest"), ("error", "mistake"),
)  # fmt: skip
CARRIER_SENTENCES = (
    ("Nobody had expected to find the {} there again.", "Yesterday she wrote a long letter about the {}."),
    ("The {} was the last thing on his mind that evening.", "We are not going to pay for the {} twice."),
    ("Someone should have asked about the {} before.", "It took them an hour to draw the {}."),
    ("My uncle never talks about the {} at breakfast.", "The {} appears only on the second page."),
    ("Without the {} nothing would have changed.", "They laughed when he described the {}."),
)
NOUN_LIST = """
man woman dog person girl boy guitar horse cat people water grass field car snow train table bus street baby
camera beach building ball child plane bomb room hospital oil company house children road bike bird sheep bowl
pool wall food head shirt piano flute cow school mouth office floor meat motorcycle boat bank money prison stick
chair computer fish game market tree soccer video photo family phone rope helicopter missile knife bed hat
cancer player sofa river storm airport judge monkey animal hill couch park toy picture ocean paper eggs gun
church fence country truck coast rain tomato keyboard window sand kitchen shrimp doctor hair bicycle president
police army minister court election government death war onion potato pan pot lady soldier officer women men
dogs hands girls
"""
NOUNS = frozenset(NOUN_LIST.split())


@dataclass(frozen=True)
class SentencePair:
    """Two sentences, and their similarity as rated by humans, 0 to 5."""

    a: str
    b: str
    score: float = 0.0


def read_pairs(folder: str | Path, split: str) -> list[SentencePair]:
    """Read the pairs of one split ("dev", "train") of the STS benchmark: sentence, sentence, score."""
    path = Path(folder) / f"stsb-en-{split}.csv"
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return [SentencePair(a, b, float(score)) for a, b, score in csv.reader(lines)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as lines of sentence,sentence,score ({error}): give the folder of the STS benchmark"
        ) from None


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words, for choosing sentences by length.

    >>> split_words("A cat's bowl, 2 dogs.")
    ['a', "cat's", 'bowl', '2', 'dogs']
    """
    return re.findall(r"[\w']+", text.lower())


def choose_pairs(
    pairs: list[SentencePair],
    count: int,
    word_range: tuple[int, int],
    *,
    seed: int,
    accepts: Callable[[str], bool],
) -> list[SentencePair]:
    """Draw pairs of sentences with a human score of at least MIN_HUMAN_SCORE, each sentence at most once.

    Args:
        pairs: The pairs to choose from.
        count: Maximum number of pairs.
        word_range: Minimum and maximum number of words of each sentence.
        seed: Seed of the random order.
        accepts: Further condition on each sentence.
    """
    order = random.Random(seed).sample(pairs, len(pairs))
    result: list[SentencePair] = []
    seen: set[str] = set()
    for pair in order:
        texts = pair.a, pair.b
        sized = all(word_range[0] <= len(split_words(text)) <= word_range[1] for text in texts)
        fresh = pair.a != pair.b and not seen.intersection(texts)
        if (
            len(result) < count
            and sized
            and fresh
            and pair.score >= MIN_HUMAN_SCORE
            and all(map(accepts, texts))
        ):
            result.append(pair)
            seen.update(texts)
    if len(result) < 2:
        raise InputError(
            f"fewer than two pairs of sentences of {word_range[0]} to {word_range[1]} words: give more data"
        )
    return result


def plant_words(count: int, *, synonyms: bool) -> list[tuple[str, str]]:
    """Return pairs of unrelated carrier sentences that share one word of the list, or a word and its synonym.

    >>> plant_words(1, synonyms=True)[0][1]
    'Yesterday she wrote a long letter about the automobile.'
    """
    items = []
    for number, (word, other) in enumerate(SYNONYMS[:count]):
        left = CARRIER_SENTENCES[number % len(CARRIER_SENTENCES)][0]
        right = CARRIER_SENTENCES[(number // len(CARRIER_SENTENCES) + 2 * number) % len(CARRIER_SENTENCES)][1]
        items.append((left.format(word), right.format(other if synonyms else word)))
    return items


def select_noun_sentences(pairs: list[SentencePair]) -> list[str]:
    """Return the distinct sentences of 4 to 12 words that contain a noun of the list."""
    texts = {text for pair in pairs for text in (pair.a, pair.b)}
    result = sorted(
        text for text in texts if SHORT_WORDS[0] <= len(split_words(text)) <= 12 and find_nouns(text)
    )
    if len(result) < 2:
        raise InputError("fewer than two sentences with nouns to match: give more data")
    return result


def draw_partners(texts: list[str], count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Draw pairs of different sentences, two in three with a noun in common (if there are any).

    Args:
        texts: Sentences that contain nouns of the list.
        count: Number of pairs.
        rng: Source of randomness.
    """
    by_noun: dict[str, list[str]] = {}
    for text in texts:
        for noun in find_nouns(text):
            by_noun.setdefault(noun, []).append(text)
    items = []
    for _ in range(count):
        a = rng.choice(texts)
        pool = texts if rng.random() < 1 / 3 else by_noun[rng.choice(sorted(find_nouns(a)))]
        others = [text for text in pool if text != a] or [text for text in texts if text != a]
        items.append((a, rng.choice(others)))
    return items


def find_nouns(text: str) -> set[str]:
    return {word for word in split_words(text) if word in NOUNS}


def count_matches(a: list[str], b: list[str]) -> float:
    """Count the pairs of words that are the same noun.

    >>> count_matches(["a", "dog", "ran"], ["the", "dog", "and", "a", "dog"])
    2.0
    """
    return float(sum(x == y and x in NOUNS for x in a for y in b))
