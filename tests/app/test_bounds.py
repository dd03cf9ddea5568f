"""What is counted and bounded: regions by the decomposition's numbers, memory, names, and what a refusal tells."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import shutil
import socket
import threading
import weakref
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from server_helpers import PORT, make_client, post_query, run_server, tiny_encoder

from bilrp import collection
from bilrp.app import server
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import JobQueue, QueueFull
from bilrp.app.request_handling import MAX_JSON_BYTES
from bilrp.app.security import AccessPolicy, HTTPError
from bilrp.errors import InputError
from bilrp.render import bundle, page


@pytest.fixture(scope="module")
def client(photographs):
    with make_client(photographs) as test_client:
        yield test_client


def png(colour: int = 0) -> bytes:
    picture = io.BytesIO()
    Image.new("RGB", (16, 16), (colour, 0, 0)).save(picture, "PNG")
    return picture.getvalue()


def run_in_new_loop(coroutine):
    """Run a coroutine where no loop is running: this thread may have one already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


# ------------------------------------------------------------ texts


def test_words_of_the_page_have_the_decompositions_numbers(texts):
    with make_client(texts) as client:
        drawn = post_query(client, "/api/pair", a=texts.ids[0], b=texts.ids[1], similarity="dot")
        full = texts.decomposition(0)
        assert drawn["a"]["count"] == full.regions.count - 2, "special tokens are not drawn"
        assert drawn["a"]["numbers"] == list(range(1, full.regions.count - 1))
        cat = drawn["a"]["numbers"][drawn["a"]["names"].index("cat")]
        response = post_query(
            client, "/api/cover", a=texts.ids[0], b=texts.ids[1], regions=[cat], similarity="dot"
        )
        names = full.regions.names
        assert names is not None and names[cat] == "cat"
        share = texts.explain(0, 1, similarity="dot").relevance[cat].sum()
        fell = response["before"] - response["predicted"]
        other = texts.decomposition(1)
        rest = float(full.parts[cat].float() @ other.unattributed.float())
        assert fell == pytest.approx(float(share) + rest, rel=2e-2, abs=1e-3)


@pytest.mark.browser
def test_a_covered_word_is_the_word_that_was_brushed(visit, texts):
    with run_server(partial(server.make_collection_app, texts)) as at:
        tab = visit(f"/pair/{texts.ids[0]}/{texts.ids[1]}", at=at)
        tab.click(".cover summary")
        word = tab.locator(".cover .board .region[data-i='1']")
        assert "cat" in word.get_attribute("aria-label")
        word.focus()
        with tab.expect_request("**/api/cover") as sent:
            tab.keyboard.press("Enter")
        assert sent.value.post_data_json["regions"] == [2]  # [CLS] is 0
        tab.wait_for_selector(".cover .scores tr.true")
        tab.close()


@pytest.mark.browser
def test_texts_are_shown_as_they_were_written(visit, texts):
    with run_server(partial(server.make_collection_app, texts)) as at:
        tab = visit(f"/item/{texts.ids[0]}", at=at)
        tab.wait_for_selector(".near[data-done=yes]")
        shown = {line.strip() for line in tab.locator(".near .passage").all_inner_texts()}
        assert shown == {"Two kittens rested.", "A dog sat."}, "no [CLS], no space before a full stop"
        values = tab.evaluate(
            """async () => {
                const { pieces } = await import("/page/text.js");
                const view = { kind: "text", text: "A 🐈 sat", spans: [[0, 1], [2, 3], [4, 7], null] }; // as Python counts
                return pieces({ names: ["a", "🐈", "sat", "[SEP]"], count: 4, view }).map(({ text }) => text);
            }"""
        )
        assert values == ["A", "🐈", "sat", "[SEP]"]
        tab.close()


@pytest.mark.browser
def test_pinned_regions_are_reported_with_the_decompositions_numbers(chromium, texts):
    explanation = texts.explain(0, 1, similarity="dot")
    tab = chromium.new_page()
    tab.set_default_timeout(90_000)
    tab.set_content("<main></main>")
    tab.evaluate(
        "() => { window.told = []; addEventListener('bilrp-chosen', ({ detail }) => told.push(detail)); }"
    )
    data = json.dumps(page.build_payload(explanation) | {"palette": "paper", "compact": False})
    tab.add_script_tag(
        content=f"{bundle.bundle_script('mount')}\nmount(document.querySelector('main'), {data});",
        type="module",
    )
    tab.locator(".region[data-side=a][data-i='0']").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    tab.locator(".region[data-side=a][data-i='1'][aria-selected=true]").wait_for()
    tab.locator(".findings button").first.click()
    tab.locator(".findings button[aria-pressed=true]").wait_for()
    first = explanation.findings()[0]
    messages = tab.evaluate("() => told")
    assert messages[0] == {"side": "a", "regions": [2], "partner": None}
    assert messages[-1] == {"finding": 0, "a": list(first.a), "b": list(first.b)}
    tab.close()


