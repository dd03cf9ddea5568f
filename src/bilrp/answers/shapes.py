"""The JSON type of each answer. Every answer names its schema; an incompatible change raises its version.

Additional keys keep the version, so a reader ignores keys that it does not know. NaN and infinities are null.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

# Of torch's own requirements; pydantic, which makes the schemas, reads no other before Python 3.12.
from typing_extensions import TypedDict

Scalar: TypeAlias = str | int | float | bool | None


class Span(TypedDict):
    """Characters [start, end) of a text, counted in code points, and what they contribute to the score."""

    start: int
    end: int
    text: str
    weight: float


class Box(TypedDict):
    """A rectangle in pixels of the model's input."""

    top: int
    left: int
    bottom: int
    right: int


class Region(TypedDict):
    """A region of an input: characters of a text, a rectangle of an image, or neither."""

    region: int
    """Its number; findings, matches and differences refer to it."""
    contribution: NotRequired[float]
    """What it contributes to the score, summed over the regions of the other input."""
    start: NotRequired[int]
    end: NotRequired[int]
    text: NotRequired[str]
    box: NotRequired[Box]


class Side(TypedDict):
    """One input with its regions."""

    name: str
    kind: Literal["text", "image", "tensor"]
    text: NotRequired[str]
    """The whole text."""
    size: NotRequired[list[int]]
    """Width and height of the image file in pixels."""
    regions: list[Region]


class Finding(TypedDict):
    """A group of neighbouring regions of a that matches one of b."""

    a: list[int]
    b: list[int]
    relevance: float
    share: float | None
    """Of the score, or of what is specific to these two; null near zero."""
    label: str
    reliability: float | None
    """How far the regions can be trusted, from 0 to 1; null if it was not measured."""
    unreliable: bool


class Difference(TypedDict):
    """A group of regions of one input that sets the two apart."""

    side: Literal["a", "b"]
    regions: list[int]
    contribution: float
    share: float
    matched: bool
    label: str


class SquaredDistance(TypedDict):
    value: float
    unattributed: float
    normalized: bool


class Covered(TypedDict):
    """The score of the model where a finding is covered in one input."""

    finding: int
    without_a: float | None
    without_b: float | None


class MatchedRegion(TypedDict):
    region: int
    place: str
    box: NotRequired[Box]
    name: NotRequired[str]


class RegionMatch(TypedDict):
    a: MatchedRegion
    b: MatchedRegion
    relevance: float


class NumberMatch(TypedDict):
    """Numbers of a scanned table that both pages have; places are [top, left, bottom, right]."""

    numbers: list[str]
    direction: str
    a: list[int]
    b: list[int]
    places_a: list[list[int]]
    places_b: list[list[int]]
    relevance: float
    share: float | None


class Terms(TypedDict):
    """score = explained + unattributed (+ self_terms), and where in both inputs it comes from."""

    a: str
    b: str
    encoder: str
    similarity: str
    score: float
    unweighted_score: float | None
    """The score of all regions alike, where regions are weighed by their reliability; else null."""
    estimate: bool
    """Of a random projection: the score and all numbers are estimates."""
    summary: str
    verdict: str
    share_of: str
    """What shares are of, in words."""
    sides: list[Side]
    """Both inputs with their regions and what each contributes."""
    findings: list[Finding]
    squared_distance: SquaredDistance | None
    differences: list[Difference]
    differs_most: str
    differs_lead: str
    covered: list[Covered]
    checked: str
    numbers: NotRequired[list[NumberMatch]]
    number_blocks: NotRequired[list[NumberMatch]]
    warnings: list[str]
    explained: float
    """Sum of the relevance of all pairs of regions."""
    unattributed: float
    near_zero: bool
    """The score is so small that shares of it mean nothing; they are null."""
    positive_share: float | None
    negative_share: float | None
    explained_share: float | None
    shared: float | None
    """What any two inputs share, where the rules are centered; part of `unattributed`."""
    specific: float
    unattributed_share: float | None
    special_tokens: float
    special_tokens_share: float | None
    self_terms: float
    reference_terms: list[float] | None
    reference_score: float | None
    positive: float
    negative: float
    closed: bool
    """The terms add up to the score, to rounding."""
    regions: list[int]
    """Number of regions of a and of b."""
    top: list[RegionMatch]
    plan: str | None
    seconds: float | None
    outputs: NotRequired[list[str]]


class ExplainAnswer(Terms):
    """`bilrp explain A B --json` and `bilrp show FILE --json`."""

    schema: Literal["bilrp/explain/1"]


class ExamplePair(TypedDict):
    a: str
    b: str
    score: float
    summary: str


class SetsAnswer(Terms):
    """`bilrp sets A B --json`: the terms of the sum over all pairs of two sets, and the score of each pair."""

    schema: Literal["bilrp/sets/1"]
    mean: float
    scores: list[list[float]]
    examples: list[ExamplePair]


class BriefExplanation(TypedDict):
    heading: str
    score: float
    summary: str
    a: str
    b: str
    unattributed: float
    findings: list[Finding]


class ExplainManyAnswer(TypedDict):
    """`bilrp explain A B C --json`: every pair."""

    schema: Literal["bilrp/explain-many/1"]
    summary: str | None
    explanations: list[BriefExplanation]
    outputs: list[str]


