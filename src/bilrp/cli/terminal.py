"""What `bilrp explain` reads from its options and prints: encoders by name, output files, the summary."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.cli.say import say
from bilrp.encoders import images
from bilrp.errors import InputError, printable

if TYPE_CHECKING:
    from bilrp.encoder import Encoder
    from bilrp.explanation import Explanation

OUTPUTS = (".png", ".svg", ".pdf", ".html", ".npz", ".safetensors")


def encoder(name: str, *, weights: str | None = None, size: str | None = None, fit: str = "crop") -> Encoder:
    """An encoder by name: vgg16, vgg16:LAYER, or package.module:function that returns an encoder or a module.

    A plain module gets files read as RGB with ImageNet's mean and standard deviation.

    >>> encoder("vgg16:17").name  # doctest: +SKIP
    'vgg16:17'
    """
    pixels = measure(size)
    if name == "vgg16" or name.startswith("vgg16:"):
        from bilrp.encoders.vgg import LAYERS, vgg16

        layer = name.removeprefix("vgg16").removeprefix(":") or str(LAYERS)
        if not layer.isascii() or not layer.isdigit():
            raise InputError(f"--encoder {name}: the layer is a number from 1 to {LAYERS}, as in vgg16:31")
        return vgg16(int(layer), weights=weights, size=pixels, fit=fit, progress=sys.stderr.isatty())
    if weights is not None:
        raise InputError(f"--weights is for vgg16; {name} brings its own")
    from bilrp.encoders.families import load

    made = load(name)
    if made.read is not None:
        if size is not None:
            raise InputError(f"--size does not apply: {name} reads its items itself")
        return made
    return replace(
        made, read=partial(images.item, size=pixels, fit=fit), picture=made.picture or images.picture
    )


def measure(text: str | None) -> tuple[int, int] | int | None:
    """A size from the command line: 128 is a square, 192x128 is width × height, "original" leaves it alone.

    >>> measure("192x128")
    (128, 192)
    """
    if text is None:
        return 128
    if text == "original":
        return None
    found = re.fullmatch(r"([0-9]{1,5})(?:[x×]([0-9]{1,5}))?", text)
    if not found or not all(int(part) for part in found.groups() if part):
        raise InputError(f"--size {text}: give pixels, as in 128, 192x128 (width x height) or original")
    wide, high = found.groups()
    return int(wide) if high is None else (int(high), int(wide))


def checked_outputs(paths: Sequence[str], *, inputs: Sequence[str] = ()) -> list[Path]:
    """Refuse what could not be written, or would overwrite an input, before any work is done."""
    checked = [Path(path) for path in paths]
    for path in checked:
        if len(os.fsencode(path.name)) > 255:
            raise InputError(f"--output {path.name[:40]}…: the name is too long")
        if any(path.exists() and os.path.exists(item) and path.samefile(item) for item in inputs):
            raise InputError(f"--output {path}: this is one of the two inputs, and would be overwritten")
        if path.suffix.lower() not in OUTPUTS:
            raise InputError(f"--output {path}: the suffix is one of {', '.join(OUTPUTS)}")
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
) -> None:
    """The explanation as a picture, a page or numbers, by the suffix."""
    if path.suffix.lower() in (".png", ".svg", ".pdf"):
        from bilrp.render import figure

        figure.write(explanation, path, style=style, colours=palette, names=names, title=title)
    elif path.suffix.lower() == ".html":
        from bilrp.render import page

        page.write(
            explanation,
            path,
            style=None if style == "auto" else style,
            colours=palette,
            names=names,
            title=title,
        )
    else:
        explanation.save(path)


def record(
    explanation: Explanation, *, names: tuple[str, str], encoder: str, seconds: float | None, top: int
) -> dict[str, Any]:
    """Everything the summary says, as plain values for --json."""
    e, account = explanation, explanation.account
    return {
        "a": names[0],
        "b": names[1],
        "encoder": encoder,
        "similarity": e.similarity,
        "score": account.score,
        "explained": account.explained,
        "unattributed": account.unattributed,
        "explained_share": account.share(account.explained),
        "unattributed_share": account.share(account.unattributed),
        "positive": account.positive,
        "negative": account.negative,
        "closed": account.closed,
        "regions": [e.a.regions.count, e.b.regions.count],
        "top": [
            {"a": _region(e.a, m.a), "b": _region(e.b, m.b), "relevance": m.relevance} for m in e.top(top)
        ],
        "plan": _plan(e),
        "seconds": None if seconds is None else round(seconds, 3),
    }


def tell(about: dict[str, Any], outputs: Sequence[Path], *, as_json: bool, above: str | None = None) -> None:
    """Print the summary, before any file is written: what was worked out is then never lost."""
    if not as_json:
        if above is not None:
            print(above, end="\n\n")  # its own colours; what it shows is escaped already
        say(summary(about))
        return
    import json

    from bilrp.studies.common.report import plain

    print(json.dumps(plain({**about, "outputs": [str(path) for path in outputs]})), flush=True)


def blamed(encoder: Encoder, x: Any, error: Exception) -> Exception:
    """An error met while explaining: the encoder's own, by name, if it raises on its input by itself too; else as it was."""
    import torch

    from bilrp.errors import BilrpError, reason

    if isinstance(error, BilrpError):
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


