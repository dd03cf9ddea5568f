"""docs/commands.md has what README's commands print: all of them, and the same as when they are run again."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = runpy.run_path(str(ROOT / "docs" / "make_commands.py"), run_name="make_commands")
PAGE = ROOT / "docs" / "commands.md"


def test_every_command_of_the_readme_is_on_the_page() -> None:
    commands = TOOLS["read_commands"]((ROOT / "README.md").read_text(encoding="utf-8"))
    headings = [
        line[4:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## `")
    ]
    assert headings == commands and len(commands) >= 9, "run python docs/make_commands.py DATA"


@pytest.mark.slow
def test_the_first_command_prints_what_the_readme_says(tmp_path: Path) -> None:
    from bilrp.encoders import downloads, packages

    if not downloads.is_cached(packages.EFFICIENTNET):
        pytest.skip("needs EfficientNet-Lite0, which is downloaded at first use")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands, printed = re.findall(r"```(?:sh|text)\n(.*?)```", text, re.DOTALL)[:2]
    install, *lines = [line.split("  #")[0].strip() for line in commands.splitlines()]
    assert install == "pip install bilrp" and len(lines) == 2
    output = [TOOLS["run_command"](line, tmp_path) for line in lines][-1]
    for piece in printed.split("…\n"):
        assert piece.rstrip() in output, "correct README.md"


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("start", ["bilrp explain a.png b.png -e package", 'bilrp explain "A cat sat."'])
def test_the_page_has_what_the_commands_print(start: str, data: Path, tmp_path: Path) -> None:
    TOOLS["prepare_folder"](tmp_path, data)
    commands = TOOLS["read_commands"]((ROOT / "README.md").read_text(encoding="utf-8"))
    (command,) = (each for each in commands if each.startswith(start))
    printed = TOOLS["run_command"](command, tmp_path)
    assert f"```text\n{printed}\n```" in PAGE.read_text(encoding="utf-8"), (
        "run python docs/make_commands.py DATA"
    )
