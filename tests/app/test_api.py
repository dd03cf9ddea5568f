"""The HTTP API: every route is documented, answers have the documented shapes, and filters reach the metadata only."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate
from server_helpers import PORT, make_client, post_query, tiny_encoder
from starlette.routing import Route

from bilrp import collection
from bilrp.answers.schema import load_schema
from bilrp.app import openapi, pair_session, routes
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import ThreadLimiter
from bilrp.app.security import AccessPolicy
from bilrp.encoder import read_item


@pytest.fixture(scope="module")
def notes(texts, tmp_path_factory) -> collection.Collection:
    """Texts with metadata, by the small BERT."""
    records = [
        {"text": "The cat sat.", "lang": "en", "year": 2018, "group": "one"},
        {"text": "Two kittens rested.", "lang": "en", "year": 2020, "group": "one"},
        {"text": "A dog sat; it's 100% `here`_%.", "lang": "de", "year": 2021, "group": "two"},
        {"text": "# It rains\n\n**Stay** in! 猫 👩‍🔬 end", "lang": "de", "year": 2022, "group": "two"},
    ]
    return collection.build(records, texts.encoder, tmp_path_factory.mktemp("notes") / "notes.lance")


def check_shape(document: dict[str, Any], name: str, value: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi.build_document(openapi.COLLECTION_OPERATIONS)


def list_routes(table: list[Route]) -> set[tuple[str, str]]:
    """(method, path) of every route of the API."""
    return {
        (method.lower(), route.path.replace(":path", ""))
        for route in table
        for method in route.methods or ()
        if route.path.startswith("/api") and method != "HEAD"
    }


def test_the_document_is_valid_and_has_every_route(photographs, document) -> None:
    validate(document)
    handlers = routes.CollectionRoutes(CollectionSession(photographs), JobQueue(), ThreadLimiter())
    own = openapi.make_document_routes(openapi.COLLECTION_OPERATIONS, has_token=False)
    served = list_routes([*handlers.make_routes(), *own])
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert served == described


def test_the_document_of_a_pair_has_every_route(folder) -> None:
    encoder = tiny_encoder()
    a, b = (read_item(encoder, path) for path in sorted(folder.rglob("*.jpg"))[:2])
    session = pair_session.PairSession(encoder, a, b)
    document = openapi.build_document(openapi.PAIR_OPERATIONS, has_token=True)
    validate(document)
    served = list_routes(pair_session.make_routes(session, JobQueue(), ThreadLimiter()))
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described - served == {("get", "/api/openapi.json"), ("get", "/api")} and served <= described
    assert document["security"] == [{"token": []}]


def test_the_document_and_its_page_are_served_without_anything_from_elsewhere(photographs) -> None:
    with make_client(photographs) as client:
        assert client.get("/api/openapi.json").json()["openapi"] == "3.1.0"
        page = client.get("/api").text
    assert "/api/neighbours" in page and "NeighboursAnswer" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    with make_client(photographs, policy=AccessPolicy(PORT, token="secret")) as client:
        assert client.get("/api/openapi.json").status_code == 401


def test_answers_have_the_documented_shapes(notes, document) -> None:
    a, b, _, d = notes.ids
    with make_client(notes) as client:
        check_shape(document, "AboutAnswer", client.get("/api/about").json())
        check_shape(document, "ItemsAnswer", client.get("/api/items").json())
        check_shape(document, "GroupAnswer", client.get("/api/groups?name=one").json())
        text = client.get(f"/api/items/{d}/text").json()
        check_shape(document, "TextAnswer", text)
        assert text["text"].startswith("# It rains") and text["metadata"] == {"lang": "de", "year": 2022}
        questions = {
            "NeighboursAnswer": ("/api/neighbours", {"id": a}),
            "HighlightsAnswer": ("/api/highlight", {"id": a, "hits": [b, d]}),
            "SideAnswer": ("/api/side", {"id": a}),
            "HeatAnswer": ("/api/heat", {"id": a, "against": [{"id": b}]}),
            "GroupContrastAnswer": (
                "/api/contrast",
                {"id": a, "first": {"id": b}, "second": {"group": "two"}},
            ),
            "CoverAnswer": ("/api/cover", {"a": a, "b": b, "regions": [1]}),
            "MapAnswer": ("/api/map", {}),
            "ExplainAnswer": ("/api/explain", {"a": a, "b": b}),
        }
        for name, (path, question) in questions.items():
            check_shape(document, name, post_query(client, path, **question))
        hits = post_query(client, "/api/highlight", id=a, hits=[d])["highlights"][0]
        assert all(hits["text"][s["start"] : s["end"]] == s["text"] for s in hits["passage"])
        search = post_query(client, "/api/search", text="A cat rests.", k=2, highlight=True)
    jsonschema.Draft202012Validator(load_schema("search")).validate(search)
    assert len(search["neighbours"]) == 2 and search["collection"] == "notes.lance"
    assert search["neighbours"][0]["highlight"]["score"] == pytest.approx(
        search["neighbours"][0]["score"], abs=1e-5
    )


def test_words_are_found_in_the_whole_text(notes) -> None:
    with make_client(notes) as client:

        def find(words: str) -> list[str]:
            items = client.get("/api/items", params={"words": words}).json()["items"]
            return [item["id"] for item in items]

        assert find("KITTENS") == [notes.ids[1]] and find("stay") == [notes.ids[3]]
        assert find("it's 100%") == [notes.ids[2]] and find("_%") == [notes.ids[2]] and find("%'") == []
        assert len(find("sat")) == 2 and find("' OR 1=1 --") == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([{"column": "lang", "op": "=", "value": "en"}], [0, 1]),
        ([{"column": "year", "op": ">", "value": 2018}, {"column": "lang", "op": "!=", "value": "de"}], [1]),
        ([{"column": "group", "op": "=", "value": "two"}], [2, 3]),
        ([{"column": "lang", "op": "contains", "value": "E"}], [0, 1, 2, 3]),
        ([{"column": "lang", "op": "=", "value": "' OR 1=1 --"}], []),
        ([{"column": "lang", "op": "!=", "value": None}], [0, 1, 2, 3]),
    ],
)
def test_filters_by_metadata(notes, filters: list[Any], expected: list[int]) -> None:
    ids = [notes.ids[n] for n in expected]
    with make_client(notes) as client:
        items = client.get("/api/items", params={"filters": json.dumps(filters)}).json()["items"]
        near = post_query(client, "/api/neighbours", id=notes.ids[0], filters=filters)["neighbours"]
        search = post_query(client, "/api/search", id=notes.ids[0], filters=filters)["neighbours"]
    assert [item["id"] for item in items] == ids
    assert {n["id"] for n in near} == {n["id"] for n in search} == set(ids) - {notes.ids[0]}


@pytest.mark.parametrize(
    "filters",
    [
        "lang = 'en'", [1], [{}], [{"column": "id", "op": "=", "value": "x"}],
        [{"column": "source", "op": "=", "value": "x"}],
        [{"column": "lang", "op": "LIKE", "value": "x"}], [{"column": "year", "op": "=", "value": "2018"}],
        [{"column": "year", "op": ">", "value": 1e300}], [{"column": "year", "op": "contains", "value": "2"}],
        [{"column": "lang", "op": "=", "value": "x" * 2000}], [{"column": "lang", "op": "=", "value": "x"}] * 17,
        [{"column": "lang` = 'en' OR `lang", "op": "=", "value": "x"}], [{"column": "lang", "op": ">", "value": None}],
    ],
)  # fmt: skip
def test_filters_that_are_refused(notes, filters: Any) -> None:
    with make_client(notes) as client:
        for path in ("/api/neighbours", "/api/search"):
            reply = client.post(path, json={"id": notes.ids[0], "filters": filters})
            assert reply.status_code == 422 and "error" in reply.json(), reply.text
        assert client.get("/api/items", params={"filters": json.dumps(filters)}).status_code == 422
        assert client.get("/api/items", params={"filters": "[[[["}).status_code == 400


@pytest.mark.parametrize(
    ("question", "status"),
    [
        ({}, 422), ({"text": "a", "id": "b"}, 422), ({"text": 1}, 422), ({"text": ""}, 413), ({"text": "x" * 20_001}, 413),
        ({"id": "nothing"}, 404), ({"text": "A cat.", "highlight": 1}, 422),
        ({"text": "A cat.", "k": 60, "highlight": True}, 422),
        ({"text": "A cat.", "similarity": "squared_distance"}, 422),
    ],
)  # fmt: skip
def test_searches_that_are_refused(notes, question: dict[str, Any], status: int) -> None:
    with make_client(notes) as client:
        assert client.post("/api/search", json=question).status_code == status


def test_the_text_of_a_picture_and_of_nothing_is_missing(photographs, notes) -> None:
    with make_client(photographs) as client:
        assert client.get(f"/api/items/{photographs.ids[0]}/text").status_code == 404
    with make_client(notes) as client:
        assert client.get("/api/items/00000000/text").status_code == 404
