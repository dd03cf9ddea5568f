"""The shapes of requests to the HTTP API of `bilrp serve`, and of its answers that no command prints."""

from __future__ import annotations

from typing import Literal, NotRequired

# As in `shapes`: pydantic reads no other before Python 3.12.
from typing_extensions import TypedDict

from bilrp.answers.shapes import AuditAnswer, HighlightRow, RepairRow, Scalar, SearchAnswer

SimilarityName = Literal["cosine", "dot"]

__all__ = ["AuditAnswer", "SearchAnswer"]  # used as they are


class NoContent(TypedDict):
    """An empty object."""


class Target(TypedDict):
    """An item, only some of its regions, all but some, or the mean of a group."""

    id: NotRequired[str]
    part: NotRequired[list[int]]
    """Only these regions."""
    without: NotRequired[list[int]]
    """All but these regions."""
    group: NotRequired[str]
    """In place of an item."""


class ItemRequest(TypedDict):
    id: str


class PairRequest(TypedDict):
    a: str
    b: str
    similarity: NotRequired[SimilarityName]


class CoverRequest(PairRequest):
    regions: list[int]
    """Regions of a that are set to zero."""


class Condition(TypedDict):
    """A condition on a column of the metadata."""

    column: str
    """Its name; "group" is the group."""
    op: Literal["=", "!=", "<", "<=", ">", ">=", "contains"]
    value: Scalar


class NeighboursRequest(Target):
    k: NotRequired[int]
    similarity: NotRequired[SimilarityName]
    filters: NotRequired[list[Condition]]
    """All of them hold."""


class SearchRequest(TypedDict):
    """A text, or the id of an item or query."""

    text: NotRequired[str]
    id: NotRequired[str]
    k: NotRequired[int]
    similarity: NotRequired[SimilarityName]
    filters: NotRequired[list[Condition]]
    highlight: NotRequired[bool]
    """Also weigh the words or regions of the query and of each neighbour."""


class HeatRequest(TypedDict):
    id: str
    against: list[Target]
    similarity: NotRequired[SimilarityName]


class HighlightRequest(TypedDict):
    id: str
    hits: list[str]
    """Ids of items."""
    similarity: NotRequired[SimilarityName]


class ContrastRequest(TypedDict):
    id: str
    first: Target
    second: Target
    similarity: NotRequired[SimilarityName]


class RepairRequest(TypedDict):
    suspect: int
    """Its number in the audit, from 1."""


class RepairNeighboursRequest(RepairRequest):
    id: str
    k: NotRequired[int]


class RepairHeatRequest(RepairRequest):
    id: str
    against: list[str]
    repaired: NotRequired[bool]


class LiveRequest(TypedDict):
    layers: NotRequired[list[int]]
    rules: NotRequired[str]
    similarity: NotRequired[str]
    regions: NotRequired[str]


class ErrorAnswer(TypedDict):
    error: str
    """One line that says what to do."""
    status: NotRequired[int]


class Progress(TypedDict):
    """A line before the answer, while it is computed."""

    waiting: NotRequired[int]
    """Requests before this one."""
    what: NotRequired[str]
    done: NotRequired[int]
    total: NotRequired[int]


class GroupCount(TypedDict):
    name: str
    count: int


class Column(TypedDict):
    name: str
    type: Literal["bool", "int64", "double", "string"]
    values: list[str]
    """All values, if it is a column of few texts; else empty."""


class AboutAnswer(TypedDict):
    name: str
    count: int
    kind: Literal["text", "image"]
    encoder: str
    rules: str
    similarity: SimilarityName
    width: int
    groups: list[GroupCount]
    columns: list[Column]
    failed: int
    adds: bool
    exports: list[list[str]]
    """Formats that a pair can be saved as, each with a label."""


class Choices(TypedDict):
    layers: list[int]
    rules: list[str]
    similarity: list[str]
    regions: list[str]
    region: str


class PairAboutAnswer(TypedDict):
    live: Literal[True]
    name: str
    encoder: str
    kind: Literal["pair"]
    choices: Choices


class Label(TypedDict):
    id: str
    name: str
    group: str


class ScoredLabel(Label):
    score: float


class ItemsAnswer(TypedDict):
    total: int
    offset: int
    items: list[Label]


class TextAnswer(Label):
    text: str
    """The whole text, as it was indexed."""
    metadata: dict[str, Scalar]


class NeighbourLabel(ScoredLabel):
    text: NotRequired[str]
    """The text of a text, up to 20,000 characters."""


class NeighboursAnswer(TypedDict):
    id: str
    neighbours: list[NeighbourLabel]
    of: int


class SideAnswer(Label):
    """An item with its regions, as pages draw it; further keys depend on its kind."""

    count: int


class HeatAnswer(TypedDict):
    id: str
    side: SideAnswer
    values: list[float]
    score: float
    unattributed: float


class HitHighlight(HighlightRow):
    id: str
    name: str
    text: str | None


class HighlightsAnswer(TypedDict):
    id: str
    text: str | None
    highlights: list[HitHighlight]


class ContrastSide(TypedDict):
    name: str
    score: float
    count: int


class GroupContrastAnswer(HeatAnswer):
    each: list[list[float]]
    sides: list[ContrastSide]


class GroupAnswer(TypedDict):
    name: str
    count: int
    inside: float
    outside: float | None
    typical: list[ScoredLabel]
    untypical: list[ScoredLabel]
    near: list[ScoredLabel]


class CoverAnswer(TypedDict):
    a: str
    b: str
    regions: int
    similarity: SimilarityName
    before: float
    predicted: float
    true: float


class MapCluster(TypedDict):
    x: float
    y: float
    count: int
    stability: float | None
    """Mean overlap with the most similar cluster of resampled items: above 0.75 stable, below 0.5 it dissolves."""
    text: str
    """What sets a typical text apart from the nearest cluster, or the group of most of its pictures."""
    typical: Label


class MapAnswer(TypedDict):
    by: str
    holds: float
    places: str
    """x, y of each item as little-endian float32, in base64."""
    clusters: list[MapCluster]


class RepairAnswer(RepairRow):
    where: str
    examples: list[Label]
    label: str
    count: int
    of: int


class RepairedLabel(ScoredLabel):
    has: bool
    """It has the part."""


class RepairNeighboursAnswer(TypedDict):
    before: list[RepairedLabel]
    after: list[RepairedLabel]


class RepairHeatAnswer(HeatAnswer):
    repaired: bool


class QueryAnswer(TypedDict):
    id: str
    name: str


class AddAnswer(TypedDict):
    id: str
    new: bool


class PlanAnswer(TypedDict):
    gflop: float
    seconds: float
