"""All measurements on test pages, as numbers and as objects to plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bilrp.encoder import Encoder
from bilrp.encoders.bigram import build_encoder
from bilrp.encoders.vgg import vgg16
from bilrp.errors import BilrpError
from bilrp.progress import Progress
from bilrp_studies.tables import bigram_agreement, page_evaluation, smudged_numbers
from bilrp_studies.tables.digit_model import DigitModel, PageSplit
from bilrp_studies.tables.pages import Page
from bilrp_studies.tables.settings import TablesSettings
from bilrp_studies.tables.table_blocks import TableBlock, cut_blocks

RANDOM_PAIRS = "bigram, random pairs"


@dataclass(frozen=True)
class Measurements:
    """All measurements, as numbers for results.json and as objects to plot."""

    results: dict[str, Any]
    scores: list[page_evaluation.PageScore]
    similarities: page_evaluation.Similarities
    explanations: dict[str, list[page_evaluation.ExplainedBlockPair]]
    search: page_evaluation.CopySearch
    checks: page_evaluation.EncoderChecks
    out_of_domain: list[page_evaluation.OutOfDomainResult]
    encoder: Encoder
    vgg_error: str | None


def measure_all(split: PageSplit, model: DigitModel, settings: TablesSettings, bar: Progress) -> Measurements:
    """Run all measurements on the test pages.

    Args:
        split: The pages.
        model: The trained digit network.
        settings: The settings of the study.
        bar: Progress bar.
    """
    encoder = build_encoder(model.net)
    scores = page_evaluation.score_pages(model.net, split.test, threshold=model.threshold, bar=bar)
    full, small, missing = load_vgg_encoders(settings.vgg_weights)
    every = _cut_all_blocks([*split.train, *split.validation, *split.test])
    tests = _cut_all_blocks(split.test)
    rng = np.random.default_rng(settings.seed)
    compared = [tests[i] for i in rng.permutation(len(tests))[:96]]
    similar = page_evaluation.compare_blocks({"bigram": encoder, **full}, compared, bar=bar)
    explained = explain_all(
        {"bigram": encoder, **small},
        page_evaluation.choose_similar_pairs(split.test, settings.pairs),
        bar=bar,
    )
    unlike = explain_all(
        {"bigram": encoder},
        page_evaluation.draw_random_pairs(split.test, settings.pairs, seed=settings.seed),
        bar=bar,
    )
    shares = {
        name: bigram_agreement.mean_agreement([p.agreement for p in some])
        for name, some in {**explained, RANDOM_PAIRS: unlike["bigram"]}.items()
    }
    test = {id(page) for page in split.test}
    queries = [b for b in every if id(b.page) in test]
    queries = [queries[i] for i in rng.permutation(len(queries))[:40]]
    search = page_evaluation.search_copies(encoder, every, queries, seed=settings.seed, bar=bar)
    page = split.test[0]
    checks = page_evaluation.check_encoder(model.net, page, cut_blocks(page, rows=5, columns=3)[0])
    strange = page_evaluation.evaluate_out_of_domain(encoder, page)
    results = collect_results(split, model, scores, similar, shares, search, checks, strange)
    results["number_matches"] = measure_number_matches(encoder, split.test, settings.seed, bar=bar)
    return Measurements(results, scores, similar, explained, search, checks, strange, encoder, missing)


def measure_number_matches(
    encoder: Encoder, pages: Sequence[Page], seed: int, *, bar: Progress
) -> dict[str, dict[str, float]]:
    """Return the precision of number matches on clean and smudged pages, with and without weights.

    Args:
        encoder: The bigram network.
        pages: Transcribed pages.
        seed: Seed of the smudges.
        bar: Progress bar.
    """
    rng = np.random.default_rng(seed)
    read: dict[str, list[list[smudged_numbers.ReadNumber]]] = {"clean": [], "smudged": []}
    for page in page_evaluation.track_progress(pages, "reading smudged numbers", bar):
        for kind, gray in (("clean", page.gray), ("smudged", smudged_numbers.smudge(page, rng))):
            read[kind].append(smudged_numbers.read_numbers(encoder, page, gray))
    return {kind: asdict(smudged_numbers.measure_matches(numbers)) for kind, numbers in read.items()}


def _cut_all_blocks(pages: Sequence[Page]) -> list[TableBlock]:
    return [
        b
        for p in pages
        for b in cut_blocks(p, rows=page_evaluation.BLOCK_CELLS[0], columns=page_evaluation.BLOCK_CELLS[1])
    ]


def load_vgg_encoders(weights: Path | None) -> tuple[dict[str, Encoder], dict[str, Encoder], str | None]:
    """Return VGG-16 at layer 17 for blocks of one size and for small windows; empty, with a reason, if unavailable."""
    try:
        full = vgg16(17, weights=weights, size=(136, 288), resize="stretch")
        return {"vgg17": full}, {"vgg17": vgg16(17, weights=weights, size=None)}, None
    except BilrpError as error:
        return {}, {}, str(error)


def explain_all(
    encoders: dict[str, Encoder], pairs: Sequence[tuple[TableBlock, TableBlock]], *, bar: Progress
) -> dict[str, list[page_evaluation.ExplainedBlockPair]]:
    """Explain every pair of small blocks with every model.

    Args:
        encoders: Encoders by name.
        pairs: Pairs of blocks.
        bar: Progress bar.
    """
    return {
        name: [
            page_evaluation.explain_pair(name, e, p)
            for p in page_evaluation.track_progress(pairs, f"explaining with {name}", bar)
        ]
        for name, e in encoders.items()
    }


def collect_results(
    split: PageSplit,
    model: DigitModel,
    scores: list[page_evaluation.PageScore],
    similarities: page_evaluation.Similarities,
    shares: dict[str, dict[str, float]],
    search: page_evaluation.CopySearch,
    checks: page_evaluation.EncoderChecks,
    out_of_domain: list[page_evaluation.OutOfDomainResult],
) -> dict[str, Any]:
    """Return the content of results.json.

    Args:
        split: The pages.
        model: The trained digit network.
        scores: Detections and bigram sums of each test page.
        similarities: Predicted and true similarity of pairs of blocks.
        shares: Mean `BigramAgreement` by model.
        search: Retrieval of distorted copies.
        checks: Numerical checks of the encoder.
        out_of_domain: Results on images that are not tables.
    """
    precision = {name: s["bigram"] for name, s in shares.items() if name != RANDOM_PAIRS}
    return {
        "digit_f1": page_evaluation.digit_f1(scores),
        "bigram_correlation": page_evaluation.bigram_correlation(scores),
        "similarity_spearman": {"vgg17": None, **similarities.spearman},
        "digit_pair_precision": {"vgg17": None, **precision, "chance": shares["bigram"]["chance"]},
        "pages": {
            "train": [p.name for p in split.train],
            "validation": [p.name for p in split.validation],
            "test": [p.name for p in split.test],
            "skipped": split.skipped,
        },
        "train_patches": model.metadata.get("labels"),
        "similarity_spearman_dot": similarities.spearman_dot,
        "relevance_shares": shares,
        "copy_first": {**search.top1_rate, "overall": search.overall},
        "copy_queries": search.queries,
        "conservation": {"unattributed": checks.unattributed, "push_minus_pull": checks.push_pull_gap},
        "page_seconds": checks.page_seconds,
        "threshold": model.threshold,
        "strangers": [asdict(s) for s in out_of_domain],
        "digit_f1_by_page": {s.name: s.digits.f1 for s in scores},
    }
