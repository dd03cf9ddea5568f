"""What a release consists of: wheels built twice are equal, and CI runs the commands of the Makefile."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def list_commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_ci_calls_targets_and_scripts_that_exist(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(list_commands(workflow))
    assert set(re.findall(r"\bmake ([\w-]+)", commands)) <= targets
    scripts = re.findall(r"python (\w+/\w+\.py)", commands)
    assert commands and all((ROOT / script).is_file() for script in scripts)


def test_every_target_that_tests_is_run_by_ci() -> None:
    commands = "\n".join(command for workflow in WORKFLOWS for command in list_commands(workflow))
    assert {"test", "test-slow", "test-oldest", "docs", "wheels"} <= set(
        re.findall(r"\bmake ([\w-]+)", commands)
    )


def test_a_tag_must_name_the_version_and_a_dated_changelog(tmp_path: Path) -> None:
    check = [sys.executable, str(ROOT / "tools" / "check_version.py"), "v999.0"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the tag is v999.0" in done.stderr


def build_wheel(folder: Path, **environment: str) -> Path:
    """Build a wheel of a copy of the sources, as the sdist would have them."""
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", archive, "-C", folder], check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=folder / archive.name.removesuffix(".tar.gz"), env=os.environ | environment, check=True,
        capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_a_library_does_not_depend_on_the_folder_it_is_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Mach-O library has its output path in it, and absolute names of sources are in debugging information."""
    pytest.importorskip("hatchling")
    compile_library = runpy.run_path(str(ROOT / "hatch_build.py"))["compile_library"]
    calls: list[list[str]] = []

    def run(command: list[str], *, cwd: Path, **options: object) -> None:
        calls.append(command)
        (cwd / "native.partial").touch()

    monkeypatch.setattr(subprocess, "run", run)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (source := tmp_path / name / "rows.c").write_text("int one = 1;")
        assert compile_library([source], tmp_path / name / "native.compiled", "macosx_11_0_arm64")
    assert calls[0] == calls[1] and str(tmp_path) not in " ".join(calls[0])


@pytest.mark.slow
@pytest.mark.parametrize("pure", ["1", "0"])
def test_two_builds_are_equal(pure: str, tmp_path: Path) -> None:
    wheels = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        wheels.append(build_wheel(tmp_path / name, BILRP_PURE=pure))
    first, second = wheels
    assert first.name == second.name
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    has_binary = "bilrp/native/native.compiled" in zipfile.ZipFile(first).namelist()
    assert has_binary == (not first.name.endswith("-py3-none-any.whl"))
    assert pure == "0" or not has_binary
