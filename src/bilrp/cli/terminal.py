"""What `bilrp explain` reads from its options and prints: encoders by name, output files, the summary."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.cli.console import say
from bilrp.errors import InputError, printable

if TYPE_CHECKING:
    from torch import Tensor

    from bilrp.encoder import Encoder, Towers
    from bilrp.encoders.registry import Size
    from bilrp.explanation import Explanation

MOVING = (".gif", ".png", ".webp")  # kinds of files that may hold several frames
PAIRS = 5  # single pairs in --json, where no other number is asked for


def encoder(
    name: str, *, weights: str | None = None, size: str | None = None, fit: str | None = None
) -> Encoder:
    """The encoder that the options name."""
    from bilrp.encoders.registry import load

    return load(name, weights=weights, size=measure(size), fit=fit, progress=sys.stderr.isatty())


def reader(
    name: str, *, weights: str | None = None, size: str | None = None, fit: str | None = None
) -> Encoder | Towers:
    """The encoder that the options name, or the two that read pictures and texts."""
    from bilrp.encoders.registry import named

    return named(name, weights=weights, size=measure(size), fit=fit, progress=sys.stderr.isatty())


def measure(text: str | None) -> Size | None:
    """A size from the command line: 128 is a square, 192x128 is width × height, "original" leaves it alone.

    >>> measure("192x128")
    (128, 192)
    """
    if text is None or text == "original":
        return text
    found = re.fullmatch(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?", text)
    if not found or not all(int(part) for part in found.groups() if part):
        raise InputError(f"--size {text}: give pixels, as in 128, 192x128 (width x height) or original")
    wide, high = found.groups()
    return int(wide) if high is None else (int(high), int(wide))


def checked_outputs(paths: Sequence[str], *, inputs: Sequence[str] = ()) -> list[Path]:
    """Refuse what could not be written, or would overwrite an input, before any work is done."""
    from bilrp.explanation import FORMATS

    checked = [Path(path) for path in paths]
    for path in checked:
        if len(os.fsencode(path.name)) > 255:
            raise InputError(f"--output {path.name[:40]}…: the name is too long")
        if any(path.exists() and os.path.exists(item) and path.samefile(item) for item in inputs):
            raise InputError(f"--output {path}: this is one of the two inputs, and would be overwritten")
        if path.suffix.lower() not in FORMATS:
            raise InputError(f"--output {path}: the suffix is one of {', '.join(FORMATS)}")
        if path.is_dir():
            raise InputError(f"--output {path}: a folder has this name")
        folder = path.parent
        if not folder.is_dir():
            raise InputError(f"--output {path}: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise InputError(f"--output {path}: the folder {folder} cannot be written to")
    return checked


def write(
    explanation: Explanation,
    path: Path,
    *,
    names: tuple[str, str] | None,
    style: str,
    palette: str,
    title: str | None = None,
    marks: bool = False,
) -> None:
    """The explanation in the format of the suffix."""
    explanation.save(path, style=style, colours=palette, names=names, title=title, marks=marks)


def record(
    explanation: Explanation, *, names: tuple[str, str], encoder: str, seconds: float | None, top: int | None,
    marks: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Everything the summary says, as plain values for --json; pairs with a tokenizer's marks where they are asked for."""
    from bilrp.findings.summary import is_estimate, warnings
    from bilrp.render.findings_figure import listed
    from bilrp.render.visibility import numbers, shown

    e, account = explanation, explanation.account
    rows, columns = (numbers(side, marks=marks) for side in (e.a, e.b))
    return {
        "a": names[0],
        "b": names[1],
        "encoder": encoder,
        "similarity": e.similarity,
        "score": account.score,
        "estimate": is_estimate(e),
        "summary": e.summary(),
        "findings": listed(e),
        "warnings": warnings(e, e.findings()),
        "explained": account.explained,
        "unattributed": account.unattributed,
        "explained_share": account.share(account.explained),
        "unattributed_share": account.share(account.unattributed),
        "marks": account.marks,
        "marks_share": account.share(account.marks),
        "within": account.within_a + account.within_b,
        "against_reference": None if e.against is None else [account.against_a, account.against_b],
        "references": None if e.against is None else account.references,
        "positive": account.positive,
        "negative": account.negative,
        "closed": account.closed,
        "regions": [e.a.regions.count, e.b.regions.count],
        "top": [
            {"a": _region(e.a, rows[m.a]), "b": _region(e.b, columns[m.b]), "relevance": m.relevance}
            for m in shown(e, marks=marks).top(PAIRS if top is None else top)
        ],
        "plan": _plan(e),
        "seconds": None if seconds is None else round(seconds, 3),
    }


def tell(
    about: dict[str, Any],
    outputs: Sequence[Path],
    *,
    as_json: bool,
    above: str | None = None,
    pairs: bool = False,
) -> None:
    """Print the summary, before any file is written: what was worked out is then never lost."""
    if not as_json:
        if above is not None:
            print(above, end="\n\n")  # its own colours; what it shows is escaped already
        say(summary(about, pairs=pairs))
        return
    import json

    from bilrp.render.report import plain

    print(json.dumps(plain({**about, "outputs": [str(path) for path in outputs]})), flush=True)


