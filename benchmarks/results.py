"""Keep the measured figures of README.md and docs/ in one file, benchmarks/results.json, so that no two pages disagree.

    python benchmarks/results.py                      list what disagrees (a quick test does, too)
    python benchmarks/results.py adopt NAME COMMAND   take the figures of NAME from its page: COMMAND measured them
                                                      (NAME changed: of all tables and paragraphs that differ)
    python benchmarks/results.py update               write the figures into the pages, drop those that no page shows

`<!-- results: NAME -->` on a line of its own says that the table or paragraph below has the figures of NAME: all cells of
the table, or the numbers with a unit in the paragraph. `0.63 s<!-- = NAME: exact | seconds -->` quotes one cell elsewhere:
words of its row, words of the heading of its column, and which number, if the cell has several. A quote may be rounded,
and .74 may be quoted as 74 %. `commit` is the tree that was measured, where the page says so, else that of the text.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "benchmarks" / "results.json"
PAGES = tuple(
    path
    for path in sorted(
        [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    )
    if path.name not in {"coverage.md", "rules.md", "commands.md"}  # generated
)
NUMBER = r"(?<![\w.,×/-])−?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
UNIT = r"(?:s|ms|seconds?|minutes?|hours?|days?|kB|MB|GB|TB|times|items per second)\b|×(?! ?\d)"
MEASURED = re.compile(rf"({NUMBER}) ?({UNIT})")
BLOCK = re.compile(r"^<!-- results: (\S+) -->\n+((?:.+\n?)+)", re.MULTILINE)
QUOTE = re.compile(rf"({NUMBER})([^\d<>|]{{0,16}})<!-- = ([\w-]+): ([^>]+?) -->")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """The table or paragraph below a mark."""

    page: Path
    name: str
    text: str

    @property
    def content(self) -> list[list[str]] | list[str]:
        """The cells of the table, without bold, or the numbers with a unit in the paragraph."""
        if self.text.startswith("|"):
            return [split_row(line) for line in self.text.splitlines() if not set(line) <= set("|-: ")]
        return [f"{number} {unit}" for number, unit in MEASURED.findall(self.text)]


class Quote(NamedTuple):
    """A number in the text that repeats one of the results."""

    page: Path
    text: str
    number: str
    unit: str
    name: str
    words: tuple[str, ...]


def split_row(line: str) -> list[str]:
    """Return the cells of a line of a table, without bold and comments."""
    line = re.sub(r"<!--.*?-->|\*\*", "", line)
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def list_blocks() -> Iterator[Block]:
    """Yield the marked tables and paragraphs of all pages."""
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            yield Block(page, match[1], match[2])


def list_quotes() -> Iterator[Quote]:
    """Yield the marked numbers of all pages."""
    for page in PAGES:
        for number, unit, name, words in QUOTE.findall(page.read_text()):
            text = f"{number}{unit}".strip()
            yield Quote(page, text, number, unit, name, tuple(word.strip() for word in words.split("|")))


def list_unmarked(page: Path) -> list[str]:
    """Return the numbers with a unit of time, memory or speed in a page that are neither marked nor quotes."""
    text = _FENCE.sub("", page.read_text())
    text = QUOTE.sub("", BLOCK.sub("", text))
    return [f"{number} {unit}" for number, unit in MEASURED.findall(re.sub(r"<!--.*?-->|`[^`]*`", "", text))]


def find_result(results: dict[str, Any], name: str, words: Sequence[str]) -> str:
    """Return the number that the words of a quote name.

    Args:
        results: The content of the file.
        name: Which table.
        words: Words of the row's first two cells, words of the heading, and from 1 which number of the cell.
    """
    *row_words, column_word = words[:-1] if len(words) > 2 and words[-1].isdigit() else words
    which = int(words[-1]) if len(words) > len(row_words) + 1 else None
    header, *rows = results[name]["content"]
    titles = [title.replace("<br>", "") for title in header]
    columns = [at for at, title in enumerate(titles) if column_word in title]
    columns = [titles.index(column_word)] if column_word in titles else columns
    named, first = [], ""
    for row in rows:
        first = row[0] or first
        if all(word in f"{first} {' '.join(row[1:2])}" for word in row_words):
            named.append(row)
    if len(named) != 1 or len(columns) != 1:
        raise LookupError(f"{name}: {words} names {len(named)} rows and {len(columns)} columns")
    numbers = re.findall(NUMBER, named[0][columns[0]])
    if not numbers or (which is None and len(numbers) > 1):
        raise LookupError(f"{name}: {words} names a cell with {len(numbers)} numbers: say which")
    return numbers[(which or 1) - 1]


def rounds_to(quoted: str, unit: str, result: str) -> bool:
    """Whether the quoted number is the result, rounded to the digits that are quoted.

    >>> rounds_to("50", " times", "53"), rounds_to("74", " %", ".74"), rounds_to("0.6", " s", "0.67")
    (True, True, False)
    """
    value, digits = read_number(result), quoted.replace(",", "").lstrip("−-")
    if unit.strip().startswith("%") and result.lstrip("−-").startswith((".", "0.")):
        value *= 100
    decimals = len(digits.partition(".")[2])
    if "." not in digits:
        decimals = -(len(digits) - len(digits.rstrip("0"))) if digits.strip("0") else 0
    return math.isclose(round_half_up(value, decimals), read_number(quoted), abs_tol=1e-9)


def round_half_up(value: float, decimals: int) -> float:
    """Round as people do, not to even."""
    scale = 10.0**decimals
    return math.copysign(math.floor(abs(value) * scale + 0.5 + 1e-9) / scale, value)


def read_number(text: str) -> float:
    """Read a number as it is written on a page."""
    return float(text.replace(",", "").replace("−", "-"))


def find_disagreements(results: dict[str, Any]) -> list[str]:
    """Return one line for each block or quote that disagrees with the file, saying what to do.

    Args:
        results: The content of the file.
    """
    lines, seen = [], set()
    for block in list_blocks():
        page = block.page.relative_to(ROOT)
        seen.add(block.name)
        adopt = f"python benchmarks/results.py adopt {block.name} 'COMMAND THAT MEASURED IT'"
        if block.name not in results:
            lines.append(f"{page}: {block.name} is not in benchmarks/results.json: {adopt}")
        elif block.content != (stored := results[block.name]["content"]):
            here, there = next(
                ((a, b) for a, b in zip(block.content, stored, strict=False) if a != b),
                (f"{len(block.content)} lines", f"{len(stored)} lines"),
            )
            lines.append(
                f"{page}: {block.name} has {here}, benchmarks/results.json {there}. If the page is right: {adopt}"
            )
    lines += [f"benchmarks/results.json has {name}, which no page shows" for name in results.keys() - seen]
    for quote in list_quotes():
        page = quote.page.relative_to(ROOT)
        try:
            result = find_result(results, quote.name, quote.words)
        except (KeyError, LookupError) as error:
            lines.append(f"{page}: the mark after “{quote.text}” names no result: {error}")
            continue
        if not rounds_to(quote.number, quote.unit, result):
            lines.append(
                f"{page}: says {quote.text}, {quote.name} has {result} ({', '.join(quote.words)}): correct the page, "
                "or python benchmarks/results.py update"
            )
    return lines


def adopt(name: str, command: str) -> None:
    """Take the figures of a block from its page into the file, with the command, commit and date.

    Args:
        name: Name in the mark; "changed": all that differ from the file.
        command: What measured them.
    """
    results = read_results()
    stored = {key: result["content"] for key, result in results.items()}
    contents = {
        block.name: block.content
        for block in list_blocks()
        if block.name == name or (name == "changed" and block.content != stored.get(block.name))
    }
    if not contents:
        raise SystemExit(f"no page has <!-- results: {name} -->, or it has the figures of the file")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    entry = {"command": command, "commit": commit, "date": str(date.today())}
    write_results(results | {key: {**entry, "content": content} for key, content in contents.items()})


def update() -> None:
    """Write the cells and numbers of the file into the pages, and drop results that no page shows."""
    shown = {block.name for block in list_blocks()}
    results = {name: result for name, result in read_results().items() if name in shown}
    write_results(results)
    for page in PAGES:
        text = BLOCK.sub(lambda match: _update_table(match, results), page.read_text())
        text = QUOTE.sub(lambda match: _update_quote(match, results), text)
        if text != page.read_text():
            page.write_text(text)


def _update_table(match: re.Match[str], results: dict[str, Any]) -> str:
    block = Block(ROOT, match[1], match[2])
    content = results.get(block.name, {}).get("content")
    if content in (None, block.content) or not block.text.startswith("|"):
        return match[0]
    old = [line for line in block.text.splitlines() if not set(line) <= set("|-: ")]
    lines = []
    for number, cells in enumerate(content):
        before = (
            [cell.strip() for cell in old[number].strip().strip("|").split("|")] if number < len(old) else []
        )
        bold = [each.startswith("**") for each in before] + [False] * len(cells)
        cells = [f"**{cell}**" if strong else cell for cell, strong in zip(cells, bold, strict=False)]
        lines.append("| " + " | ".join(cells) + " |")
    lines.insert(1, "|" + "---|" * len(content[0]))
    return f"<!-- results: {block.name} -->\n" + "\n".join(lines) + "\n"


def _update_quote(match: re.Match[str], results: dict[str, Any]) -> str:
    number, unit, name, words = match.groups()
    result = find_result(results, name, tuple(word.strip() for word in words.split("|")))
    if rounds_to(number, unit, result):
        return match[0]
    if unit.strip().startswith("%") and result.lstrip("−-").startswith((".", "0.")):
        result = f"{100 * read_number(result):.0f}"
    return match[0].replace(number, result, 1)


def read_results() -> dict[str, Any]:
    """Return the content of the file."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write_results(results: dict[str, Any]) -> None:
    """Write the file with one line for each row of a table."""
    entries = []
    for name, result in sorted(results.items()):
        content = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in result["content"])
        head = json.dumps({key: result[key] for key in ("command", "commit", "date")}, ensure_ascii=False)
        entries.append(f'{json.dumps(name)}: {head[:-1]}, "content": [\n  {content}\n]}}')
    FILE.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="action")
    adopting = commands.add_parser("adopt")
    adopting.add_argument("name")
    adopting.add_argument("command")
    commands.add_parser("update")
    options = parser.parse_args()
    if options.action == "adopt":
        adopt(options.name, options.command)
    elif options.action == "update":
        update()
    print("\n".join(find_disagreements(read_results())) or "all pages agree with benchmarks/results.json")


if __name__ == "__main__":
    main()