class HighlightRow(TypedDict):
    """score = Σ weights of `passage` + unattributed = Σ weights of `query` + query_unattributed."""

    score: float
    similarity: str
    unattributed: float
    query_unattributed: float
    query: list[Span]
    """Words of the query; empty for an image, which has `query_values`."""
    passage: list[Span]
    """Words of the passage; empty for an image, which has `values`."""
    query_values: NotRequired[list[float]]
    values: NotRequired[list[float]]
    matrix: NotRequired[list[list[float]]]
    """Relevance of each word of the query with each word of the passage, if asked for."""


class PassageHighlight(HighlightRow):
    source: str
    """The argument: a text, or the name of a file."""


class HighlightAnswer(TypedDict):
    """`bilrp highlight QUERY PASSAGE… --json`."""

    schema: Literal["bilrp/highlight/1"]
    encoder: str
    text: str
    """The query."""
    highlights: list[PassageHighlight]


class Neighbour(TypedDict):
    id: str
    name: str
    score: float
    text: str | None
    """The whole text; null for an image."""
    group: str
    metadata: dict[str, Scalar]
    summary: NotRequired[str]
    findings: NotRequired[list[Finding]]
    highlight: NotRequired[HighlightRow]


class Recall(TypedDict):
    recall: float
    of: str
    k: int


class SearchAnswer(TypedDict):
    """`bilrp search NAME.lance QUERY --json`."""

    schema: Literal["bilrp/search/1"]
    collection: str
    query: str
    similarity: str
    regions: list[int] | None
    """Regions of the query that were searched by, or left out; null: the whole query."""
    recall: float | None
    measured: Recall | None
    exact: str | None
    """Why the search was exact, if an approximate one was asked for."""
    neighbours: list[Neighbour]


class Contributions(TypedDict):
    """What each region of a, b and c contributes to the score; what favours c is negative."""

    a: list[float]
    b: list[float]
    c: list[float]


class ContrastExplanation(TypedDict):
    heading: str
    score: float
    summary: str
    findings: list[Finding]


class ContrastAnswer(TypedDict):
    """`bilrp contrast A B C --json`: score = y(a, b) − y(a, c)."""

    schema: Literal["bilrp/contrast/1"]
    summary: str
    similarity: str
    score: float
    unattributed: float
    contributions: Contributions
    sides: list[Side]
    """The three inputs with their regions and contributions."""
    explanations: list[ContrastExplanation]
    outputs: list[str]


class ImageSuspect(TypedDict):
    """An image area that may be a shortcut."""

    kind: Literal["alike", "border", "corners"]
    where: str
    share: float
    """Of the relevance."""
    area: float
    """Of the picture."""
    pairs: int
    carriers: list[str]
    """Ids of the items that show it."""
    changed: float | None
    """Fraction of the sampled carriers that get another nearest neighbour without it."""
    attraction: float | None
    """Share of the nearest items of carriers that are carriers; None for borders and corners."""
    chance: float | None
    """The same of other items."""
    mask: list[list[int]]
    """Cells of a grid over the picture, row by row: 1 inside the area."""


class Change(TypedDict):
    """An item that gets another nearest neighbour: ids."""

    item: str
    before: str
    after: str


class Phrase(TypedDict):
    """A phrase that near neighbours share."""

    kind: Literal["boilerplate", "heading", "name", "words"]
    phrase: str
    share: float
    """Of the relevance."""
    area: float
    """Of the words."""
    contribution: float
    """To the score, mean of the pairs."""
    pairs: int
    carriers: list[str]
    """Ids of the items that have it."""
    changed: float | None
    """Fraction of the sampled carriers that get another nearest neighbour where carriers lose it."""
    attraction: float | None
    """Fraction of the sampled carriers whose nearest neighbour has it too."""
    attraction_without: float | None
    """The same where carriers lose it."""
    chance: float
    """Fraction of all items that have it."""
    suspect: bool
    changes: list[Change]


class WordKindShare(TypedDict):
    kind: Literal["heading", "code", "name", "number", "function", "other"]
    share: float
    area: float


class Trait(TypedDict):
    """Agreement of neighbours in length (rank correlation) or language (fraction of pairs), and that of chance."""

    trait: Literal["length", "language"]
    agreement: float
    chance: float
    deviations: float


class RepairRow(TypedDict):
    """The repair that a suspect gets, with its measured effect, or why there is none."""

    suspect: int
    """Its number, from 1."""
    proposed: bool
    report: dict[str, Any] | None
    refusal: str


class ImageAuditAnswer(TypedDict):
    """`bilrp audit NAME.lance --json` of images."""

    schema: Literal["bilrp/audit/1"]
    kind: Literal["image"]
    collection: str
    items: int
    pairs: int
    unattributed: float
    suspects: list[ImageSuspect]
    repairs: NotRequired[list[RepairRow]]


class TextAuditAnswer(TypedDict):
    """`bilrp audit NAME.lance --json` of texts."""

    schema: Literal["bilrp/audit/1"]
    kind: Literal["text"]
    collection: str
    items: int
    pairs: int
    unattributed: float
    suspects: list[Phrase]
    phrases: list[Phrase]
    """All ranked phrases, suspects included."""
    kinds: list[WordKindShare]
    traits: list[Trait]
    repairs: NotRequired[list[RepairRow]]


AuditAnswer: TypeAlias = ImageAuditAnswer | TextAuditAnswer

ANSWERS: dict[str, Any] = {
    "explain": ExplainAnswer,
    "explain-many": ExplainManyAnswer,
    "sets": SetsAnswer,
    "highlight": HighlightAnswer,
    "search": SearchAnswer,
    "contrast": ContrastAnswer,
    "audit": AuditAnswer,
}
"""The shape of each answer, by the middle part of its schema's name."""