def blamed(encoder: Encoder, x: Tensor, error: Exception) -> Exception:
    """An error met while explaining: the encoder's own, by name, if it raises on its input by itself too; else as it was."""
    import torch

    from bilrp.errors import BilrpError, reason

    if isinstance(error, BilrpError):
        from bilrp.encoders import bigram

        if isinstance(encoder.module, bigram.BigramNet) and "zero in every coordinate" in str(error):
            return InputError(
                f"hardly any digits found: {encoder.name} reads printed tables of digits, upright and in focus ({error})"
            )
        return error
    try:
        with torch.no_grad():
            encoder.module(x)
    except Exception as own:
        where = f"on an input of shape {tuple(x.shape)}" if hasattr(x, "shape") else "on its input"
        return InputError(
            f"the encoder {encoder.name} raised {type(own).__name__} {where}: {reason(own)} (BILRP_DEBUG=1 shows where)"
        )
    return error


def names_of(explanation: Explanation) -> tuple[str, str] | None:
    """What the two inputs were called, where that was kept."""
    names = explanation.a.name, explanation.b.name
    return names if all(names) else None


def doubts(
    encoder: Encoder, explanation: Explanation, names: tuple[str, str], things: Sequence[str] = ()
) -> list[str]:
    """What a reader should know before believing the numbers, one line each."""
    from bilrp.encoders import bigram, image_files

    said = [
        f"{thing} is animated: its first frame is explained"
        for thing in dict.fromkeys(things)
        if Path(thing).suffix.lower() in MOVING and image_files.is_animated(thing)
    ]
    if not isinstance(encoder.module, bigram.BigramNet):
        return said
    sides = zip(names, (explanation.a, explanation.b), strict=True)
    return said + [
        f"hardly any digits found in {name}: {encoder.name} reads printed tables of digits, upright and in focus"
        for name, side in sides
        if bigram.hardly_any(side.embedding, side.regions.labels.numel())
    ]


def width() -> int:
    """Columns that lines may take here."""
    import shutil

    return min(100, max(40, shutil.get_terminal_size().columns))


def wrapped(sentence: str, *, indent: str = "  ") -> str:
    """A sentence in lines that fit the terminal; a number and its % stay in one of them."""
    import textwrap

    whole = printable(sentence).replace(" %", "\u00a0%")
    return textwrap.fill(whole, width(), initial_indent=indent, subsequent_indent=indent).replace(
        "\u00a0", " "
    )


def summary(found: dict[str, Any], *, pairs: bool = False) -> str:
    """The same for people: the sentence, the findings, what adds up, and what it cost; single pairs on demand."""
    from bilrp.findings.formatting import amount

    rows, columns = found["regions"]
    lines = [
        f"{printable(found['a'])}  and  {printable(found['b'])}",
        f"{found['encoder']}, {found['similarity']}, {rows} × {columns} regions",
        "",
        wrapped(found["summary"]),
        "",
        *_findings(found["findings"], width()),
        *_account(found),
    ]
    if pairs and found["top"]:
        lines += ["", "  strongest single pairs, by their relevance"]
        for number, match in enumerate(found["top"], 1):
            where = printable(f"{match['a']['place']} ↔ {match['b']['place']}")
            lines.append(f"  {number:>4} {amount(match['relevance']):>8}   {where}")
    plan = (found["plan"] or "").partition("\n")[0]  # its first line is the sum; --json has it all
    spent = [] if found["seconds"] is None else [f"{found['seconds']:.1f} s"]
    cost = ", ".join([*spent, *([plan] if plan else [])])
    lines += ["", f"  {cost}"] if cost else [""]
    return "\n".join(lines)


def _account(found: dict[str, Any]) -> list[str]:
    """What adds up to the score, in the words of the page, one a line: to one precision, with its share of the score."""
    from bilrp.findings.formatting import column, percent

    rest = 0.0 if found["closed"] else found["unattributed"]  # rounding
    terms = {"pairs that raise it": found["positive"], "pairs that lower it": found["negative"]}
    rare = {"tokenizer's marks": found["marks"], "each with itself": found["within"]}
    terms |= {name: value for name, value in rare.items() if value} | {"unattributed": rest}
    if found["against_reference"] is not None:  # known, and part of the unattributed
        terms["  either against the reference"] = sum(found["against_reference"])
        terms["  reference against reference"] = found["references"]
    terms["estimate" if found["estimate"] else "score"] = score = found["score"]
    wide = max(map(len, terms))
    return [
        f"  {name:<{wide}}{value:>14}{percent(terms[name] / score, 1) if score else '':>11}".rstrip()
        for name, value in zip(terms, column([*terms.values()]), strict=True)
    ]


def _findings(findings: Sequence[dict[str, Any]], wide: int, most: int = 6) -> list[str]:
    """The strongest findings, one a line: number, share of the score, place in a, place in b."""
    from bilrp.findings.formatting import about

    if not findings:
        return []
    lines = ["  findings, by their share of the score"]
    for number, finding in enumerate(findings[:most], 1):
        share = "" if finding["share"] is None else about(finding["share"])
        label = printable(finding["label"])
        label = label if len(label) <= wide - 18 else f"{label[: wide - 19]}…"
        lines.append(f"  {number:>4} {share:>8}   {label}")
    return [*lines, ""]


def _region(side: Any, index: int) -> dict[str, Any]:
    from bilrp.findings.formatting import place

    found: dict[str, Any] = {"region": index, "place": place(side.regions, side.view, [index])}
    if side.regions.boxes is not None:
        found["box"] = dict(
            zip(("top", "left", "bottom", "right"), side.regions.boxes[index].tolist(), strict=True)
        )
    if side.regions.names is not None:
        found["name"] = side.regions.names[index]
    return found


def _plan(explanation: Explanation) -> str | None:
    plan = explanation.a.plan
    return None if plan is None else str(plan)
