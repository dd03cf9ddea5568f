"""Explanations of sets of inputs, contrasts, and similarities of n inputs, from decompositions.

Similarities are bilinear forms on parts, so sums over pairs of inputs are products of sums: no loop over pairs.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from bilrp.decomposition import Decomposition, check_pair
from bilrp.encoder import EncoderOrPair, InputLike
from bilrp.errors import InputError, MismatchError
from bilrp.explanation import Explanation, deserialize_explanation, pair
from bilrp.explanation_files import serialize_explanation
from bilrp.highlights import HighlightContrast, contrast_passages
from bilrp.inputs import Box, Image
from bilrp.io import store
from bilrp.io.files import NUMBER_SUFFIXES, VIEWABLE_SUFFIXES
from bilrp.similarity import Similarity, norm, resolve_similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bilrp.render.group_views import GroupView

GROUP_SUFFIXES = (*VIEWABLE_SUFFIXES, *NUMBER_SUFFIXES)
"""The formats that contrasts and comparisons of sets are written in."""

# ---------------------------------------------------------------- two sets of inputs


def explain_sets(
    a: Iterable[Decomposition], b: Iterable[Decomposition], *, similarity: str | Similarity | None = None
) -> Explanation:
    """Explain which regions make two sets of inputs similar: the sum over all |A|·|B| pairs in |A| + |B| steps.

    y = Σ_{x∈A} Σ_{x'∈B} y(x, x') and R = (Σ_A P)(Σ_B P')ᵀ. Cosine divides every decomposition by its norm first; a squared
    distance adds |B|·Σ_A P Pᵀ and |A|·Σ_B P' P'ᵀ.

    Args:
        a, b: the sets, which may be generators; all inputs of one set need the same regions.
        similarity: a name or a Similarity; None is the encoder's own.

    >>> import bilrp
    >>> net = torch.nn.Linear(4, 3, bias=False)
    >>> parts = [bilrp.decompose(net, torch.rand(1, 4)) for _ in range(5)]
    >>> sets = explain_sets(parts[:2], parts[2:], similarity="dot")
    >>> each = sum(bilrp.pair(x, y, similarity="dot").relevance for x in parts[:2] for y in parts[2:])
    >>> torch.allclose(sets.relevance, each, atol=1e-6)
    True
    """
    sets = (_peek(a, "a"), _peek(b, "b"))
    chosen = resolve_similarity(similarity, *(first.origin.get("similarity") for first, _ in sets))
    form = chosen.unit_form or chosen
    left, right = (
        _sum_set(members, normalize=chosen.unit_form is not None, gram=form.has_self_terms)
        for _, members in sets
    )
    check_pair(left.sum, right.sum)
    _check_bilinear(_without_self_terms(form), left, right)
    explanation = (
        _explain_with_self_terms(form, left, right)
        if form.has_self_terms
        else pair(left.sum, right.sum, similarity=form)
    )
    return replace(explanation, similarity=f"sum of {chosen.name}", is_distance=chosen.is_distance)


def sum_decompositions(decompositions: Iterable[Decomposition], *, normalize: bool = False) -> Decomposition:
    """Return the decomposition of Σ_A φ(x); `normalize` divides each by ‖φ(x)‖ first. All need the same regions."""
    return _sum_set(_peek(decompositions, "the set")[1], normalize=normalize, gram=False).sum


def _peek(
    decompositions: Iterable[Decomposition], name: str
) -> tuple[Decomposition, Iterator[Decomposition]]:
    """Return the first decomposition, and an iterator over all of them."""
    members = iter(decompositions)
    first = next(members, None)
    if first is None:
        raise InputError(f"{name} is an empty set: give at least one decomposition")
    return first, chain([first], members)


@dataclass(frozen=True, eq=False)
class SetSum:
    """The sum of a set, its size, its first embedding, and for distances Σ P Pᵀ and Σ ‖φ‖²."""

    sum: Decomposition
    count: int
    first_embedding: Tensor
    gram: Tensor | None
    sum_of_squares: float


def _sum_set(decompositions: Iterable[Decomposition], *, normalize: bool, gram: bool) -> SetSum:
    first: Decomposition | None = None
    sums: list[Tensor] = []  # of parts, embeddings and references
    first_embedding = grams = views = None
    count, squares = 0, 0.0
    for d in decompositions:
        first = first or d
        _check_member(first, d, count)
        scale = norm(d.embedding) if normalize else 1.0
        scaled = [t / scale for t in (d.parts, d.embedding, d.reference) if t is not None]
        p, phi = scaled[:2]
        if gram:
            grams = p @ p.T if grams is None else grams.add_(p @ p.T)
        squares += float(phi @ phi)
        if first_embedding is None:
            first_embedding, sums = phi.clone(), [torch.zeros_like(t) for t in scaled]
        for total, one in zip(sums, scaled, strict=True):
            total += one
        views = _add_view(views, d, count)
        count += 1
    assert first is not None and first_embedding is not None  # `_peek` refused empty sets
    view = first.view if count == 1 else None if views is None else views.mean_image(count)
    name = first.name if count == 1 else f"{count} inputs"
    parts, embedding, *references = sums
    reference = None if gram or not references else references[0]  # undefined for a sum of distances
    # weights belong to regions of one input; in a sum of several they are in the parts only
    reliability, unweighted = (first.reliability, first.unweighted_embedding) if count == 1 else (None, None)
    if unweighted is not None and normalize:
        unweighted = unweighted / norm(unweighted)
    summed = replace(
        first,
        parts=parts,
        embedding=embedding,
        reference=reference,
        view=view,
        name=name,
        reliability=reliability,
        unweighted_embedding=unweighted,
    )
    return SetSum(summed, count, first_embedding, grams, squares)


def _check_member(first: Decomposition, d: Decomposition, number: int) -> None:
    check_pair(first, d)
    ours, theirs = first.regions, d.regions
    if ours.labels.shape != theirs.labels.shape or not torch.equal(ours.labels, theirs.labels):
        raise MismatchError(
            f"decomposition {number} has other regions ({theirs.kind}, {theirs.count}) than the first of its set "
            f"({ours.kind}, {ours.count}): decompose all inputs of a set on one partition, or coarsen them to it"
        )


class ImageSum(NamedTuple):
    """The sum of images of one size, and the box of the model's input in them."""

    pixels: np.ndarray
    box: Box

    def mean_image(self, count: int) -> Image:
        """Return the mean of `count` images."""
        return Image((self.pixels / count).round().astype(np.uint8), self.box)


def _add_view(views: ImageSum | None, d: Decomposition, count: int) -> ImageSum | None:
    """Add an image to the sum; None if images differ in size or box."""
    view = d.view
    if not isinstance(view, Image) or (count > 0 and views is None):
        return None
    if views is None:
        return ImageSum(view.pixels.astype(np.float64), view.box)
    fits = views.pixels.shape == view.pixels.shape and views.box == view.box
    return ImageSum(views.pixels + view.pixels, view.box) if fits else None


def _without_self_terms(form: Similarity) -> Similarity:
    """Return the similarity without ‖φ‖² of each side."""
    if not form.has_self_terms:
        return form
    return replace(form, score_fn=lambda a, b: form.score_fn(a, b) - a.square().sum() - b.square().sum())


def _explain_with_self_terms(form: Similarity, left: SetSum, right: SetSum) -> Explanation:
    """Explain a sum of distances, with terms of each side with itself.

    Σ_A Σ_B (‖φ‖² + ‖φ'‖² + y(φ, φ')) = |B|·Σ_A ‖φ‖² + |A|·Σ_B ‖φ'‖² + y(Σ_A φ, Σ_B φ') for y linear in each.
    """
    assert left.gram is not None and right.gram is not None
    a, b = left.sum, right.sum
    score = right.count * left.sum_of_squares + left.count * right.sum_of_squares
    score += _without_self_terms(form).score(a.embedding, b.embedding)
    within = (right.count * left.gram, left.count * right.gram)
    return Explanation(
        a, b, score, form.relevance(a.parts, b.parts, a.embedding, b.embedding), form.name, within
    )


def _check_bilinear(form: Similarity, left: SetSum, right: SetSum) -> None:
    """Raise `InputError` if the form is not linear in each input, which summing first requires; tested on the sums."""
    a, b, one, other = (
        t.cpu().double()
        for t in (left.sum.embedding, right.sum.embedding, left.first_embedding, right.first_embedding)
    )
    for changed, apart in (
        (form.score(a + one, b), form.score(a, b) + form.score(one, b)),
        (form.score(a, b + other), form.score(a, b) + form.score(a, other)),
    ):
        slack = 1e-9 * (float(a.norm() * b.norm()) + abs(changed) + abs(apart))
        if abs(changed - apart) > slack:
            raise InputError(
                f"similarity '{form.name}' is not linear in each input, so sets cannot be summed first: "
                "use dot, cosine, squared_distance, bilinear or projected"
            )


# ---------------------------------------------------------------- closer to b than to c


class Evidence(NamedTuple):
    """A pair of regions that favours b (positive) or c (negative), with its side."""

    side: str
    a: int
    other: int
    relevance: float


class GroupResult(ABC):
    """Base of results about several inputs, which draw themselves as rows of tinted inputs and write their numbers."""

    @abstractmethod
    def _view(self, names: Sequence[str] | None = None) -> GroupView: ...

    @abstractmethod
    def _save_numbers(self, path: Path) -> Path: ...

    def plot(
        self, *, names: Sequence[str] | None = None, title: str | None = None, palette: str = "paper"
    ) -> Figure:
        """Draw the inputs, each region tinted by its contribution, on one scale.

        Args:
            names: names of the inputs or sets; None: those of the inputs.
            title: heading of the figure.
            palette: "paper" or "safe".
        """
        return self._view(names).plot(title=title, palette=palette)

    def save(
        self,
        path: str | Path,
        *,
        names: Sequence[str] | None = None,
        title: str | None = None,
        style: str | None = None,
        palette: str = "paper",
    ) -> Path:
        """Write a figure (.png, .svg, .pdf), a page (.html), or numbers (.npz, .safetensors).

        Args:
            path: the file; its suffix selects the format.
            names: names of the inputs or sets; None: those of the inputs.
            title: heading of the figure or page.
            style: link style of the explanations on a page.
            palette: "paper" or "safe".
        """
        path = Path(path)
        if path.suffix.lower() not in GROUP_SUFFIXES:
            raise InputError(f"cannot write {path}: use one of {', '.join(GROUP_SUFFIXES)}")
        if path.suffix.lower() in NUMBER_SUFFIXES:
            return self._save_numbers(path)
        return self._view(names).write(path, title=title, style=style, palette=palette)

    def _repr_html_(self) -> str:
        return self._view().embed()


@dataclass(frozen=True, eq=False)
class Contrast(GroupResult):
    """Why a is closer to b than to c: score = y(a, b) − y(a, c) = toward.sum() − against.sum() + unattributed.

    `toward` explains a with b, `against` a with c.
    """

    toward: Explanation
    against: Explanation

    @property
    def score(self) -> float:
        """How much closer a is to b than to c; negative if it is closer to c."""
        return self.toward.score - self.against.score

    @property
    def unattributed(self) -> float:
        """The part of the score that no pair of regions explains."""
        return self.toward.unattributed - self.against.unattributed

    @property
    def relevance(self) -> Tensor:
        """P (P_b − P_c)ᵀ, if b and c have the same regions; otherwise use `toward` and `against`."""
        ours, theirs = self.toward.b.regions, self.against.b.regions
        if ours.labels.shape != theirs.labels.shape or not torch.equal(ours.labels, theirs.labels):
            raise MismatchError(
                f"b and c have different regions ({ours.count} and {theirs.count}), so they have no common matrix: "
                "use .toward.relevance and .against.relevance"
            )
        return self.toward.relevance - self.against.relevance

    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the contribution of each region of a, of b and of c to the score; regions that favour c are negative."""
        (a_b, b), (a_c, c) = self.toward.marginals(), self.against.marginals()
        return a_b - a_c, b, -c

    def top(self, k: int = 10) -> list[Evidence]:
        """Return the k pairs with the largest |contribution| to the score, of both sides."""
        flat = torch.cat([self.toward.relevance.flatten(), -self.against.relevance.flatten()])
        index = flat.abs().topk(min(k, flat.numel())).indices
        return [self._evidence(int(i), float(flat[i])) for i in index]

    def _evidence(self, index: int, relevance: float) -> Evidence:
        size = self.toward.relevance.numel()
        side, matrix, position = (
            ("b", self.toward, index) if index < size else ("c", self.against, index - size)
        )
        return Evidence(side, *divmod(position, matrix.relevance.shape[1]), relevance)

    def summary(self, names: Sequence[str] | None = None) -> str:
        """Return in one sentence which of b and c is closer to a, and by how much.

        Args:
            names: names of a, b and c; None: those of the inputs.
        """
        from bilrp.render import group_views

        return group_views.describe_contrast(self, names)

    def _view(self, names: Sequence[str] | None = None) -> GroupView:
        from bilrp.render import group_views

        return group_views.view_contrast(self, names)

    def _save_numbers(self, path: Path) -> Path:
        return store.write(path, *self._serialize())

    def _serialize(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors: dict[str, Tensor] = {}
        metadata = {"kind": "contrast"}
        for name, explanation in (("toward", self.toward), ("against", self.against)):
            its_tensors, its_metadata = serialize_explanation(explanation)
            tensors |= {f"{name}.{key}": t for key, t in its_tensors.items()}
            metadata |= {f"{name}.{key}": text for key, text in its_metadata.items()}
        return tensors, metadata

    @staticmethod
    def load(path: str | Path) -> Contrast:
        """Read a file that `save` wrote as .npz or .safetensors."""
        tensors, metadata = store.read(path, kind="contrast")
        with store.wrap_load_errors(path):
            toward, against = (
                deserialize_explanation(
                    {key.removeprefix(name): t for key, t in tensors.items() if key.startswith(name)},
                    {key.removeprefix(name): text for key, text in metadata.items() if key.startswith(name)},
                )
                for name in ("toward.", "against.")
            )
            return Contrast(toward, against)


@overload
def contrast(
    a: Decomposition, b: Decomposition, c: Decomposition, *, similarity: str | Similarity | None = None
) -> Contrast: ...
@overload
def contrast(
    encoder: EncoderOrPair,
    query: InputLike,
    got: InputLike,
    wanted: InputLike,
    /,
    *,
    similarity: str | Similarity | None = None,
) -> HighlightContrast: ...
def contrast(  # type: ignore[misc]
    a: Decomposition | EncoderOrPair,
    b: Decomposition | InputLike,
    c: Decomposition | InputLike,
    d: InputLike | None = None,
    *,
    similarity: str | Similarity | None = None,
) -> Contrast | HighlightContrast:
    """Explain why a is closer to b than to c: y(a, b) − y(a, c) on pairs of regions, P P_bᵀ for b and −P P_cᵀ for c.

    `contrast(encoder, query, got, wanted)` takes inputs in place of decompositions, and says which words of the query and
    of both passages decide, by three pulls: a `bilrp.highlights.HighlightContrast`.

    Args:
        a, b, c: decompositions of one encoder; or an encoder, a query and the passage that it got.
        d: after an encoder, the passage that was wanted.
        similarity: a name or a Similarity, not a distance; None is the encoder's own.

    >>> import bilrp
    >>> net = torch.nn.Linear(4, 3, bias=False)
    >>> a, b, c = (bilrp.decompose(net, torch.rand(1, 4)) for _ in range(3))
    >>> closer = contrast(a, b, c, similarity="dot")
    >>> torch.allclose(closer.relevance, a.parts @ (b.parts - c.parts).T, atol=1e-6)
    True
    """
    if d is not None:
        return contrast_passages(a, b, c, d, similarity=similarity)  # type: ignore[arg-type]
    if not all(isinstance(each, Decomposition) for each in (a, b, c)):
        raise InputError(
            "contrast takes three decompositions, contrast(a, b, c), or an encoder and three inputs, "
            "contrast(encoder, query, got, wanted)"
        )
    sides = [each for each in (a, b, c) if isinstance(each, Decomposition)]
    chosen = resolve_similarity(similarity, *(side.origin.get("similarity") for side in sides))
    if chosen.is_distance:
        raise InputError(f"'{chosen.name}' is a distance: contrast with similarity='dot' or 'cosine'")
    first, second, third = sides
    return Contrast(pair(first, second, similarity=chosen), pair(first, third, similarity=chosen))


# ---------------------------------------------------------------- many inputs at once


class JointMatch(NamedTuple):
    """One region of each input, and their joint relevance."""

    regions: tuple[int, ...]
    relevance: float


@dataclass(frozen=True, eq=False)
class ManyExplanation:
    """y = Σ_m Π_i φ_m(x_i), on tuples of regions: R[I₁, …, I_n] = Σ_m P₁[I₁, m] ⋯ P_n[I_n, m], never materialised.

    score = Σ R + unattributed, exactly. For cosine, `inputs` are divided by ‖φ(x_i)‖. With weights w_i of the regions
    (`Decomposition.weight`), R[I₁, …, I_n] has the factor w₁[I₁] ⋯ w_n[I_n].
    """

    inputs: tuple[Decomposition, ...]
    score: float
    similarity: str = "dot"

    @property
    def unweighted_score(self) -> float | None:
        """The score without the weights of `Decomposition.weight`; None if no input has any."""
        if all(d.unweighted_embedding is None for d in self.inputs):
            return None
        embeddings = (
            d.embedding if d.unweighted_embedding is None else d.unweighted_embedding for d in self.inputs
        )
        return float(_product(embeddings).sum())

    @property
    def explained(self) -> float:
        """Σ R = Σ_m Π_i Σ_I P_i[I, m]."""
        return float(_product(d.parts.sum(0) for d in self.inputs).sum())

    @property
    def unattributed(self) -> float:
        """The part of the score that no tuple of regions explains."""
        return self.score - self.explained

    def relevance(self, *regions: int) -> float:
        """Return R of one region of each input."""
        if len(regions) != len(self.inputs):
            raise InputError(f"give one region for each of the {len(self.inputs)} inputs, got {len(regions)}")
        return float(_product(d.parts[i] for d, i in zip(self.inputs, regions, strict=True)).sum())

    def marginals(self) -> tuple[Tensor, ...]:
        """Return the relevance of each region of each input, summed over all regions of the others."""
        return tuple(d.parts @ _product(self._sums(i), like=d.embedding) for i, d in enumerate(self.inputs))

    def between(self, i: int, j: int) -> Tensor:
        """Return relevance on pairs of regions of inputs i and j, summed over all regions of the others."""
        if i == j:
            raise InputError("between needs two different inputs")
        others = _product(self._sums(i, j), like=self.inputs[i].embedding)
        return (self.inputs[i].parts * others) @ self.inputs[j].parts.T

    def top(self, k: int = 10) -> list[JointMatch]:
        """Return the k strongest tuples, strongest first: exact, by best-first search.

        With product v_m of the regions chosen so far, a tuple can reach at most Σ_m max(v_m·high_m, v_m·low_m), where
        low_m and high_m bound the product of the remaining inputs. The two inputs with most regions come last, as one
        matrix product. In the worst case there is one such product for each choice of the others.
        """
        return find_strongest([d.parts for d in self.inputs], k)[0]

    def _sums(self, *without: int) -> Iterator[Tensor]:
        return (d.parts.sum(0) for i, d in enumerate(self.inputs) if i not in without)

    def __repr__(self) -> str:
        sizes = " × ".join(str(d.regions.count) for d in self.inputs)
        return f"ManyExplanation({self.score:.6g}, {sizes} regions, unattributed {self.unattributed:.3g})"


def explain_many(
    decompositions: Sequence[Decomposition], *, similarity: str | Similarity | None = None
) -> ManyExplanation:
    """Explain what n inputs have in common: y = Σ_m φ_m(x₁) ⋯ φ_m(x_n), by marginals and strongest tuples.

    Args:
        decompositions: at least two, of one encoder.
        similarity: dot, or cosine, which divides each decomposition by ‖φ(x_i)‖ first; None is the encoder's own.

    >>> import bilrp
    >>> net = torch.nn.Linear(4, 3, bias=False)
    >>> joint = explain_many([bilrp.decompose(net, torch.rand(1, 4)) for _ in range(3)])
    >>> best = joint.top(1)[0]
    >>> abs(joint.relevance(*best.regions) - best.relevance) < 1e-5
    True
    """
    inputs = tuple(decompositions)
    if len(inputs) < 2:
        raise InputError(f"explain_many needs at least two decompositions, got {len(inputs)}")
    for d in inputs[1:]:
        check_pair(inputs[0], d)
    chosen = resolve_similarity(similarity, *(d.origin.get("similarity") for d in inputs))
    if (chosen.unit_form or chosen).name != "dot":
        raise InputError(f"explain_many needs similarity='dot' or 'cosine', got '{chosen.name}'")
    if chosen.unit_form is not None:
        inputs = tuple(sum_decompositions([d], normalize=True) for d in inputs)
    return ManyExplanation(inputs, float(_product(d.embedding for d in inputs).sum()), chosen.name)


def _product(tensors: Iterable[Tensor], like: Tensor | None = None) -> Tensor:
    """Return the elementwise product of vectors; ones like `like` if there are none."""
    out = None if like is None else torch.ones_like(like)
    for t in tensors:
        out = t if out is None else out * t
    assert out is not None
    return out


def find_strongest(parts: list[Tensor], k: int) -> tuple[list[JointMatch], int]:
    """Return the k tuples with the largest Σ_m Π_i P_i[I_i, m], and the number of expanded nodes."""
    k = min(k, int(np.prod([float(len(p)) for p in parts])))
    # the two largest last, for the matrix product
    order = sorted(range(len(parts)), key=lambda i: len(parts[i]))
    ordered = [parts[i] for i in order]
    bounds = _product_bounds(ordered)
    queue: list[tuple[float, tuple[int, ...]]] = [(-float("inf"), ())]
    matches: list[JointMatch] = []
    expanded = 0
    while queue and len(matches) < k:
        bound, chosen = heapq.heappop(queue)
        if len(chosen) == len(parts):  # no bound in the queue is larger
            matches.append(JointMatch(tuple(chosen[order.index(i)] for i in range(len(parts))), -bound))
            continue
        expanded += 1
        for value, more in _expand(ordered, chosen, bounds, k):
            heapq.heappush(queue, (-value, (*chosen, *more)))
    return matches, expanded


def _expand(
    parts: list[Tensor], chosen: tuple[int, ...], bounds: list[tuple[Tensor, Tensor]], k: int
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield the children of a node: next regions with a bound, or the k best last pairs with exact relevance."""
    depth = len(chosen)
    ahead = _product((p[i] for p, i in zip(parts, chosen, strict=False)), like=parts[0][0])
    branches = parts[depth] * ahead
    if depth == len(parts) - 2:
        exact = branches @ parts[-1].T
        values, index = exact.flatten().topk(min(k, exact.numel()))
        for value, i in zip(values.tolist(), index.tolist(), strict=True):
            yield value, divmod(i, exact.shape[1])
        return
    low, high = bounds[depth + 1]
    reach = torch.maximum(branches * low, branches * high).sum(1)
    for i, value in enumerate(reach.tolist()):
        yield value, (i,)


def _product_bounds(parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return for each depth the smallest and largest product, by coordinate, of one region of each later input."""
    one = torch.ones_like(parts[0][0])
    ranges = [(one, one)]
    for p in reversed(parts):
        low, high = ranges[0]
        least, most = p.amin(0), p.amax(0)
        corners = torch.stack([least * low, least * high, most * low, most * high])
        ranges.insert(0, (corners.amin(0), corners.amax(0)))
    return ranges
