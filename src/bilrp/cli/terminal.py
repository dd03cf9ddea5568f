"""What `bilrp explain` reads from its options and prints: encoders by name, output files, the summary."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.cli.console import print_safe
from bilrp.errors import InputError, to_printable

if TYPE_CHECKING:
    from torch import Tensor

    from bilrp.encoder import DualEncoder, Encoder
    from bilrp.encoders.registry import Size
    from bilrp.explanation import Explanation

ANIMATED_SUFFIXES = (".gif", ".png", ".webp")  # kinds of files that may hold several frames
DEFAULT_JSON_PAIRS = 5  # single pairs in --json, where no other number is asked for


def load_encoder(
    name: str, *, weights: str | None = None, size: str | None = None, resize: str | None = None
) -> Encoder:
    """The encoder that the options name."""
    from bilrp.encoders.registry import load

    return load(name, weights=weights, size=parse_size(size), resize=resize, progress=sys.stderr.isatty())


def load_encoder_or_dual(
    name: str, *, weights: str | None = None, size: str | None = None, resize: str | None = None
) -> Encoder | DualEncoder:
    """The encoder that the options name, or the two that read pictures and texts."""
    from bilrp.encoders.registry import load_encoder_or_pair

    return load_encoder_or_pair(
        name, weights=weights, size=parse_size(size), resize=resize, progress=sys.stderr.isatty()
    )


def parse_size(text: str | None) -> Size | None:
    """A size from the command line: 128 is a square, 192x128 is width × height, "original" leaves it alone.

    >>> parse_size("192x128")
    (128, 192)
    """
    if text is None or text == "original":
        return text
    found = re.fullmatch(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?", text)
    if not found or not all(int(part) for part in found.groups() if part):
        raise InputError(f"--size {text}: give pixels, as in 128, 192x128 (width x height) or original")
    wide, high = found.groups()
    return int(wide) if high is None else (int(high), int(wide))


def check_outputs(paths: Sequence[str], *, inputs: Sequence[str] = ()) -> list[Path]:
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


def write_output(
    explanation: Explanation,
    path: Path,
    *,
    names: tuple[str, str] | None,
    link_preset: str,
    palette: str,
    title: str | None = None,
    special_tokens: bool = False,
) -> None:
    """The explanation in the format of the suffix."""
    explanation.save(
        path, style=link_preset, palette=palette, names=names, title=title, special_tokens=special_tokens
    )


def collect_summary(
    explanation: Explanation, *, names: tuple[str, str], encoder: str, seconds: float | None, top: int | None,
    special_tokens: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Everything the summary says, as plain values for --json; pairs with a tokenizer's marks where they are asked for."""
    from bilrp.findings.summary import is_estimate, list_warnings
    from bilrp.render.findings_figure import serialize_findings
    from bilrp.render.visibility import list_visible_regions, select_visible

    e, account = explanation, explanation.breakdown
    rows, columns = (list_visible_regions(side, special_tokens=special_tokens) for side in (e.a, e.b))
    return {
        "a": names[0],
        "b": names[1],
        "encoder": encoder,
        "similarity": e.similarity,
        "score": account.score,
        "estimate": is_estimate(e),
        "summary": e.summary(),
        "findings": serialize_findings(e),
        "warnings": list_warnings(e, e.findings()),
        "explained": account.explained,
        "unattributed": account.unattributed,
        "explained_share": account.compute_share(account.explained),
        "unattributed_share": account.compute_share(account.unattributed),
        "special_tokens": account.special_tokens,
        "special_tokens_share": account.compute_share(account.special_tokens),
        "within": account.self_terms_a + account.self_terms_b,
        "against_reference": None
        if e.reference_terms is None
        else [account.reference_terms_a, account.reference_terms_b],
        "references": None if e.reference_terms is None else account.reference_score,
        "positive": account.positive,
        "negative": account.negative,
        "closed": account.is_complete,
        "regions": [e.a.regions.count, e.b.regions.count],
        "top": [
            {
                "a": _describe_region(e.a, rows[m.a]),
                "b": _describe_region(e.b, columns[m.b]),
                "relevance": m.relevance,
            }
            for m in select_visible(e, special_tokens=special_tokens).top(
                DEFAULT_JSON_PAIRS if top is None else top
            )
        ],
        "plan": _format_plan(e),
        "seconds": None if seconds is None else round(seconds, 3),
    }


def print_summary(
    values: dict[str, Any],
    outputs: Sequence[Path],
    *,
    as_json: bool,
    header: str | None = None,
    show_pairs: bool = False,
) -> None:
    """Print the summary, before any file is written: what was worked out is then never lost."""
    if not as_json:
        if header is not None:
            print(header, end="\n\n")  # its own colours; what it shows is escaped already
        print_safe(format_summary(values, show_pairs=show_pairs))
        return
    import json

    from bilrp.render.report import to_jsonable

    print(json.dumps(to_jsonable({**values, "outputs": [str(path) for path in outputs]})), flush=True)


def wrap_encoder_error(encoder: Encoder, x: Tensor, error: Exception) -> Exception:
    """An error met while explaining: the encoder's own, by name, if it raises on its input by itself too; else as it was."""
    import torch

    from bilrp.errors import BilrpError, describe_error

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
            f"the encoder {encoder.name} raised {type(own).__name__} {where}: {describe_error(own)} "
            f"(BILRP_DEBUG=1 shows where)"
        )
    return error


