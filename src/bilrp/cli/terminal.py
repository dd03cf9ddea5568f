"""Encoders by name, and the summary that `bilrp explain` prints."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bilrp.cli.console import print_safe
from bilrp.errors import InputError, to_printable

if TYPE_CHECKING:
    from torch import Tensor

    from bilrp.answers.shapes import ExplainAnswer, Finding
    from bilrp.encoder import DualEncoder, Encoder
    from bilrp.encoders.registry import Size
    from bilrp.explanation import Explanation

ANIMATED_SUFFIXES = (".gif", ".png", ".webp")  # may contain several frames


def load_encoder(
    name: str, *, weights: str | None = None, size: str | None = None, resize: str | None = None
) -> Encoder:
    """Load the encoder of the command-line options.

    Args:
        name, weights, size, resize: the options --encoder, --weights, --size and --resize.
    """
    from bilrp.encoders.registry import load

    return load(name, weights=weights, size=parse_size(size), resize=resize, progress=sys.stderr.isatty())


def load_encoder_or_dual(
    name: str, *, weights: str | None = None, size: str | None = None, resize: str | None = None
) -> Encoder | DualEncoder:
    """Load an encoder, or a dual encoder of images and texts.

    Args:
        name, weights, size, resize: as for `load_encoder`.
    """
    from bilrp.encoders.registry import load_encoder_or_pair

    return load_encoder_or_pair(
        name, weights=weights, size=parse_size(size), resize=resize, progress=sys.stderr.isatty()
    )


def parse_size(text: str | None) -> Size | None:
    """Parse --size: 128 is a square, 192x128 is width × height, "original" keeps the size.

    >>> parse_size("192x128")
    (128, 192)
    """
    if text is None or text == "original":
        return text
    match = re.fullmatch(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?", text)
    if not match or not all(int(number) for number in match.groups() if number):
        raise InputError(f"--size {text}: give pixels, as in 128, 192x128 (width x height) or original")
    width, height = match.groups()
    return int(width) if height is None else (int(height), int(width))


def print_summary(
    values: ExplainAnswer,
    outputs: Sequence[Path],
    *,
    as_json: bool,
    header: str | None = None,
    show_pairs: bool = False,
) -> None:
    """Print the summary. Called before files are written, so that a failing output does not lose it.

    Args:
        values: the answer.
        outputs: the files that will be written, listed in the JSON.
        as_json: print JSON.
        header: text to print first.
        show_pairs: also print the strongest pairs of regions.
    """
    if not as_json:
        if header is not None:
            print(header, end="\n\n")  # has colour codes, and is escaped already
        print_safe(format_summary(values, show_pairs=show_pairs))
        return
    print_json({**values, "outputs": [str(path) for path in outputs]})


def print_json(answer: Mapping[str, object]) -> None:
    """Print an answer as one line of JSON."""
    import json

    print(json.dumps(answer, allow_nan=False), flush=True)


def wrap_encoder_error(encoder: Encoder, x: Tensor, error: Exception) -> Exception:
    """Return an error that names the encoder if the encoder alone raises on this input, else the error itself.

    Args:
        encoder, x, error: the encoder, the input on which the explanation failed, and its exception.
    """
    import torch

    from bilrp.errors import BilrpError, describe_error

    if isinstance(error, BilrpError):
        from bilrp.encoders import bigram

        if isinstance(encoder.module, bigram.BigramNet) and "zero in every coordinate" in str(error):
            return InputError(
                f"almost no digits found: {encoder.name} reads printed tables of digits, upright and in focus ({error})"
            )
        return error
    try:
        with torch.no_grad():
            encoder.module(x)
    except Exception as own_error:
        where = f"on an input of shape {tuple(x.shape)}" if hasattr(x, "shape") else "on its input"
        return InputError(
            f"the encoder {encoder.name} raised {type(own_error).__name__} {where}: {describe_error(own_error)} "
            f"(BILRP_DEBUG=1 shows where)"
        )
    return error


def collect_warnings(
    encoder: Encoder, explanation: Explanation, names: tuple[str, str], inputs: Sequence[str] = ()
) -> list[str]:
    """Return warnings about the inputs, one line each.

    Args:
        encoder, explanation, names: the encoder, the explanation, and the names of its inputs.
        inputs: the command-line arguments.
    """
    from bilrp.encoders import bigram, image_files

    warnings = [
        f"{path} is animated: its first frame is explained"
        for path in dict.fromkeys(inputs)
        if Path(path).suffix.lower() in ANIMATED_SUFFIXES and image_files.is_animated(path)
    ]
    if not isinstance(encoder.module, bigram.BigramNet):
        return warnings
    sides = zip(names, (explanation.a, explanation.b), strict=True)
    return warnings + [
        f"almost no digits found in {name}: {encoder.name} reads printed tables of digits, upright and in focus"
        for name, side in sides
        if bigram.has_few_bigrams(side.embedding, side.regions.labels.numel())
    ]


def terminal_width() -> int:
    """Return the line width: that of the terminal, between 40 and 100."""
    import shutil

    return min(100, max(40, shutil.get_terminal_size().columns))


def wrap(sentence: str, *, indent: str = "  ") -> str:
    """Wrap a sentence to the terminal's width; a number and its % stay on one line."""
    import textwrap

    text = to_printable(sentence).replace(" %", "\u00a0%")
    return textwrap.fill(text, terminal_width(), initial_indent=indent, subsequent_indent=indent).replace(
        "\u00a0", " "
    )