# ------------------------------------------------------------ memory


def test_a_replaced_request_is_freed_before_the_worker_reaches_it():
    started, go = threading.Event(), threading.Event()

    class Large:
        """What a request holds."""

    def slow() -> str:
        started.set()
        go.wait(120)
        return "done"

    async def run() -> list[object]:
        queue = JobQueue(max_pending=2)
        first = queue.submit("first", slow)
        started.wait(120)
        references, jobs = [], []
        for _ in range(40):
            large = Large()
            references.append(weakref.ref(large))
            jobs.append(queue.submit("hasty", partial(id, large)))
            del large
        longest = len(queue.jobs)
        for job in jobs[:-1]:  # they get an answer at once: the worker is still at the first
            news = await job.next_event()
            while "error" not in news:
                news = await job.next_event()
            assert news["error"].status == 409
            del job
        jobs = jobs[-1:]
        gc.collect()
        alive = sum(ref() is not None for ref in references)
        for number in range(30):  # a client that leaves frees its place in the queue and no other
            queue.submit(f"leaving{number}", int).cancelled.set()
        queue.submit("other", int)
        with pytest.raises(QueueFull):
            queue.submit("another", int)
        go.set()
        assert await first.next_event() == {"answer": "done"}
        queue.close()
        return [longest, alive]

    assert run_in_new_loop(run()) == [2, 1]


def scope(path: str, kind: str) -> dict:
    headers = {"host": f"127.0.0.1:{PORT}", "content-type": kind}
    spelled = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http", "method": "POST", "path": path, "query_string": b"", "headers": spelled, "http_version": "1.1",
        "scheme": "http", "raw_path": path.encode(), "root_path": "", "server": ("127.0.0.1", PORT),
        "client": ("127.0.0.1", 1),
    }  # fmt: skip


def test_no_more_of_a_request_body_is_read_than_the_limit(photographs):
    app, piece, taken, status = (
        server.make_collection_app(photographs, AccessPolicy(PORT)),
        bytes(64 * 1024),
        [],
        [],
    )

    async def receive() -> dict:
        taken.append(len(piece))
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        status.append(message.get("status"))

    run_in_new_loop(app(scope("/api/neighbours", "application/json"), receive, send))
    assert status[0] == 413 and sum(taken) <= MAX_JSON_BYTES + len(piece)


# ------------------------------------------------------------ questions


def test_neighbours_of_a_group_are_those_of_its_mean(client, photographs):
    response = post_query(client, "/api/neighbours", group="cat", k=5, similarity="dot")["neighbours"]
    scores = photographs.embeddings @ photographs.mean("cat").numpy()
    order = np.argsort(-scores, kind="stable")[:5]
    assert [n["id"] for n in response] == [photographs.ids[i] for i in order]
    assert client.post("/api/neighbours", json={"group": "none"}).status_code == 404


@pytest.mark.parametrize("k", [1.5, [1], {}, True])
def test_k_must_be_a_whole_number(client, photographs, k):
    assert client.post("/api/neighbours", json={"id": photographs.ids[0], "k": k}).status_code == 422


def test_a_side_of_a_contrast_is_an_item_or_a_group(client, photographs):
    key = photographs.ids[0]
    for first in ({"id": key, "group": [1]}, {"id": key, "group": "cat"}, {"group": {}}, {"id": [1]}, {}):
        reply = client.post("/api/contrast", json={"id": key, "first": first, "second": {"group": "cat"}})
        assert reply.status_code == 422, (first, reply.text)


def brought(client, colour: int, name: str) -> str:
    kind = {"content-type": "image/png"}
    return client.post(f"/api/query?name={name}", content=png(colour), headers=kind).json()["id"]


