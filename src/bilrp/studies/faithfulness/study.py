"""Are explanations of real photograph pairs true to the model? Five methods under the whole suite of `bilrp.evaluate`.

Each picture is taken apart once for each set of rules, at all layers in one sweep; every pair is then a small matrix
product. What one pair gave is kept in OUT/cache, so that an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.decomposition import decompose
from bilrp.disk import files
from bilrp.disk.cache import content_of, key_of, weights_of
from bilrp.encoder import Encoder
from bilrp.encoders import images, vgg
from bilrp.engine.progress import Progress, tracking
from bilrp.errors import InputError
from bilrp.judge import evaluate
from bilrp.regions import Regions, grid
from bilrp.rules import books as rulebooks
from bilrp.studies.common import folders
from bilrp.studies.common.report import Report

METHODS = ("bilrp", "hessian_product", "uniform", "saliency", "random")
BLIND = ("saliency", "random")  # they do not look at the network, so that every layer gets the same relevance
WARPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("shift", {"shift": (0.125, 0.125)}),
    ("flip", {"flip": True}),
    ("rotation", {"rotate": 20.0}),
    ("crop", {"zoom": 1.25}),
)
# Pairs in a row that are resampled together. Neighbours along the chain share a picture, and a block of this length
# holds every kind of warp once, as the whole does: which kinds there are is no matter of chance.
BLOCK = len(WARPS)


@dataclass(frozen=True)
class Measure:
    """One column of the table: which way is better (+1, −1), or 0 where neither is."""

    key: str
    title: str
    better: int


MEASURES = (
    Measure("unattributed", "unattributed share of the score", -1),
    Measure("negative", "negative share of relevance", 0),
    Measure("deletion", "pair deletion, area", -1),
    Measure("insertion", "pair insertion, area", 1),
    Measure("warp_positive", "known warp: positive share on matches", 1),
    Measure("warp_signed", "known warp: signed share on matches", 1),
    Measure("planted_positive", "planted patch: positive share", 1),
    Measure("planted_signed", "planted patch: signed share", 1),
    Measure("randomisation", "rank correlation with random weights", -1),
    Measure("stability", "cosine under noise", 1),
)


@dataclass(frozen=True)
class Settings:
    """What can be chosen; every figure of the study follows from it and the data.

    `cascade`: at every so many pairs the weights are randomised block by block too, from the top (0: never).
    """

    layers: tuple[int, ...] = (17, 31)
    pairs: int = 40
    size: int = 96
    regions: int = 8
    project: int | None = None
    gamma: float = 0.25
    steps: int = 8
    noise: float = 0.05
    cascade: int = 5
    resamples: int = 2000
    seed: int = 0


# ---------------------------------------------------------------- methods: one side at a time


@dataclass(frozen=True, eq=False)
class Side:
    """What a method needs to know of one picture at one layer; two of them give the relevance of a pair."""

    parts: Tensor
    embedding: Tensor
    seed: int


Sides = Mapping[str, Mapping[int, Side]]  # by method, by layer


def sides(encoder: Encoder, x: Tensor, settings: Settings, *, name: str = "") -> Sides:
    """One picture under every method at every layer."""
    seed = seed_of(x, settings, name)
    found: dict[str, dict[int, Side]] = {}
    for method, book in rule_books(encoder, settings).items():
        made = decompose(
            encoder,
            x,
            regions=grid(settings.regions),
            rules=book,
            project=settings.project,
            layers=settings.layers,
        )
        found[method] = {layer: Side(d.parts, d.embedding, seed) for layer, d in made.items()}
    squares = grid(settings.regions)(x).pool(x.square()[None]).T
    for method in BLIND:
        found[method] = {layer: Side(squares, side.embedding, seed) for layer, side in found["bilrp"].items()}
    return found


def seed_of(x: Tensor, settings: Settings, name: str) -> int:
    """What is drawn for a picture: the same for the same picture, seed and purpose, otherwise independent."""
    return zlib.crc32(f"{name} {settings.seed} {content_of(x)}".encode())


def rule_books(encoder: Encoder, settings: Settings) -> dict[str, Any]:
    """The methods that take embeddings apart, by their rules."""
    return {
        "bilrp": encoder.rules,
        "hessian_product": rulebooks.hessian_product(),
        "uniform": rulebooks.uniform(settings.gamma),
    }


def relevance(method: str, a: Side, b: Side) -> Tensor:
    """[regions of a, regions of b] by one method."""
    if method != "random":
        return a.parts @ b.parts.T
    # Sums of checksums would cancel what both sides have in common, such as the network: hash the two together.
    seed = int(key_of(str(a.seed), {"other": b.seed})[:12], 16)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(a.parts), len(b.parts), generator=generator).to(a.parts)


# ---------------------------------------------------------------- one pair under the suite


@dataclass(frozen=True, eq=False)
class Bench:
    """The encoder, its randomised copy, and what was chosen."""

    encoder: Encoder
    blank: Encoder
    settings: Settings

    def sides(self, x: Tensor, *, blank: bool = False) -> Sides:
        """One picture under every method, by the trained or by the randomised network."""
        return sides(self.blank if blank else self.encoder, x, self.settings, name="blank" if blank else "")


@dataclass(frozen=True, eq=False)
class Picture:
    """One photograph with everything that both of its pairs need: itself, with noise, and by random weights."""

    name: str
    x: Tensor
    plain: Sides
    noisy: Sides
    blank: Sides


def prepared(bench: Bench, name: str, x: Tensor) -> Picture:
    """Take a photograph apart in its three forms."""
    # Each picture its own noise: what both sides had in common would be content, and similar.
    generator = torch.Generator().manual_seed(seed_of(x, bench.settings, "noise"))
    # Noise must not leave the range of pixels, which the first layer's rule relies on.
    low, high = (torch.tensor(bound).reshape(1, -1, 1, 1).to(x) for bound in images.bounds())
    shaken = evaluate.noisy(x, bench.settings.noise, generator).clamp(low, high)
    return Picture(name, x, bench.sides(x), bench.sides(shaken), bench.sides(x, blank=True))


def measured(bench: Bench, a: Picture, b: Picture, number: int) -> dict[str, Any]:
    """Every measure of one pair: {layer: {method: {measure: value}}}, and what was done to it."""
    settings = bench.settings
    regions = grid(settings.regions)(a.x)
    kind, match, among, warped = warp(a.x, regions, number)
    after = bench.sides(warped)
    image, pasted = plant(a.x, b.x, regions, seed=settings.seed + number)
    with_patch = bench.sides(image)
    curves = follow(bench, a, b, regions)
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for layer in settings.layers:
        found[str(layer)] = {}
        for method in METHODS:
            plain, noisy, blank = (
                relevance(method, getattr(a, form)[method][layer], getattr(b, form)[method][layer])
                for form in ("plain", "noisy", "blank")
            )
            to_warp = relevance(method, a.plain[method][layer], after[method][layer])
            to_patch = relevance(method, a.plain[method][layer], with_patch[method][layer])
            found[str(layer)][method] = {
                **account(method, plain, a.plain[method][layer], b.plain[method][layer]),
                **curves[method][layer],
                **_shares("warp", evaluate.share(to_warp, match, among=among)),
                **_shares("planted", evaluate.share(to_patch, pasted)),
                "randomisation": abs(evaluate.rank_correlation(plain, blank)),
                "stability": float(evaluate.cosine(noisy, plain).nan_to_num(0.0)),
            }
    chance = {"warp": float((match * among).sum() / among.sum()), "planted": float(pasted.mean())}
    row = {"a": a.name, "b": b.name, "warp": kind, "chance": chance, "layers": found}
    if settings.cascade and number % settings.cascade == 0:
        row["cascade"] = cascade(bench, a, b)
    return row


def account(method: str, found: Tensor, a: Side, b: Side) -> dict[str, float | None]:
    """Conservation: what adds up to the score, and how much of the relevance is negative."""
    total = found.double().abs().sum()
    negative = float(found.double().clamp(max=0).abs().sum() / total) if float(total) else 0.0
    if method in BLIND:  # scores of pairs, not shares of the similarity
        return {"unattributed": None, "negative": negative}
    score = float(a.embedding.double() @ b.embedding.double())
    missing = abs(score - float(found.double().sum())) / abs(score) if score else 0.0
    return {"unattributed": missing, "negative": negative}


def follow(bench: Bench, a: Picture, b: Picture, regions: Regions) -> dict[str, dict[int, dict[str, float]]]:
    """Areas under pair deletion and insertion, {method: {layer: …}}; the ends of all curves are shared."""
    settings, module = bench.settings, bench.encoder.module
    total = 2 * regions.count
    counts = torch.linspace(0, total, settings.steps + 1).round().long()
    blur = evaluate.blurred(settings.regions + settings.regions // 2)
    pictures, blank = (a.x, b.x), (blur(a.x), blur(b.x))
    whole, empty = (dots(module, *both, settings.layers) for both in (pictures, blank))
    found: dict[str, dict[int, dict[str, float]]] = {
        method: {layer: {} for layer in settings.layers} for method in METHODS
    }
    orders = {"deletion": evaluate.removal_order, "insertion": evaluate.insertion_order}
    for method, layers in _alike(settings.layers):
        table = relevance(method, a.plain[method][layers[0]], b.plain[method][layers[0]])
        for key, order in orders.items():
            insert = key == "insertion"
            batches = [
                evaluate.replaced(x, other, regions, place, counts[1:-1], insert=insert)
                for x, other, place in zip(pictures, blank, order(table), strict=True)
            ]
            start, end = (empty, whole) if insert else (whole, empty)
            for layer, between in dots(module, batches[0], batches[1], layers).items():
                scores = torch.cat([start[layer], between, end[layer]])
                found[method][layer][key] = evaluate.Curve(counts / total, scores, float(whole[layer])).area
    return found


def _alike(layers: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    """Each method with the layers at which its relevance is the same, so that one run of the network serves them."""
    for method in METHODS:
        yield from [(method, layers)] if method in BLIND else [(method, [layer]) for layer in layers]


@torch.inference_mode()
def dots(module: Any, a: Tensor, b: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """⟨φ(x), φ(x')⟩ of two batches, pair by pair, at several layers of VGG-16 in one run."""
    found, value = {}, torch.cat([a, b])
    for number, layer in enumerate(module.features[: max(layers)], start=1):
        value = layer(value)
        if number in layers:
            left, right = value.flatten(1).double().split([len(a), len(b)])
            found[number] = (left * right).sum(1)
    return found


def cascade(bench: Bench, a: Picture, b: Picture) -> dict[str, dict[str, dict[str, float]]]:
    """|Rank correlation| with random weights from each block up, {layer: {method: {block: …}}}; block 1 is all of them."""
    settings = bench.settings
    found: dict[str, dict[str, dict[str, float]]] = {
        str(layer): {method: {} for method in METHODS} for layer in settings.layers
    }
    for block, (start, depth) in blocks(bench.encoder.module).items():
        layers = tuple(layer for layer in settings.layers if layer > start)  # the others stay as they are
        if block == 1:
            left, right = a.blank, b.blank
        else:
            other = evaluate.randomised(bench.encoder, depth, seed=settings.seed)
            few = replace(settings, layers=layers)
            left, right = (sides(other, each.x, few, name=f"from block {block}") for each in (a, b))
        for layer in layers:
            for method in METHODS:
                before = relevance(method, a.plain[method][layer], b.plain[method][layer])
                after = relevance(method, left[method][layer], right[method][layer])
                found[str(layer)][method][str(block)] = abs(evaluate.rank_correlation(before, after))
    return found


def blocks(module: Any) -> dict[int, tuple[int, int]]:
    """{block: (layers before it, convolutions in it and above)}, the top block first; a pooling ends a block."""
    layers = list(module.features)
    starts = [0, *(k + 1 for k, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d))]
    depths = [len(evaluate.weighted_modules(nn.ModuleList(layers[start:]))) for start in starts]
    found = {k: pair for k, pair in enumerate(zip(starts, depths, strict=True), start=1) if pair[1]}
    return dict(reversed(found.items()))


