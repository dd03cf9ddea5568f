"""A collection as tools of the Model Context Protocol, asked by the SDK's own client."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import jsonschema
import pytest

pytest.importorskip("mcp", reason="tools need bilrp[mcp]")
from mcp import Client, StdioServerParameters, stdio_client

from bilrp.answers.schema import load_schema
from bilrp.app import mcp_server

TOOLS = {"search", "highlight", "explain", "contrast", "audit"}


def ask(transport: Any, work: Callable[[Client], Any]) -> Any:
    """Connect a client, and return what `work` returns."""

    async def run() -> Any:
        async with Client(transport) as client:
            return await work(client)

    with ThreadPoolExecutor(1) as pool:  # this thread may already run an event loop
        return pool.submit(anyio.run, run).result()


def call(collection: Any, tool: str, **arguments: Any) -> Any:
    return ask(mcp_server.make_server(collection), lambda client: client.call_tool(tool, arguments))


def validate(name: str, answer: Any) -> None:
    jsonschema.Draft202012Validator(load_schema(name)).validate(answer)


def test_the_tools_say_what_they_take_and_return(texts) -> None:
    listed = ask(mcp_server.make_server(texts), lambda client: client.list_tools())
    tools = {tool.name: tool for tool in listed.tools}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.description and tool.input_schema["properties"] and tool.output_schema


def test_answers_are_those_of_the_commands(texts) -> None:
    result = call(texts, "search", query="The kittens.", k=2, highlight=True).structured_content
    validate("search", result)
    assert len(result["neighbours"]) == 2 and result["neighbours"][0]["highlight"]["passage"]
    own = call(texts, "search", query=texts.ids[0]).structured_content
    assert texts.ids[0] not in {n["id"] for n in own["neighbours"]}
    hits = call(
        texts, "highlight", query=texts.ids[0], passages=["Two dogs.", texts.ids[1]]
    ).structured_content
    validate("highlight", hits)
    assert hits["highlights"][1]["passage"][1]["text"] == "kittens"
    explained = call(texts, "explain", a=texts.ids[0], b="Two dogs sat.").structured_content
    validate("explain", explained)
    assert explained["score"] == pytest.approx(texts.explain(0, "Two dogs sat.").score, abs=1e-6)
    contrast = call(
        texts, "contrast", query="The cat.", got=texts.ids[1], wanted=texts.ids[2]
    ).structured_content
    validate("contrast", contrast)
    audit = call(texts, "audit", sample=3).structured_content
    validate("audit", audit.get("result", audit))


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"query": "  "}, "empty"),
        ("search", {"query": "A cat.", "k": 1000}, "50"),
        ("search", {"query": "A cat.", "k": 40, "highlight": True}, "smaller k"),
        ("search", {"query": "A cat.", "where": "nothing = 1"}, "condition"),
        ("search", {"query": "x" * 20_001}, "20000"),
        ("highlight", {"query": "A cat.", "passages": []}, "passages"),
    ],
)
def test_bad_arguments_return_errors(texts, tool: str, arguments: dict[str, Any], message: str) -> None:
    result = call(texts, tool, **arguments)
    assert result.is_error and message in result.content[0].text


def test_a_path_is_not_an_input_of_a_collection_of_pictures(photographs, folder) -> None:
    path = str(next(folder.rglob("*.jpg")))
    result = call(photographs, "search", query=path)
    assert result.is_error and "is not an item" in result.content[0].text
    result = call(photographs, "search", query=photographs.ids[0], k=2).structured_content
    assert result["neighbours"][0]["text"] is None
    heat = call(
        photographs, "highlight", query=photographs.ids[0], passages=[photographs.ids[1]]
    ).structured_content
    validate("highlight", heat)
    assert heat["highlights"][0]["values"]


@pytest.mark.slow
def test_the_command_serves_over_standard_input_and_output(texts) -> None:
    encoder = texts.encoder.name
    arguments = ["-m", "bilrp", "serve", texts.path, "-e", encoder, "--mcp"]
    transport = stdio_client(StdioServerParameters(command=sys.executable, args=arguments))
    answer = ask(transport, lambda client: client.call_tool("search", {"query": "The cat.", "k": 1}))
    validate("search", answer.structured_content)
