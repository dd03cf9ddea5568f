"""A server that is stopped while requests are running prints no errors of them, and ends."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from server_helpers import ServerProcess, build_index


@pytest.fixture(scope="module")
def workdir(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stopping")
    build_index(target, folder / "cat", SLOW)
    return target


# So many regions and coordinates that a decomposition is under way for as long as the test wants it to be.
SLOW = """
import torch, bilrp
from functools import partial
from torch import nn
from bilrp.encoders import images

def tiny():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(32), nn.Flatten())
    return bilrp.Encoder(net, read=partial(images.read_with_view, size=256), regions=bilrp.regions.grid(2), name="mine:tiny")
"""


def send(
    serving: ServerProcess, path: str, kind: str, body: bytes, *, length: int | None = None
) -> socket.socket:
    """A request on a connection of its own, whose answer was not read yet."""
    link = socket.create_connection((serving.host, serving.port), 120)
    head = (
        f"POST {path} HTTP/1.1", f"Host: {serving.netloc}", f"Content-Type: {kind}",
        f"Content-Length: {len(body) if length is None else length}", f"X-Bilrp-Visitor: v{link.fileno()}", "", "",
    )  # fmt: skip
    link.sendall("\r\n".join(head).encode() + body)
    return link


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "gone"),
    [([signal.SIGINT], False), ([signal.SIGTERM], False), ([signal.SIGINT] * 2, True)],
    ids=["Ctrl-C", "SIGTERM", "Ctrl-C twice, clients gone"],
)
def test_nothing_is_printed_about_requests_under_way(workdir: Path, signals: list[int], gone: bool) -> None:
    with ServerProcess(workdir, "mine.lance", encoder=SLOW) as serving:
        ids = [item["id"] for item in serving.request("/api/items")[1]["items"]]
        question = json.dumps({"id": ids[0]}).encode()
        links = [
            send(serving, "/api/side", "application/json", question) for _ in range(2)
        ]  # one works, one waits
        links += [send(serving, "/api/query", "image/png", b"abc", length=100)]
        received = b""
        while b'"what"' not in received:  # until the work has begun
            received += links[0].recv(4096)
        if gone:
            for link in links:
                link.close()
        for number in signals[:-1]:
            serving.process.send_signal(number)
        _, message = serving.stop(signals[-1])
        for link in links:
            link.close()
    assert message.split() in ([], ["bilrp:", "interrupted"])
    assert serving.process.returncode in (-signals[0], 130)
