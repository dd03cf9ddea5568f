"""The documentation site: `make docs`. Every python block is run (cached in out/), warnings are errors, nothing is fetched
but the weights that bilrp itself fetches as packages."""

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
suppress_warnings = ["config.cache", "toc.not_included"]  # a page that is new is found by its links
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
html_math_renderer = "mathml"  # below: browsers draw it themselves, and no script comes from a network

CACHE = ROOT / "out" / "docs-blocks"
_OTHERS = "<!-- names of all other modules -->"
_HELP = "<!-- every command's help -->"
_NAMES = re.compile(r"^<!-- names: (\S+)((?: \w+)*) -->$", re.MULTILINE)


def pages(app: Any) -> list[str]:
    """Pages with python blocks, by their name."""
    return sorted(
        name for name in app.env.found_docs if blocks.blocks(Path(app.env.doc2path(name)).read_text())
    )


def run_all(app: Any) -> None:
    """Run every page's blocks that are not in the cache, two pages at a time; a block that fails ends the build."""
    if not app.config.run_blocks:
        return
    app.env.find_files(app.config, app.builder)

    def one(name: str) -> tuple[str, str]:
        page = Path(app.env.doc2path(name))
        kept = CACHE / blocks.key(page.read_text()) / name.replace("/", "-")
        if not (kept / "shown.json").is_file():
            command = [sys.executable, str(HERE / "blocks.py"), str(page), str(kept)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                return name, done.stderr
        live = Path(app.outdir) / "live"
        shutil.copytree(kept, live, dirs_exist_ok=True, ignore=shutil.ignore_patterns("shown.json"))
        app.shown[name] = json.loads((kept / "shown.json").read_text())
        return name, ""

    with ThreadPoolExecutor(app.config.run_jobs) as together:
        failed = [(name, error) for name, error in together.map(one, pages(app)) if error]
    if failed:
        from sphinx.errors import ExtensionError

        raise ExtensionError("\n".join(f"{name} did not run:\n{error[-2000:]}" for name, error in failed))


def read(app: Any, name: str, source: list[str]) -> None:
    """What a page shows between its blocks, the reference of names, and the command line's help."""
    up = "../" * name.count("/")
    text = _with_shown(_inside(source[0], name, up), app.shown.get(name), up)
    text = text.replace(_OTHERS, _other_modules(text))
    text = _NAMES.sub(
        lambda found: f"```{{eval-rst}}\n{public.directives(found[1], found[2].split())}\n```", text
    )
    source[0] = text.replace(_HELP, _help()) if _HELP in text else text


def _other_modules(text: str) -> str:
    """A heading and its names for each exported module that the reference does not speak of yet."""
    missing = [module for module in public.exported() if f"<!-- names: {module}" not in text]
    return "\n\n".join(f"## {module}\n\n<!-- names: {module} -->" for module in missing)


def _inside(text: str, name: str, up: str) -> str:
    """Links that lead out of docs/, for readers of the repository: the benchmarks are a page here, others only words."""

    def led(link: re.Match[str]) -> str:
        target = (HERE / name).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(HERE):
            return link[0]
        return f"[{link[1]}]({up}guides/cost.md)" if "benchmarks" in target.parts else link[1]

    return re.sub(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)", led, text)


def _with_shown(text: str, shown: list[list[dict[str, str]]] | None, up: str) -> str:
    pieces, at = [], 0
    for number, block in enumerate(blocks.blocks(text)):
        pieces.append(text[at : block.end])
        at = block.end
        if block.reason:
            pieces.append(f"\n*Not run here: {block.reason}.*\n")
        pieces += [f"\n{_as_markdown(each, up)}\n" for each in (shown[number] if shown else ())]
    return "".join([*pieces, text[at:]])


def _as_markdown(each: dict[str, str], up: str) -> str:
    if each["kind"] == "text":
        return f"```text\n{each['text']}\n```"
    if each["kind"] == "picture":
        return f'<img class="shown" alt="What the code above draws" src="{up}live/{each["file"]}">'
    return (
        f'<iframe class="live" src="{up}live/{each["file"]}" title="The explanation, to explore" loading="lazy"></iframe>\n'
        f'<p class="large"><a href="{up}live/{each["file"]}">the same on a page of its own</a></p>'
    )


def _help() -> str:
    """Every command's own help, as a terminal of 96 columns shows it."""
    from typer.main import get_command

    from bilrp.cli.commands import app

    group: Any = get_command(app)
    studies = [("study", name) for name in group.commands["study"].commands]
    told = []
    for words in [(), *((name,) for name in group.list_commands(None)), *studies]:
        command = [sys.executable, "-m", "bilrp", *words, "--help"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "96",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        said = "\n".join(
            line.rstrip() for line in said.replace("python -m bilrp", "bilrp").splitlines()
        ).strip()
        told.append(f"## {' '.join(('bilrp', *words))}\n\n```text\n{said}\n```")
    return "\n\n".join(told)


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` in it, equations and examples, not reStructuredText: escape the rest."""
    paragraphs = [text for text in "\n".join(lines).split("\n\n") if text.strip()]
    lines[:] = [*"\n\n".join(map(_paragraph, paragraphs)).splitlines(), ""]


def _paragraph(text: str) -> str:
    if text.lstrip().startswith((">>>", "...")):
        return text
    rows = text.strip("\n").splitlines()
    if rows[0].startswith(" "):  # an equation or a table that its author laid out
        return "::\n\n" + "\n".join(f"   {row}" for row in rows)
    pieces = re.split(r"(`[^`]+`)", " ".join(row.strip() for row in rows))
    return "".join(f"`{p}`" if p.startswith("`") else re.sub(r"([*|_\\`<>])", r"\\\1", p) for p in pieces)


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """A named tuple's fields are in its signature; their docstrings are Python's own and say nothing."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def check(app: Any, error: Exception | None) -> None:
    """Every public name has its entry and every link inside the site its target, or the build says which have none."""
    from sphinx.util import logging

    if error is not None:
        return
    log = logging.getLogger(__name__)
    for name in sorted(public.names() - set(app.env.get_domain("py").objects)):
        log.warning("no entry in the reference: %s", name)
    for link in links.broken(Path(app.outdir)) if app.builder.format == "html" else ():
        log.warning("leads nowhere: %s", link)


def mathml(as_block: bool) -> tuple[Any, None]:
    """A renderer of formulas: docutils' own way from TeX to MathML."""

    def visit(translator: Any, node: Any) -> None:
        from docutils.nodes import SkipNode
        from docutils.utils.math.latex2mathml import tex2mathml

        formula = tex2mathml(node.astext(), as_block=as_block)
        translator.body.append(f'<div class="formula">{formula}</div>' if as_block else formula)
        raise SkipNode

    return visit, None


def setup(app: Any) -> None:
    app.shown = {}
    app.add_html_math_renderer("mathml", mathml(False), mathml(True))
    app.add_config_value("run_blocks", True, "env", types=[bool])
    app.add_config_value("run_jobs", 2, "", types=[int])
    app.connect("builder-inited", run_all)
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-skip-member", skip)
    app.connect("build-finished", check)
