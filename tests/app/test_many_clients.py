"""Many items, many clients, a killed server, and a screen reader."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from server_helpers import ServerProcess, build_index, run_server
from torch import nn

from bilrp import Encoder, collection
from bilrp.app import server
from bilrp.collection import tables, thumbnails
from bilrp.encoders import images
from bilrp.inputs import Image as View
from type_asserts import assert_not_none

FEW, MANY = 200, 10_000


def noise(path: Path, count: int) -> collection.Collection:
    """Very small pictures of noise, very many of them: after the first, rows are written as indexing would, unread."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    encoder = Encoder(nn.Flatten(), read=partial(images.read_with_view, size=8), name="flat")
    first = collection.build([Image.fromarray(pixels[0])], encoder, path)
    shown = [thumbnails.to_row(View.from_image(one)) for one in pixels[:64]]
    rows = [
        {"id": f"{n:032x}", "name": f"noise-{n:05}", "group": "", "source": "", **shown[n % len(shown)],
         "embedding": pixels[n].reshape(-1).astype(np.float32)}
        for n in range(1, count)
    ]  # fmt: skip
    tables.append_rows(
        str(path), tables.ITEMS_TABLE, rows, tables.items_schema(first.width, first.description)
    )
    return collection.open(path, encoder)


def counting(app, sent):
    """The same app, and what it sends: [path, bytes] of each answer, before it is on its way."""

    async def counted(scope, receive, send):
        async def sending(message):
            if message["type"] == "http.response.start":
                sent.append([scope["path"], 0])
                answers.append(sent[-1])
            elif answers:
                answers[0][1] += len(message.get("body", b""))
            await send(message)

        answers = []
        await app(scope, receive, sending)

    return counted


@pytest.mark.slow
@pytest.mark.browser
def test_the_first_paint_is_as_small_as_that_of_a_small_collection(visit, tmp_path):
    """Counted: what is sent until the grid is drawn does not grow with the collection; only visible cells exist."""
    drawn = "async () => Promise.all([...document.querySelectorAll('.grid img')].map((img) => img.decode().catch(() => 0)))"
    painted = {}
    for count in (FEW, MANY):
        stored, sent = noise(tmp_path / f"{count}.lance", count), []
        assert len(stored) == count
        with run_server(
            lambda policy, stored=stored, sent=sent: counting(
                server.make_collection_app(stored, policy), sent
            )
        ) as at:
            tab = visit("/", at=at)
            tab.wait_for_selector(".grid li img")  # all that are in sight come at once
            tab.evaluate(drawn)
            cells = tab.locator(".grid li").count()
            painted[count] = len(sent), sum(size for _, size in sent), cells
            del sent[:]
            tab.evaluate("() => scrollTo(0, document.body.scrollHeight)")
            tab.wait_for_selector(f".grid li[aria-posinset='{count}'] img")
            assert f"noise-{count - 1:05}" in tab.inner_text(f".grid li[aria-posinset='{count}']")
            tab.evaluate(drawn)
            assert tab.locator(".grid li").count() <= 2 * cells and len(sent) <= 4 * cells + 8
            tab.focus(".grid [aria-posinset] a")
            tab.keyboard.press("Home")
            tab.wait_for_selector(".grid li[aria-posinset='1'] a:focus")
            tab.keyboard.press("End")
            tab.wait_for_selector(f".grid li[aria-posinset='{count}'] a:focus")
            assert tab.locator(".grid li").count() <= 2 * cells
            tab.close()  # before the server does
    (requests, size, cells), many = painted[FEW], painted[MANY]
    print(f"requests, bytes, cells until the grid is drawn: {painted}")
    # fifty times the items; a late layout may ask for a few cells more
    assert cells <= 80 and many[2] <= 2 * cells
    assert many[0] <= 1.5 * requests + 4 and many[1] <= 1.5 * size + 4096