def get_names(explanation: Explanation) -> tuple[str, str] | None:
    """What the two inputs were called, where that was kept."""
    names = explanation.a.name, explanation.b.name
    return names if all(names) else None


def collect_warnings(
    encoder: Encoder, explanation: Explanation, names: tuple[str, str], inputs: Sequence[str] = ()
) -> list[str]:
    """What a reader should know before believing the numbers, one line each."""
    from bilrp.encoders import bigram, image_files

    said = [
        f"{thing} is animated: its first frame is explained"
        for thing in dict.fromkeys(inputs)
        if Path(thing).suffix.lower() in ANIMATED_SUFFIXES and image_files.is_animated(thing)
    ]
    if not isinstance(encoder.module, bigram.BigramNet):
        return said
    sides = zip(names, (explanation.a, explanation.b), strict=True)
    return said + [
        f"hardly any digits found in {name}: {encoder.name} reads printed tables of digits, upright and in focus"
        for name, side in sides
        if bigram.has_few_bigrams(side.embedding, side.regions.labels.numel())
    ]


def terminal_width() -> int:
    """Columns that lines may take here."""
    import shutil

    return min(100, max(40, shutil.get_terminal_size().columns))


def wrap(sentence: str, *, indent: str = "  ") -> str:
    """A sentence in lines that fit the terminal; a number and its % stay in one of them."""
    import textwrap

    whole = to_printable(sentence).replace(" %", "\u00a0%")
    return textwrap.fill(whole, terminal_width(), initial_indent=indent, subsequent_indent=indent).replace(
        "\u00a0", " "
    )


def format_summary(values: dict[str, Any], *, show_pairs: bool = False) -> str:
    """The same for people: the sentence, the findings, what adds up, and what it cost; single pairs on demand."""
    from bilrp.findings.formatting import format_number

    rows, columns = values["regions"]
    lines = [
        f"{to_printable(values['a'])}  and  {to_printable(values['b'])}",
        f"{values['encoder']}, {values['similarity']}, {rows} × {columns} regions",
        "",
        wrap(values["summary"]),
        "",
        *_format_findings(values["findings"], terminal_width()),
        *_format_breakdown(values),
    ]
    if show_pairs and values["top"]:
        lines += ["", "  strongest single pairs, by their relevance"]
        for number, match in enumerate(values["top"], 1):
            where = to_printable(f"{match['a']['place']} ↔ {match['b']['place']}")
            lines.append(f"  {number:>4} {format_number(match['relevance']):>8}   {where}")
    plan = (values["plan"] or "").partition("\n")[0]  # its first line is the sum; --json has it all
    spent = [] if values["seconds"] is None else [f"{values['seconds']:.1f} s"]
    cost = ", ".join([*spent, *([plan] if plan else [])])
    lines += ["", f"  {cost}"] if cost else [""]
    return "\n".join(lines)


def _format_breakdown(values: dict[str, Any]) -> list[str]:
    """What adds up to the score, in the words of the page, one a line: to one precision, with its share of the score."""
    from bilrp.findings.formatting import format_column, format_percent

    rest = 0.0 if values["closed"] else values["unattributed"]  # rounding
    terms = {"pairs that raise it": values["positive"], "pairs that lower it": values["negative"]}
    rare = {"tokenizer's marks": values["special_tokens"], "each with itself": values["within"]}
    terms |= {name: value for name, value in rare.items() if value} | {"unattributed": rest}
    if values["against_reference"] is not None:  # known, and part of the unattributed
        terms["  either against the reference"] = sum(values["against_reference"])
        terms["  reference against reference"] = values["references"]
    terms["estimate" if values["estimate"] else "score"] = score = values["score"]
    wide = max(map(len, terms))
    return [
        f"  {name:<{wide}}{value:>14}{format_percent(terms[name] / score, 1) if score else '':>11}".rstrip()
        for name, value in zip(terms, format_column([*terms.values()]), strict=True)
    ]


def _format_findings(findings: Sequence[dict[str, Any]], width: int, max_findings: int = 6) -> list[str]:
    """The strongest findings, one a line: number, share of the score, place in a, place in b."""
    from bilrp.findings.formatting import format_share

    if not findings:
        return []
    lines = ["  findings, by their share of the score"]
    for number, finding in enumerate(findings[:max_findings], 1):
        share = "" if finding["share"] is None else format_share(finding["share"])
        label = to_printable(finding["label"])
        label = label if len(label) <= width - 18 else f"{label[: width - 19]}…"
        lines.append(f"  {number:>4} {share:>8}   {label}")
    return [*lines, ""]


def _describe_region(side: Any, index: int) -> dict[str, Any]:
    from bilrp.findings.formatting import describe_location

    found: dict[str, Any] = {"region": index, "place": describe_location(side.regions, side.view, [index])}
    if side.regions.boxes is not None:
        found["box"] = dict(
            zip(("top", "left", "bottom", "right"), side.regions.boxes[index].tolist(), strict=True)
        )
    if side.regions.names is not None:
        found["name"] = side.regions.names[index]
    return found


def _format_plan(explanation: Explanation) -> str | None:
    plan = explanation.a.plan
    return None if plan is None else str(plan)
