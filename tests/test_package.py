"""The package as others get it: what is in it, what it says of itself, and that it works away from this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from PIL import Image
from torch import nn

import bilrp
from bilrp.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(
    set(PROJECT["optional-dependencies"]) - {"dev", "docs", "jupyter", "adapters"}
)  # for developers


def _scan() -> object:
    from bilrp.encoders.bigram import read

    return read(Image.new("L", (300, 200)))


def _collection() -> object:
    Image.new("RGB", (32, 32)).save("a.png")
    encoder = bilrp.Encoder(nn.Flatten(), read=lambda path: torch.rand(1, 3, 8, 8), name="flat")
    return bilrp.collection.build(".", encoder, "all.lance")


def _stereo() -> object:
    from bilrp_studies.common.stereo_images import load_stereo_pair

    return load_stereo_pair()


def _cluster() -> object:
    from bilrp.collection import ray_backend

    return ray_backend.import_ray()


def _clip() -> object:
    from bilrp_studies.common.image_folders import read_clips

    Path("a.mp4").write_bytes(b"")
    return read_clips(".", size=8)


def _served() -> object:
    from bilrp.cli.serve import serve

    return serve(["all.lance"])


def _label() -> object:
    from bilrp.collection.clusters import label_rows

    return label_rows(np.eye(4), k=2, method="kmeans", min_size=2, seed=0)


def _tools() -> object:
    from bilrp.cli.serve import serve

    return serve(["all.lance"], mcp=True)


# How a user meets an extra: what is missing, and the call that would have used it.
WITHOUT: dict[str, tuple[str, Callable[[], object]]] = {
    "text": ("transformers", lambda: bilrp.encoders.sentence(".")),
    "vision": ("transformers", lambda: bilrp.encoders.vision(".")),
    "collection": ("lance", _collection),
    "tables": ("skimage", _scan),
    "studies": ("skimage", _stereo),
    "video": ("av", _clip),
    "ray": ("ray", _cluster),
    "app": ("uvicorn", _served),
    "clusters": ("sklearn", _label),
    "mcp": ("mcp", _tools),
    "notebook": (
        "anywidget",
        lambda: bilrp.explain(nn.Flatten(), torch.eye(4)[:1], torch.eye(4)[:1], similarity="dot").widget(),
    ),
}
TWELVE_LINES = """
import sys, torch, torch.nn as nn, bilrp
from PIL import Image
from bilrp.encoders import images