def format_summary(values: ExplainAnswer, *, show_pairs: bool = False) -> str:
    """Format the summary as text: sentence, findings, breakdown of the score, and cost; pairs of regions on request."""
    from bilrp.findings.formatting import format_number

    rows, columns = values["regions"]
    lines = [
        f"{to_printable(values['a'])}  and  {to_printable(values['b'])}",
        f"{values['encoder']}, {values['similarity']}, {rows} × {columns} regions",
        "",
        wrap(values["summary"]),
        *([wrap(f"{values['differs_lead']} {values['differs_most']}.")] if values["differs_most"] else []),
        *([wrap(values["checked"])] if values["checked"] else []),
        "",
        *format_findings(values["findings"], terminal_width(), values["share_of"]),
        *_format_breakdown(values),
    ]
    if show_pairs and values["top"]:
        lines += ["", "  strongest pairs of regions, by relevance"]
        for number, match in enumerate(values["top"], 1):
            where = to_printable(f"{match['a']['place']} ↔ {match['b']['place']}")
            lines.append(f"  {number:>4} {format_number(match['relevance']):>8}   {where}")
    plan = (values["plan"] or "").partition("\n")[0]  # its first line has the total; --json has all lines
    seconds = "" if values["seconds"] is None else f"{values['seconds']:.1f} s"
    cost = ", ".join(filter(None, (seconds, plan)))
    lines += ["", f"  {cost}"] if cost else [""]
    return "\n".join(lines)


def _format_breakdown(values: ExplainAnswer) -> list[str]:
    """Format the terms that add up to the score, one per line, with their share of it; the page uses the same words."""
    from bilrp.findings.formatting import format_column, format_share

    shared = values["shared"]
    rest = 0.0 if values["closed"] else values["unattributed"] - (shared or 0.0)  # rounding
    terms = {"pairs that raise it": values["positive"], "pairs that lower it": values["negative"]}
    optional = {"special tokens": values["special_tokens"], "each with itself": values["self_terms"]}
    terms |= {name: value for name, value in optional.items() if value}
    if shared is not None:
        terms |= {"specific to these two": values["specific"], "shared by any two": shared}
    else:
        terms["unattributed"] = rest
    if values["reference_terms"] is not None and shared is None:  # part of the unattributed
        terms["  either against the reference"] = sum(values["reference_terms"])
        terms["  reference against reference"] = values["reference_score"] or 0.0
    total = "estimate" if values["estimate"] else "score"
    terms[total] = values["score"]
    width = max(map(len, terms))
    whole = values["specific"]  # shares are of it: only a known shared part makes it differ from the score
    without_share = () if shared is None else ("shared by any two", total)
    shares = {
        name: "" if values["near_zero"] or name in without_share else format_share(value / whole)
        for name, value in terms.items()
    }
    return [
        f"  {name:<{width}}{value:>14}{shares[name]:>11}".rstrip()
        for name, value in zip(terms, format_column([*terms.values()]), strict=True)
    ]


def format_findings(
    findings: Sequence[Finding], width: int, share_of: str = "the score", max_findings: int = 6
) -> list[str]:
    """Format findings, one per line: number, share of the score (near zero: relevance), locations.

    Args:
        findings: all of them, strongest first.
        width: of the terminal, in characters.
        share_of: what shares are of.
        max_findings: how many of the strongest are listed; the first that raise the score always are, as the summary names
            them.
    """
    from bilrp.findings.formatting import format_share, format_signed
    from bilrp.findings.summary import MAX_NAMED_FINDINGS

    if not findings:
        return []
    near_zero = findings[0]["share"] is None
    positions = " (x from the left, y from the top)" if findings[0]["label"].startswith("x ") else ""
    lines = [wrap(f"matches, by their {'relevance' if near_zero else f'share of {share_of}'}{positions}")]
    raising = [number for number, finding in enumerate(findings, 1) if finding["relevance"] > 0]
    listed = {*range(1, max_findings + 1), *raising[:MAX_NAMED_FINDINGS]}
    for number, finding in enumerate(findings, 1):
        if number not in listed:
            continue
        own = finding["share"]
        share = format_signed(finding["relevance"]) if own is None else format_share(own)
        label = to_printable(finding["label"])
        label = label if len(label) <= width - 18 else f"{label[: width - 19]}…"
        lines.append(f"  {number:>4} {share:>8}   {label}")
    return [*lines, ""] if len(lines) > 1 else []