def warp(x: Tensor, regions: Regions, number: int) -> tuple[str, Tensor, Tensor, Tensor]:
    """A known warp of the picture, in turn: its kind, the true matches, the rows that have one, and the picture."""
    kind, given = WARPS[number % len(WARPS)]
    height, width = x.shape[2:]
    options = dict(given)
    if "shift" in options:
        options["shift"] = (round(options["shift"][0] * height), round(options["shift"][1] * width))
    matrix = evaluate.affine(**options, size=(height, width))
    where = evaluate.destinations(matrix, (height, width))
    match, among = evaluate.matches(where, regions, regions)
    return kind, match, among, evaluate.warped(x, matrix)


def plant(a: Tensor, b: Tensor, regions: Regions, *, seed: int) -> tuple[Tensor, Tensor]:
    """Paste a patch of a into b: (new b, the pairs of regions that join the two). It covers whole regions.

    The patch is about a third of the width and lies in the same place in both, since these models compare place with
    place. The picture a stays as it is, so that the patch has its natural surroundings on one side.
    """
    assert regions.boxes is not None
    generator = np.random.default_rng(seed)
    side = int(regions.boxes[0, 2])
    extent = [max(1, n // side // 3) for n in a.shape[2:]]
    top, left = (int(generator.integers(n // side - m + 1)) for n, m in zip(a.shape[2:], extent, strict=True))
    rows, columns = slice(top * side, (top + extent[0]) * side), slice(left * side, (left + extent[1]) * side)
    place = (rows.start, columns.start)
    _, image, where = evaluate.planted(a, b, patch=a[0, :, rows, columns], at_a=place, at_b=place)
    return image, evaluate.pasted(where, regions, regions)


def _shares(name: str, found: evaluate.Share) -> dict[str, float]:
    return {f"{name}_positive": found.positive, f"{name}_signed": found.signed}


# ---------------------------------------------------------------- the study


def run(
    data: str | Path,
    out: str | Path,
    *,
    settings: Settings | None = None,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    progress: bool = False,
) -> Report:
    """The whole study: a folder of photographs in, a report out.

    >>> run("photos", "out/faithfulness").results["table"]["31"]["bilrp"]["insertion"]  # doctest: +SKIP
    {'mean': 0.62, 'low': 0.59, 'high': 0.65}
    """
    from bilrp.studies.faithfulness import report as faithfulness_report

    settings = settings or Settings()
    check(settings)
    found = folders.stills(data, size=settings.size)
    if len(found.items) < 2:
        raise InputError(f"{data}: two readable photographs are needed, found one")
    encoder = vgg.vgg16(max(settings.layers), weights=weights, size=None, progress=progress)
    depth = len(evaluate.weighted_modules(encoder.module))
    bench = Bench(encoder, evaluate.randomised(encoder, depth, seed=settings.seed), settings)
    with tracking(progress) as bar:
        rows = list(_rows(bench, found.items, Path(out) / "cache", bar))
    report = faithfulness_report.write(rows, settings, found)
    report.write(out)
    return report


def check(settings: Settings) -> None:
    """Refuse what cannot work, before the long part."""
    if settings.pairs < 1 or settings.steps < 2 or not settings.layers:
        raise InputError("the faithfulness study needs at least one pair, one layer and two steps")
    if settings.size < 4 * settings.regions or settings.size < 32:
        raise InputError(
            f"pictures of {settings.size} pixels are too small for regions of {settings.regions}: use --size 96"
        )


def _rows(
    bench: Bench, items: Sequence[folders.Picture], kept: Path, bar: Progress
) -> Iterator[dict[str, Any]]:
    """One row for each pair along the chain of similar pictures; rows already on disk are read."""
    assert bench.encoder.read is not None
    inputs = [bench.encoder.read(item.pixels) for item in items]
    order = chain(bench.encoder, inputs)[: bench.settings.pairs + 1]
    # Neither how many pairs there are nor how they are resampled changes what one pair gives.
    chosen = asdict(replace(bench.settings, pairs=0, resamples=0))
    origin = {"weights": weights_of(bench.encoder.module), **chosen}  # type: ignore[arg-type]
    bar.start("pairs", len(order) - 1)
    held: dict[int, Picture] = {}
    for number, (i, j) in enumerate(pairwise(order)):
        key = key_of(
            content_of(inputs[i]) + content_of(inputs[j]), {**origin, "number": number, "version": 3}
        )
        path = kept / f"{key[:24]}.json"
        if path.is_file():
            yield json.loads(path.read_text())
        else:
            for k in (i, j):
                held[k] = held[k] if k in held else prepared(bench, items[k].name, inputs[k])
            row = measured(bench, held[i], held[j], number)
            files.write_text(path, json.dumps(row))
            yield row
        held = {j: held[j]} if j in held else {}
        bar.advance()


def chain(encoder: Encoder, inputs: Sequence[Tensor], batch: int = 16) -> list[int]:
    """An order of the pictures in which neighbours are similar (cosine at the last layer): always the nearest one left."""
    with torch.inference_mode():
        rows = [
            encoder.module(torch.cat(list(inputs[k : k + batch]))).flatten(1)
            for k in range(0, len(inputs), batch)
        ]
    unit = torch.nn.functional.normalize(torch.cat(rows), dim=1)
    table = unit @ unit.T
    table.fill_diagonal_(-torch.inf)
    order = [int(table.max(1).values.argmax())]
    while len(order) < len(inputs):
        table[:, order[-1]] = -torch.inf
        order.append(int(table[order[-1]].argmax()))
    return order


# ---------------------------------------------------------------- statistics


def interval(
    values: Sequence[float], *, block: int = 1, resamples: int = 2000, seed: int = 0
) -> dict[str, float]:
    """Mean and its 95 % bootstrap interval (percentile), resampling `block` neighbours at a time around the circle.

    Blocks keep what neighbours have in common together (the circular block bootstrap of Politis and Romano 1992).

    >>> interval([1.0, 1.0, 1.0])
    {'mean': 1.0, 'low': 1.0, 'high': 1.0}
    """
    array = np.asarray(values, dtype=float)
    count = len(array)
    starts = np.random.default_rng(seed).integers(count, size=(resamples, -(-count // block), 1))
    drawn = ((starts + np.arange(block)) % count).reshape(resamples, -1)[:, :count]
    low, high = np.quantile(array[drawn].mean(1), [0.025, 0.975])
    return {"mean": float(array.mean()), "low": float(low), "high": float(high)}


def summary(rows: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
    """results.json: every measure with its interval, and BiLRP against each other method, pair by pair."""
    options = {"block": BLOCK, "resamples": settings.resamples, "seed": settings.seed}

    def values(layer: int, method: str, key: str) -> list[float] | None:
        found = [row["layers"][str(layer)][method][key] for row in rows]
        return None if any(v is None for v in found) else found

    randomised = [row["cascade"] for row in rows if "cascade" in row]
    table: dict[str, Any] = {}
    against: dict[str, Any] = {}
    for layer in settings.layers:
        table[str(layer)] = {
            method: {
                m.key: None if (v := values(layer, method, m.key)) is None else interval(v, **options)
                for m in MEASURES
            }
            for method in METHODS
        }
        against[str(layer)] = {}
        for m in (m for m in MEASURES if m.better):
            ours = values(layer, "bilrp", m.key)
            against[str(layer)][m.key] = {
                method: _against(ours, values(layer, method, m.key), m.better, options)
                for method in METHODS[1:]
            }
    return {
        "pairs": len(rows),
        "settings": asdict(settings),
        "table": table,
        "bilrp_against": against,
        "chance": {key: float(np.mean([row["chance"][key] for row in rows])) for key in ("warp", "planted")},
        "warps": {
            kind: {
                str(layer): {
                    method: {
                        key: float(np.mean([r["layers"][str(layer)][method][key] for r in some]))
                        for key in ("warp_positive", "warp_signed")
                    }
                    for method in METHODS
                }
                for layer in settings.layers
            }
            for kind, _ in WARPS
            if (some := [row for row in rows if row["warp"] == kind])
        },
        "cascade": _cascades(randomised, settings),
        "cascade_pairs": len(randomised),
        "per_pair": list(rows),
    }


def _cascades(found: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
    """Every step of the cascade with its interval; these pairs share no picture."""
    if not found:
        return {}
    return {
        layer: {
            method: {
                block: interval(
                    [each[layer][method][block] for each in found],
                    resamples=settings.resamples,
                    seed=settings.seed,
                )
                for block in steps
            }
            for method, steps in methods.items()
        }
        for layer, methods in found[0].items()
    }


def _against(
    ours: Sequence[float] | None, theirs: Sequence[float] | None, better: int, options: Mapping[str, int]
) -> dict[str, Any] | None:
    """BiLRP minus another method, pair by pair, and what that says."""
    if ours is None or theirs is None:
        return None
    difference = interval([x - y for x, y in zip(ours, theirs, strict=True)], **options)
    low, high = sorted((better * difference["low"], better * difference["high"]))
    return {**difference, "verdict": "wins" if low > 0 else "loses" if high < 0 else "no clear difference"}
