"""A client of the app without a browser."""

from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

from bilrp.app import server
from bilrp.app.guard import Door

PORT = 8765


def client(
    found: Any, *, door: Door | None = None, host: str = f"127.0.0.1:{PORT}", **options: Any
) -> TestClient:
    """A client that calls the app by a name; its answers come without a network."""
    app = server.collected(found, door or Door(PORT), **options)
    return TestClient(app, base_url=f"http://{host}", raise_server_exceptions=True)


def ask(talking: Any, path: str, **question: Any) -> Any:
    """The answer of a question, the last of its lines."""
    reply = talking.post(path, json=question)
    assert reply.status_code == 200, reply.text
    last = json.loads(reply.text.strip().splitlines()[-1])
    assert "answer" in last, last
    return last["answer"]
