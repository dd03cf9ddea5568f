"""A small collection of pictures that ship with packages, served for real: a browser, a client, a socket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lance", reason="collections need bilrp[collection]")
pytest.importorskip("uvicorn", reason="the app needs bilrp[app]")

# tests/app is on the path, as pytest puts it there.
from server_helpers import run_server, tiny_encoder, write_photographs

from bilrp import collection
from bilrp.app import server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(tmp_path_factory.mktemp("photographs") / "taken")


@pytest.fixture(scope="session")
def photographs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    result = collection.build(folder, tiny_encoder(), tmp_path_factory.mktemp("collection") / "taken.lance")
    shutil.copytree(result.path, Path(result.path).with_name("untouched.lance"))  # before a server uses it
    return result


@pytest.fixture
def writable_path(photographs: collection.Collection, tmp_path: Path) -> Path:
    """A collection of the same items that may be written to."""
    return shutil.copytree(
        Path(photographs.path).with_name("untouched.lance"), tmp_path / "kept here" / "mine.lance"
    )


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    """Sentences between [CLS] and [SEP], by a small BERT."""
    pytest.importorskip("transformers", reason="sentence encoders need bilrp[text]")
    import torch

    from bilrp.encoders import sentence
    from text_folders import ARCHITECTURES

    folder = ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"), dtype=torch.float32)
    sentences = ["The cat sat.", "Two kittens rested.", "A dog sat."]
    return collection.build(sentences, sentence(str(folder)), tmp_path_factory.mktemp("texts") / "said.lance")


@pytest.fixture(scope="session")
def address(photographs: collection.Collection) -> Iterator[str]:
    with run_server(partial(server.make_collection_app, photographs)) as result:
        yield result


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Any]:
    """Open an address of the app; afterwards nothing may have gone wrong, and nothing been fetched from elsewhere."""
    errors: list[str] = []
    tabs: list[Any] = []

    def open_at(
        path: str = "/", *, width: int = 1280, height: int = 900, at: str = address, **options: Any
    ) -> Any:
        tab = chromium.new_page(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        tab.set_default_timeout(90_000)
        tab.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: _outside(request.url, at, errors))
        tab.goto(at + path)
        tabs.append(tab)
        return tab

    yield open_at
    for tab in tabs:
        tab.close()
    assert errors == []


def _outside(url: str, address: str, errors: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        errors.append(f"request: {url}")
