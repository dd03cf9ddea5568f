"""Section 5 on photographs: nearest neighbours at two layers explained side by side, and true correspondences.

Which neighbours a layer finds says little; what it matches says why. On a stereo pair the right answer is known:
the share of positive relevance within one region of the true match is set against chance and Hessian×Product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bilrp.decomposition import decompose
from bilrp.encoder import Encoder
from bilrp.encoders import images, vgg, weights
from bilrp.errors import InputError
from bilrp.explanation import Explanation, pair
from bilrp.regions import grid
from bilrp.render import figure
from bilrp.studies.common.report import Picture, Report, Section, Table, Text

REGION = 8


@dataclass(frozen=True)
class Correspondence:
    """How much positive relevance lands near the true match.

    `share`: Σ R⁺ over pairs (I, I') with I' within one region of the true match of I, over Σ R⁺ of those I.
    `signed`: Σ R over the same pairs, over Σ |R| of those I: relevance that cancels does not count.
    `chance`: the same if each region spread its relevance evenly. `same_place`: the same if each region gave it
    all to the region at its own place in the other image.
    """

    share: float
    signed: float
    chance: float
    same_place: float

    @property
    def ratio(self) -> float:
        """How many times chance."""
        return self.share / self.chance


def run(
    data: str | Path,
    out: str | Path,
    *,
    layers: Sequence[int] = (17, 31),
    pairs: int = 4,
    size: int = 128,
    weights: str | Path | None = None,
    progress: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> Path:
    """The whole study, from a folder of photographs to a report; returns the path of report.html.

    >>> run("photographs/", "out/photos", pairs=2)  # doctest: +SKIP
    """
    read = _Reader(size)
    paths, skipped = readable(photographs(data), read)
    for path, reason in skipped.items():
        say(f"skipped {path}: {reason}")
    tensors = _tensors(weights, progress)
    say(f"{len(paths)} photographs, layers {', '.join(map(str, layers))}")
    neighbours = {n: nearest(embeddings(paths, n, tensors, read)) for n in layers}
    chosen = nearest_pairs(neighbours[max(layers)].similarity, pairs)
    found = []
    for place, (i, j) in enumerate(chosen, 1):
        say(f"pair {place} of {len(chosen)}: {paths[i].name} and {paths[j].name}")
        found.append(_explained(paths, i, j, layers, neighbours, tensors, read, progress))
    stereo = measured_stereo(layers, tensors, size=size, progress=progress, say=say)
    made = report(paths, found, neighbours, stereo, layers, size)
    left_out = [{"file": str(path), "reason": reason} for path, reason in skipped.items()]
    return replace(made, results={**made.results, "skipped": left_out}).write(out)


def photographs(data: str | Path) -> list[Path]:
    """The photographs in a folder: its `pascal_voc/images` or `images` if there is one, else all images below it."""
    folder = Path(data)
    for inner in (folder / "pascal_voc" / "images", folder / "images"):
        if inner.is_dir():
            folder = inner
            break
    found = images.listed(folder)
    if len(found) < 2:
        raise InputError(f"{folder}: nearest neighbours need at least two images")
    return found


def readable(paths: Sequence[Path], read: Callable[[Path], Tensor]) -> tuple[list[Path], dict[Path, str]]:
    """The photographs that can be read, and why the others cannot: one damaged file must not end a study."""
    kept, skipped = [], {}
    for path in paths:
        try:
            read(path)
        except InputError as error:
            skipped[path] = str(error).removeprefix(f"{path}: ")
        else:
            kept.append(path)
    if len(kept) < 2:
        first = next((f", the first: {path} ({reason})" for path, reason in skipped.items()), "")
        raise InputError(
            f"nearest neighbours need at least two images; {len(kept)} can be read, {len(skipped)} not{first}"
        )
    return kept, skipped


@dataclass(frozen=True)
class Neighbours:
    """Cosine similarities of all photographs at one layer."""

    similarity: Tensor

    def of(self, i: int) -> int:
        """The nearest other photograph."""
        row = self.similarity[i].clone()
        row[i] = -torch.inf
        return int(row.argmax())


def embeddings(
    paths: Sequence[Path], layer: int, tensors: Mapping[str, Tensor], read: Callable[[Path], Tensor]
) -> Tensor:
    """φ of each photograph, one row each."""
    network = vgg.module(layer, weights=tensors)
    with torch.no_grad():
        return torch.stack([network(read(path)).flatten() for path in paths])


def nearest(rows: Tensor) -> Neighbours:
    """Neighbours by cosine: by dot product an image of high contrast would be near to everything."""
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    return Neighbours((unit @ unit.T).float())


def nearest_pairs(similarity: Tensor, count: int) -> list[tuple[int, int]]:
    """The `count` most similar pairs in which no image comes twice."""
    upper = torch.triu(torch.ones_like(similarity, dtype=torch.bool), diagonal=1)
    order = similarity.masked_fill(~upper, -torch.inf).flatten().argsort(descending=True)
    used: set[int] = set()
    found: list[tuple[int, int]] = []
    for place in order[: int(upper.sum())].tolist():
        i, j = divmod(place, similarity.shape[1])
        if len(found) == count:
            break
        if not used & {i, j}:
            used |= {i, j}
            found.append((i, j))
    return found


def at_layers(
    encoder: Encoder,
    a: Any,
    b: Any,
    layers: Sequence[int],
    similarity: str = "dot",
    *,
    rules: Any = None,
    progress: bool = False,
) -> dict[int, Explanation]:
    """The explanation at each layer: one sweep through the network for each input serves them all."""
    options = {"regions": grid(REGION), "rules": rules, "layers": layers, "progress": progress}
    left, right = decompose(encoder, a, **options), decompose(encoder, b, **options)
    return {n: pair(left[n], right[n], similarity=similarity) for n in layers}


def correspondence(relevance: Tensor, match: Tensor, *, columns: int) -> Correspondence:
    """Positive relevance within one region of the true match; `match[I]` is (row, column) in b, −1 where unknown.

    >>> correspondence(torch.eye(9), torch.tensor([[i // 3, i % 3] for i in range(9)]), columns=3).share
    1.0
    """
    relevance = relevance.detach().double()
    positive = relevance.clamp(min=0)
    known = (match >= 0).all(1)
    place = torch.arange(positive.shape[1])
    grid_b = torch.stack([place // columns, place % columns], dim=1)
    near = (grid_b[None] - match[:, None]).abs().amax(2) <= 1  # [regions of a, regions of b]
    weight = positive.sum(1) * known
    total = weight.sum()
    if total == 0:
        raise InputError("no positive relevance where the true match is known")
    share = ((positive * near).sum(1) * known).sum() / total
    chance = (weight * near.double().mean(1)).sum() / total
    own = near.diagonal() if near.shape[0] == near.shape[1] else torch.zeros_like(known)
    signed = ((relevance * near).sum(1) * known).sum() / (relevance.abs().sum(1) * known).sum()
    return Correspondence(float(share), float(signed), float(chance), float((weight * own).sum() / total))


def true_matches(disparity: np.ndarray, *, size: int, region: int = REGION) -> Tensor:
    """For each region of the left image, (row, column) of the right image's region that shows the same thing.

    A point at x in the left image stands at x − d in the right one. The image is cropped to its middle square and
    scaled to `size`, as `images.read` does; a region's d is the median of what is known in it.
    """
    height, width = disparity.shape
    side = min(height, width)
    top, left, scale = (height - side) / 2, (width - side) / 2, size / side
    count = -(-size // region)
    found = torch.full((count * count, 2), -1, dtype=torch.long)
    for index in range(count * count):
        row, column = divmod(index, count)
        rows, cols = (
            slice(int(start + k * region / scale), int(start + min((k + 1) * region, size) / scale))
            for start, k in ((top, row), (left, column))
        )
        values = disparity[rows, cols]
        values = values[np.isfinite(values) & (values > 0)]
        middle = (column * region + min((column + 1) * region, size)) / 2
        x = middle - float(np.median(values)) * scale if values.size else -1.0
        if 0 <= x < size:
            found[index] = torch.tensor([row, int(x // region)])
    return found


def stereo_pair() -> tuple[Path, Path, np.ndarray]:
    """scikit-image's stereo photographs of a motorcycle, and the disparity of the left one."""
    try:
        import skimage.data
    except ImportError:
        raise InputError("the stereo pair comes with scikit-image: pip install 'bilrp[studies]'") from None
    folder = Path(str(skimage.data.__file__)).parent
    paths = folder / "motorcycle_left.png", folder / "motorcycle_right.png"
    if not all(path.is_file() for path in (*paths, folder / "motorcycle_disp.npz")):
        left, right, disparity = skimage.data.stereo_motorcycle()
        raise InputError(
            f"scikit-image keeps its stereo pair elsewhere ({left.shape}, {right.shape}, {disparity.shape})"
        )
    with np.load(folder / "motorcycle_disp.npz") as stored:
        return *paths, stored["arr_0"]


def measured_stereo(
    layers: Sequence[int],
    tensors: Mapping[str, Tensor],
    *,
    size: int,
    progress: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Correspondence of BiLRP and of Hessian×Product at each layer, and BiLRP's explanations."""
    from bilrp.rules import books as rulebooks

    left, right, disparity = stereo_pair()
    match = true_matches(disparity, size=size)
    columns = -(-size // REGION)
    found: dict[str, Any] = {"layers": {}, "explanations": {}}
    encoder = vgg.vgg16(max(layers), weights=tensors, size=size)
    for name, book in (("BiLRP", None), ("Hessian×Product", rulebooks.hessian_product())):
        explained = at_layers(encoder, left, right, layers, rules=book, progress=progress)
        found["explanations"] = found["explanations"] or explained  # BiLRP's, the first
        for layer in layers:
            value = correspondence(explained[layer].relevance, match, columns=columns)
            found["layers"].setdefault(layer, {})[name] = value
            say(
                f"stereo pair, layer {layer}, {name}: {value.share:.1%} of positive relevance within one region of "
                f"the true match, {value.ratio:.1f} × chance ({value.chance:.1%}); signed {value.signed:+.1%}"
            )
    return found


def report(
    paths: Sequence[Path],
    found: Sequence[Mapping[str, Any]],
    neighbours: Mapping[int, Neighbours],
    stereo: Mapping[str, Any],
    layers: Sequence[int],
    size: int,
) -> Report:
    """The report: a picture for each pair, layers side by side, then the stereo pair."""
    sections, attachments = [], {}
    for place, item in enumerate(found, 1):
        blocks: list[Any] = [_pair_picture(place, item, layers), _pair_table(item, layers)]
        sections.append(Section(f"{item['names'][0]} and {item['names'][1]}", blocks))
        attachments |= {f"pair-{place}-layer-{n}.html": _page(item["explained"][n]) for n in layers}
    sections.append(_stereo_section(stereo, layers))
    attachments |= {f"stereo-layer-{n}.html": _page(stereo["explanations"][n]) for n in layers}
    summary = (
        f"{len(paths)} photographs at {size} × {size} pixels. The {len(found)} nearest pairs at layer "
        f"{max(layers)} of VGG-16 (cosine, no image twice), and what layers {_list(layers)} match in them. "
        "Red joins regions that make the images more similar, blue those that make them less similar."
    )
    results = {
        "images": [path.name for path in paths],
        "layers": list(layers),
        "size": size,
        "pairs": [_pair_numbers(item, layers) for item in found],
        "nearest": {n: [neighbours[n].of(i) for i in range(len(paths))] for n in layers},
        "stereo": {
            n: {name: _correspondence_numbers(value) for name, value in methods.items()}
            for n, methods in stereo["layers"].items()
        },
    }
    return Report("Photographs: which parts match?", summary, sections, results, attachments)


def parsed_layers(text: str) -> tuple[int, ...]:
    """Layers from the command line: "17,31"."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(
        part.isascii() and part.isdigit() and 1 <= int(part) <= vgg.LAYERS for part in parts
    ):
        raise InputError(f"--layers {text}: give numbers from 1 to {vgg.LAYERS}, as in 17,31")
    return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True)
class _Reader:
    size: int

    def __call__(self, path: Path) -> Tensor:
        return images.read(path, size=self.size)


def _tensors(path: str | Path | None, progress: bool) -> Mapping[str, Tensor]:
    return weights.load(path, progress=progress)


def _explained(
    paths: Sequence[Path],
    i: int,
    j: int,
    layers: Sequence[int],
    neighbours: Mapping[int, Neighbours],
    tensors: Mapping[str, Tensor],
    read: Callable[[Path], Tensor],
    progress: bool,
) -> dict[str, Any]:
    encoder = vgg.vgg16(max(layers), weights=tensors)
    explained = at_layers(encoder, read(paths[i]), read(paths[j]), layers, "cosine", progress=progress)
    mutual = {n: neighbours[n].of(i) == j and neighbours[n].of(j) == i for n in layers}
    return {"names": (paths[i].name, paths[j].name), "explained": explained, "mutual": mutual}


def _pair_picture(place: int, item: Mapping[str, Any], layers: Sequence[int]) -> Picture:
    drawn = figure.panels([item["explained"][n] for n in layers], [f"layer {n}" for n in layers])
    caption = "What each layer matches. Open the page of a layer to explore it."
    return Picture(f"pair-{place}.png", drawn, caption, link=f"pair-{place}-layer-{max(layers)}.html")


def _pair_table(item: Mapping[str, Any], layers: Sequence[int]) -> Table:
    rows = []
    for n in layers:
        e = item["explained"][n]
        mutual = "yes" if item["mutual"][n] else "no"
        rows.append((n, e.score, e.explained / e.score, e.unattributed / e.score, mutual))
    return Table(("layer", "cosine", "explained", "unattributed", "nearest to each other"), rows)


def _pair_numbers(item: Mapping[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    return {
        "a": item["names"][0],
        "b": item["names"][1],
        "layers": {
            n: {
                "cosine": item["explained"][n].score,
                "unattributed": item["explained"][n].unattributed,
                "mutual_nearest": item["mutual"][n],
                "top": [tuple(match) for match in item["explained"][n].top(5)],
            }
            for n in layers
        },
    }


def _stereo_section(stereo: Mapping[str, Any], layers: Sequence[int]) -> Section:
    rows = [
        (n, name, value.share, value.chance, value.ratio, value.signed, value.same_place)
        for n in layers
        for name, value in stereo["layers"][n].items()
    ]
    header = (
        "layer",
        "method",
        "share near the true match",
        "chance",
        "× chance",
        "signed share",
        "if nothing moved",
    )
    drawn = figure.panels([stereo["explanations"][n] for n in layers], [f"layer {n}" for n in layers])
    text = (
        "Two photographs of one scene from two places: where each point went is known. The share of positive "
        "relevance that lands within one region of the true match, for BiLRP and for Hessian×Product; chance is "
        "what even spreading would give. The signed share takes off what negative relevance cancels. The last column "
        "is what matching every region to its own place would give."
    )
    picture = Picture("stereo.png", drawn, "The stereo pair.", link=f"stereo-layer-{max(layers)}.html")
    return Section("Does it match what truly corresponds?", (Text(text), Table(header, rows), picture))


def _correspondence_numbers(value: Correspondence) -> dict[str, float]:
    return {
        "share": value.share,
        "signed": value.signed,
        "chance": value.chance,
        "times_chance": value.ratio,
        "same_place": value.same_place,
    }


def _page(explanation: Explanation) -> str:
    from bilrp.render import page

    return page.html(explanation)


def _list(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers)) if len(numbers) < 3 else ", ".join(map(str, numbers))
