"""Audit a collection of texts: which words and phrases carry the similarity of near neighbours, which look like shortcuts.

Each sampled text and its nearest neighbour are highlighted, one pull a side, so that every word has its exact contribution
to the score. Phrases that many texts share are ranked by their share of the relevance compared with their share of the
words, and tested by the model: without them, which texts get another nearest neighbour?
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from torch import Tensor

from bilrp.collection.batch_encoder import BatchEncoder
from bilrp.collection.phrases import (
    Phrase,
    WordKind,
    Words,
    classify_words,
    find_phrases,
    guess_language,
    locate_phrases,
    split_words,
)
from bilrp.encoder import read_item
from bilrp.errors import BilrpError
from bilrp.findings.formatting import format_percent
from bilrp.progress import progress_bar

if TYPE_CHECKING:
    from bilrp.collection.core import Collection

MAX_TEXTS = 4000  # texts in which phrases are looked for; the sample is among them
MIN_COMMON_ITEMS = 3  # a phrase in fewer texts is not common
MIN_COMMON_FRACTION = 0.02  # of the texts: a phrase in at least these is common
MIN_PAIRS = 3  # pairs of near neighbours that share a phrase; the share of fewer may be chance
MAX_PHRASES = 8  # length of the ranking
MAX_ENCODED_TEXTS = 128  # without a phrase, for each phrase; texts of the sample first
MIN_SUSPECT_FRACTION = 0.1  # of the texts: a phrase in fewer is a topic rather than a shortcut
MIN_LOST_ATTRACTION = 0.2  # decrease of `attraction` to `attraction_without` of a suspect
MIN_PHRASE_WORDS = 3  # texts do not share this many words in a row by chance
MIN_NEW_WORDS_FRACTION = 0.5  # of a phrase; else it is a variant of one ranked before it
MIN_CHANGED_TEXTS = 3  # sampled texts whose nearest neighbour loses the phrase
MAX_EXAMPLES = 6  # changed neighbours listed for each phrase
MIN_LANGUAGE_FRACTION = 0.1  # of the texts: languages of fewer are not compared
SIGNIFICANT_DEVIATIONS = 3.0  # from chance, for length and language

TextSuspectKind: TypeAlias = Literal["boilerplate", "heading", "name", "words"]
KIND_LABELS: dict[WordKind, str] = {
    "heading": "headings", "code": "code", "name": "names", "number": "numbers", "function": "function words",
    "other": "other words",
}  # fmt: skip
TraitName: TypeAlias = Literal["length", "language"]


@dataclass(frozen=True)
class Change:
    """A text whose nearest neighbour changes without a phrase: positions of the text and of its neighbours."""

    item: int
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class TextSuspect:
    """A phrase that near neighbours share: it has `share` of the relevance on `area` of the words, in `pairs`.

    Args:
        kind: what the phrase looks like.
        phrase: its words.
        share: of the absolute relevance of both texts, mean of the pairs.
        area: of the words.
        contribution: to the score, mean of the pairs, in its units.
        pairs: pairs of near neighbours that both have it.
        carriers: positions of the texts that have it.
        changed: fraction of the sampled carriers that get another nearest neighbour when it is left out of all carriers.
        attraction: fraction of them whose nearest neighbour has it too.
        attraction_without: the same when it is left out.
        chance: fraction of all texts that have it.
        changes: examples.
    """

    kind: TextSuspectKind
    phrase: str
    share: float
    area: float
    contribution: float
    pairs: tuple[tuple[int, int], ...]
    carriers: tuple[int, ...] = field(repr=False, default=())
    changed: float | None = None
    attraction: float | None = None
    attraction_without: float | None = None
    chance: float = 0.0
    changes: tuple[Change, ...] = field(repr=False, default=())

    @property
    def excess(self) -> float:
        """(share − area) · pairs; share · pairs for a phrase of three words and more, which no two texts share by chance."""
        is_long = len(self.phrase.split()) >= MIN_PHRASE_WORDS
        return (self.share - (0.0 if is_long else self.area)) * len(self.pairs)

    @property
    def where(self) -> str:
        """The phrase and what it looks like, in words."""
        label = {
            "boilerplate": "a repeated phrase",
            "heading": "a heading",
            "name": "a name",
            "words": "a word",
        }
        return f"“{self.phrase}”, {label[self.kind]} in {len(self.carriers)} texts"

    def __str__(self) -> str:
        pairs = "one pair" if len(self.pairs) == 1 else f"{len(self.pairs)} pairs"
        text = (
            f"{self.where}: {format_percent(self.share)} of the relevance on {format_percent(self.area)} of the words, in "
            f"{pairs}"
        )
        if self.changed is not None and self.attraction is not None and self.attraction_without is not None:
            text += (
                f"; {format_percent(self.attraction)} of the texts with it have a nearest neighbour with it, without it "
                f"{format_percent(self.attraction_without)} ({format_percent(self.chance)} by chance), and "
                f"{format_percent(self.changed)} get another one"
            )
        return text


@dataclass(frozen=True)
class KindShare:
    """All words of one kind: their share of the relevance and of the words, mean of all pairs."""

    kind: WordKind
    share: float
    area: float


@dataclass(frozen=True)
class TraitAgreement:
    """How far neighbours agree in a trait: the rank correlation of lengths, or the fraction of pairs in one language.

    `chance` is what unrelated texts of the collection would have, `deviations` how many standard deviations it is above.
    """

    trait: TraitName
    agreement: float
    chance: float
    deviations: float

    @property
    def is_significant(self) -> bool:
        return self.deviations >= SIGNIFICANT_DEVIATIONS

    def describe(self) -> str:
        """Return the agreement in words, and whether it is more than chance."""
        return f"{self}{'' if self.is_significant else ': no more than chance'}"

    def __str__(self) -> str:
        if self.trait == "length":
            return f"lengths of neighbours have a rank correlation of {self.agreement:.2f} (0 by chance)"
        same, chance = format_percent(self.agreement), format_percent(self.chance)
        return f"{same} of neighbours have the same language ({chance} by chance)"


@dataclass(frozen=True, eq=False)
class TextAudit:
    """Result of an audit of texts.

    Args:
        suspects: common phrases without which fewer nearest neighbours share them; largest excess first.
        phrases: all ranked phrases, suspects included.
        kinds: shares of headings, names, code, numbers and function words.
        traits: agreement of neighbours in length and language.
        pairs: the highlighted near neighbours.
        unattributed: mean fraction of the score that no word has.
    """

    suspects: tuple[TextSuspect, ...]
    phrases: tuple[TextSuspect, ...]
    kinds: tuple[KindShare, ...]
    traits: tuple[TraitAgreement, ...]
    pairs: tuple[tuple[int, int], ...]
    unattributed: float = 0.0


def audit_texts(
    collection: Collection,
    positions: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    *,
    similarity: str | None = None,
    progress: bool = False,
) -> TextAudit:
    """Rank what carries the similarity of near neighbours.

    Args:
        collection: A collection of texts.
        positions: The sampled items.
        pairs: Each with its nearest neighbour.
        similarity: "dot" or "cosine"; the encoder's own by default.
        progress: Show progress bars.
    """
    corpus = _Corpus(collection, sorted({p for pair in pairs for p in pair} | set(positions)))
    sides = [side for pair in _highlight(collection, corpus, pairs, similarity, progress) for side in pair]
    ranked = _rank_phrases(corpus, pairs, sides)
    without = _LeaveOut(collection, corpus, positions, similarity)
    phrases = []
    with progress_bar(progress) as bar:
        bar.start("leaving out phrases", len(ranked))
        for key, suspect in ranked:
            phrases.append(without.measure(key, suspect))
            bar.advance()
    return TextAudit(
        tuple(phrase for phrase in phrases if _is_suspect(phrase, positions)),
        tuple(phrases),
        _share_kinds(corpus, sides),
        _compare_traits(corpus, pairs),
        tuple(pairs),
        float(np.mean([side.unattributed for side in sides])),
    )


def _is_suspect(phrase: TextSuspect, positions: Sequence[int]) -> bool:
    """Return whether many texts have a phrase, and fewer of their nearest neighbours have it when it is left out."""
    if phrase.attraction is None or phrase.attraction_without is None:
        return False
    lost, sampled = phrase.attraction - phrase.attraction_without, len(set(positions) & set(phrase.carriers))
    is_common = phrase.chance >= MIN_SUSPECT_FRACTION
    return is_common and lost >= MIN_LOST_ATTRACTION and lost * sampled >= MIN_CHANGED_TEXTS


class _Corpus:
    """Texts of a collection as words, and the phrases that many of them share."""

    def __init__(self, collection: Collection, needed: Sequence[int]) -> None:
        others = np.random.default_rng(0).permutation(len(collection)).tolist()
        chosen = sorted(list(dict.fromkeys([*needed, *others]))[: max(MAX_TEXTS, len(needed))])
        texts = collection.items.take(chosen, ["text"])["text"]
        self.texts: dict[int, str] = {p: text or "" for p, text in zip(chosen, texts, strict=True)}
        self.words: dict[int, Words] = {p: split_words(text) for p, text in self.texts.items()}

    @cached_property
    def phrases(self) -> dict[Phrase, list[int]]:
        """The positions of the texts that have each common phrase."""
        least = max(MIN_COMMON_ITEMS, round(MIN_COMMON_FRACTION * len(self.texts)))
        return find_phrases({p: words.keys for p, words in self.words.items()}, least)


@dataclass(frozen=True, eq=False)
class _Side:
    """One text of a pair: what each of its words contributes to the score."""

    position: int
    weights: np.ndarray
    unattributed: float


def _highlight(
    collection: Collection,
    corpus: _Corpus,
    pairs: Sequence[tuple[int, int]],
    similarity: str | None,
    progress: bool,
) -> list[tuple[_Side, _Side]]:
    """Return both sides of each pair, by one pull each."""
    results = []
    with progress_bar(progress) as bar:
        bar.start("pairs", len(pairs))
        for i, j in pairs:
            (hit,) = collection.highlight(i, [j], similarity=similarity)
            scale = abs(hit.score) or 1.0
            sides = (i, hit.query, hit.query_unattributed), (j, hit.passage, hit.unattributed)
            one, other = (
                _Side(p, corpus.words[p].collect([(s.start, s.weight) for s in spans]), abs(rest) / scale)
                for p, spans, rest in sides
            )
            results.append((one, other))
            bar.advance()
    return results


def _rank_phrases(
    corpus: _Corpus, pairs: Sequence[tuple[int, int]], sides: Sequence[_Side]
) -> list[tuple[Phrase, TextSuspect]]:
    """Return the phrases with the largest excess; each word counts for one phrase only, the one that comes first."""
    masses = [np.abs(side.weights) / (np.abs(side.weights).sum() or 1.0) for side in sides]
    spots = [locate_phrases(corpus.words[side.position].keys, corpus.phrases) for side in sides]
    free = [np.ones(len(mass), dtype=bool) for mass in masses]
    candidates = {
        phrase: numbers
        for phrase in corpus.phrases
        if len(
            numbers := [n for n in range(len(pairs)) if phrase in spots[2 * n] and phrase in spots[2 * n + 1]]
        )
        >= MIN_PAIRS
    }
    ranked: list[tuple[Phrase, TextSuspect]] = []
    while candidates and len(ranked) < MAX_PHRASES:
        masks = {
            phrase: [
                (n, spots[n][phrase] & free[n]) for number in numbers for n in (2 * number, 2 * number + 1)
            ]
            for phrase, numbers in candidates.items()
        }
        # a phrase that overlaps one before it is a variant of it
        gains = {
            phrase: _sum_excess(phrase, chosen, masses)
            for phrase, chosen in masks.items()
            if sum(mask.sum() for _, mask in chosen)
            >= MIN_NEW_WORDS_FRACTION * sum(spots[n][phrase].sum() for n, _ in chosen)
        }
        phrase = max(gains, key=lambda each: gains[each], default=None)
        if phrase is None or gains[phrase] <= 0:
            break
        chosen, (shown, kind) = masks[phrase], _describe(corpus, phrase)
        suspect = TextSuspect(
            kind,
            shown,
            share=float(np.mean([masses[n][mask].sum() for n, mask in chosen])),
            area=float(np.mean([mask.mean() for _, mask in chosen])),
            contribution=float(np.mean([sides[n].weights[mask].sum() for n, mask in chosen])),
            pairs=tuple(pairs[number] for number in candidates.pop(phrase)),
            carriers=tuple(corpus.phrases[phrase]),
            chance=len(corpus.phrases[phrase]) / len(corpus.texts),
        )
        ranked.append((phrase, suspect))
        for n, spot in enumerate(spots):
            if phrase in spot:
                free[n] &= ~spot[phrase]
    return ranked


def _sum_excess(
    phrase: Phrase, chosen: Sequence[tuple[int, np.ndarray]], masses: Sequence[np.ndarray]
) -> float:
    """Return `TextSuspect.excess` of the words in these masks of sides."""
    by_chance = 0.0 if len(phrase) >= MIN_PHRASE_WORDS else 1.0
    return sum(float(masses[n][mask].sum()) - by_chance * float(mask.mean()) for n, mask in chosen) / 2


def _describe(corpus: _Corpus, phrase: Phrase) -> tuple[str, TextSuspectKind]:
    """Return the phrase as it is first written, and what it looks like in most texts."""
    kinds: list[WordKind] = []
    shown = " ".join(phrase)
    for number, position in enumerate(corpus.phrases[phrase][:32]):
        words = corpus.words[position]
        mask = locate_phrases(words.keys, {phrase: []})[phrase]
        (start, *_), labels = np.flatnonzero(mask), classify_words(words)
        kinds.append(labels[start])
        if number == 0:
            raw = words.text[words.starts[start] : words.ends[start + len(phrase) - 1]]
            shown = " ".join(raw.strip("#*_`~|<>\"'([)],;: ").split())
    most = max(set(kinds), key=kinds.count)
    if most == "heading":
        return shown, "heading"
    if len(phrase) >= MIN_PHRASE_WORDS:
        return shown, "boilerplate"
    return shown, "name" if most == "name" else "words"


class _LeaveOut:
    """Encodes texts without a phrase, and compares nearest neighbours."""

    def __init__(
        self, collection: Collection, corpus: _Corpus, positions: Sequence[int], similarity: str | None
    ) -> None:
        self.collection, self.corpus, self.positions = collection, corpus, set(positions)
        self.similarity = collection.resolve_similarity(similarity)

    def measure(self, phrase: Phrase, suspect: TextSuspect) -> TextSuspect:
        """Return the suspect with what changes when the phrase is left out, if enough sampled texts have it."""
        carriers = sorted(suspect.carriers, key=lambda p: p not in self.positions)[:MAX_ENCODED_TEXTS]
        sampled = [p for p in carriers if p in self.positions]
        if len(sampled) < MIN_CHANGED_TEXTS:
            return suspect
        spots = {p: locate_phrases(self.corpus.words[p].keys, {phrase: []})[phrase] for p in carriers}
        before = self._find_nearest(sampled, {})
        after = self._find_nearest(sampled, self._encode(spots))
        changes = [Change(p, before[p], near) for p, near in after.items() if near != before[p]]
        if not after:
            return suspect
        having = set(suspect.carriers)
        return replace(
            suspect,
            changed=len(changes) / len(after),
            attraction=float(np.mean([before[p] in having for p in after])),
            attraction_without=float(np.mean([near in having for near in after.values()])),
            changes=tuple(changes[:MAX_EXAMPLES]),
        )

    def _encode(self, masks: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Return the embeddings of texts without some of their words; texts of which nothing is left are missing."""
        items = {}
        for position, mask in masks.items():
            rest = self.corpus.words[position].remove(mask)
            if any(map(str.isalnum, rest)):
                with suppress(BilrpError):
                    items[position] = read_item(self.collection.encoder, rest, quiet=True)
        embeddings = BatchEncoder(self.collection.encoder).encode(list(items.values()))
        return {p: e.float().numpy() for p, e in zip(items, embeddings, strict=True) if isinstance(e, Tensor)}

    def _find_nearest(self, sampled: Sequence[int], changed: dict[int, np.ndarray]) -> dict[int, int]:
        """Return the nearest other item of each sampled one, where some items have other embeddings."""
        result = {}
        for position in sampled:
            if changed and position not in changed:
                continue
            own = changed[position] if changed else self.collection.embedding(position).numpy()
            scores = self.collection.items.scores(own, self.similarity)
            for p, row in changed.items():
                norm = np.linalg.norm(row) * np.linalg.norm(own) if self.similarity == "cosine" else 1.0
                scores[p] = row @ own / (norm or 1.0)
            scores[position] = -np.inf
            result[position] = int(scores.argmax())
        return result