net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
encoder = bilrp.Encoder(net, read=lambda path: images.read(path, size=32), name="mine")
explanation = bilrp.explain(encoder, "a.png", "b.png", similarity="cosine")
print(explanation.summary())
assert abs(explanation.explained + explanation.unattributed - explanation.score) < 1e-6
assert explanation.relevance.shape == (16, 16) and len(explanation.top(3)) == 3
explanation.save("lines.html"), explanation.save("lines.npz"), explanation.plot().savefig("lines.png")
assert bilrp.Explanation.load("lines.npz").score == explanation.score
assert not {"scipy", "skimage", "sklearn", "transformers", "lance"} & set(sys.modules)
assert bilrp.__file__.startswith(sys.prefix)
"""


def closure(names: list[str]) -> list[metadata.Distribution]:
    """The installed distributions that these requirements lead to, without any extra: what pip would install."""
    distributions: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in distributions or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            distributions[name] = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # for another machine: CUDA's libraries, where torch is built for CPUs
        waiting += map(Requirement, distributions[name].requires or ())
    return list(distributions.values())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, as an index would have both."""
    pytest.importorskip("hatchling")
    path = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run([*build, "-t", "sdist", "-d", str(path)], cwd=ROOT, check=True, capture_output=True)
    (sources,) = path.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", sources, "-C", path], check=True)
    unpacked = path / sources.name.removesuffix(".tar.gz")
    subprocess.run([*build, "-t", "wheel", "-d", str(path)], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = path.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, and with its own requirements and theirs linked in: no extra is there.

    It proves that the wheel holds all it needs and that its plain requirements suffice, in the versions installed here. It
    does not prove that an index would choose these versions.
    """
    path = tmp_path_factory.mktemp("empty")
    venv.create(path / "venv", with_pip=False, symlinks=True)
    (site,) = (path / "venv").glob("lib/python*/site-packages")
    for distribution in closure(PROJECT["dependencies"]):
        for top in {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    python = path / "venv" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        "-q",
    ]
    subprocess.run([*install, str(built)], check=True, capture_output=True)
    for name, colour in (("a.png", "orange"), ("b.png", "red")):
        picture = Image.new("RGB", (90, 60), "white")
        picture.paste(colour, (20, 10, 60, 50))
        picture.save(path / name)
    (path / "config.json").write_text('{"model_type": "bert"}')
    return python


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BILRP_DATA")}
    environment |= {"BILRP_CACHE": str(cwd / "cache")}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_is_small_and_whole(built: Path) -> None:
    assert built.stat().st_size < 1_500_000
    names = set(zipfile.ZipFile(built).namelist())
    here = {
        f.relative_to(ROOT / "src").as_posix() for f in (ROOT / "src" / "bilrp").rglob("*") if f.is_file()
    }
    missing = {f for f in here if "__pycache__" not in f and not f.endswith(".partial")} - names
    assert not missing and "bilrp/py.typed" in names
    assert not [name for name in names if not name.startswith("bilrp")]


@pytest.mark.slow
def test_the_wheel_explains_two_pictures_in_an_empty_environment(installed: Path, weights_file: Path) -> None:
    path = installed.parents[2]
    command = installed.parent / "bilrp"
    done = run(
        command, "explain", "a.png", "b.png", "--size", "32", "--weights", weights_file, "-e", "vgg16:5",
        "-o", "why.png", "-o", "why.html", "-o", "why.npz", cwd=path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Cosine" in done.stdout and all(
        (path / f"why.{kind}").stat().st_size for kind in ("png", "html", "npz")
    )


@pytest.mark.slow
def test_the_twelve_lines_run_in_an_empty_environment(installed: Path) -> None:
    done = run(installed, "-W", "error", "-c", TWELVE_LINES, cwd=installed.parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_extra_that_is_missing_is_asked_for(installed: Path) -> None:
    """In the empty environment, where it truly is missing, and as the command line says it."""
    path = installed.parents[2]
    (path / "mine.py").write_text("from torch import nn\n\ndef net():\n    return nn.Flatten()\n")
    documented = {
        "text": ("explain", "A cat.", "A dog.", "-e", "sentence:."),
        "app": ("serve", "all.lance"),
        "collection": ("index", ".", "-e", "mine:net", "-o", "all.lance"),
    }
    for extra, words in documented.items():
        done = run(installed.parent / "bilrp", *words, cwd=path)
        assert done.returncode == 2 and f"pip install 'bilrp[{extra}]'" in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("extra", sorted(WITHOUT))
def test_each_extra_is_asked_for_by_name(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the import blocked, the error is bilrp's own and says what to install."""
    module, call = WITHOUT[extra]
    for name in [module, *(known for known in sys.modules if known.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=rf"pip install 'bilrp\[{extra}\]'"):
        call()


@pytest.mark.parametrize("extra", EXTRAS)
def test_no_extra_is_without_such_a_line(extra: str) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert re.search(
        rf"bilrp\[{extra}\]|import_optional\([^)]*\"{extra}\"|import_transformers\(\"{extra}\"|extra=\"{extra}\"",
        text,
    )


def test_what_is_asked_for_is_an_extra() -> None:
    text = "\n".join(path.read_text() for path in [*(ROOT / "src").rglob("*.py"), ROOT / "README.md"])
    requested = {name for names in re.findall(r"bilrp\[([a-z,]+)\]", text) for name in names.split(",")}
    assert requested <= set(EXTRAS) | {"extra"}


def test_the_version_is_written_in_one_place() -> None:
    """`__version__` in src/bilrp/__init__.py; the build reads it from there."""
    files = [path for pattern in ("*.toml", "*.cff", "*.py") for path in ROOT.glob(pattern)]
    assert PROJECT["dynamic"] == ["version"]
    assert not [path.name for path in files if bilrp.__version__ in path.read_text()]


def test_the_citation_names_the_paper() -> None:
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    assert paper["title"] == "Building and Interpreting Deep Similarity Models"
    assert paper["authors"][0]["family-names"] == "Eberle" and len(paper["authors"]) == 6


def test_the_oldest_versions_are_those_the_project_claims() -> None:
    """constraints-oldest.txt pins exactly the lower bound of everything that pyproject asks for."""
    pins = {}
    for line in (ROOT / "constraints-oldest.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pinned = Requirement(line)
            pins[canonicalize_name(pinned.name)] = Version(str(pinned.specifier).removeprefix("=="))
    groups = PROJECT["optional-dependencies"]
    requested = [*PROJECT["dependencies"], *(line for extra in WITHOUT for line in groups[extra])]
    for requirement in map(Requirement, requested):
        if requirement.name == PROJECT["name"]:
            continue  # an extra that brings another
        (least,) = [Version(s.version) for s in requirement.specifier if s.operator == ">="]
        assert pins.get(canonicalize_name(requirement.name)) == least, (
            f"{requirement} in constraints-oldest.txt"
        )
