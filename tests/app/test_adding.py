"""A query becomes an item when it is asked for, and where that is allowed; nothing else changes."""

from __future__ import annotations

import asyncio
import io
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from server_helpers import PORT, make_client, post_query, run_server, tiny_encoder

import bilrp
from bilrp import collection
from bilrp.app import additions, analyses, server
from bilrp.app.analyses import VectorSpec
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import JobQueue
from bilrp.app.security import AccessPolicy
from bilrp.collection import indexing, tables
from bilrp.collection.index_session import IndexSession
from bilrp.errors import InputError


def picture(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def save_photograph(path: Path, seed: int = 0) -> Path:
    """A picture in a file, as an upload arrives."""
    file = path / f"{seed}.png"
    file.write_bytes(picture(seed))
    return file


def bring(client, content: bytes | str, name: str = "noise.png") -> str:
    kind = "text/plain" if isinstance(content, str) else "image/png"
    raw = content.encode() if isinstance(content, str) else content
    return client.post(f"/api/query?name={name}", content=raw, headers={"content-type": kind}).json()["id"]


def stored_files(path: Path) -> list[Path]:
    folder = path / "app" / "added"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_server_adds_nothing_unless_it_was_started_so(writable_path):
    with make_client(collection.open(writable_path, tiny_encoder())) as client:
        key = bring(client, picture())
        assert client.get("/api/about").json()["adds"] is False
        for one in (key, "q" + "0" * 31):
            reply = client.post("/api/add", json={"id": one})
            assert reply.status_code == 403 and "bilrp serve --add" in reply.json()["error"]
    assert len(collection.open(writable_path)) == 30 and not stored_files(writable_path)


def test_a_query_is_added_when_asked_and_once(writable_path, tmp_path):
    before = collection.open(writable_path, tiny_encoder())
    with make_client(before, add=True) as client:
        key = bring(client, picture(), "../../noise.png")
        assert client.get("/api/about").json()["count"] == 30 and not stored_files(writable_path)
        first = post_query(client, "/api/add", id=key)
        assert first["new"] and post_query(client, "/api/add", id=key) == {"id": first["id"], "new": False}
        about = client.get("/api/about").json()
        assert about["count"] == 31 and {"name": additions.ADDED_GROUP, "count": 1} in about["groups"]
        listed = client.get(f"/api/items?group={additions.ADDED_GROUP}").json()["items"]
        assert listed == [{"id": first["id"], "name": "../../noise.png", "group": additions.ADDED_GROUP}]
        neighbours = post_query(client, "/api/neighbours", id=before.ids[0], k=30)["neighbours"]
        assert first["id"] in [n["id"] for n in neighbours]
        assert post_query(client, "/api/side", id=first["id"])["count"] == 64
        for unknown in (before.ids[0], "q" + "0" * 31, "../x"):
            assert client.post("/api/add", json={"id": unknown}).status_code == 404
    (file,) = stored_files(writable_path)
    assert file.read_bytes() == picture()
    moved = Path(shutil.move(writable_path, tmp_path / "elsewhere.lance"))  # its file moves along
    second = collection.open(moved, tiny_encoder())
    assert second.ids == [*before.ids, first["id"]] and second.names[:30] == before.names
    assert second.original_input(30) == moved / "app" / "added" / file.name
    expected = bilrp.decompose(tiny_encoder(), moved / "app" / "added" / file.name)
    assert torch.allclose(second.decomposition(30).parts.float(), expected.parts, rtol=1e-2, atol=1e-4)


def test_a_text_is_added(texts, tmp_path):
    path, text = shutil.copytree(texts.path, tmp_path / "said.lance"), "A dog rested."
    with make_client(collection.open(path, texts.encoder), add=True) as client:
        added = post_query(client, "/api/add", id=bring(client, text, "mine"))["id"]
        second = post_query(client, "/api/add", id=bring(client, texts.names[2], "another"))
        assert second == {"id": texts.ids[2], "new": False}
    reopened = collection.open(path, texts.encoder)
    assert (
        reopened.names == [*texts.names, "mine"]
        and reopened.ids[3] == added
        and reopened.original_input(3) == text
    )
    assert torch.allclose(reopened.embedding(3), texts.embedding(text), atol=1e-5)


@pytest.fixture
def few(folder, tmp_path):
    """A collection whose files may go."""
    shutil.copytree(folder / "cat", tmp_path / "secret place" / "cat")
    return collection.build(tmp_path / "secret place", tiny_encoder(), tmp_path / "cats.lance")


def test_an_item_whose_file_is_gone_keeps_its_name(few, tmp_path):
    file = tmp_path / "secret place" / "cat" / "cat-2.jpg"
    content = file.read_bytes()
    file.unlink()
    with make_client(few, add=True) as client:
        response = post_query(client, "/api/add", id=bring(client, content, "another.jpg"))
    assert response == {"id": few.ids[2], "new": False} and not stored_files(Path(few.path))
    assert collection.open(few.path).names == few.names


def test_indexing_again_leaves_what_was_added_alone(few, tmp_path):
    with make_client(few, add=True) as client:
        added = post_query(client, "/api/add", id=bring(client, picture()))["id"]
    source = tmp_path / "secret place"
    (source / "cat" / "cat-0.jpg").unlink()
    (source / "the same.png").write_bytes(picture())
    for _ in range(2):
        second, _ = indexing.build_with_report(source, tiny_encoder(), few.path, prune=True)
        at = second.ids.index(added)
        assert len(second) == 6 and second.names[at] == "noise.png"
        assert additions.ADDED_GROUP in second.groups() and len(stored_files(Path(few.path))) == 1
    everything, _ = indexing.build_with_report(
        tmp_path, tiny_encoder(), few.path, prune=True
    )  # the collection lies inside
    assert everything.names[everything.ids.index(added)] == "noise.png"


def test_what_fails_leaves_nothing_behind(writable_path, monkeypatch):
    def full(self, batch, fragments=None):
        raise InputError(f"cannot write {writable_path}: no space left")

    with make_client(collection.open(writable_path, tiny_encoder()), add=True) as client:
        key = bring(client, picture())
        with monkeypatch.context() as patch:
            patch.setattr(IndexSession, "commit", full)
            reply = client.post("/api/add", json={"id": key})
        assert (
            "no space left" in reply.text
            and "kept here" not in reply.text
            and not stored_files(writable_path)
        )
        assert client.get("/api/about").json()["count"] == 30
        post_query(client, "/api/add", id=key)
        other = bring(client, picture(1))
        monkeypatch.setattr(additions, "MAX_ADDED_BYTES", 2 * len(picture()))
        reply = client.post("/api/add", json={"id": other})
        assert reply.status_code == 413 and "bilrp index" in reply.json()["error"]
    assert len(stored_files(writable_path)) == 1 and len(collection.open(writable_path)) == 31


def test_a_file_that_is_there_is_not_written_again(writable_path):
    path = writable_path / "app" / "added" / additions.hashlib.sha256(picture()).hexdigest()[:32]
    path.parent.mkdir(parents=True)
    path.write_bytes(picture())
    path.chmod(0o444)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    with make_client(collection.open(writable_path, tiny_encoder()), add=True) as client:
        post_query(client, "/api/add", id=bring(client, picture()))
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
        bad = path.with_name(additions.hashlib.sha256(picture(1)).hexdigest()[:32])
        bad.write_bytes(picture(2))  # of another content than its name says
        reply = client.post("/api/add", json={"id": bring(client, picture(1))})
        assert "another content" in reply.text and bad.exists()
    assert len(collection.open(writable_path)) == 31


def test_what_cannot_be_written_to_is_only_looked_at(writable_path):
    reopened = collection.open(writable_path, tiny_encoder())
    reopened.path = "s3://somewhere/mine.lance"
    with pytest.raises(InputError, match="without --add"):
        server.make_collection_app(reopened, AccessPolicy(PORT), add=True)


def test_what_was_asked_before_is_answered_as_it_was(writable_path, tmp_path):
    old = CollectionSession(collection.open(writable_path, tiny_encoder()), retain_uploads=True)
    key, _ = old.add_query(save_photograph(tmp_path), "noise.png")
    requested = VectorSpec(old.ids[3], part=(9, 10))
    before = analyses.find_neighbours(old, requested, 40)
    added, result = additions.append_query(old, old.get_query(key))
    assert result is not None
    tables.delete_rows(str(writable_path), "items.lance", old.ids[0])  # positions move
    new = old.with_collection(collection.open(writable_path, tiny_encoder()))
    assert analyses.find_neighbours(old, requested, 40) == before and before["of"] == 30
    after = analyses.find_neighbours(new, requested, 40)
    assert {n["id"] for n in after["neighbours"]} == {n["id"] for n in before["neighbours"]} - {
        old.ids[0]
    } | {added}
    assert {n["id"]: n["name"] for n in after["neighbours"]}.items() >= {
        n["id"]: n["name"] for n in before["neighbours"] if n["id"] != old.ids[0]
    }.items()
    assert new.get_query(key) is old.get_query(key) and new.has_cached_parts(old.ids[3])


def test_the_next_request_does_not_wait_for_a_job_that_was_answered():
    async def run() -> list[dict[str, object]]:
        queue = JobQueue()
        events = [await queue.submit("me", lambda: "done").next_event() for _ in range(300)]
        queue.close()
        return events

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, run()).result() == [{"answer": "done"}] * 300


