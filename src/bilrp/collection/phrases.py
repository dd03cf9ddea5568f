"""Words of a text with their characters, phrases that many texts share, kinds of words, and a guess of the language."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

MAX_PHRASE_WORDS = 32
MIN_SAME_TEXTS = 0.8  # of a phrase's texts: a longer phrase in at least these replaces it
MAX_HEADING_WORDS = 8

Phrase: TypeAlias = tuple[str, ...]
WordKind: TypeAlias = Literal["heading", "code", "name", "number", "function", "other"]

WORD = re.compile(r"\S+")
EDGES = re.compile(r"^\W+|\W+$")
# Among the most frequent words of each language.
FUNCTION_WORDS = {
    "en": "the of and to is are was for with that this it as by be or from you not have at can an which will if has your",
    "de": "der die das und ist nicht ein eine mit auf für von dem den zu sich auch wird sind bei oder wie als nur noch im",
    "fr": "le la les des et est une un dans pour que qui sur avec pas plus par ne ce il elle sont aux du au vous nous cette",
    "es": "el los las y es una un en para que con por no se del como su más esta son al lo este hay muy pero sus",
    "it": "il lo gli e è una un di che per con non sono della nel alla come più anche si dei le questo ha del i",
    "nl": "de het een en is van dat niet op te voor met zijn ook aan er als maar om wordt bij naar dit deze",
    "pt": "o os as e é uma um de que para com não em do da no na por mais se dos como ao são mas foi",
}
FUNCTION_WORD_SETS = {name: frozenset(words.split()) for name, words in FUNCTION_WORDS.items()}
SCRIPTS = {"ru": "[а-яё]", "el": "[α-ω]", "zh": "[\u4e00-\u9fff]", "ja": "[\u3040-\u30ff]", "ko": "[\uac00-\ud7af]",
           "ar": "[\u0600-\u06ff]", "he": "[\u0590-\u05ff]", "hi": "[\u0900-\u097f]"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a text: their characters, and keys that are equal for the same word in any case and punctuation."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    keys: tuple[str, ...]

    def collect(self, values: Iterable[tuple[int, float]]) -> np.ndarray:
        """Return the sum of (character, value) pairs for each word."""
        sums = np.zeros(len(self.keys))
        for character, value in values:
            word = bisect_right(self.starts, character) - 1
            if word >= 0:
                sums[word] += value
        return sums

    def remove(self, mask: np.ndarray) -> str:
        """Return the text without some words; line breaks around them stay."""
        rest, gap, end = "", "", 0
        for number, (start, stop) in enumerate(zip(self.starts, self.ends, strict=True)):
            gap = max(gap, self.text[end:start], key=lambda white: (white.count("\n"), len(white)))
            if not mask[number]:
                rest, gap = rest + gap + self.text[start:stop], ""
            end = stop
        return rest.strip()


def split_words(text: str) -> Words:
    """Split a text at white space.

    >>> split_words("The cat, *asleep*.").keys
    ('the', 'cat', 'asleep')
    """
    matches = list(WORD.finditer(text))
    keys = (EDGES.sub("", m[0]).casefold() or m[0] for m in matches)
    return Words(text, tuple(m.start() for m in matches), tuple(m.end() for m in matches), tuple(keys))


def find_phrases(texts: Mapping[int, Sequence[str]], least: int) -> dict[Phrase, list[int]]:
    """Return the longest phrases that at least `least` texts have, with the numbers of these texts.

    A phrase is dropped if a longer one is in nearly all of its texts.

    >>> sorted(find_phrases({0: "all rights reserved a".split(), 1: "b all rights reserved".split()}, 2))
    [('all', 'rights', 'reserved')]
    """
    result: dict[Phrase, list[int]] = {}
    shorter: dict[Phrase, set[int]] = {}
    for size in range(1, MAX_PHRASE_WORDS + 1):
        level: dict[Phrase, set[int]] = {}
        for number, keys in texts.items():
            for start in range(len(keys) - size + 1):
                phrase = tuple(keys[start : start + size])
                if size == 1 or (phrase[:-1] in shorter and phrase[1:] in shorter):
                    level.setdefault(phrase, set()).add(number)
        level = {phrase: numbers for phrase, numbers in level.items() if len(numbers) >= least}
        for longer, numbers in level.items():
            for inner in (longer[:-1], longer[1:]):
                if inner in shorter and len(numbers) >= MIN_SAME_TEXTS * len(shorter[inner]):
                    result.pop(inner, None)
        result |= {phrase: sorted(numbers) for phrase, numbers in level.items()}
        shorter = level
        if not level:
            break
    return {phrase: numbers for phrase, numbers in result.items() if any(map(str.isalnum, "".join(phrase)))}


def locate_phrases(keys: Sequence[str], phrases: Mapping[Phrase, Sequence[int]]) -> dict[Phrase, np.ndarray]:
    """Return, for each phrase that a text has, which of its words belong to it."""
    masks: dict[Phrase, np.ndarray] = {}
    for size in {len(phrase) for phrase in phrases}:
        for start in range(len(keys) - size + 1):
            phrase = tuple(keys[start : start + size])
            if phrase in phrases:
                masks.setdefault(phrase, np.zeros(len(keys), dtype=bool))[start : start + size] = True
    return masks


def classify_words(words: Words) -> list[WordKind]:
    """Return what each word looks like: part of a heading, code, a name, a number, a function word, or none of these.

    >>> classify_words(split_words("# Install" + chr(10) + "Run `pip` with the NumPy 2.1 wheel."))
    ['heading', 'heading', 'other', 'code', 'function', 'function', 'name', 'number', 'other']
    """
    functions = FUNCTION_WORD_SETS.get(guess_language(words.text) or "en", frozenset())
    kinds: list[WordKind] = []
    for start, end, key in zip(words.starts, words.ends, words.keys, strict=True):
        raw = words.text[start:end]
        before = words.text[:start]
        if _is_heading(words.text, start):
            kinds.append("heading")
        elif (
            before.count("```") % 2
            or raw.strip(",.;:()").startswith(("`", "--", ">>>"))
            or re.search(r"\w[_(=]|://", raw)
        ):
            kinds.append("code")
        elif key in functions:
            kinds.append("function")
        elif re.fullmatch(r"[\d.,:/%-]+", key):
            kinds.append("number")
        elif re.search(r"[a-z][A-Z]|\d", raw) or (
            key[:1] and raw.lstrip("*_\"'([")[:1].isupper() and not _opens(before)
        ):
            kinds.append("name")
        else:
            kinds.append("other")
    return kinds


def _is_heading(text: str, start: int) -> bool:
    """Return whether a character is in a line marked as a heading, or in a short first line without a full stop."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start)
    line = text[first : len(text) if last < 0 else last].strip()
    following = "" if last < 0 else text[last + 1 :].split("\n", 1)[0].strip()
    if re.match(r"#{1,6}\s", line) or (following and re.fullmatch(r"[=~^\-*]{3,}", following)):
        return True
    is_first = first == 0 and last >= 0
    return (
        is_first and len(line.split()) <= MAX_HEADING_WORDS and not line.endswith((".", "!", "?", ",", ":"))
    )


def _opens(before: str) -> bool:
    """Return whether the next word begins a sentence or a line."""
    return not before.strip() or before.rstrip(" \"'([*_")[-1] in ".!?:\n-•|#"


def guess_language(text: str) -> str:
    """Guess the language of a text by its script or its function words; empty if there are too few.

    >>> guess_language("The cat is on the table."), guess_language("Die Katze ist auf dem Tisch."), guess_language("abc")
    ('en', 'de', '')
    """
    lowered = text.casefold()
    letters = sum(map(str.isalpha, lowered)) or 1
    for name, script in SCRIPTS.items():
        if len(re.findall(script, lowered)) > 0.3 * letters:
            return name
    words = re.findall(r"\w+", lowered)
    counts = {name: sum(word in listed for word in words) for name, listed in FUNCTION_WORD_SETS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= 2 else ""