def _share_kinds(corpus: _Corpus, sides: Sequence[_Side]) -> tuple[KindShare, ...]:
    """Return the shares of each kind of word, largest excess first."""
    shares: dict[WordKind, list[tuple[float, float]]] = {}
    for side in sides:
        labels = np.array(classify_words(corpus.words[side.position]))
        mass = np.abs(side.weights) / (np.abs(side.weights).sum() or 1.0)
        for kind in set(labels.tolist()):
            shares.setdefault(kind, []).append((mass[labels == kind].sum(), (labels == kind).mean()))
    totals = [
        KindShare(kind, *(float(value) for value in np.sum(rows, axis=0) / len(sides)))
        for kind, rows in shares.items()
    ]
    return tuple(sorted(totals, key=lambda each: each.area - each.share))


def _compare_traits(corpus: _Corpus, pairs: Sequence[tuple[int, int]]) -> tuple[TraitAgreement, ...]:
    """Compare length and language of neighbours with chance; languages only if the texts have several."""
    lengths = {p: len(words.keys) for p, words in corpus.words.items()}
    both = np.array(
        [[lengths[i], lengths[j]] for i, j in pairs] + [[lengths[j], lengths[i]] for i, j in pairs]
    )
    ranks = both[:, 0].argsort().argsort(), both[:, 1].argsort().argsort()
    varies = len(set(both[:, 0].tolist())) > 1
    correlation = float(np.corrcoef(*ranks)[0, 1]) if varies and len(pairs) > 2 else 0.0
    traits = [
        TraitAgreement("length", correlation, 0.0, correlation * float(np.sqrt(max(len(pairs) - 1, 0))))
    ]
    languages = {p: guess_language(words.text) for p, words in corpus.words.items()}
    fractions = {
        name: count / len(languages)
        for name in set(languages.values())
        if (count := sum(each == name for each in languages.values())) and name
    }
    if sum(fraction >= MIN_LANGUAGE_FRACTION for fraction in fractions.values()) > 1:
        known = [(i, j) for i, j in pairs if languages[i] and languages[j]]
        total = sum(fractions.values())
        chance = sum((fraction / total) ** 2 for fraction in fractions.values())
        agreement = float(np.mean([languages[i] == languages[j] for i, j in known])) if known else chance
        spread = float(np.sqrt(chance * (1 - chance) / max(len(known), 1))) or 1.0
        traits.append(TraitAgreement("language", agreement, chance, (agreement - chance) / spread))
    return tuple(traits)
