"""Configure the documentation site (`make docs`): run every Python block (cached in out/), and treat warnings as errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(HERE)]

import blocks  # noqa: E402
import links  # noqa: E402
import public  # noqa: E402

import bilrp  # noqa: E402

project, author, version, release = "bilrp", "the bilrp authors", bilrp.__version__, bilrp.__version__
copyright = "2026, the bilrp authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bilrp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"source_directory": "docs/", "navigation_with_keys": True}
html_show_sourcelink = False
myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 4
default_role = "literal"
suppress_warnings = ["config.cache", "toc.not_included"]  # new pages are reachable by links
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
html_math_renderer = "mathml"  # see below: browsers render it, no script is loaded from a network

CACHE = ROOT / "out" / "docs-blocks"
_OTHERS = "<!-- names of all other modules -->"
_HELP = "<!-- every command's help -->"
_NAMES = re.compile(r"^<!-- names: (\S+)((?: \w+)*) -->$", re.MULTILINE)


def list_pages(app: Any) -> list[str]:
    """Return the names of pages with Python blocks."""
    return sorted(
        name for name in app.env.found_docs if blocks.blocks(Path(app.env.doc2path(name)).read_text())
    )


def run_all(app: Any) -> None:
    """Run the blocks of every page that is not cached, two pages at a time; a block that fails ends the build."""
    if not app.config.run_blocks:
        return
    app.env.find_files(app.config, app.builder)

    def run_page(name: str) -> tuple[str, str]:
        page = Path(app.env.doc2path(name))
        folder = CACHE / blocks.cache_key(page.read_text()) / name.replace("/", "-")
        if not (folder / "outputs.json").is_file():
            command = [sys.executable, str(HERE / "blocks.py"), str(page), str(folder)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
            process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if process.returncode:
                return name, process.stderr
        live = Path(app.outdir) / "live"
        shutil.copytree(folder, live, dirs_exist_ok=True, ignore=shutil.ignore_patterns("outputs.json"))
        app.outputs[name] = json.loads((folder / "outputs.json").read_text())
        return name, ""

    with ThreadPoolExecutor(app.config.run_jobs) as pool:
        failures = [(name, error) for name, error in pool.map(run_page, list_pages(app)) if error]
    if failures:
        from sphinx.errors import ExtensionError

        raise ExtensionError("\n".join(f"{name} failed:\n{error[-2000:]}" for name, error in failures))


def expand_source(app: Any, name: str, source: list[str]) -> None:
    """Insert the outputs of blocks, the reference of names and the help of commands into the source of a page."""
    up = "../" * name.count("/")
    text = _insert_outputs(_replace_outside_links(source[0], name, up), app.outputs.get(name), up)
    text = text.replace(_OTHERS, _other_modules())
    text = _NAMES.sub(
        lambda match: f"```{{eval-rst}}\n{public.directives(match[1], match[2].split())}\n```", text
    )
    source[0] = text.replace(_HELP, _help()) if _HELP in text else text


def _other_modules() -> str:
    """Return a heading and the names of each exported module that no page of the reference has."""
    text = "".join(page.read_text() for page in (HERE / "reference").glob("*.md"))
    missing = [module for module in public.list_exports() if f"<!-- names: {module}" not in text]
    return "\n\n".join(f"## {module}\n\n<!-- names: {module} -->" for module in missing)


def _replace_outside_links(text: str, name: str, up: str) -> str:
    """Point links to the benchmarks to their page on the site, and drop other links to files outside docs/."""

    def replace(link: re.Match[str]) -> str:
        target = (HERE / name).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(HERE):
            return link[0]
        return f"[{link[1]}]({up}guides/cost.md)" if "benchmarks" in target.parts else link[1]

    return re.sub(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)", replace, text)


def _insert_outputs(text: str, outputs: list[list[dict[str, str]]] | None, up: str) -> str:
    pieces, at = [], 0
    for number, block in enumerate(blocks.blocks(text)):
        pieces.append(text[at : block.end])
        at = block.end
        if block.reason:
            pieces.append(f"\n*Not run here: {block.reason}.*\n")
        pieces += [f"\n{_as_markdown(each, up)}\n" for each in (outputs[number] if outputs else ())]
    return "".join([*pieces, text[at:]])


def _as_markdown(output: dict[str, str], up: str) -> str:
    if output["kind"] == "text":
        return f"```text\n{output['text']}\n```"
    if output["kind"] == "picture":
        return f'<img class="shown" alt="Output of the code above" src="{up}live/{output["file"]}">'
    return (
        f'<iframe class="live" src="{up}live/{output["file"]}" title="Interactive explanation" loading="lazy"></iframe>\n'
        f'<p class="large"><a href="{up}live/{output["file"]}">open in a separate page</a></p>'
    )


def _help() -> str:
    """Return the help of every command, formatted for 96 columns."""
    from typer.main import get_command

    from bilrp.cli.commands import app

    group: Any = get_command(app)
    studies = [("study", name) for name in group.commands["study"].commands]
    sections = []
    for words in [(), *((name,) for name in group.list_commands(None)), *studies]:
        command = [sys.executable, "-m", "bilrp", *words, "--help"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "96",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        text = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        text = "\n".join(
            line.rstrip() for line in text.replace("python -m bilrp", "bilrp").splitlines()
        ).strip()
        sections.append(f"## {' '.join(('bilrp', *words))}\n\n```text\n{text}\n```")
    return "\n\n".join(sections)


def escape_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape a docstring, which is plain text with `code`, equations, `Args:` and examples, not reStructuredText."""
    paragraphs = [text for text in "\n".join(lines).split("\n\n") if text.strip()]
    lines[:] = [*"\n\n".join(map(_paragraph, paragraphs)).splitlines(), ""]


