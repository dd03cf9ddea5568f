"""What the app's tests share: a small collection, a server on a free port, a client without a browser."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from starlette.testclient import TestClient
from torch import nn

import bilrp
from bilrp import Encoder
from bilrp.app import server
from bilrp.app.guard import Door
from bilrp.encoders import images

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


def tiny() -> Encoder:
    """Two convolutions: fast, with ReLUs, and regions of 8 pixels."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    )  # fmt: skip
    return Encoder(net, read=partial(images.item, size=64), regions=bilrp.regions.grid(8), name="tiny")


def photographs(folder: Path) -> Path:
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
        place = folder / name
        place.mkdir(parents=True)
        high, wide = pixels.shape[:2]
        rng = np.random.default_rng(len(name))
        for number in range(6):
            side = int(min(high, wide) * (0.9 - 0.08 * number))
            y, x = rng.integers(0, high - side + 1), rng.integers(0, wide - side + 1)
            cut = Image.fromarray(pixels[y : y + side, x : x + side]).resize((240, 200))
            cut.save(place / f"{name}-{number}.jpg", quality=90)
    return folder


@contextmanager
def running(make: Any, **options: Any) -> Iterator[str]:
    """A real server on a free port of this machine; its address."""
    bound = server.listening("127.0.0.1", 0)
    door = Door.at("127.0.0.1", bound.getsockname()[1])
    serving = server.server(make(door), **options)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not serving.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield door.address("127.0.0.1").rstrip("/")
    finally:
        serving.should_exit = True
        thread.join(30)
        bound.close()
