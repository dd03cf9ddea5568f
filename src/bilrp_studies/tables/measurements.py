"""All measurements on pages the network was never trained on, as numbers and as objects to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bilrp.encoder import Encoder
from bilrp.encoders.bigram import encoder_of
from bilrp.encoders.vgg import vgg16
from bilrp.progress import Progress
from bilrp.errors import BilrpError
from bilrp_studies.tables import page_evaluation, bigram_agreement
from bilrp_studies.tables.table_blocks import Block, cut_blocks
from bilrp_studies.tables.digit_model import Model, Split
from bilrp_studies.tables.pages import Page
from bilrp_studies.tables.settings import TablesSettings

RANDOM = "bigram, random pairs"


@dataclass(frozen=True)
class Found:
    """Everything measured, as numbers for results.json and as objects to draw."""

    results: dict[str, Any]
    scores: list[page_evaluation.PageScore]
    similar: page_evaluation.Similarities
    explained: dict[str, list[page_evaluation.PairExplained]]
    search: page_evaluation.Search
    checks: page_evaluation.Checks
    strangers: list[page_evaluation.Stranger]
    encoder: Encoder
    without_vgg: str | None


def measure(split: Split, model: Model, settings: TablesSettings, bar: Progress) -> Found:
    """All measurements on the test pages."""
    encoder = encoder_of(model.net)
    scores = page_evaluation.score_pages(model.net, split.test, threshold=model.threshold, bar=bar)
    whole, small, missing = vgg_encoders(settings.vgg)
    every = _blocks([*split.train, *split.validation, *split.test])
    tests = _blocks(split.test)
    rng = np.random.default_rng(settings.seed)
    compared = [tests[i] for i in rng.permutation(len(tests))[:96]]
    similar = page_evaluation.compare_blocks({"bigram": encoder, **whole}, compared, bar=bar)
    explained = explain_all(
        {"bigram": encoder, **small}, page_evaluation.similar_pairs(split.test, settings.pairs), bar=bar
    )
    unlike = explain_all(
        {"bigram": encoder}, page_evaluation.random_pairs(split.test, settings.pairs, seed=settings.seed), bar=bar
    )
    shares = {
        name: bigram_agreement.mean_agreement([p.agreement for p in some])
        for name, some in {**explained, RANDOM: unlike["bigram"]}.items()
    }
    test = {id(page) for page in split.test}
    queries = [b for b in every if id(b.page) in test]
    queries = [queries[i] for i in rng.permutation(len(queries))[:40]]
    search = page_evaluation.find_copies(encoder, every, queries, seed=settings.seed, bar=bar)
    page = split.test[0]
    checks = page_evaluation.check_encoder(model.net, page, cut_blocks(page, rows=5, columns=3)[0])
    strange = page_evaluation.strangers(encoder, page)
    results = numbers(split, model, scores, similar, shares, search, checks, strange)
    return Found(results, scores, similar, explained, search, checks, strange, encoder, missing)


def _blocks(pages: Sequence[Page]) -> list[Block]:
    return [b for p in pages for b in cut_blocks(p, rows=page_evaluation.BLOCK[0], columns=page_evaluation.BLOCK[1])]


def vgg_encoders(weights: Path | None) -> tuple[dict[str, Encoder], dict[str, Encoder], str | None]:
    """VGG-16 at layer 17 for blocks of one size and for small windows; nothing, and why, where its weights are missing."""
    try:
        whole = vgg16(17, weights=weights, size=(136, 288), fit="stretch")
        return {"vgg17": whole}, {"vgg17": vgg16(17, weights=weights, size=None)}, None
    except BilrpError as error:
        return {}, {}, str(error)


def explain_all(
    encoders: dict[str, Encoder], pairs: Sequence[tuple[Block, Block]], *, bar: Progress
) -> dict[str, list[page_evaluation.PairExplained]]:
    """Every pair of small blocks explained by every model."""
    return {
        name: [
            page_evaluation.explain_pair(name, e, p) for p in page_evaluation.tracked(pairs, f"explaining with {name}", bar)
        ]
        for name, e in encoders.items()
    }


def numbers(
    split: Split,
    model: Model,
    scores: list[page_evaluation.PageScore],
    similar: page_evaluation.Similarities,
    shares: dict[str, dict[str, float]],
    search: page_evaluation.Search,
    checks: page_evaluation.Checks,
    strange: list[page_evaluation.Stranger],
) -> dict[str, Any]:
    """What results.json holds."""
    precision = {name: s["bigram"] for name, s in shares.items() if name != RANDOM}
    return {
        "digit_f1": page_evaluation.digit_f1(scores),
        "bigram_correlation": page_evaluation.bigram_correlation(scores),
        "similarity_spearman": {"vgg17": None, **similar.spearman},
        "digit_pair_precision": {"vgg17": None, **precision, "chance": shares["bigram"]["chance"]},
        "pages": {
            "train": [p.name for p in split.train],
            "validation": [p.name for p in split.validation],
            "test": [p.name for p in split.test],
            "skipped": split.skipped,
        },
        "train_patches": model.about.get("labels"),
        "similarity_spearman_dot": similar.spearman_dot,
        "relevance_shares": shares,
        "copy_first": {**search.first, "overall": search.overall},
        "copy_queries": search.queries,
        "conservation": {"unattributed": checks.unattributed, "push_minus_pull": checks.push_pull},
        "page_seconds": checks.page_seconds,
        "threshold": model.threshold,
        "strangers": [asdict(s) for s in strange],
        "skipped": [{"file": name, "reason": why} for name, why in split.skipped.items()],
        "digit_f1_by_page": {s.name: s.digits.f1 for s in scores},
    }
