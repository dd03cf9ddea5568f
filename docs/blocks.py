"""Run the Python blocks of a page in order, in one namespace, and collect what each of them shows.

As in a notebook, the value of the last expression of a block is shown: an explanation as its page, a figure as an image,
anything else by its repr. The folder has the files of `bilrp samples`. A block below `<!-- not run: reason -->` is not run,
and neither is one below `<!-- needs: package -->` if the package is not installed.

    python docs/blocks.py docs/how.md out        write the outputs as files to out/ and list them in out/outputs.json
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
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
    """One block of a page: its code, why it is not run (or None), and its start and end in the text."""

    code: str
    reason: str | None
    start: int
    end: int


def blocks(text: str) -> list[Block]:
    """Return all Python blocks of a page, in order.

    >>> [block.reason for block in blocks("<!-- not run: no camera -->\\n```python\\n1\\n```\\n")]
    ['no camera']
    """
    return [
        Block(match[1], _skip_reason(text[: match.start()]), match.start(), match.end())
        for match in _BLOCK.finditer(text)
    ]


def _skip_reason(before: str) -> str | None:
    """Return why the block after this text is not run, or None."""
    if comment := _NOT_RUN.search(before):
        return comment[1]
    package = _NEEDS.search(before)
    return f"{package[1]} is not installed" if package and not find_spec(package[1]) else None


def run(text: str, name: str, out: Path) -> list[list[dict[str, str]]]:
    """Run the blocks of a page in an empty folder; return the outputs of each: kind and text, or kind and file in `out`."""
    namespace: dict[str, Any] = {"__name__": name}
    outputs: list[list[dict[str, str]]] = []
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        shutil.copytree(
            ROOT / "src" / "bilrp" / "samples", Path(empty) / "samples"
        )  # as `bilrp samples` does
        os.chdir(empty)
        try:
            for number, block in enumerate(blocks(text), 1):
                printed = "" if block.reason else _run_block(block.code, f"{name}, block {number}", namespace)
                value = None if block.reason else namespace.pop("_value", None)
                outputs.append(_write_outputs(printed, value, f"{name.replace('/', '-')}-{number}", out))
        finally:
            os.chdir(here)
    return outputs


def _run_block(code: str, where: str, namespace: dict[str, Any]) -> str:
    """Run a block, store the value of its last expression as `_value`, and return what it printed."""
    tree = ast.parse(code, where)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_value", ast.Store())], last.value), last)
        ast.fix_missing_locations(tree)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), namespace)
    return printed.getvalue()


def _write_outputs(printed: str, value: Any, stem: str, out: Path) -> list[dict[str, str]]:
    """Write the value of a block to a file where it is a page or a figure, and list its outputs."""
    outputs = [{"kind": "text", "text": printed.rstrip()}] if printed.strip() else []
    if value is None:
        return outputs
    import bilrp

    if isinstance(value, bilrp.Explanation):
        from bilrp.render import page

        (out / f"{stem}.html").write_text(page.render_html(value, compact=True))
        return [*outputs, {"kind": "page", "file": f"{stem}.html"}]
    figure = value.plot() if hasattr(value, "plot") else value
    if hasattr(figure, "savefig"):
        figure.savefig(out / f"{stem}.png", dpi=110, bbox_inches="tight")
        return [*outputs, {"kind": "picture", "file": f"{stem}.png"}]
    return [*outputs, {"kind": "text", "text": repr(value)}]


def cache_key(text: str) -> str:
    """Hash what the outputs depend on: the code of the page, of the package and of this file."""
    digest = hashlib.sha256(json.dumps([block[:2] for block in blocks(text)]).encode())
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js"), Path(__file__)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    page, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    stem = page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")
    (out / "outputs.json").write_text(json.dumps(run(page.read_text(), stem, out)))
