"""Shared settings: property tests use the same examples every time; BILRP_CHECK_TYPES=1 checks signatures at run time."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# Some virtual machines offer AMX and stop the process that uses it, as oneDNN does for bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Shapes and types of every annotated function, by beartype: it doubles the time of most tests, so `make test-slow` has
# one job for it. It has to be installed before anything imports bilrp.
if os.environ.get("BILRP_CHECK_TYPES") == "1":
    import jaxtyping

    jaxtyping.install_import_hook(["bilrp", "bilrp_studies"], "runtime_types.check_types")

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest_plugins = ["skip_report"]

torch.set_num_threads(1)

settings.register_profile(
    "bilrp",
    derandomize=True,
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("bilrp")


# Files that start servers, browsers, clusters or many processes, train networks, or build the documentation. They run in
# `make test-slow`, like every test that is marked `slow`, `browser` or `ray`.
SLOW_FILES = (
    "app/test_access.py",
    "app/test_bounds.py",
    "app/test_hostile.py",
    "app/test_lab.py",
    "app/test_stopping.py",
    "app/test_uploads.py",
    "app/test_many_clients.py",
    "attack/",
    "cli/test_explain.py",
    "cli/test_start.py",
    "collection/test_stored_bombs.py",
    "encoders/test_fetch.py",
    "encoders/test_hostile_folders.py",
    "io/test_files.py",
    "studies/",
    "test_coverage.py",
    "test_docs.py",
    "test_site.py",
    "test_threads.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what SLOW_FILES lists, and every test that needs a browser or a cluster."""
    if os.environ.get("BILRP_CHECK_TYPES") == "1":  # beartype refuses before bilrp can
        items[:] = [item for item in items if item.get_closest_marker("wrong_types") is None]
    tests = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(tests).as_posix() if item.path.is_relative_to(tests) else ""
        if path.startswith(SLOW_FILES) or any(item.get_closest_marker(name) for name in ("browser", "ray")):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with photos, pages and weights; tests that need it are marked `data` and skip without it."""
    shared_data = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("BILRP_DATA", shared_data))
    if not folder.is_dir():
        pytest.skip("needs BILRP_DATA: the folder with photos, pages and weights")
    return folder


@pytest.fixture(scope="session")
def random_weights() -> dict[str, torch.Tensor]:
    """VGG-16's shapes with seeded values of a size that keeps activations alive."""
    from bilrp.encoders.vgg_weights import CONVOLUTIONS

    generator = torch.Generator().manual_seed(0)
    weights = {}
    for number, inputs, outputs in CONVOLUTIONS:
        scale = (2 / (9 * inputs)) ** 0.5
        weights[f"features.{number}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=generator) * scale
        weights[f"features.{number}.bias"] = torch.zeros(outputs)
    return weights


@pytest.fixture(scope="session")
def weights_file(random_weights: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file, for everything that takes a weight file."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("weights") / "vgg16.safetensors"
    save_file(random_weights, path)
    return path


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def bilrp_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `bilrp ARGUMENTS` in this process: (exit code, stdout, stderr)."""
    from bilrp import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bilrp", *map(str, arguments)])
        for name in ("stdout", "stderr"):  # the streams of capsys cannot be reconfigured
            monkeypatch.setattr(getattr(sys, name), "reconfigure", lambda **_: None, raising=False)
        with pytest.raises(SystemExit) as raised:
            cli.main()
        out, err = capsys.readouterr()
        return (raised.value.code if isinstance(raised.value.code, int) else 0), out, err

    return run


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The one browser of a test run: playwright allows only one."""
    if CHROMIUM is None:
        pytest.skip("needs chromium: install it to test pages in a browser")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()
