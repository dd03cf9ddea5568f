"""The widgets in a real JupyterLab: drawn by its own widget manager, clicked, and what is chosen read by its kernel."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="widgets need bilrp[notebook]")
pytest.importorskip("jupyterlab", reason="no JupyterLab: pip install 'bilrp[jupyter]'")
pytest.importorskip("ipykernel", reason="no kernel: pip install 'bilrp[jupyter]'")

PATIENCE = 180  # seconds: a kernel imports torch, perhaps on a busy machine
TOKEN = "a-word-of-this-test"
CELLS = (
    "import json\nfrom server_helpers import tiny_encoder\nfrom bilrp import collection\n"
    "photographs = collection.open('taken.lance', tiny_encoder())\n"
    "pair = photographs.explain(0, 7, similarity='cosine').widget()\npair",
    # Some kernels hear of widgets on a thread of their own: then it may come while this runs.
    "import time\nfor _ in range(600):\n    if pair.selected:\n        break\n    time.sleep(0.1)\n"
    "print('pinned', json.dumps(pair.selected), 'so far')",
    "browse = photographs.widget()\nbrowse",
    "print('open', json.dumps(browse.selected), 'so far')",
)
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


def notebook() -> dict[str, Any]:
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [
        {"cell_type": "code", "id": f"cell{n}", "source": text, "metadata": {}, "outputs": [], "execution_count": None}
        for n, text in enumerate(CELLS)
    ]  # fmt: skip
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": cells}


@contextmanager
def lab(location: Path) -> Iterator[str]:
    """JupyterLab on a free port with everything it writes below `location`; its address."""
    homes = {
        name: str(location / name.lower())
        for name in (
            "HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
            "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR",
        )
    }  # fmt: skip
    for folder in homes.values():
        Path(folder).mkdir(parents=True)
    labconfig = Path(homes["JUPYTER_CONFIG_DIR"]) / "labconfig"
    labconfig.mkdir()
    (labconfig / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
    source = Path(__file__).parents[2] / "src"
    path = os.pathsep.join([str(source), str(Path(__file__).parent)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={location / 'work'}",
        "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    log_file = location / "said.txt"
    with log_file.open("w") as log:
        child = subprocess.Popen(
            command, cwd=location, env=os.environ | homes | {"PYTHONPATH": path}, stdout=log, stderr=log
        )
    try:
        about = Path(homes["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{child.pid}.json"
        until = time.monotonic() + PATIENCE
        while not about.exists() or not about.read_text().endswith("}"):
            assert child.poll() is None and time.monotonic() < until, log_file.read_text()
            time.sleep(0.1)
        yield json.loads(about.read_text())["url"]
    finally:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def run(tab: Any, number: int) -> Any:
    """Run one cell; where its output is."""
    cell = tab.locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".cm-content").click()
    tab.keyboard.press("Shift+Enter")
    return cell.locator(".jp-OutputArea-output")


def read_printed(output: Any, word: str) -> Any:
    line = output.filter(has_text="so far")
    line.wait_for()
    return json.loads(line.inner_text().strip().removeprefix(word).removesuffix("so far"))


@pytest.mark.browser
@pytest.mark.slow
def test_what_is_clicked_in_jupyterlab_is_read_by_its_kernel(chromium, photographs, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(photographs.path, work / "taken.lance")
    (work / "look.ipynb").write_text(json.dumps(notebook()))
    outside: list[str] = []
    with lab(tmp_path) as address:
        tab = chromium.new_page(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
        tab.set_default_timeout(1000 * PATIENCE)
        ours = (address, address.replace("http:", "ws:"), "data:", "blob:")
        tab.on(
            "request",
            lambda requested: None if requested.url.startswith(ours) else outside.append(requested.url),
        )
        tab.goto(f"{address}lab/tree/look.ipynb?token={TOKEN}")
        # Not by the notebook's own circle, which is idle before there is a kernel: a cell run then asks for one.
        tab.locator(".jp-StatusBar-TextItem", has_text="Python 3 (ipykernel) | Idle").wait_for()

        pair = run(tab, 0)
        pair.locator(".findings button").first.click()
        pair.locator(".findings button[aria-pressed=true]").wait_for()
        first = photographs.explain(0, 7, similarity="cosine").findings()[0]
        assert read_printed(run(tab, 1), "pinned") == {"finding": 0, "a": list(first.a), "b": list(first.b)}

        browse = run(tab, 2)
        browse.locator(f"li[data-id='{photographs.ids[8]}'] button").click()
        browse.locator(".near[data-done=yes]").wait_for()
        browse.locator(".board .region[tabindex='0']").focus()
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("Enter")
        browse.locator("p.note", has_text="Ranked by 1 of").wait_for()
        neighbours = [
            n.id for n in photographs.nearest(8, 13, part=[8], similarity="cosine") if n.position != 8
        ]
        assert browse.locator("ol.near li").evaluate_all("all => all.map(el => el.dataset.id)") == neighbours
        browse.locator(".near[data-done=yes]").wait_for()
        assert read_printed(run(tab, 3), "open") == {"id": photographs.ids[8], "part": [8], "without": []}
        tab.close()
    assert outside == []
