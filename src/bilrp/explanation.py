"""Explanation: one similarity on pairs of regions, from two decompositions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from bilrp.covering import (
    CoveredFinding,
    NeededRegions,
    PairRuns,
    count_needed_regions,
    count_proposed_regions,
    find_needed_regions,
    order_by_findings,
    order_by_sum,
)
from bilrp.decomposition import Decomposition
from bilrp.encoder import (
    CompositeLike,
    Encoder,
    EncoderOrPair,
    InputLike,
    read_item,
    resolve_encoders,
)
from bilrp.errors import InputError
from bilrp.explanation_files import FORMATS, DrawingOptions, Writer, WriterOptions, read_fields
from bilrp.findings import grouping
from bilrp.findings.breakdown import ScoreBreakdown
from bilrp.findings.differences import (
    Difference,
    DistanceBreakdown,
    break_down_distance,
    extract_differences,
)
from bilrp.findings.grouping import Finding
from bilrp.findings.number_matches import are_numbers, extract_number_findings
from bilrp.findings.special_tokens import exclude_special_tokens, select_regions
from bilrp.findings.summary import summarize
from bilrp.inputs import Item
from bilrp.io import schema, store
from bilrp.io.files import match_suffix
from bilrp.pair_plan import pull_pair, reference_rows, score_pair
from bilrp.pipeline import Mode, PreparedInput, decompose_item, prepare
from bilrp.progress import progress_bar
from bilrp.regions import RegionSpecs, as_spec_pair
from bilrp.reliability import ReliabilitySpecs, mean_pair_weight, score_without_weights, weight_sides
from bilrp.similarity import Similarity, multiply_parts, resolve_similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bilrp.app.widgets import ExplanationWidget
    from bilrp.render.links import Style


class Match(NamedTuple):
    """A pair of regions and its relevance."""

    a: int
    b: int
    relevance: float


class FindingList(list[Finding]):
    """Findings of an explanation; a notebook shows them with crops or words of both inputs."""

    def __init__(self, findings: Sequence[Finding], explanation: Explanation) -> None:
        super().__init__(findings)
        self._explanation = explanation

    def _repr_html_(self) -> str:
        from bilrp.render import findings_table

        return findings_table.render_html(self._explanation, self)


@dataclass(frozen=True, eq=False)
class Explanation:
    """score = relevance.sum() + sums of both self_terms + unattributed, exactly; relevance is [regions of a, regions of b].

    Args:
        a, b: the decompositions of the two inputs.
        score: the similarity.
        relevance: [regions of a, regions of b].
        similarity: its name.
        self_terms: P Pᵀ and P' P'ᵀ, for similarities with terms of each side with itself.
        is_distance: the score grows where the two differ, so positive relevance separates them.
        reference_terms: for rules that compare with a reference input, relevance of each region with the other side's
            reference; they and reference_score are known terms of `unattributed`.
        reference_score: the similarity of the two references.
        runs: the inputs with their encoders, for `cover_findings` and `find_needed_regions`; not stored in files.
        unweighted_score: the score without the weights of `Decomposition.weight`; None if neither side has any.
    """

    a: Decomposition
    b: Decomposition
    score: float
    relevance: Float[Tensor, "regions_a regions_b"]
    similarity: str = "dot"
    self_terms: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    is_distance: bool = False
    reference_terms: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    reference_score: float = 0.0
    runs: PairRuns | None = field(default=None, repr=False)
    unweighted_score: float | None = None

    @property  # pyright does not take a cached_property for the attribute of findings.summary.ExplanationLike
    def breakdown(self) -> ScoreBreakdown:
        """The summands of the score: positive and negative pairs, special tokens, self terms, references, the rest."""
        return self._breakdown

    @cached_property
    def _breakdown(self) -> ScoreBreakdown:
        every, pairs = self.relevance.detach().cpu().double(), self._without_special_tokens()[2]
        own, reference = (
            [float(t.detach().cpu().double().sum()) for t in both or ()] or [0.0, 0.0]
            for both in (self.self_terms, self.reference_terms)
        )
        return ScoreBreakdown(
            score=self.score,
            positive=float(pairs.clamp(min=0).sum()),
            negative=float(pairs.clamp(max=0).sum()),
            self_terms_a=own[0],
            self_terms_b=own[1],
            special_tokens=float(every.sum() - pairs.sum()),
            reference_terms_a=reference[0],
            reference_terms_b=reference[1],
            reference_score=self.reference_score,
            is_centered=self.is_centered,
            scale=self._score_scale(),
        )

    @property
    def is_centered(self) -> bool:
        """Whether relevance is of what is specific to the two inputs, see `composites.centered`."""
        return all(str(side.origin.get("composite")).startswith("centered(") for side in (self.a, self.b))

    def _score_scale(self) -> float | None:
        """Return what a score of two such embeddings can reach; None for similarities without a known scale."""
        lengths = [
            float(torch.linalg.vector_norm(side.embedding.detach().cpu().double()))
            for side in (self.a, self.b)
        ]
        scales = {
            "cosine": 1.0,
            "dot": lengths[0] * lengths[1],
            "squared_distance": lengths[0] ** 2 + lengths[1] ** 2,
        }
        return scales.get(self.similarity)

    def _without_special_tokens(self) -> tuple[list[int], list[int], Tensor]:
        """Return the regions of each side that are not special tokens, and the relevance among them in float64."""
        rows, columns = (exclude_special_tokens(side.regions, side.view) for side in (self.a, self.b))
        every = self.relevance.detach().cpu().double()
        is_partial = len(rows) < self.a.regions.count or len(columns) < self.b.regions.count
        return rows, columns, every[rows][:, columns] if is_partial else every

    @property
    def explained(self) -> float:
        """The part of the score that pairs of regions explain."""
        return self.breakdown.explained

    @property
    def unattributed(self) -> float:
        """The part of the score that no pair of regions explains: biases, constants, features in no region.

        Under a centered composite also what any two inputs share, which `breakdown.shared` tells apart.
        """
        return self.breakdown.unattributed

    def top(self, k: int = 10) -> list[Match]:
        """Return the k strongest matches, strongest first."""
        k = max(0, min(k, self.relevance.numel()))
        values, index = self.relevance.flatten().topk(k)
        width = self.relevance.shape[1]
        return [Match(int(i) // width, int(i) % width, float(v)) for v, i in zip(values, index, strict=True)]

    def findings(self, k: int = 12) -> list[Finding]:
        """Return at most k findings, strongest first: groups of regions of a matched with groups of b; no pair is in two.

        >>> import torch
        >>> net = torch.nn.Linear(4, 4, bias=False)
        >>> explanation = explain(net, torch.eye(4)[:1], torch.eye(4)[:1])
        >>> [(finding.a, finding.b) for finding in explanation.findings()]
        [([0], [0])]
        """
        return FindingList(self._all_findings[: max(0, k)], self)

    def cover_findings(self, k: int = 3) -> list[CoveredFinding]:
        """Cover each of the first k findings that raise the score, in a and in b, and score the pair again with the model.

        Words of a text are deleted; regions of an image become the mean of the input in each channel, other features 0.
        This takes two forward passes for each finding, and needs an explanation made by `explain` in this process: files
        and collections do not hold the model. Distances, projected embeddings and weights (`reliability`) give an empty
        list, and a finding without which there is no score (an embedding of zeros) is left out.

        >>> import torch
        >>> net = torch.nn.Linear(4, 4, bias=False)
        >>> explanation = explain(net, torch.eye(4)[:1], torch.eye(4)[:1], similarity="dot")
        >>> [covered.without_a for covered in explanation.cover_findings()]
        [0.0]
        """
        runs = self._runs()
        embeddings, regions = (self.a.embedding, self.b.embedding), (self.a.regions, self.b.regions)
        if self._differs_from_model_score():
            return []
        raising = [(n, each) for n, each in enumerate(self._all_findings, 1) if each.relevance > 0]
        for number, finding in raising[:k]:
            if number not in self._covered:
                scores = [
                    runs.score_without(side, numbers, embeddings, regions)
                    for side, numbers in enumerate((finding.a, finding.b))
                ]
                self._covered[number] = CoveredFinding(number, finding, self.score, *scores)
        covered = [self._covered[number] for number, _ in raising[:k]]
        return [each for each in covered if math.isfinite(each.fall)]

    def find_needed_regions(self, count: int | None = None, *, progress: bool = False) -> NeededRegions:
        """Find regions of each side without which the score falls: relevance proposes them, the model decides.

        Three candidates are covered, as by `cover_findings`: the regions of the first findings; those with the most
        relevance in sum (`marginals`); and, among the half with the most relevance (at most 64), those without which the
        score falls most when each is covered alone. The best of them is returned: the one without which the score is
        lowest, which may still be higher than with it. For each side this takes a forward pass for half of its regions
        (at most 64, but more than `count`), and at most three more.

        A finding says what goes with what; a region that goes a little with everything is in none, and the score may
        need it all the same.

        Args:
            count: regions of each side, at most all; an eighth of them, at least three and at most 32, if None.
            progress: show a progress bar.

        >>> import torch
        >>> net = torch.nn.Linear(4, 4, bias=False)
        >>> x = torch.tensor([[1.0, 2.0, 0.0, 0.0]])
        >>> len(explain(net, x, x, similarity="dot").find_needed_regions(2).a)
        2
        """
        runs = self._runs()
        if self._differs_from_model_score():
            raise InputError(
                "needed regions are those of the model's own score: explain again with similarity='cosine' or 'dot', "
                "without project= and reliability="
            )
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise InputError(f"count must be a whole number and at least 1, got {count!r}")
        embeddings, regions = (self.a.embedding, self.b.embedding), (self.a.regions, self.b.regions)
        needed = []
        with progress_bar(progress) as bar:
            for side, numbers in enumerate(self._without_special_tokens()[:2]):

                def score_without(hidden: Sequence[int], side: int = side) -> float:
                    bar.advance()
                    return runs.score_without(side, hidden, embeddings, regions)

                size = count_needed_regions(len(numbers)) if count is None else min(count, len(numbers))
                bar.start(f"covering regions of {'ab'[side]}", count_proposed_regions(len(numbers), size) + 3)
                needed.append(
                    find_needed_regions(
                        score_without,
                        order_by_findings(self.relevance, self._all_findings, side, numbers),
                        order_by_sum(self.relevance, side, numbers),
                        size,
                    )
                )
        (a, without_a), (b, without_b) = needed
        return NeededRegions(a, b, self.score, without_a, without_b)

    def _runs(self) -> PairRuns:
        if self.runs is None:
            raise InputError(
                "covering regions needs the model: use an explanation that bilrp.explain returned"
            )
        shapes = (side.shape or tuple(side.embedding.shape) for side in (self.a, self.b))
        return replace(self.runs, similarity=self.runs.similarity.for_shapes(*shapes))

    def _differs_from_model_score(self) -> bool:
        """Return whether the score is a distance, an estimate or weighted, so that the model alone does not compute it."""
        is_projected = any(side.origin.get("projection") for side in (self.a, self.b))
        return self.is_distance or is_projected or self.unweighted_score is not None

    @cached_property
    def _covered(self) -> dict[int, CoveredFinding]:
        return {}

    @cached_property
    def _all_findings(self) -> list[Finding]:
        rows, columns, relevance = self._without_special_tokens()
        a, b = select_regions(self.a.regions, rows), select_regions(self.b.regions, columns)
        score = (
            0.0 if self.breakdown.is_near_zero else self.breakdown.specific
        )  # no shares of a score near zero
        if are_numbers(a, b):
            findings = extract_number_findings(relevance.numpy(), a, b, score=score)
        else:
            findings = grouping.extract_findings(relevance.numpy(), a, b, score=score, k=relevance.numel())
        findings = [replace(f, a=[rows[n] for n in f.a], b=[columns[n] for n in f.b]) for f in findings]
        return [replace(f, reliability=mean_pair_weight(self.a, self.b, f.a, f.b)) for f in findings]

    def differences(self, k: int = 3, *, shared: bool = True) -> list[Difference]:
        """Return the k groups of regions that add most to the squared distance of the two embeddings, largest first.

        Region I of a adds ⟨P_I, φ − φ'⟩, region I' of b adds ⟨P'_I', φ' − φ⟩: large for what is in one input and not in the
        other, negative for what brings the two together. Every region is in exactly one group, so that with k large
        enough the contributions and `distance.unattributed` add up to `distance.squared_distance`. For cosine,
        embeddings and parts are divided by the length of the embedding, so the distance is 2 − 2 cosine; for the dot
        product and all others they are taken as they are.

        Args:
            k: maximum number of differences.
            shared: regions whose parts are each other's closest have the mean of what the two add, and those that are
                much alike come last (see `findings.differences`); False: each has exactly its own ⟨P_I, φ − φ'⟩.

        >>> import torch
        >>> net = torch.nn.Linear(3, 3, bias=False)
        >>> _ = torch.nn.init.eye_(net.weight)
        >>> explanation = explain(net, torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[1.0, 2.0, 4.0]]), similarity="dot")
        >>> explanation.differences(1)
        [Difference(side='b', regions=[2], contribution=16.0)]
        """
        if shared:
            return self._shared_differences[: max(0, k)]
        regions, views = (self.a.regions, self.b.regions), (self.a.view, self.b.view)
        return extract_differences(
            replace(self.distance, matched=(), product_with_other=None), regions, views
        )[: max(0, k)]

    @cached_property
    def distance(self) -> DistanceBreakdown:
        """What each region adds to the squared distance of the two embeddings (of length one for cosine)."""
        if self.a.embedding.shape != self.b.embedding.shape:
            raise InputError(
                f"differences need two embeddings of one size, and these have {self.a.embedding.numel()} and "
                f"{self.b.embedding.numel()} coordinates"
            )
        return break_down_distance(
            (self.a.parts, self.b.parts),
            (self.a.embedding, self.b.embedding),
            normalize=self.similarity == "cosine",
        )

    @cached_property
    def _shared_differences(self) -> list[Difference]:
        regions, views = (self.a.regions, self.b.regions), (self.a.view, self.b.view)
        return extract_differences(self.distance.share_between_counterparts(), regions, views)

    def summary(self, *, random_scores: Sequence[float] | None = None) -> str:
        """Return a verdict, what carries it, what adds up to the score, and warnings, in a few sentences.

        Args:
            random_scores: cosines of random pairs, to compare the score with.
        """
        return summarize(self, self.findings(), random_scores=random_scores)

    def row(self, i: int) -> Float[Tensor, " regions_b"]:
        """Return the relevance of region i of a with each region of b."""
        return self.relevance[i]

    def column(self, j: int) -> Float[Tensor, " regions_a"]:
        """Return the relevance of region j of b with each region of a."""
        return self.relevance[:, j]

    def marginals(self) -> tuple[Float[Tensor, " regions_a"], Float[Tensor, " regions_b"]]:
        """Return the relevance of each region of a, and of each region of b."""
        return self.relevance.sum(1), self.relevance.sum(0)

    def coarsen(self, regions: RegionSpecs) -> Explanation:
        """Sum the explanation over larger regions (one spec, or one for each side), which conserves the score."""
        spec_a, spec_b = as_spec_pair(regions)
        a, b = self.a.coarsen(spec_a), self.b.coarsen(spec_b)
        by_a, by_b = _membership(self.a, a), _membership(self.b, b)
        self_terms = None
        if self.self_terms:
            self_terms = (by_a.T @ self.self_terms[0] @ by_a, by_b.T @ self.self_terms[1] @ by_b)
        reference_terms = (
            (by_a.T @ self.reference_terms[0], by_b.T @ self.reference_terms[1])
            if self.reference_terms
            else None
        )
        relevance = by_a.T @ self.relevance @ by_b
        return replace(
            self, a=a, b=b, relevance=relevance, self_terms=self_terms, reference_terms=reference_terms
        )

    def plot(self, **options: Unpack[DrawingOptions]) -> Figure:
        """Draw the findings on both inputs, or the pairs as arcs as in the paper; see `DrawingOptions`."""
        from bilrp.render import figure

        return figure.plot(self, **options)

    def save(
        self,
        path: str | Path,
        *,
        formats: Mapping[str, Writer] | None = None,
        **options: Unpack[WriterOptions],
    ) -> Path:
        """Write numbers, a figure, an interactive page, the answer as JSON, or the findings for image viewers.

        Numbers are .npz or .safetensors, figures .png, .svg or .pdf, a page is .html; .json is what `bilrp explain --json`
        prints. Of images, .jsonld has the findings as
        Web Annotations, .iiif.json as a IIIF manifest, and .csv as region pairs in the form of AIKON.

        Args:
            path: the file; its suffix selects the writer.
            formats: writers by suffix, in place of `FORMATS`: `save("why.csv", formats={".csv": write})` calls
                write(explanation, path, **options).
            options: passed to the writer, e.g. title="Why?"; see `WriterOptions`.
        """
        formats = FORMATS if formats is None else formats
        suffix = match_suffix(path, formats)
        if suffix is None:
            raise InputError(
                f"cannot save an explanation as '{Path(path).suffix or path}': use one of {', '.join(formats)}"
            )
        formats[suffix](self, path, **options)
        return Path(path)

    @staticmethod
    def load(path: str | Path) -> Explanation:
        """Read a file that `save` wrote as .npz or .safetensors."""
        tensors, metadata = store.read(path, kind="explanation")
        with store.wrap_load_errors(path):
            return deserialize_explanation(tensors, metadata)

    def _repr_html_(self) -> str:
        from bilrp.render import page

        return page.embed(self)

    def widget(
        self,
        *,
        title: str | None = None,
        style: str | Style | None = None,
        names: tuple[str, str] | None = None,
        special_tokens: bool = False,
    ) -> ExplanationWidget:
        """Show the page as a notebook widget (`bilrp[notebook]`); `widget.selected` is the pinned selection.

        Args:
            title, style, names, special_tokens: as for `plot`.
        """
        from bilrp.app import widgets

        return widgets.make_explanation_widget(
            self, title=title, style=style, names=names, special_tokens=special_tokens
        )

    def __repr__(self) -> str:
        shared = f" (any two share {self.breakdown.shared:.3g})" if self.breakdown.is_centered else ""
        return (
            f"Explanation({self.similarity} = {self.score:.6g}, {self.relevance.shape[0]} × {self.relevance.shape[1]} "
            f"regions, unattributed {self.unattributed:.3g}{shared})"
        )


def explain(
    encoder: EncoderOrPair,
    a: InputLike,
    b: InputLike,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    progress: bool = False,
    max_regions: int | None = None,
    reliability: ReliabilitySpecs | None = None,
) -> Explanation:
    """Explain which parts of a and b make the encoder call them similar.

    R[I, I'] = Σ_m P[I, m] P'[I', m] for the dot product; divided by ‖φ‖‖φ'‖ for cosine.

    Args:
        encoder: a name ("minilm"), an Encoder, an nn.Module, a callable tensor -> tensor, or a `DualEncoder` or tuple of
            two encoders to compare an image with a text.
        a, b: tensors with a batch axis of 1, or anything that the encoder reads: paths, images, texts.
        similarity: a name or a Similarity; None is the encoder's own, else cosine.
        regions: one spec for both inputs, or a tuple of two; None is the encoder's default.
        composite: the rules; None is the encoder's default.
        project: number of random dimensions to project embeddings to; None is exact.
        mode: push regions forward, pull coordinates backward, or "auto", whichever costs less.
        progress: show a progress bar.
        max_regions: split only the regions of largest Σ_I' |R[I, I']|, up to that many regions for each input.
        reliability: weights in [0, 1] of the regions, see `Decomposition.weight`: weights, a mask or an image file of one
            (white is reliable), or "own" for the encoder's own confidence; for both inputs, or a tuple of two.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.ReLU())
    >>> explanation = explain(net, torch.rand(1, 4), torch.rand(1, 4))
    >>> abs(explanation.unattributed) < 1e-5
    True
    """
    encoders = resolve_encoders(encoder, a, b)
    # Read both before the first is decomposed, so that errors come early.
    first, second = (read_item(each, x) for each, x in zip(encoders, (a, b), strict=True))
    return explain_items(
        encoders, first, second, similarity=similarity, regions=regions, composite=composite, project=project, mode=mode,
        progress=progress, max_regions=max_regions, reliability=reliability,
    )  # fmt: skip


def explain_items(
    encoder: Encoder | tuple[Encoder, Encoder],
    a: Item,
    b: Item,
    *,
    similarity: str | Similarity | None = None,
    regions: RegionSpecs | None = None,
    composite: CompositeLike | None = None,
    project: int | None = None,
    mode: Mode = "auto",
    progress: bool = False,
    max_regions: int | None = None,
    reliability: ReliabilitySpecs | None = None,
    keep_parts: bool = False,
) -> Explanation:
    """Explain two inputs that `read_item` has read, each by its encoder.

    Args:
        encoder: One encoder for both inputs, or one for each.
        a: The first input.
        b: The second input.
        similarity, regions, composite, project, mode, progress, max_regions, reliability: As for `explain`.
        keep_parts: Whether the parts of both inputs will be needed; otherwise those of the larger input may be computed only
            when they are first read.
    """
    encoders = encoder if isinstance(encoder, tuple) else (encoder, encoder)
    chosen = resolve_similarity(similarity, *(each.similarity for each in encoders))
    sides = list(zip(encoders, (a, b), as_spec_pair(regions), strict=True))
    if max_regions is not None:
        both = [
            prepare(each, item, regions=spec, composite=composite, project=project, mode=mode)
            for each, item, spec in sides
        ]
        explanation = deque(refine_pair(*both, similarity=chosen, max_regions=max_regions), maxlen=1)[0]
        if reliability is not None:
            weighted = weight_sides((explanation.a, explanation.b), encoders, (a, b), reliability)
            explanation = pair(*weighted, similarity=chosen)
        return replace(explanation, runs=PairRuns(encoders, (a, b), chosen))
    # One after the other: only one recorded run is in memory at a time.
    larger_side = 0 if b.x.numel() < a.x.numel() else 1
    its_encoder, item, spec = sides[1 - larger_side]
    prepared = prepare(its_encoder, item, regions=spec, composite=composite, project=project, mode=mode)
    smaller = prepared.decompose(progress=progress)
    del prepared
    its_encoder, item, spec = sides[larger_side]
    prepared = prepare(its_encoder, item, regions=spec, composite=composite, project=project, mode=mode)

    def decompose_larger() -> Decomposition:
        return decompose_item(its_encoder, item, regions=spec, composite=composite)[None]

    if mode == "auto" and project is None and reliability is None and not keep_parts:
        pulled = pull_pair(smaller, prepared, larger_side, decompose_larger, chosen)
        if pulled is not None:
            explanation = Explanation(**pulled._asdict(), is_distance=chosen.is_distance)
            return replace(explanation, runs=PairRuns(encoders, (a, b), chosen))
    larger = prepared.decompose(progress=progress)
    left, right = (smaller, larger) if larger_side else (larger, smaller)
    if reliability is not None:
        left, right = weight_sides((left, right), encoders, (a, b), reliability)
    return replace(pair(left, right, similarity=chosen), runs=PairRuns(encoders, (a, b), chosen))


def refine_pair(
    a: PreparedInput, b: PreparedInput, *, similarity: Similarity, max_regions: int | None
) -> Iterator[Explanation]:
    """Explain two inputs coarse to fine: on each side the regions of largest Σ|R| are split.

    Args:
        a: The first input with its rules applied.
        b: The second input.
        similarity: The similarity.
        max_regions: Number of regions a side to stop at; None goes on to the finest regions.
    """
    sides = (a, b)
    refined, finer = None, [side.begin_refinement(max_regions) for side in sides]
    while refined is None or any(new is not old for new, old in zip(finer, refined, strict=True)):
        refined = finer
        left, right = (side.build_refined(each) for side, each in zip(sides, refined, strict=True))
        explanation = pair(left, right, similarity=similarity)
        yield explanation
        size = explanation.relevance.abs()
        weights = (size.sum(1), size.sum(0))
        finer = [side.split_regions(each, w) for side, each, w in zip(sides, refined, weights, strict=True)]


def pair(
    a: Decomposition,
    b: Decomposition,
    *,
    similarity: str | Similarity | None = None,
    coordinates: Tensor | None = None,
) -> Explanation:
    """Explain the similarity of two decompositions, by one matrix product.

    Args:
        a, b: decompositions of one encoder, or of two in one embedding space.
        similarity: a name or a Similarity; None is the encoder's own, as `origin` stores it.
        coordinates: use only these coordinates of the parts, where all others are zero in one of the two.
    """
    chosen = resolve_similarity(similarity, a.origin.get("similarity"), b.origin.get("similarity"))
    chosen, score = score_pair(a, b, chosen)
    p, q = _parts_for(chosen, a, b)
    self_terms = (multiply_parts(p, p), multiply_parts(q, q)) if chosen.has_self_terms else None
    if coordinates is not None:
        p, q = a.parts[:, coordinates], b.parts[:, coordinates]
    relevance = chosen.relevance_fn(a.embedding, b.embedding)(p, q)
    explanation = Explanation(
        a,
        b,
        score,
        relevance,
        chosen.name,
        self_terms,
        chosen.is_distance,
        unweighted_score=score_without_weights(a, b, chosen),
    )
    has_reference = a.reference is not None or b.reference is not None
    return _add_reference_terms(explanation, chosen) if has_reference else explanation


def _parts_for(similarity: Similarity, a: Decomposition, b: Decomposition) -> tuple[Any, Any]:
    """Return dense parts, or sparse ones if both are sparse and the similarity needs only products."""
    p, q = a.stored_parts, b.stored_parts
    are_sparse = not isinstance(p, Tensor) and not isinstance(q, Tensor)
    return (p, q) if are_sparse and similarity.needs_only_products else (a.parts, b.parts)


def _add_reference_terms(explanation: Explanation, similarity: Similarity) -> Explanation:
    """⟨Δ + φ₀, Δ' + φ₀'⟩ = ⟨Δ, Δ'⟩ + ⟨Δ, φ₀'⟩ + ⟨φ₀, Δ'⟩ + ⟨φ₀, φ₀'⟩ for any bilinear form; a side without φ₀ has 0."""
    a, b = explanation.a, explanation.b
    left, right = reference_rows(a, b)
    form = similarity.relevance_fn(a.embedding, b.embedding)
    one, other, both = form(a.parts, right)[:, 0], form(left, b.parts)[0], float(form(left, right))
    if similarity.has_self_terms:
        one, other = one + 2 * a.parts @ left[0], other + 2 * b.parts @ right[0]
        both += float(left.square().sum() + right.square().sum())
    return replace(explanation, reference_terms=(one, other), reference_score=both)


def _membership(fine: Decomposition, coarse: Decomposition) -> Tensor:
    """Return a 0/1 matrix [fine regions, coarse regions]."""
    members = fine.embedding.new_zeros(fine.regions.count, coarse.regions.count)
    small, large = fine.regions.labels.flatten(), coarse.regions.labels.flatten()
    inside = (small >= 0) & (large >= 0)
    members[small[inside], large[inside]] = 1
    return members


def deserialize_explanation(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Explanation:
    """Return the explanation of the tensors and metadata that `serialize_explanation` returned; checks them."""
    explanation = Explanation(**read_fields(tensors, metadata))
    schema.check_explanation(explanation)
    return explanation