def test_persistent_jobs_finish_after_their_client_left():
    started, go = threading.Event(), threading.Event()

    async def run() -> list[object]:
        from bilrp.progress import progress_bar

        def lasting() -> str:
            started.set()
            go.wait(120)
            with progress_bar(False) as bar:
                bar.start("adding", 1)
                bar.advance(1)
            return "added"

        queue = JobQueue()
        first = queue.submit("me", lasting, persistent=True)
        started.wait(120)
        second = queue.submit("me", lambda: "second", persistent=True)
        third = queue.submit("me", lambda: "third")
        first.cancelled.set()  # the client disconnects
        go.set()
        results = []
        for job in (first, second, third):
            news = await job.next_event()
            while not {"answer", "error"} & news.keys():
                news = await job.next_event()
            results.append(news.get("answer", news))
        queue.close()
        return results

    with ThreadPoolExecutor(1) as thread:  # here a loop may be running already
        assert thread.submit(asyncio.run, run()).result() == ["added", "second", "third"]


@pytest.mark.browser
def test_a_query_is_added_by_its_button(visit, writable_path, tmp_path):
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "red.png")
    with run_server(
        partial(server.make_collection_app, collection.open(writable_path, tiny_encoder()), add=True)
    ) as at:
        tab = visit("/", at=at)
        tab.wait_for_selector(".grid li img")
        tab.set_input_files("#query-file", tmp_path / "red.png")
        tab.wait_for_selector(".near[data-done=yes]")
        tab.click("button.add")
        tab.wait_for_selector("main header .lead a[href*='added']")
        assert tab.locator("h1").inner_text() == "red.png" and "/item/q" not in tab.url
        tab.wait_for_selector(".near[data-done=yes]")
        tab.click(".bar .home")
        tab.wait_for_selector(".grid li[aria-posinset='31'] img")
        tab.close()  # before the server does


@pytest.mark.browser
def test_there_is_no_button_where_nothing_is_added(visit, folder):
    tab = visit("/")
    tab.wait_for_selector(".grid li img")
    tab.set_input_files("#query-file", folder / "coffee" / "coffee-1.jpg")
    tab.wait_for_selector(".near[data-done=yes]")
    assert "not in the collection" in tab.inner_text("main header .lead")
    assert tab.locator("button.add").count() == 0
