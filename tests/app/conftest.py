"""A small collection of pictures that ship with packages, served for real: a browser, a client, a socket."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("lance", reason="collections need bilrp[collection]")
pytest.importorskip("uvicorn", reason="the app needs bilrp[app]")

import bilrp
from bilrp import Encoder, collection
from bilrp.app import server
from bilrp.app.guard import Door
from bilrp.encoders import images

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


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


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("photographs") / "taken")


@pytest.fixture(scope="session")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    return collection.build(folder, tiny(), tmp_path_factory.mktemp("collection") / "taken.lance")


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


@pytest.fixture(scope="session")
def address(made: collection.Collection) -> Iterator[str]:
    with running(partial(server.collected, made)) as found:
        yield found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium: install it to test the app in a browser")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Any]:
    """Open an address of the app; afterwards nothing may have gone wrong, and nothing been fetched from elsewhere."""
    trouble: list[str] = []
    tabs: list[Any] = []

    def open_at(
        path: str = "/", *, width: int = 1280, height: int = 900, at: str = address, **options: Any
    ) -> Any:
        tab = chromium.new_page(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        tab.set_default_timeout(90_000)
        tab.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("request", lambda request: _outside(request.url, at, trouble))
        tab.goto(at + path)
        tabs.append(tab)
        return tab

    yield open_at
    for tab in tabs:
        tab.close()
    assert trouble == []


def _outside(url: str, address: str, trouble: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        trouble.append(f"request: {url}")
