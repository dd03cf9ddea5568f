"""Is the explanation true? One suite for explanations of pairs: each function takes an `Explanation`, or a method.

A *method* is any function (encoder, a, b) → Explanation, such as `bilrp.explain` or a baseline. Where the true
matches are known, they are a 0/1 matrix shaped like the relevance, [regions of a, regions of b].

| question | function | best | random | reversed |
|---|---|---|---|---|
| does it look like the truth? | `acs` (`cosine`) | 1 | 0 | −1 |
| does it add up to the score? | `conservation` | unattributed share 0 | 1 | 2 |
| do its pairs carry the score? | `deletion`, `insertion` | least, most area | between | most, least |
| does it join what truly corresponds (stereo, a known warp)? | `correspondence` | signed share 1 | 0 | −1 |
| does it point to planted content? | `pointing` | signed share 1 | 0 | −1 |
| does it depend on the model? | `randomisation` | 0 | 0 | 1 if it never looks |
| does it survive small noise? | `stability` | 1 | 0 | −1 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp import similarity as similarities
from bilrp.encoder import Encoder, as_encoder, read_input
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.regions import Regions
from bilrp.similarity import Similarity

Method = Callable[[Any, Any, Any], Explanation]


# ---------------------------------------------------------------- against a known truth


def cosine(found: Explanation | Tensor, truth: Explanation | Tensor) -> Tensor:
    """Cosine of the angle between relevance and truth, ⟨R, T⟩ / (‖R‖‖T‖), over the last two axes.

    A batch [pairs, regions of a, regions of b] gives one number for each pair; NaN where one of the two is all zero.

    >>> cosine(torch.eye(2), torch.ones(2, 2))
    tensor(0.7071)
    """
    left, right = relevance_of(found).flatten(-2), relevance_of(truth).flatten(-2)
    if left.shape[-1] != right.shape[-1]:
        raise InputError(
            f"the relevance is {tuple(relevance_of(found).shape)} and the truth {tuple(relevance_of(truth).shape)}: "
            "explain with the truth's regions, or coarsen"
        )
    right = right.to(left)
    norms = torch.linalg.vector_norm(left, dim=-1) * torch.linalg.vector_norm(right, dim=-1)
    return (left * right).sum(-1) / norms


def acs(found: Tensor | Sequence[Explanation], truth: Tensor | Sequence[Tensor]) -> float:
    """Average cosine similarity of explanations to their ground truths (Eberle et al. 2022, section 4): 1 is perfect.

    Pairs whose truth is all zero have no angle and are left out; an explanation of all zeros scores 0.

    >>> round(acs(torch.eye(2)[None], torch.ones(1, 2, 2)), 4)
    0.7071
    """
    relevance, matches = (
        each.double() if isinstance(each, Tensor) else torch.stack([relevance_of(e).double() for e in each])
        for each in (found, truth)
    )
    known = matches.flatten(1).any(1)
    if not bool(known.any()):
        raise InputError("no pair has a match in its ground truth: ACS is not defined")
    return float(cosine(relevance[known], matches[known]).nan_to_num(0.0).mean())


@dataclass(frozen=True)
class Share:
    """How much of an explanation falls on the pairs that truly match.

    `positive` = Σ_match R⁺ / Σ R⁺ (1: all of it), `signed` = Σ_match R / Σ|R| (−1 … 1: cancelling noise doesn't
    count as success), `chance` = the share of pairs that match, which is what even relevance would score.
    """

    positive: float
    signed: float
    chance: float

    @property
    def lift(self) -> float:
        """How many times chance the positive relevance reaches."""
        return self.positive / self.chance


def share(found: Explanation | Tensor, match: Tensor, *, among: Tensor | None = None) -> Share:
    """The share of relevance on true matches, given as a 0/1 matrix (after the pointing game of Zhang et al. 2018).

    `among` (0/1) restricts the account to pairs where the truth is known; everything by default.

    >>> share(torch.eye(3), torch.eye(3))
    Share(positive=1.0, signed=1.0, chance=0.3333333333333333)
    """
    relevance = relevance_of(found).double()
    match = match.to(relevance)
    if match.shape != relevance.shape:
        raise InputError(f"matches of shape {tuple(match.shape)} for relevance {tuple(relevance.shape)}")
    counted = torch.ones_like(relevance) if among is None else among.to(relevance).expand_as(relevance)
    match, relevance = match * counted, relevance * counted
    if not bool(match.any()):
        raise InputError("no pair of regions matches: there is nothing to find")
    positive = relevance.clamp(min=0)
    return Share(
        positive=_ratio((positive * match).sum(), positive.sum()),
        signed=_ratio((relevance * match).sum(), relevance.abs().sum()),
        chance=float(match.sum() / counted.sum()),
    )


# ---------------------------------------------------------------- conservation


@dataclass(frozen=True)
class Conservation:
    """Where the score went: `explained` + `unattributed` = `score`; shares are of |score| and of Σ|R|."""

    score: float
    explained: float
    unattributed: float
    unattributed_share: float
    negative_share: float


def conservation(found: Explanation) -> Conservation:
    """Does relevance add up to the score (Prop. 1)? unattributed_share = |y − Σ R| / |y|: 0 is perfect.

    `negative_share` = Σ R⁻ / Σ|R| shows cancellation: ½ means as much negative as positive relevance. After the
    conservation that Bach et al. 2015 ask of relevance.

    >>> from bilrp import explain
    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU()).double()
    >>> conservation(explain(net, *torch.rand(2, 1, 4).double())).unattributed_share < 1e-9
    True
    """
    relevance = found.relevance.double()
    return Conservation(
        score=found.score,
        explained=found.explained,
        unattributed=found.unattributed,
        unattributed_share=_ratio(abs(found.unattributed), abs(found.score)),
        negative_share=_ratio(relevance.clamp(max=0).abs().sum(), relevance.abs().sum()),
    )


# ---------------------------------------------------------------- deletion and insertion


@dataclass(frozen=True, eq=False)
class Curve:
    """The similarity as regions are removed or added: `share` of regions changed, and `scores` at each.

    `area` is the mean height of the curve over the share, in units of the similarity of the two whole inputs.
    """

    share: Tensor
    scores: Tensor
    whole: float

    @property
    def relative(self) -> Tensor:
        """Scores in units of the similarity of the two whole inputs."""
        return self.scores / self.whole

    @property
    def area(self) -> float:
        return float(torch.trapezoid(self.relative, self.share))


def deletion(
    encoder: Any,
    found: Explanation,
    a: Any,
    b: Any,
    *,
    steps: int = 16,
    baseline: Callable[[Tensor], Tensor] | float = 0.0,
    similarity: str | Similarity | None = None,
) -> Curve:
    """Pair deletion: remove regions from both inputs in the order of pair relevance, and follow the similarity.

    An explanation predicts what is left when only the regions S of a and S' of b stay: Σ_{I∈S, I'∈S'} R_II'. Regions
    go in the order that makes this fall fastest (`removal_order`), and take the `baseline`'s values (a number, or a
    function of the input such as `blurred(8)`). The faster the similarity falls, the better: the smaller the area.
    After the pixel flipping of Samek et al. 2017, in the second-order spirit of Vasileiou and Eberle 2024.

    >>> from bilrp import explain
    >>> net, x = nn.Identity(), torch.tensor([[1.0, 3.0]])
    >>> deletion(net, explain(net, x, x), x, x, steps=4).scores
    tensor([10.,  1.,  0.,  0.,  0.])
    """
    order = removal_order(found.relevance)
    return _followed(encoder, found, a, b, order, steps, baseline, similarity, insert=False)


def insertion(
    encoder: Any,
    found: Explanation,
    a: Any,
    b: Any,
    *,
    steps: int = 16,
    baseline: Callable[[Tensor], Tensor] | float = 0.0,
    similarity: str | Similarity | None = None,
) -> Curve:
    """Pair insertion: start from two baselines, add regions to both in the order of pair relevance.

    The mirror of `deletion` (Petsiuk et al. 2018): the last to go, if the least relevant are removed first, come
    first. The faster the similarity rises, the better; the larger the area.

    >>> from bilrp import explain
    >>> net, x = nn.Identity(), torch.tensor([[1.0, 3.0]])
    >>> insertion(net, explain(net, x, x), x, x, steps=4).scores
    tensor([ 0.,  0.,  9.,  9., 10.])
    """
    order = insertion_order(found.relevance)
    return _followed(encoder, found, a, b, order, steps, baseline, similarity, insert=True)


def removal_order(relevance: Tensor, *, most_relevant_first: bool = True) -> tuple[Tensor, Tensor]:
    """When each region of a and of b goes, 0, 1, … over both sides, if the relevance of what is left falls fastest.

    At each step the region goes that has most relevance with the regions still there on the other side. The plain
    walk down the pairs, both regions of each removed at once, would not do: the second removal changes nothing, and
    an explanation that knew nothing would break more matches than the truth.

    >>> removal_order(torch.tensor([[5.0, 0.0], [0.0, 3.0]]))
    (tensor([0, 1]), tensor([2, 3]))
    """
    table = relevance.detach().cpu().double().numpy()
    rows, columns = table.shape
    sign = 1.0 if most_relevant_first else -1.0
    left = sign * np.concatenate([table.sum(1), table.sum(0)])
    place = np.empty(rows + columns, dtype=np.int64)
    for step in range(rows + columns):
        region = int(left.argmax())
        place[region], left[region] = step, -np.inf
        if region < rows:
            left[rows:] -= sign * table[region]
        else:
            left[:rows] -= sign * table[:, region - rows]
    found = torch.from_numpy(place).to(relevance.device)
    return found[:rows], found[rows:]


def insertion_order(relevance: Tensor) -> tuple[Tensor, Tensor]:
    """When each region of a and of b comes: the reverse of removing the least relevant first, so that matches come in pairs.

    >>> insertion_order(torch.tensor([[5.0, 0.0], [0.0, 3.0]]))
    (tensor([1, 3]), tensor([0, 2]))
    """
    last = sum(relevance.shape) - 1
    a, b = removal_order(relevance, most_relevant_first=False)
    return last - a, last - b


def blurred(radius: int) -> Callable[[Tensor], Tensor]:
    """A baseline: the image without detail finer than about `radius` pixels (a box blur, twice).

    >>> blurred(4)(torch.rand(1, 3, 32, 32)).shape
    torch.Size([1, 3, 32, 32])
    """

    def blur(x: Tensor) -> Tensor:
        width = 2 * radius + 1
        for _ in range(2):
            x = F.avg_pool2d(F.pad(x, (radius,) * 4, mode="replicate"), width, stride=1)
        return x

    return blur


def _followed(
    encoder: Any,
    found: Explanation,
    a: Any,
    b: Any,
    order: tuple[Tensor, Tensor],
    steps: int,
    baseline: Callable[[Tensor], Tensor] | float,
    similarity: str | Similarity | None,
    *,
    insert: bool,
) -> Curve:
    """Both inputs at every step in one batch, encoded, and compared step by step."""
    if steps < 1:
        raise InputError(f"a curve needs at least one step, got {steps}")
    encoder = as_encoder(encoder)
    wanted = similarities.resolve(found.similarity if similarity is None else similarity)
    total = len(order[0]) + len(order[1])
    counts = torch.linspace(0, total, steps + 1).round().long()
    embeddings = []
    for item, side, place in ((a, found.a, order[0]), (b, found.b, order[1])):
        x = read_input(encoder, item)
        empty = baseline(x) if callable(baseline) else torch.full_like(x, baseline)
        embeddings.append(_encoded(encoder, replaced(x, empty, side.regions, place, counts, insert=insert)))
    scores = torch.tensor([wanted.score(p, q) for p, q in zip(*embeddings, strict=True)])
    return Curve(counts / total, scores, whole=float(scores[-1 if insert else 0]))


def replaced(
    x: Tensor, empty: Tensor, regions: Regions, place: Tensor, counts: Tensor, *, insert: bool = False
) -> Tensor:
    """[steps, *input]: x with the regions whose place is below each count emptied (`insert`: filled, all others empty).

    Features in no region never change.

    >>> from bilrp.regions import features
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> replaced(x, 0 * x, features()(x), torch.tensor([1, 0]), torch.tensor([0, 1, 2]))
    tensor([[1., 2.],
            [1., 0.],
            [0., 0.]])
    """
    last = torch.cat([place.new_full((1,), torch.iinfo(place.dtype).max), place])
    start, end = (empty, x) if insert else (x, empty)
    changed = last[regions.labels + 1] < counts.to(place.device).reshape(-1, *[1] * regions.labels.dim())
    return torch.where(changed, end, start)


def _encoded(encoder: Encoder, batch: Tensor, chunk: int = 32) -> list[Tensor]:
    """Embeddings of a batch, flat, in chunks."""
    with torch.no_grad():
        return [row for part in batch.split(chunk) for row in encoder.module(part).flatten(1)]


# ---------------------------------------------------------------- known maps between two inputs


def affine(
    *,
    shift: tuple[float, float] = (0.0, 0.0),
    rotate: float = 0.0,
    zoom: float = 1.0,
    flip: bool = False,
    size: tuple[int, int],
) -> Tensor:
    """The 2×3 matrix of a known warp, pixel (row, column) of a → pixel of b, about the middle of an image of `size`.

    First flip (left to right), then rotate (degrees, counter-clockwise as seen), zoom (above 1: a crop of the middle,
    enlarged), and shift (down, right).

    >>> affine(shift=(0, 8), size=(32, 32)) @ torch.tensor([4.0, 4.0, 1.0])
    tensor([ 4., 12.])
    """
    angle = math.radians(rotate)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    linear = zoom * turn @ torch.diag(torch.tensor([1.0, -1.0 if flip else 1.0]))
    middle = (torch.tensor(size, dtype=torch.float32) - 1) / 2
    return torch.cat([linear, (middle + torch.tensor(shift) - linear @ middle)[:, None]], dim=1)


def warped(x: Tensor, matrix: Tensor) -> Tensor:
    """Image (1, channels, H, W) under a warp: b[matrix · p] = a[p], bilinear, edges repeated.

    >>> warped(torch.tensor([[[[1.0, 2.0, 3.0]]]]), affine(flip=True, size=(1, 3)))
    tensor([[[[3., 2., 1.]]]])
    """
    height, width = x.shape[2:]
    square = torch.cat([matrix, matrix.new_tensor([[0.0, 0.0, 1.0]])])
    back = torch.linalg.inv(square.double())[:2].to(x)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([rows, columns, torch.ones_like(rows)], dim=-1).to(x) @ back.T
    scale = x.new_tensor([2 / max(height - 1, 1), 2 / max(width - 1, 1)])
    where = (points * scale - 1).flip(-1)[None]
    return F.grid_sample(x, where, mode="bilinear", padding_mode="border", align_corners=True)


def correspondence(found: Explanation, where: Tensor, *, within: float = 1.0) -> Share:
    """The share of relevance `within` one region of the true match, under a known map of pixels [H, W, 2] from a to b.

    The map is that of a warp (`destinations`) or of a stereo pair (`from_disparity`). Like the correct keypoints of
    Yang and Ramanan 2013, with relevance in the place of a vote.

    >>> from bilrp import explain
    >>> from bilrp.regions import grid
    >>> x, still, flip = torch.rand(1, 3, 32, 32), affine(size=(32, 32)), affine(flip=True, size=(32, 32))
    >>> found = explain(nn.AvgPool2d(8), x, x, regions=grid(8))  # each patch is compared with its own place only
    >>> [correspondence(found, destinations(m, (32, 32)), within=0).positive for m in (still, flip)]
    [1.0, 0.0]
    """
    match, among = matches(where, found.a.regions, found.b.regions, within=within)
    return share(found, match, among=among)


def destinations(matrix: Tensor, size: tuple[int, int]) -> Tensor:
    """[H, W, 2]: the (row, column) in b of each pixel of a under a warp; NaN where it leaves the image.

    >>> destinations(affine(shift=(0, 1), size=(1, 2)), (1, 2))
    tensor([[[0., 1.],
             [nan, nan]]])
    """
    height, width = size
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([rows, columns, torch.ones_like(rows)], dim=-1).to(matrix) @ matrix.T
    inside = (points >= -0.5) & (points <= points.new_tensor([height - 0.5, width - 0.5]))
    return torch.where(inside.all(-1, keepdim=True), points, torch.nan)


def from_disparity(disparity: Tensor) -> Tensor:
    """[H, W, 2] from a stereo pair's disparity map: pixel (r, c) of the left image is (r, c − d) of the right one.

    Where the disparity is unknown (infinite, NaN) or leads out of the image, the destination is NaN. The map is as
    large as the images it belongs to: a resized pair wants a resized, and equally scaled, disparity.

    >>> from_disparity(torch.tensor([[1.0, 1.0, torch.inf]]))
    tensor([[[nan, nan],
             [0., 0.],
             [nan, nan]]])
    """
    height, width = disparity.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    found = torch.stack([rows.to(disparity), columns - disparity], dim=-1)
    known = torch.isfinite(disparity) & (found[..., 1] >= -0.5)
    return torch.where(known[..., None], found, torch.nan)


def matches(where: Tensor, a: Regions, b: Regions, *, within: float = 1.0) -> tuple[Tensor, Tensor]:
    """True matches of regions under a known map of pixels, `where` [H, W, 2]: (match, among) for `share`.

    Region I matches I' if the mean destination of I's pixels lies in I', or `within` so many of its widths and heights
    beside it. `among` marks the rows where at least half of the pixels have a destination.

    >>> from bilrp.regions import grid
    >>> patches = grid(8)(torch.zeros(1, 3, 32, 32))
    >>> match, among = matches(destinations(affine(size=(32, 32)), (32, 32)), patches, patches, within=0)
    >>> torch.equal(match, torch.eye(16))
    True
    """
    rectangles, others = _boxes(where, a, b)
    points = torch.stack([_mean_point(where, box) for box in rectangles.tolist()])
    boxes = others.to(points)
    extent = within * (boxes[:, 2:] - boxes[:, :2])
    low, high = boxes[:, :2] - extent - 0.5, boxes[:, 2:] + extent - 0.5
    inside = ((points[:, None] >= low) & (points[:, None] < high)).all(-1)
    among = ~points.isnan().any(-1, keepdim=True)
    return inside.float(), among.float().expand(len(points), len(boxes))


def _boxes(where: Tensor, a: Regions, b: Regions) -> tuple[Tensor, Tensor]:
    """The rectangles of both sides' regions, for a map that fits the first image."""
    if a.boxes is None or b.boxes is None:
        raise InputError("a map of pixels needs rectangular regions of an image: use regions=grid(8)")
    if where.shape != (*a.labels.shape[1:], 2):
        raise InputError(
            f"the map of pixels is {tuple(where.shape)}, the first image is {tuple(a.labels.shape[1:])}: "
            "scale the map and its values with the image"
        )
    return a.boxes, b.boxes