def doubts(encoder: Encoder, explanation: Explanation, names: tuple[str, str]) -> list[str]:
    """What a reader should know before believing the numbers, one line each."""
    from bilrp.encoders import bigram

    if not isinstance(encoder.module, bigram.BigramNet):
        return []
    sides = zip(names, (explanation.a, explanation.b), strict=True)
    return [
        f"hardly any digits found in {name}: {encoder.name} reads printed tables of digits, upright and in focus"
        for name, side in sides
        if bigram.hardly_any(side.embedding, side.regions.labels.numel())
    ]


def summary(found: dict[str, Any]) -> str:
    """The same for people: what adds up, the strongest matches, and what it cost."""
    from bilrp.render.account import amount, percent

    def share(value: float | None) -> str:
        return f"{percent(value, 1):>10}".rstrip()

    rows, columns = found["regions"]
    rest = 0.0 if found["closed"] else found["unattributed"]  # rounding
    lines = [
        f"{printable(found['a'])}  and  {printable(found['b'])}",
        f"{found['encoder']}, {found['similarity']}, {rows} × {columns} regions",
        "",
        f"  score         {amount(found['score']):>12}",
        f"  explained     {amount(found['explained']):>12}{share(found['explained_share'])}",
        f"  unattributed  {amount(rest):>12}{share(found['unattributed_share'])}",
        "",
    ]
    if found["top"]:
        lines.append(f"  strongest matches {'region of a':>15} {'region of b':>22} {'relevance':>13}")
    for place, match in enumerate(found["top"], 1):
        a, b = _where(match["a"]), _where(match["b"])
        lines.append(f"  {place:>4} {a:>28} {b:>22} {amount(match['relevance']):>13}")
    plan = (found["plan"] or "").partition("\n")[0]  # its first line is the sum; --json has it all
    spent = [] if found["seconds"] is None else [f"{found['seconds']:.1f} s"]
    cost = ", ".join([*spent, *([plan] if plan else [])])
    lines += ["", f"  {cost}"] if cost else [""]
    return "\n".join(lines)


def _region(side: Any, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {"region": index}
    if side.regions.boxes is not None:
        found["box"] = dict(
            zip(("top", "left", "bottom", "right"), side.regions.boxes[index].tolist(), strict=True)
        )
    if side.regions.names is not None:
        found["name"] = side.regions.names[index]
    return found


def _where(region: dict[str, Any]) -> str:
    if "name" in region:
        return f"{region['region']} {region['name']}"[:22]
    if "box" in region:
        box = region["box"]
        return f"x {box['left']}–{box['right']}, y {box['top']}–{box['bottom']}"
    return str(region["region"])


def _plan(explanation: Explanation) -> str | None:
    plan = explanation.a.plan
    return None if plan is None else str(plan)
