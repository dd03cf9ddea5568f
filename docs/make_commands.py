"""Write docs/commands.md: what every command of README's table prints, run as written.

    python docs/make_commands.py DATA            all commands; DATA has pascal_voc, historic_tables, resnet50

Photographs and scans are not part of the repository, so the page says which files the names in the table mean. A
command whose model is not available is listed with the reason. Lines with run times are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("commands.md")
CATS, DOGS = ("2007_000528", "2007_000549"), ("2007_000063", "2007_000720")
NOT_RUN = {
    "clip:FOLDER": "no weights of CLIP are at hand: [two encoders](guides/dual_encoders.md) has an example"
}
# Values of the placeholders of a command.
REPLACEMENTS = {
    "A B C …": "cat.jpg dog.jpg bird.jpg",
    "contrast A B C": "contrast cat.jpg cat2.jpg dog.jpg",
    "FOLDER FOLDER": "cats dogs",
    "vision:FOLDER": "vision:resnet50",
    "package.module:function": "own_model:make",
}
MORE_COMMANDS = {"bilrp index": ("bilrp search photos.lance dog.jpg", "bilrp audit photos.lance")}
OWN_MODEL = """import torch

def make():
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 8, 5, 2)
    return torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten())
"""
INTRODUCTION = """# What the commands print

Every command of the table in the README, run as written by `python docs/make_commands.py DATA`. `cat.jpg`, `dog.jpg` and
`bird.jpg` are photographs of Pascal VOC 2007, `cats` and `dogs` two of each, `page1.jpg` and `page2.jpg` two scanned pages
of a barometer table, `vision:resnet50` a folder with ResNet-50, and `own_model:make` a small network with random weights.
Run times are left out.
"""


def read_commands(readme: str) -> list[str]:
    """Return the commands of README's table, without alternatives that are only options.

    >>> read_commands("| two | `bilrp explain a b`, `-e x` |")
    ['bilrp explain a b']
    """
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    commands = [code for row in rows for code in re.findall(r"`(bilrp [^`]+)`", row)]
    return [command for command in commands if len(command.split()) > 2]


def prepare_folder(folder: Path, data: Path) -> None:
    """Put the files that the commands name into a folder.

    Args:
        folder: An empty folder.
        data: With pascal_voc, historic_tables and resnet50.
    """
    photographs = data / "pascal_voc" / "images"
    for name, files in (("cats", CATS), ("dogs", DOGS)):
        (folder / name).mkdir()
        for file in files:
            shutil.copy(photographs / f"{file}.jpg", folder / name)
    shutil.copytree(folder / "cats", folder / "photos")
    shutil.copytree(folder / "dogs", folder / "photos", dirs_exist_ok=True)
    names = {"cat.jpg": CATS[0], "cat2.jpg": CATS[1], "dog.jpg": DOGS[0], "bird.jpg": "2007_000068"}
    for name, file in names.items():
        shutil.copy(photographs / f"{file}.jpg", folder / name)
    for name, month in (("page1.jpg", "1898-01"), ("page2.jpg", "1898-02")):
        shutil.copy(data / "historic_tables" / "images" / f"{month}.jpg", folder / name)
    from PIL import Image

    for name, source in (("a.png", "cat.jpg"), ("b.png", "dog.jpg")):
        Image.open(folder / source).resize((64, 64)).save(folder / name)
    (folder / "resnet50").symlink_to(data / "resnet50")
    (folder / "own_model.py").write_text(OWN_MODEL)


def run_command(command: str, folder: Path) -> str:
    """Run a command in a folder and return what it prints, without run times.

    Args:
        command: As in the README.
        folder: Where its files are.
    """
    for placeholder, value in REPLACEMENTS.items():
        command = command.replace(placeholder, value)
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}
    finished = subprocess.run(
        [sys.executable, "-m", "bilrp", *shlex.split(command)[1:]], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise RuntimeError(f"{command}: {finished.stderr}")
    lines = [
        re.sub(r" in [\d.]+ s$", "", line.rstrip())
        for line in finished.stdout.splitlines()
        if not re.match(r"\s*[\d.]+ s\b", line)
    ]
    return f"$ {command}\n" + "\n".join(lines).strip("\n").replace("\n\n\n", "\n\n")


def render_page(readme: str, folder: Path) -> str:
    """Return the page with the output of every command.

    Args:
        readme: Text of the README.
        folder: Where the files of the commands are.
    """
    sections = [INTRODUCTION]
    for command in read_commands(readme):
        reason = next((why for name, why in NOT_RUN.items() if name in command), None)
        sections.append(f"## `{command}`\n")
        if reason is not None:
            sections.append(f"Not run: {reason}.\n")
            continue
        more = next((also for start, also in MORE_COMMANDS.items() if command.startswith(start)), ())
        for each in (command, *more):
            print(each, file=sys.stderr)
            sections.append(f"```text\n{run_command(each, folder)}\n```\n")
    return "\n".join(sections)


def main(data: str) -> None:
    """Write the page.

    Args:
        data: Folder with photographs, scans and models.
    """
    with tempfile.TemporaryDirectory() as temporary:
        prepare_folder(Path(temporary), Path(data).resolve())
        PAGE.write_text(
            render_page((ROOT / "README.md").read_text(encoding="utf-8"), Path(temporary)), encoding="utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1])