def _mean_point(where: Tensor, box: Sequence[int]) -> Tensor:
    top, left, bottom, right = box
    points = where[top:bottom, left:right].reshape(-1, 2)
    known = points[~points.isnan().any(-1)]
    return known.mean(0) if 2 * len(known) >= len(points) else points.new_full((2,), torch.nan)


def pointing(found: Explanation, where: Tensor) -> Share:
    """The share of relevance that connects two pastes of one patch, `where` being the map that `planted` returns.

    After the pasted objects of Yang and Kim 2019: what was put there is known to be in both.

    >>> from bilrp import explain
    >>> from bilrp.regions import grid
    >>> empty, patch = torch.zeros(1, 3, 32, 32), torch.ones(3, 8, 8)
    >>> a, b, where = planted(empty, empty, patch=patch, at_a=(0, 8), at_b=(24, 16))
    >>> pointing(explain(nn.AvgPool2d(32), a, b, regions=grid(8)), where).signed  # there is nothing else to find
    1.0
    """
    return share(found, pasted(where, found.a.regions, found.b.regions))


def planted(
    a: Tensor, b: Tensor, *, patch: Tensor, at_a: tuple[int, int], at_b: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Paste the same patch (channels, h, w) in both images at (row, column); also the map of its pixels from a to b.

    >>> empty, patch = torch.zeros(1, 3, 32, 32), torch.ones(3, 8, 8)
    >>> a, b, where = planted(empty, empty, patch=patch, at_a=(0, 8), at_b=(24, 16))
    >>> from bilrp.regions import grid
    >>> pasted(where, grid(8)(empty), grid(8)(empty)).nonzero()
    tensor([[ 1, 14]])
    """
    height, width = patch.shape[1:]
    images = []
    for image, (top, left) in ((a, at_a), (b, at_b)):
        if top < 0 or left < 0 or top + height > image.shape[2] or left + width > image.shape[3]:
            raise InputError(
                f"a patch of {height}×{width} at {top, left} leaves the image of {tuple(image.shape[2:])}"
            )
        image = image.clone()
        image[0, :, top : top + height, left : left + width] = patch
        images.append(image)
    where = patch.new_full((*a.shape[2:], 2), torch.nan)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    moved = torch.stack([rows + at_b[0], columns + at_b[1]], dim=-1).to(where)
    where[at_a[0] : at_a[0] + height, at_a[1] : at_a[1] + width] = moved
    return images[0], images[1], where


def pasted(where: Tensor, a: Regions, b: Regions) -> Tensor:
    """0/1 [regions of a, regions of b]: both regions hold more paste than not, so that the pair connects the two pastes."""
    boxes = _boxes(where, a, b)
    known = ~where.isnan().any(-1)
    covered = torch.zeros(b.labels.shape[1:], dtype=torch.bool)
    rows, columns = where[known].round().long().unbind(-1)
    covered[rows, columns] = True
    owned = [
        torch.tensor(
            [float(mask[top:low, left:right].float().mean() > 0.5) for top, left, low, right in each.tolist()]
        )
        for mask, each in zip((known, covered), boxes, strict=True)
    ]
    return torch.outer(owned[0], owned[1])


# ---------------------------------------------------------------- does it depend on the model, does it survive noise?


def randomisation(
    method: Method,
    encoder: Any,
    a: Any,
    b: Any,
    *,
    depths: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Model randomisation (Adebayo et al. 2018): rank correlation with the explanation of a model with random weights.

    {depth: correlation}: the last `depth` layers with weights hold random values of the same mean and spread, from
    the top down. A method that explains the model falls to 0; one that does not look at it stays at 1.

    >>> from bilrp.judge import baselines
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> randomisation(baselines.saliency, net, *torch.rand(2, 1, 4))  # it doesn't look at the model
    {1: 1.0, 2: 1.0}
    """
    encoder = as_encoder(encoder)
    before = method(encoder, a, b).relevance
    total = len(weighted_modules(encoder.module))
    wanted = range(1, total + 1) if depths is None else depths
    return {
        depth: rank_correlation(before, method(randomised(encoder, depth, seed=seed), a, b).relevance)
        for depth in wanted
    }


def randomised(encoder: Any, depth: int, *, seed: int = 0) -> Encoder:
    """A copy of the encoder whose last `depth` weighted modules hold normal values of the same mean and spread."""
    encoder = as_encoder(encoder)
    module = deepcopy(encoder.module)
    layers = weighted_modules(module)
    if not 1 <= depth <= len(layers):
        raise InputError(f"this encoder has {len(layers)} layers with weights, cannot randomise {depth}")
    generator = torch.Generator().manual_seed(seed)
    # One draw for each layer from the top down, so that deeper randomisation keeps the shallower one's values.
    for layer in reversed(layers[-depth:]):
        for parameter in layer.parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            spread = parameter.detach().std() if parameter.numel() > 1 else parameter.detach().abs().mean()
            parameter.data = parameter.detach().mean() + spread * noise
    return replace(encoder, module=module, name=f"{encoder.name} (last {depth} randomised, seed {seed})")


def weighted_modules(module: Any) -> list[nn.Module]:
    """Modules that own a weight matrix or kernel, in their order of definition."""
    if not isinstance(module, nn.Module):
        raise InputError(
            "randomising weights needs an encoder whose module is an nn.Module; this one is a function"
        )
    return [m for m in module.modules() if any(p.dim() > 1 for p in m.parameters(recurse=False))]


def stability(
    method: Method, encoder: Any, a: Any, b: Any, *, noise: float = 0.05, repeats: int = 1, seed: int = 0
) -> float:
    """Mean cosine between the explanation and that of both inputs with normal noise added, of `noise` × their spread.

    1: it does not move (Alvarez-Melis and Jaakkola 2018 ask how far it does). To be read beside the other numbers:
    an explanation that never changes is stable, and worthless.

    >>> from bilrp import explain
    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU())
    >>> stability(explain, net, *torch.rand(2, 1, 4), noise=0.0) > 0.999
    True
    """
    encoder = as_encoder(encoder)
    first, second = read_input(encoder, a), read_input(encoder, b)
    before = method(encoder, first, second)
    generator = torch.Generator().manual_seed(seed)
    after = [
        method(encoder, noisy(first, noise, generator), noisy(second, noise, generator))
        for _ in range(repeats)
    ]
    return sum(float(cosine(found, before)) for found in after) / repeats


def noisy(x: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """x plus normal noise of `noise` × the spread of x."""
    return x + noise * x.std() * torch.randn(x.shape, generator=generator).to(x)


def rank_correlation(found: Explanation | Tensor, other: Explanation | Tensor) -> float:
    """Spearman's rank correlation of two relevances, ties ranked by their mean; 0 where one is constant.

    >>> round(rank_correlation(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 20.0, 40.0]])), 6)
    1.0
    """
    first, second = (_ranks(relevance_of(r).flatten()) for r in (found, other))
    first, second = first - first.mean(), second - second.mean()
    return _ratio((first * second).sum(), first.norm() * second.norm())


def _ranks(values: Tensor) -> Tensor:
    _, group, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() + 1) / 2)[group]


# ---------------------------------------------------------------- small help


def relevance_of(found: Explanation | Tensor) -> Tensor:
    """The relevance of an explanation; a tensor stays as it is."""
    return found.relevance if isinstance(found, Explanation) else found


def random_method(seed: int = 0, *, regions: Any = None) -> Method:
    """The method that knows nothing: normal relevance, the same for the same seed and regions.

    >>> random_method(seed=1)(nn.Identity(), *torch.rand(2, 1, 3)).relevance.shape
    torch.Size([3, 3])
    """
    from bilrp.judge.baselines import saliency

    def method(encoder: Any, a: Any, b: Any) -> Explanation:
        found = saliency(encoder, a, b, regions=regions)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(found.relevance.shape, generator=generator).to(found.relevance)
        return replace(found, relevance=drawn)

    return method


def _ratio(part: Any, whole: Any) -> float:
    """part / whole; 0 where there is nothing to share."""
    return float(part) / float(whole) if float(whole) != 0 else 0.0
