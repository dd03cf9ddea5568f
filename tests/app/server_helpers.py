"""What the app's tests share: a small collection, a server on a free port, a client without a browser."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from starlette.testclient import TestClient
from torch import nn

import bilrp
from bilrp import Encoder
from bilrp.app import server
from bilrp.app.security import AccessPolicy
from bilrp.encoders import images

PORT = 8765


def make_client(
    collection: Any, *, policy: AccessPolicy | None = None, host: str = f"127.0.0.1:{PORT}", **options: Any
) -> TestClient:
    """A client that calls the app by a name; its answers come without a network."""
    app = server.make_collection_app(collection, policy or AccessPolicy(PORT), **options)
    return TestClient(app, base_url=f"http://{host}", raise_server_exceptions=True)


def post_query(client: Any, path: str, **question: Any) -> Any:
    """The answer of a question, the last of its lines."""
    reply = client.post(path, json=question)
    assert reply.status_code == 200, reply.text
    last = json.loads(reply.text.strip().splitlines()[-1])
    assert "answer" in last, last
    return last["answer"]


def read_status(reply: Any) -> int:
    """The status of a reply; of slow work that had begun to answer, the one in its last line."""
    last = json.loads(reply.text.strip().splitlines()[-1])
    return last.get("status", reply.status_code)


def tiny_encoder() -> Encoder:
    """Two convolutions: fast, with ReLUs, and regions of 8 pixels."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    )  # fmt: skip
    return Encoder(
        net, read=partial(images.read_with_view, size=64), regions=bilrp.regions.grid(8), name="tiny"
    )


def write_photographs(folder: Path) -> Path:
    """Pieces of photographs that scikit-image and scikit-learn bring along, a group for each photograph."""
    import numpy as np
    from PIL import Image
    from skimage import data
    from sklearn.datasets import load_sample_image

    taken = {
        "astronaut": data.astronaut(), "cat": data.chelsea(), "coffee": data.coffee(),
        "temple": load_sample_image("china.jpg"), "flower": load_sample_image("flower.jpg"),
    }  # fmt: skip
    for name, pixels in taken.items():
        path = folder / name
        path.mkdir(parents=True)
        high, wide = pixels.shape[:2]
        rng = np.random.default_rng(len(name))
        for number in range(6):
            side = int(min(high, wide) * (0.9 - 0.08 * number))
            y, x = rng.integers(0, high - side + 1), rng.integers(0, wide - side + 1)
            cut = Image.fromarray(pixels[y : y + side, x : x + side]).resize((240, 200))
            cut.save(path / f"{name}-{number}.jpg", quality=90)
    return folder


@contextmanager
def run_server(make: Any, *, writable: bool = False, **options: Any) -> Iterator[str]:
    """A real server on a free port of this machine; its address, with a token where it is `writable`."""
    bound = server.bind_socket("127.0.0.1", 0)
    policy = AccessPolicy.for_host("127.0.0.1", bound.getsockname()[1], writable=writable)
    serving = server.make_server(make(policy), **options)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not serving.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield policy.format_url("127.0.0.1").rstrip("/")
    finally:
        serving.should_exit = True
        thread.join(30)
        bound.close()


ENCODER_SOURCE = """
import torch, bilrp
from functools import partial
from torch import nn
from bilrp.encoders import images

def tiny():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return bilrp.Encoder(net, read=partial(images.read_with_view, size=32), regions=bilrp.regions.grid(8), name="mine:tiny")
"""


def start_command(
    folder: Path, *arguments: str, encoder: str = ENCODER_SOURCE, **options: Any
) -> subprocess.Popen[str]:
    """`bilrp …` as a process of its own in a folder, where the encoder mine:tiny is."""
    (folder / "mine.py").write_text(encoder)
    source = str(Path(bilrp.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "bilrp", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([source, str(folder)]), "PYTHONUNBUFFERED": "1"},
        # a run in the background ignores Ctrl-C, and so would its children
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL), **options,
    )  # fmt: skip


def build_index(path: Path, pictures: Path, encoder: str = ENCODER_SOURCE) -> str:
    """The name of a collection in a folder, made of these pictures by mine:tiny."""
    words = ("index", str(pictures), "-e", "mine:tiny", "-o", "mine.lance")
    process = start_command(path, *words, encoder=encoder, stderr=subprocess.PIPE)
    _, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    return "mine.lance"


class ServerProcess:
    """A `bilrp serve` process, and requests to it on connections of their own."""

    def __init__(self, path: Path, *words: str, encoder: str = ENCODER_SOURCE) -> None:
        words = ("serve", *words, "-e", "mine:tiny", "--port", "0")
        self.process = start_command(path, *words, encoder=encoder, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = next(line for line in self.process.stdout if line.startswith("Open ")).split()[1]
        parts = urlsplit(self.address)
        assert parts.hostname is not None and parts.port is not None
        self.host, self.port, self.netloc = parts.hostname, parts.port, parts.netloc
        self.token = parse_qs(parts.query).get("token", [""])[0]

    def request(
        self, path: str, body: bytes | dict[str, Any] | None = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, last line of the answer); a token that the address has is sent."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        kind = "application/json" if isinstance(body, dict) else "image/jpeg"
        defaults = {"content-type": kind} if body is not None else {}
        defaults |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request("GET" if body is None else "POST", path, sent, defaults | headers)
        reply = connection.getresponse()
        lines = reply.read().strip().splitlines()
        connection.close()
        return reply.status, json.loads(lines[-1]) if lines else None

    def stop(self, number: int) -> tuple[str, str]:
        """Send a signal and wait; what was printed until then, (stdout, stderr)."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=120)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=120)
