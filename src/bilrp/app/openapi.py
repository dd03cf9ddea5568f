"""The HTTP API as an OpenAPI 3.1 document, and as a page that a person reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import bilrp
from bilrp.answers.schema import load_components

DOCUMENT_PATH, PAGE_PATH = "/api/openapi.json", "/api"

AnswerKind: TypeAlias = Literal["json", "lines", "jpeg", "file", "html"]
Parameter: TypeAlias = tuple[str, str, str]  # name, type, what it is


@dataclass(frozen=True)
class Operation:
    """One route of the API.

    Args:
        method: get or post.
        path: with {parameters} as Starlette writes them.
        summary: what it does, one line.
        answer: name of the answer's schema; empty for files.
        request: name of the schema of the JSON body; empty without one.
        kind: "json" at once, or "lines" of JSON with progress, of which the last has the answer; or a file.
        query: parameters in the URL.
        body: media type of a body that is not JSON.
    """

    method: Literal["get", "post"]
    path: str
    summary: str
    answer: str = ""
    request: str = ""
    kind: AnswerKind = "json"
    query: Sequence[Parameter] = field(default=())
    body: str = ""


_PAGE: tuple[Parameter, ...] = (
    ("group", "string", "only items of this group"),
    ("words", "string", "only items that contain this, in their whole text or name"),
    ("filters", "string", "a list of conditions as JSON: see Condition"),
    ("offset", "integer", "number of the first item"),
    ("limit", "integer", "number of items"),
)
_PAIR: tuple[Parameter, ...] = (
    ("a", "string", "id of the first item"),
    ("b", "string", "id of the second"),
    ("similarity", "string", "cosine or dot"),
)
DOCUMENT_OPERATIONS = (
    Operation("get", DOCUMENT_PATH, "This API as an OpenAPI document."),
    Operation("get", PAGE_PATH, "This API as a page.", kind="html"),
)
COLLECTION_OPERATIONS = (
    Operation("get", "/api/about", "The collection: encoder, groups, columns of the metadata.", "AboutAnswer"),
    Operation("get", "/api/items", "A page of items.", "ItemsAnswer", query=_PAGE),
    Operation("get", "/api/items/{id}/thumbnail", "The small picture of an item.", kind="jpeg"),
    Operation("get", "/api/items/{id}/picture", "The picture of an item or query.", kind="jpeg"),
    Operation("get", "/api/items/{id}/text", "The whole text of an item or query, with its metadata.", "TextAnswer"),
    Operation("get", "/api/groups", "A group: typical and untypical items, the nearest ones outside.", "GroupAnswer",
              query=(("name", "string", "the group"),)),
    Operation("get", "/api/export/{kind}", "An explained pair as html, png, csv or json.", kind="file", query=_PAIR),
    Operation("post", "/api/query", "Bring a text or a picture; it gets an id and is not added to the collection.",
              "QueryAnswer", body="text/plain", query=(("name", "string", "a name to show"),)),
    Operation("post", "/api/search", "Nearest items of a text or an id, with their texts, metadata and highlights.",
              "SearchAnswer", "SearchRequest", "lines"),
    Operation("post", "/api/neighbours", "Nearest items of an item, of some of its regions, or of a group.",
              "NeighboursAnswer", "NeighboursRequest", "lines"),
    Operation("post", "/api/highlight", "What words or regions of an item and of its hits contribute, by one pull each.",
              "HighlightsAnswer", "HighlightRequest", "lines"),
    Operation("post", "/api/side", "An item with its regions.", "SideAnswer", "ItemRequest", "lines"),
    Operation("post", "/api/heat", "What each region of an item shares with others, from its parts.", "HeatAnswer",
              "HeatRequest", "lines"),
    Operation("post", "/api/explain", "Why two items are similar: the answer of bilrp explain --json.", "ExplainAnswer",
              "PairRequest", "lines"),
    Operation("post", "/api/pair", "Why two items are similar: what the page draws.", "", "PairRequest", "lines"),
    Operation("post", "/api/contrast", "Why an item is closer to one item or group than to another.",
              "GroupContrastAnswer", "ContrastRequest", "lines"),
    Operation("post", "/api/cover", "The score where regions of a are covered: predicted and measured.", "CoverAnswer",
              "CoverRequest", "lines"),
    Operation("post", "/api/map", "Places of all items in two dimensions.", "MapAnswer", "NoContent", "lines"),
    Operation("post", "/api/audit", "What carries the similarity of near neighbours.", "", "NoContent", "lines"),
    Operation("post", "/api/repair", "The repair of a suspect of the audit, with its measured effect.", "RepairAnswer",
              "RepairRequest", "lines"),
    Operation("post", "/api/repair/neighbours", "Nearest items of an item, as it is and repaired.",
              "RepairNeighboursAnswer", "RepairNeighboursRequest", "lines"),
    Operation("post", "/api/repair/heat", "What each region of an item shares with others, as it is or repaired.",
              "RepairHeatAnswer", "RepairHeatRequest", "lines"),
    Operation("post", "/api/add", "Add a query to the collection, if the server allows it.", "AddAnswer", "ItemRequest",
              "lines"),
)  # fmt: skip
PAIR_OPERATIONS = (
    Operation("get", "/api/about", "The pair and the choices of each setting.", "PairAboutAnswer"),
    Operation("post", "/api/plan", "The cost of an explanation with these settings.", "PlanAnswer", "LiveRequest", "lines"),
    Operation("post", "/api/live", "Explain the pair with these settings.", "", "LiveRequest", "lines"),
)  # fmt: skip

MEDIA_TYPES: dict[AnswerKind, str] = {
    "json": "application/json", "lines": "application/x-ndjson", "jpeg": "image/jpeg",
    "file": "application/octet-stream", "html": "text/html",
}  # fmt: skip
LINES_NOTE = (
    "Answers of kind application/x-ndjson are lines of JSON: first any number of Progress, then one line {answer} or an "
    "ErrorAnswer."
)


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _describe_answer(operation: Operation) -> dict[str, Any]:
    if operation.kind not in ("json", "lines"):
        return {"type": "string", "format": "binary"}
    answer = _reference(operation.answer) if operation.answer else {}
    if operation.kind == "json":
        return answer or {"type": "object"}
    line = {"type": "object", "required": ["answer"], "properties": {"answer": answer}}
    return {"anyOf": [line, _reference("ErrorAnswer"), _reference("Progress")]}


def _describe_operation(operation: Operation) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [
        {"name": name, "in": "query", "schema": {"type": kind}, "description": text}
        for name, kind, text in operation.query
    ]
    described: dict[str, Any] = {
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_').replace('.', '_')}".translate(
            {ord("{"): None, ord("}"): None}
        ),
        "summary": operation.summary,
        "responses": {
            "200": {
                "description": "the answer",
                "content": {MEDIA_TYPES[operation.kind]: {"schema": _describe_answer(operation)}},
            },
            "default": {
                "description": "what is wrong, in one line; 503 with Retry-After if the server is busy",
                "content": {"application/json": {"schema": _reference("ErrorAnswer")}},
            },
        },
    }
    if parameters:
        described["parameters"] = parameters
    content = {}
    if operation.request:
        content["application/json"] = {"schema": _reference(operation.request)}
    if operation.body:
        content |= {operation.body: {"schema": {"type": "string"}}, "image/*": {"schema": {}}}
    if content:
        described["requestBody"] = {"required": True, "content": content}
    return described


def build_document(operations: Iterable[Operation], *, has_token: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document of some operations.

    Args:
        operations: the routes of a server.
        has_token: requests need a token.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in (*operations, *DOCUMENT_OPERATIONS):
        paths.setdefault(operation.path, {})[operation.method] = _describe_operation(operation)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "bilrp serve", "version": bilrp.__version__, "description": LINES_NOTE},
        "paths": paths,
        "components": {"schemas": load_components()},
    }
    if has_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def render_page(document: dict[str, Any]) -> str:
    """Return the document as a page without scripts or anything from elsewhere."""
    sections = [
        _render_operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    shapes = [
        f'<section id="{escape(name)}"><h3>{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>'
        f"{_render_properties(schema)}</section>"
        for name, schema in document["components"]["schemas"].items()
    ]
    info = document["info"]
    token = (
        "<p>Send the token as <code>Authorization: Bearer TOKEN</code>.</p>" if "security" in document else ""
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>HTTP API · bilrp</title>'
        '<link rel="icon" href="/web/icon.svg"><link rel="stylesheet" href="/web/reference.css"></head><body><main>'
        f"<h1>HTTP API of bilrp serve {escape(info['version'])}</h1><p>{escape(info['description'])}</p>{token}"
        f'<p><a href="{DOCUMENT_PATH}">OpenAPI document</a> · <a href="/">the app</a></p>'
        f"{''.join(sections)}<h2>Shapes</h2>{''.join(shapes)}</main></body></html>"
    )


def _render_operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{each['schema'].get('type', '')}</td>"
        f"<td>{escape(each.get('description', 'in the path'))}</td></tr>"
        for each in operation.get("parameters", [])
    ]
    table = f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else ""
    body = operation.get("requestBody", {}).get("content", {})
    asked = "".join(
        f"<p>Send <code>{escape(kind)}</code> {_name_schema(content['schema'])}</p>"
        for kind, content in body.items()
    )
    ((kind, content),) = operation["responses"]["200"]["content"].items()
    return (
        f"<section><h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
        f"{table}{asked}<p>Returns <code>{escape(kind)}</code> {_name_schema(content['schema'])}</p></section>"
    )


def _name_schema(schema: dict[str, Any]) -> str:
    """Return the names of the schemas in a schema as links, else its type."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        return f'<a href="#{name}">{name}</a>'
    if "const" in schema or "enum" in schema:
        return escape(" | ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")])))
    if "anyOf" in schema:
        return " | ".join(_name_schema(each) for each in schema["anyOf"])
    if "answer" in schema.get("properties", {}):
        return f"{{answer: {_name_schema(schema['properties']['answer']) or 'object'}}}"
    if schema.get("type") == "array":
        return f"list of {_name_schema(schema.get('items', {}))}"
    return escape(str(schema.get("format", schema.get("type", ""))))


def _render_properties(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' <i>optional</i>'}</td>"
        f"<td>{_name_schema(each)}</td><td>{escape(each.get('description', ''))}</td></tr>"
        for name, each in schema.get("properties", {}).items()
    ]
    return f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else f"<p>{_name_schema(schema)}</p>"


def make_document_routes(operations: Sequence[Operation], *, has_token: bool) -> list[Route]:
    """Return the routes of the document and of its page.

    Args:
        operations, has_token: as for `build_document`.
    """

    async def serve_document(request: Request) -> Response:
        return JSONResponse(build_document(operations, has_token=has_token))

    async def serve_page(request: Request) -> Response:
        return Response(render_page(build_document(operations, has_token=has_token)), media_type="text/html")

    return [Route(DOCUMENT_PATH, serve_document), Route(PAGE_PATH, serve_page)]
