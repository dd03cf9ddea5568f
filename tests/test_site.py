"""The documentation site builds without warnings, has every public name, and runs its code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GALLERY = sorted((DOCS / "gallery").glob("*.md"))


@pytest.fixture(scope="module")
def tools():
    """Import the modules of the site: blocks, links, public."""
    sys.path.insert(0, str(DOCS))
    try:
        import blocks
        import links
        import public

        yield {"blocks": blocks, "links": links, "public": public}
    finally:
        sys.path.remove(str(DOCS))


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    """Warnings are errors; the build warns about public names without an entry and about broken links."""
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    build = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "-q", "-D", "run_blocks=0"]
    process = subprocess.run(
        [*build, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    pages = [page.read_text() for page in (tmp_path / "site" / "reference").glob("*.html")]
    reference = "".join(pages)
    assert max(map(len, pages)) < 0.4 * len(reference), "the reference is split by topic"
    assert all(
        f'id="bilrp.{name}"' in reference for name in ("explain", "composites.uniform", "regions.grid")
    )
    assert "http" not in re.findall(r'<script[^>]*src="([^"]*)"', reference)


def test_public_names_are_listed(tools) -> None:
    names = tools["public"].list_names()
    assert {
        "bilrp.explain",
        "bilrp.composites.uniform",
        "bilrp.encoders.vgg16",
        "bilrp.collection.open",
    } <= names
    assert len(names) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_every_python_block_is_run_or_says_why_not(page: Path, tools) -> None:
    text = page.read_text()
    blocks = tools["blocks"].blocks(text)
    assert len(re.findall(r"^`{3,}\s*\{?(?:code-block\}\s*)?py", text, re.MULTILINE)) == len(blocks)
    assert all(block.reason is None or len(block.reason) > 8 for block in blocks)
    for block in blocks:
        if block.reason is None:
            compile(block.code, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(DOCS).as_posix())
def test_code_fits_the_page(page: Path) -> None:
    """100 characters fit next to the table of contents on a screen of 1280 pixels; longer lines would be cut off."""
    fences = re.findall(r"^```.*?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert [line for fence in fences for line in fence.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("page", GALLERY, ids=lambda p: p.stem)
def test_a_gallery_page_has_a_question_code_and_something_to_look_at(page: Path, tools) -> None:
    text = page.read_text()
    assert re.match(r"# .+\n\n\*\*.+\?\*\*\n", text), "the title, then the question"
    blocks = tools["blocks"].blocks(text)
    explains = [block for block in blocks if re.search(r"bilrp\.|collection\.", block.code)]
    lines = [len([line for line in block.code.splitlines() if line.strip()]) for block in explains]
    assert explains and min(lines) <= 12 and all(block.reason is None for block in blocks)
    assert f"gallery/{page.stem}" in (DOCS / "index.md").read_text()


def test_each_question_is_answered_in_five_lines_of_code(tools) -> None:
    _, *answers = re.split(r"^## ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)
    assert len(answers) >= 12
    for answer in answers:
        lines = [line for block in tools["blocks"].blocks(answer) for line in block.code.splitlines() if line]
        assert len(lines) <= 5, answer.partition("\n")[0]
        assert lines or "`bilrp" in answer or "`explanation." in answer, answer.partition("\n")[0]


def test_the_outputs_of_blocks(tools, tmp_path: Path) -> None:
    text = """
```python
import bilrp, torch
print("hello")
1 + 1
```
<!-- not run: it would never return -->
```python
raise SystemExit
```
<!-- needs: a_missing_package -->
```python
import a_missing_package
```
```python
bilrp.explain(torch.nn.Linear(4, 2), torch.rand(1, 4), torch.rand(1, 4))
```
"""
    outputs = tools["blocks"].run(text, "try/it", tmp_path)
    assert [[output["kind"] for output in block] for block in outputs] == [["text", "text"], [], [], ["page"]]
    assert outputs[0] == [{"kind": "text", "text": "hello"}, {"kind": "text", "text": "2"}]
    assert "mount(" in (tmp_path / outputs[3][0]["file"]).read_text()
    with pytest.raises(ZeroDivisionError):
        tools["blocks"].run("```python\n1 / 0\n```\n", "broken", tmp_path)


def test_broken_links_are_found(tools, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#here">b</a><a href="https://x.org">x</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p><img src="none.png"><a href="a.html#top">a</a>')
    assert tools["links"].find_broken(tmp_path) == ["a.html: b.html#here", "b.html: none.png"]
