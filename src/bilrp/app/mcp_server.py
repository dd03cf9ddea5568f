"""A collection as tools of the Model Context Protocol: search, highlight, explain, contrast and audit, over stdio.

Answers have the shapes of `bilrp.answers`; the protocol's own schemas of inputs and outputs are made from the signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

import bilrp
from bilrp.answers.collections import build_audit, build_highlight, build_search
from bilrp.answers.explanations import build_contrast, build_explain
from bilrp.answers.shapes import (
    ContrastAnswer,
    ExplainAnswer,
    HighlightAnswer,
    ImageAuditAnswer,
    SearchAnswer,
    TextAuditAnswer,
)
from bilrp.encoders.text.reader import TextReader
from bilrp.errors import BilrpError, InputError
from bilrp.groups import contrast as contrast_sides

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from bilrp.collection import Collection
    from bilrp.decomposition import Decomposition

MAX_NEIGHBOURS = 50
MAX_HIGHLIGHTED = 24
MAX_PASSAGES = 24
MAX_CHARACTERS = 20_000  # of a text from a client
MAX_SAMPLE = 64

Query = Annotated[str, Field(max_length=MAX_CHARACTERS, description="An item's id or name, or a text.")]
Passages = Annotated[
    list[str], Field(min_length=1, max_length=MAX_PASSAGES, description="Ids of items, or texts.")
]
Count = Annotated[int, Field(ge=1, le=MAX_NEIGHBOURS, description="Number of neighbours.")]
Where = Annotated[
    str | None,
    Field(
        max_length=1000, description="A condition on the metadata, in SQL: \"lang = 'en' AND year > 2019\"."
    ),
]


class CollectionTools:
    """The tools on one collection. Inputs are ids, names or texts, never paths: no client has a file read."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def search(
        self, query: Query, k: Count = 10, where: Where = None, highlight: bool = False
    ) -> SearchAnswer:
        """Find the nearest items of a text or an item; with highlight=true also which words or regions make them similar."""
        if highlight and k > MAX_HIGHLIGHTED:
            raise InputError(f"at most {MAX_HIGHLIGHTED} neighbours are highlighted: give a smaller k")
        key = self._resolve(query)
        at = self.collection.position(key)
        neighbours = self.collection.nearest(key, k + (at is not None), where=where)
        neighbours = [n for n in neighbours if n.position != at][:k]
        highlights = self.collection.highlight(key, neighbours) if highlight and neighbours else ()
        similarity = self.collection.resolve_similarity(None)
        return build_search(self.collection, query, neighbours, similarity=similarity, highlights=highlights)

    def highlight(self, query: Query, passages: Passages) -> HighlightAnswer:
        """Weigh the words or regions of a query and of each passage by what they contribute to their similarity, exactly."""
        inputs = [self._read(each) for each in (query, *passages)]
        hits = bilrp.highlight(self.collection.encoder, inputs[0], inputs[1:])
        return build_highlight(self.collection.encoder.name, query, passages, hits)

    def explain(self, a: Query, b: Query) -> ExplainAnswer:
        """Explain why two items or texts are similar: which regions of the one match which of the other."""
        explanation = self.collection.explain(self._resolve(a), self._resolve(b))
        names = self._name(explanation.a, a), self._name(explanation.b, b)
        return build_explain(explanation, names=names, encoder=self.collection.encoder.name)

    def contrast(self, query: Query, got: Query, wanted: Query) -> ContrastAnswer:
        """Explain why a query is closer to one item or text than to another: "why this one, and not the right one?"."""
        sides = [self.collection.decomposition(self._resolve(each)) for each in (query, got, wanted)]
        names = [self._name(side, given) for side, given in zip(sides, (query, got, wanted), strict=True)]
        similarity = self.collection.resolve_similarity(None)
        return build_contrast(contrast_sides(*sides, similarity=similarity), names)

    def audit(
        self, sample: Annotated[int, Field(ge=3, le=MAX_SAMPLE, description="Items to look at.")] = 32
    ) -> ImageAuditAnswer | TextAuditAnswer:
        """Find what carries the similarity of near neighbours: shared phrases or areas of images. Takes minutes."""
        return build_audit(self.collection, self.collection.audit(sample=sample))

    def _resolve(self, query: str) -> str | int:
        """Return an item's id or position, or a text; a client's text is never read as a path."""
        if query in self.collection.items.by_id:
            return query
        positions = [n for n, name in enumerate(self.collection.names) if name == query]
        if len(positions) == 1:
            return positions[0]
        if not isinstance(self.collection.encoder.read, TextReader):
            raise InputError(
                f"{query[:80]!r} is not an item: give an id or a name of this collection of images"
            )
        if not query.strip():
            raise InputError("the text is empty")
        return query

    def _read(self, query: str) -> object:
        """Return what the encoder reads."""
        key = self._resolve(query)
        at = self.collection.position(key) if key != query or query in self.collection.items.by_id else None
        return query if at is None else self.collection.original_input(at)

    @staticmethod
    def _name(side: Decomposition, given: str) -> str:
        return side.name or " ".join(given.split())[:80]


def make_server(collection: Collection) -> MCPServer:
    """Return an MCP server with the tools on a collection."""
    from mcp.server import MCPServer

    tools = CollectionTools(collection)
    server = MCPServer(
        "bilrp",
        version=bilrp.__version__,
        instructions=(
            f"A collection of {len(collection)} items under the encoder {collection.description['encoder']}. search finds "
            "similar items, highlight and explain say which words or regions make two inputs similar, contrast why one is "
            "closer than another, audit what makes neighbours similar in the whole collection. Numbers are exact: weights "
            "and unattributed add up to the score."
        ),
        log_level="ERROR",
    )
    for method in (tools.search, tools.highlight, tools.explain, tools.contrast, tools.audit):
        server.add_tool(_report_errors(method), structured_output=True)
    return server


def _report_errors(method: Callable[..., object]) -> Callable[..., object]:
    """Return a tool whose errors reach the client as one line; the protocol hides others."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(method)
    def run(**arguments: object) -> object:
        try:
            return method(**arguments)
        except BilrpError as error:
            raise ToolError(str(error)) from None

    return run