def test_clients_do_not_rename_uploads_of_others(client):
    first, theirs = brought(client, 1, "mine.png"), brought(client, 1, "theirs.png")
    assert first != theirs and brought(client, 1, "mine.png") == first
    assert post_query(client, "/api/side", id=first)["name"] == "mine.png"


def test_a_query_that_is_evicted_during_a_request_is_unknown(photographs, monkeypatch, tmp_path):
    """It is evicted right after the first lookup."""

    class Fleeting(dict):
        def get(self, name, default=None):
            return self.pop(name, default)

        def __contains__(self, name):
            return self.pop(name, None) is not None

    session = CollectionSession(photographs)
    (tmp_path / "mine.png").write_bytes(png())
    key, _ = session.add_query(tmp_path / "mine.png", "mine.png")
    query, refusals = session._queries[key], []
    for call in (
        session.name, session.view, session.thumbnail, session.full_view, session.item, session.embedding, session.parts
    ):  # fmt: skip
        monkeypatch.setattr(session, "_queries", Fleeting({key: query}))
        try:
            call(key)
        except HTTPError as refused:
            refusals.append(refused.status)
    assert refusals and set(refusals) == {404}  # a call that looks it up only once succeeds


# ------------------------------------------------------------ files


@pytest.fixture
def few(folder, tmp_path):
    """A collection whose files a test may change."""
    shutil.copytree(folder / "cat", tmp_path / "secret place" / "cat")
    return collection.build(tmp_path / "secret place", tiny_encoder(), tmp_path / "kept apart" / "cats.lance")


def test_results_that_cannot_be_cached_are_answered_all_the_same(few):
    (Path(few.path) / "app").write_text("in the way: no folder can be made here")
    with make_client(few) as client:
        assert post_query(client, "/api/map")["places"]
        assert "suspects" in post_query(client, "/api/audit")


def test_paths_of_files_are_not_disclosed(few, tmp_path):
    spoiled = tmp_path / "secret place" / "cat" / "cat-0.jpg"
    spoiled.write_bytes(b"")
    with make_client(few) as client:
        at = few.names.index("cat-0.jpg")
        question = {"a": few.ids[at], "b": few.ids[at - 1], "regions": [1]}
        message = client.post("/api/cover", json=question).text
        assert "cat-0.jpg: the file is empty" in message
        assert "secret" not in message and str(tmp_path) not in message


# ------------------------------------------------------------ the server


def test_what_is_not_a_collection_is_said_before_anything_is_served(folder):
    from bilrp.cli.serve import serve

    with pytest.raises(InputError, match=f"is a folder: first bilrp index {folder} -o {folder}.lance"):
        serve([f"{folder}/"])
    with pytest.raises(InputError, match="--add is for collections"):
        serve(["a.jpg", "b.jpg"], add=True)


def test_a_connection_made_before_the_server_has_started_waits():
    bound = server.bind_socket("127.0.0.1", 0)
    with bound, socket.create_connection(bound.getsockname(), 60) as early:
        assert early.getpeername() == bound.getsockname()


# ------------------------------------------------------------ modules of the page


@pytest.mark.browser
def test_items_of_groups_beyond_the_colours_do_not_share_a_groups_colour(visit, photographs):
    tab = visit("/")
    about = {"groups": [{"name": "cat"}, {"name": "coffee"}]}
    values = tab.evaluate(
        """async (about) => {
            const { groupsOf, UNKNOWN } = await import("/web/atlas.js");
            return Array.from(await groupsOf(about, 35), (k) => (k === UNKNOWN ? null : k));
        }""",
        about,
    )
    group = [name for _, name in sorted((p, n) for n, of in photographs.groups().items() for p in of)]
    assert values == [{"cat": 0, "coffee": 1}.get(name) for name in group] + [None] * 5


@pytest.mark.browser
def test_a_page_that_failed_is_asked_for_again(chromium, address):
    tab = chromium.new_page()
    tab.set_default_timeout(90_000)
    tab.goto(f"{address}/contrast")
    tab.route("**/api/items?offset=7*", lambda route: route.abort(), times=1)
    values = tab.evaluate(
        """async () => {
            const { createPages } = await import("/web/api.js");
            const page = createPages((n) => `/api/items?offset=7&limit=${n}`);
            const first = await page(3).then(() => "there", () => "failed");
            const second = await page(3);
            return [first, second.items.length, page(3) === page(3)];
        }"""
    )
    assert values == ["failed", 3, True]
    tab.close()