def _paragraph(text: str) -> str:
    if text.lstrip().startswith((">>>", "...")):
        return text
    rows = text.strip("\n").splitlines()
    if rows[0].startswith(" "):  # an equation, a table or Args: keep its layout
        return "::\n\n" + "\n".join(f"   {row}" for row in rows)
    if rows[0] in ("Args:", "Returns:", "Raises:"):
        return f"{rows[0]}\n\n" + "\n".join(f"- {_escape(item)}" for item in _items(rows[1:]))
    return _escape(" ".join(row.strip() for row in rows))


def _items(rows: list[str]) -> list[str]:
    """Join the lines of each entry of a Google-style section; continuation lines are indented further than the first."""
    indent = min(len(row) - len(row.lstrip()) for row in rows)
    items: list[str] = []
    for row in rows:
        if items and row[indent] == " ":
            items[-1] += f" {row.strip()}"
        else:
            items.append(row.strip())
    return items


def _escape(text: str) -> str:
    """Escape the characters that reStructuredText interprets, except in `code`."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(f"`{p}`" if p.startswith("`") else re.sub(r"([*|_\\`<>])", r"\\\1", p) for p in pieces)


def skip_tuple_field(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Skip the fields of named tuples: they are in the signature and have no docstrings of their own."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def check(app: Any, error: Exception | None) -> None:
    """Warn about public names without an entry and links inside the site without a target."""
    from sphinx.util import logging

    if error is not None:
        return
    log = logging.getLogger(__name__)
    for name in sorted(public.list_names() - set(app.env.get_domain("py").objects)):
        log.warning("no entry in the reference: %s", name)
    for link in links.find_broken(Path(app.outdir)) if app.builder.format == "html" else ():
        log.warning("broken link: %s", link)


def make_math_renderer(as_block: bool) -> tuple[Any, None]:
    """Return a renderer of formulas that uses the TeX to MathML conversion of docutils."""

    def visit(translator: Any, node: Any) -> None:
        from docutils.nodes import SkipNode
        from docutils.utils.math.latex2mathml import tex2mathml

        formula = tex2mathml(node.astext(), as_block=as_block)
        translator.body.append(f'<div class="formula">{formula}</div>' if as_block else formula)
        raise SkipNode

    return visit, None


def setup(app: Any) -> None:
    app.outputs = {}
    app.add_html_math_renderer("mathml", make_math_renderer(False), make_math_renderer(True))
    app.add_config_value("run_blocks", True, "env", types=[bool])
    app.add_config_value("run_jobs", 2, "", types=[int])
    app.connect("builder-inited", run_all)
    app.connect("source-read", expand_source)
    app.connect("autodoc-process-docstring", escape_docstring)
    app.connect("autodoc-skip-member", skip_tuple_field)
    app.connect("build-finished", check)