def send_request(address: str, path: str, question: object = None, client: str = "v") -> tuple[int, Any]:
    """(status, last line) of one request on a connection of its own."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(assert_not_none(parts.hostname), parts.port, timeout=120)
    if question is None:
        connection.request("GET", path)
    else:
        headers = {"content-type": "application/json", "x-bilrp-visitor": client}
        connection.request("POST", path, json.dumps(question), headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    kind = reply.headers["content-type"]
    return reply.status, body if "image" in kind else json.loads(body.strip().splitlines()[-1])


def browse(address, photographs, expected, seed, until):
    """One client: its answers, and how often the server was busy."""
    rng, right, busy = random.Random(seed), 0, 0
    while time.monotonic() < until or right + busy < 4:
        i = rng.randrange(len(photographs))
        part = None if rng.random() < 0.5 else [rng.randrange(64)]
        question = {"id": photographs.ids[i], "k": 3, "similarity": "dot", **({"part": part} if part else {})}
        status, answer = send_request(address, "/api/neighbours", question, f"client{seed}")
        if status == 503:
            busy += 1
        else:
            assert status == 200 and [n["id"] for n in answer["answer"]["neighbours"]] == expected(i, part), (
                answer
            )
            right += 1
        status, picture = send_request(address, f"/api/items/{photographs.ids[i]}/thumbnail")
        assert status == 503 or (status == 200 and picture[:2] == b"\xff\xd8")
    return right, busy


def test_many_clients_at_once_get_their_own_answers(photographs, address):
    """BILRP_LOAD=SECONDS makes it longer, and fifty of them."""
    seconds = float(os.environ.get("BILRP_LOAD", 0))
    clients = 50 if seconds else 8
    scores = photographs.embeddings @ photographs.embeddings.T
    shares = {i: photographs.share(i, similarity="dot").numpy() for i in range(len(photographs))}

    def expected(i, part):
        values = scores[i] if part is None else shares[i][part].sum(0)
        order = [int(j) for j in np.argsort(-values, kind="stable") if j != i]
        return [photographs.ids[j] for j in order[:3]]

    until = time.monotonic() + seconds
    with ThreadPoolExecutor(clients) as pool:
        answers = list(
            pool.map(lambda seed: browse(address, photographs, expected, seed, until), range(clients))
        )
    right, busy = (sum(t[k] for t in answers) for k in range(2))
    print(f"{clients} clients, {right} right answers, {busy} times busy")
    assert right >= clients


@pytest.mark.slow
def test_stored_results_survive_a_kill(tmp_path, folder):
    build_index(tmp_path, folder / "cat")
    with ServerProcess(tmp_path, "mine.lance", "--add") as first:
        ids = [item["id"] for item in first.request("/api/items")[1]["items"]]
        _, before = first.request("/api/pair", {"a": ids[0], "b": ids[1]})
        picture = (folder / "coffee" / "coffee-0.jpg").read_bytes()
        _, query = first.request("/api/query?name=coffee.jpg", picture)
        _, added = first.request("/api/add", {"id": query["id"]})
        _, atlas = first.request("/api/map", {})
        first.stop(signal.SIGKILL)
    stored = collection.open(tmp_path / "mine.lance").parts.ids
    assert {ids[0], ids[1]} <= set(stored)
    with ServerProcess(tmp_path, "mine.lance", "--add") as second:
        _, after = second.request("/api/pair", {"a": ids[0], "b": ids[1]})
        # not computed again in the second run, where float32 parts would differ from the bfloat16 that is stored
        repeated = second.request("/api/pair", {"a": ids[0], "b": ids[1]})[1]
        assert after["answer"]["pairs"] == repeated["answer"]["pairs"]
        assert before["answer"]["breakdown"]["score"] == pytest.approx(after["answer"]["breakdown"]["score"])
        assert second.request("/api/map", {})[1] == atlas
        names = {item["id"]: item["name"] for item in second.request("/api/items")[1]["items"]}
        assert len(names) == 7 and names[added["answer"]["id"]] == "coffee.jpg"
        assert second.request("/api/side", {"id": added["answer"]["id"]})[0] == 200
        second.stop(signal.SIGTERM)
        assert second.process.returncode in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


VIEWS = {
    "/": ".grid li img", "/map": ".atlas", "/item/{0}?part=9-10": ".near[data-done=yes]", "/audit": ".findings",
    "/pair/{0}/{1}": ".cover", "/group?name=cat": "main[data-done=yes]",
    "/contrast?item={0}&first=item:{1}&second=item:{2}": ".shows[data-done=yes]",
}  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious_in_any_view(visit, photographs, theme, width, address):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install axe-playwright-python"
    )
    tab = visit("/", width=width, color_scheme=theme)
    serious = {}
    for path, there in VIEWS.items():
        tab.goto(address + path.format(*(photographs.ids[i] for i in (0, 7, 14))))
        tab.wait_for_selector(there)
        if path.startswith("/pair"):
            tab.click(".cover summary")
            tab.wait_for_selector(".cover .board")
        violations = axe.Axe().run(tab).response["violations"]
        worst = [
            (v["id"], v["nodes"][0]["html"][:160])
            for v in violations
            if v["impact"] in ("serious", "critical")
        ]
        wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        if worst or wide > 0:
            serious[path] = (worst, wide)
    assert serious == {}
