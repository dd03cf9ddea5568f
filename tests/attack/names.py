"""Names of any bytes on files: pages and reports opened in a real browser run nothing, and every command ends well."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
from pathlib import Path

from PIL import Image

from attack.table import Row
from bilrp import cli
from bilrp.errors import to_printable
from bilrp.render.report import Paragraph, Report, Section, Table

TRIALS = 4  # names a round, each through every output
HARM = (
    b"<script>window.hit=1</script>", b"<img src=x onerror=window.hit=1>", b"</title><script>window.hit=1</script>",
    b"</script><script>window.hit=1</script>", b"'\"><svg onload=window.hit=1>", b"]]>--><b onmouseover=window.hit=1>",
    b"${window.hit=1}", b"{{window.hit=1}}", b"javascript:window.hit=1", b"\\u003cscript\\u003ewindow.hit=1",
    b"&lt;script&gt;", b"\xff\xfe", b"\x1b[2J\x1b]0;x\x07", b"$\\frac{$", b"a\nb\r", "\u202egnp\u2066".encode(),
    b"[red]x[bold", b"|a|`b`[c](d)",
    "漢字😀".encode(), b"\xc2\x9b2J", b"\xed\xa0\x80", b"%00%2e%2e", b" ", b"-o", b"~", b"@x", b"*", b"#", b"\\",
)  # fmt: skip
ENCODER = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(8))
"""


def attack(seed: int, path: Path) -> Row:
    draw, row = random.Random(seed), Row("names")
    os.chdir(path)
    Path("named_net.py").write_text(ENCODER)
    names = []
    for trial in range(TRIALS):
        joined = b"".join(draw.choice(HARM) for _ in range(draw.randrange(1, 4)))
        name = f"{trial}" + os.fsdecode(joined.replace(b"/", b"\xe2\x88\x95")[:200]) + ".png"
        names.append(name)
        Image.effect_noise((32, 32), 90).convert("RGB").save(name, "PNG")
        outcome = _explain(name, f"out{trial}")
        if outcome:
            row.failed("unexpected error", f"seed {seed} {to_printable(name)}: {outcome}")
    _write_report(names, path)
    pages = [*(path / f"out{trial}.html" for trial in range(TRIALS)), path / "report" / "report.html"]
    _open_pages([page for page in pages if page.exists()], row, seed)
    markdown = (path / "report" / "report.md").read_text("utf-8")
    if any(word in markdown for word in ("<script", "<img", "<svg", "\x1b", "\u202e")):
        row.failed("executed", f"seed {seed}: report.md holds what a viewer would run")
    return row


def _explain(name: str, out: str) -> str:
    """`bilrp explain` with every kind of output; what is wrong with how it ended, or nothing."""
    outputs = [word for suffix in (".png", ".svg", ".pdf", ".html", ".npz") for word in ("-o", out + suffix)]
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict")
    before = sys.argv
    sys.argv = ["bilrp", "explain", f"./{name}", f"./{name}", "-e", "named_net:net", *outputs]
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            cli.main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code or 0
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv = before
    stream.flush()
    shown = stream.buffer.getvalue()  # type: ignore[attr-defined]
    if code:
        return f"it ended with {code}: {shown[-200:]!r}"
    if any(mark in shown for mark in (b"\x1b", b"\x07", b"\r", b"\xc2\x9b", b"\xe2\x80\xae")):
        return f"the terminal would obey {shown[-200:]!r}"
    return ""


def _write_report(names: list[str], path: Path) -> None:
    table = Table(("file", "reason"), [(name, 1.0) for name in names], caption=names[0])
    sections = [Section(name, [Paragraph(name), table]) for name in names]
    Report(names[0], names[-1], sections, results={"skipped": names}).write(path / "report")


def _open_pages(pages: list[Path], row: Row, seed: int) -> None:
    """Every page in a browser: no script of a name ran, no dialog came, nothing was asked of a network."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        row.note = "no browser: the pages were made, not opened"
        row.right += len(pages)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for page in pages:
            tab, requested, talked = launched.new_page(), [], []
            tab.set_default_timeout(120_000)  # a busy machine is not an attack that came through
            tab.on("request", lambda request, requested=requested: requested.append(request.url))
            tab.on("dialog", lambda dialog, talked=talked: talked.append(dialog.message) or dialog.dismiss())
            tab.goto(page.as_uri(), wait_until="load")
            tab.mouse.move(200, 200)
            hit = tab.evaluate("() => window.hit")
            far = [url for url in requested if not url.startswith(("file:", "data:", "blob:"))]
            if hit is not None or talked:
                row.failed("executed", f"seed {seed}: {page.name}: {hit} {talked}")
            elif far:
                row.failed("wrong", f"seed {seed}: {page.name} asked for {far[0]}")
            else:
                row.right += 1
            tab.close()
        launched.close()
