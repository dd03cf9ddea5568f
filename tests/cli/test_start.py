"""How the command line starts: help, the version and completion without torch, and Ctrl-C quiet from the first moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bilrp

SOURCE = str(Path(bilrp.__file__).parents[1])
HEAVY = ("torch", "numpy", "matplotlib", "PIL")
LOOK = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules]))
from bilrp.cli import main
sys.argv = ["bilrp", *sys.argv[1:]]
main()
"""


def look(*arguments: str, **environment: str) -> tuple[str, str]:
    """What the command printed, and which heavy packages it had loaded when it ended."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output, _, loaded = done.stdout.rpartition("loaded:")
    return output, loaded.strip()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--help",), "explain"),
        (("--version",), bilrp.__version__),
        (("explain", "--help"), "--encoder"),
        (("study", "--help"), "invariance"),
        (("study", "toy", "--help"), "--seeds"),
        (("study", "faithfulness", "--help"), "--layers"),
        (("bench", "--help"), "--rounds"),
        (("ops", "--help"), "--shape"),
    ],
)
def test_help_and_version_load_nothing_heavy(arguments, expected):
    output, loaded = look(*arguments)
    assert expected in output and loaded == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bilrp ", "explain"),
        ("bilrp study ", "faithfulness"),
        ("bilrp explain -e vgg", "vgg16:31"),
        ("bilrp explain --link-preset pas", "pascal_voc"),
        ("bilrp explain --similarity c", "cosine"),
        ("bilrp explain --palette s", "safe"),
        ("bilrp explain --resize p", "pad"),
    ],
)
def test_completion_loads_nothing_heavy(line, expected):
    words = line.split(" ")
    output, loaded = look(
        _BILRP_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )  # what the shell sets
    assert expected in output.split() and loaded == ""


@pytest.mark.parametrize("package", ["typer", "torch"])
def test_an_interrupt_while_modules_load_is_quiet(tmp_path, package):
    """A package that never finishes loading simulates a slow disk."""
    (tmp_path / f"{package}.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    for name in ("a.png", "b.png"):  # missing files are reported before torch is loaded
        (tmp_path / name).touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "bilrp", "explain", "a.png", "b.png"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), SOURCE])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a test run in the background may ignore interrupts, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 130 and output.decode() == "bilrp: interrupted\n"


def test_help_groups_commands_by_what_people_want_to_do() -> None:
    output, _ = look("--help", COLUMNS="100", NO_COLOR="1")
    order = [
        "Explain",
        "explain",
        "contrast",
        "Collections",
        "index",
        "search",
        "Studies",
        "study",
        "Look under the hood",
        "ops",
    ]
    places = [output.find(f" {word} ", output.find("─ Explain ─")) for word in order]
    assert -1 not in places and places == sorted(places), output


def test_samples_are_written_and_never_over_another_file(tmp_path: Path) -> None:
    output, loaded = look("samples", str(tmp_path / "samples"))
    names = ["cat.jpg", "coffee-1.jpg", "coffee-2.jpg", "table-1.png", "table-2.png"]
    assert [Path(line).name for line in output.splitlines()[: len(names)]] == names and loaded == ""
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == names
    look("samples", str(tmp_path / "samples"))  # the same files: nothing to do
    (tmp_path / "samples" / "cat.jpg").write_bytes(b"my cat")
    command = [sys.executable, "-m", "bilrp", "samples", str(tmp_path / "samples")]
    refused = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2 and "is another file" in refused.stderr
    assert (tmp_path / "samples" / "cat.jpg").read_bytes() == b"my cat"
