"""A page's python blocks, run in order and in one namespace, as a reader would paste them; and what each of them shows.

As in a notebook, the last expression of a block is shown: an explanation as its page, a figure as a picture, anything else
by its repr. A block under `<!-- not run: reason -->` is shown with the reason instead, one under `<!-- needs: package -->`
where the package is not installed.

    python docs/blocks.py docs/start.md out        what the blocks show, as files in out/ and as out/shown.json
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
_NOT_RUN = re.compile(r"<!-- not run: (\S.*?) ?-->\s*$")
_NEEDS = re.compile(r"<!-- needs: (\w+) -->\s*$")


class Block(NamedTuple):
    """One block of a page: its code, why it is not run (or None), and where in the text it begins and ends."""

    code: str
    reason: str | None
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    """All python blocks of a page, in order.

    >>> [block.reason for block in blocks("<!-- not run: no camera -->\\n```python\\n1\\n```\\n")]
    ['no camera']
    """
    found = []
    for match in _BLOCK.finditer(text):
        found.append(Block(match[1], _reason(text[: match.start()]), match.start(), match.end()))
    return found


def _reason(before: str) -> str | None:
    """Why the block after this text is not run, if it is not."""
    if said := _NOT_RUN.search(before):
        return said[1]
    wanted = _NEEDS.search(before)
    return f"{wanted[1]} is not installed" if wanted and not find_spec(wanted[1]) else None


def run(text: str, name: str, out: Path) -> list[list[dict[str, str]]]:
    """Run the page's blocks in an empty folder; for each block, what it shows: kind and text, or kind and file in `out`."""
    namespace: dict[str, Any] = {"__name__": name}
    shown: list[list[dict[str, str]]] = []
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            for number, block in enumerate(blocks(text), 1):
                said = "" if block.reason else _run_one(block.code, f"{name}, block {number}", namespace)
                value = None if block.reason else namespace.pop("_shown", None)
                shown.append(_shown(said, value, f"{name.replace('/', '-')}-{number}", out))
        finally:
            os.chdir(here)
    return shown


def _run_one(code: str, where: str, namespace: dict[str, Any]) -> str:
    tree = ast.parse(code, where)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_shown", ast.Store())], last.value), last)
        ast.fix_missing_locations(tree)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(tree, where, "exec"), namespace)
    return said.getvalue()


def _shown(said: str, value: Any, stem: str, out: Path) -> list[dict[str, str]]:
    found = [{"kind": "text", "text": said.rstrip()}] if said.strip() else []
    if value is None:
        return found
    if hasattr(value, "_repr_html_") and hasattr(value, "summary"):
        from bilrp.render import page

        (out / f"{stem}.html").write_text(page.render_html(value, compact=True))
        return [*found, {"kind": "page", "file": f"{stem}.html"}]
    if hasattr(value, "savefig"):
        value.savefig(out / f"{stem}.png", dpi=110, bbox_inches="tight")
        return [*found, {"kind": "picture", "file": f"{stem}.png"}]
    return [*found, {"kind": "text", "text": repr(value)}]


def key(text: str) -> str:
    """What the outcome depends on: the page's code, the package's, and this file's."""
    digest = hashlib.sha256(json.dumps([block[:2] for block in blocks(text)]).encode())
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js"), Path(__file__)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    page, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    stem = page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")
    shown = run(page.read_text(), stem, out)
    (out / "shown.json").write_text(json.dumps(shown))
