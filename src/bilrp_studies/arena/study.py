"""Arena: methods × ground truths × encoders, one table with intervals, our losses first.

Every ground truth is a list of pairs with a 0/1 matrix of true matches, every method one function; the measures of each
method on each pair are cached in OUT/cache, so an interrupted study resumes and another entry costs only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bilrp import encoders
from bilrp.encoder import Encoder, read_item, resolve_composite
from bilrp.encoders.sentence_encoder import SentenceModel, sentence
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.progress import Progress, progress_bar
from bilrp.render.report import Report
from bilrp.rules.composites import composite_name
from bilrp_studies.arena import photo_truths, report, text_truths
from bilrp_studies.arena.methods import (
    OUR_METHOD,
    Method,
    image_methods,
    load_entry,
    run_method,
    text_methods,
)
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.arena.truth import Case, ScoresWithout, measure
from bilrp_studies.common import sts_data
from bilrp_studies.common.cache import Cache, compute_key, hash_array, hash_weights
from bilrp_studies.common.noun_matching import load_or_train
from bilrp_studies.common.result_cache import load_or_compute_row

CACHE_VERSION = 4  # of the cached measures of a pair; changing it invalidates the cache
IMAGE_TRUTHS = (
    photo_truths.class_cases,
    photo_truths.warp_cases,
    photo_truths.object_cases,
    photo_truths.stereo_cases,
)
TEXT_TRUTHS = (text_truths.chunk_cases, text_truths.planted_cases)

Truth = Callable[[Encoder, ArenaSettings], Iterator[Case]]
Row = dict[str, Any]


def run(settings: ArenaSettings) -> Report:
    """Run the whole study and return its report.

    >>> results = run(ArenaSettings(data=Path("data"), encoders="mobilenet", photographs=2)).results  # doctest: +SKIP
    >>> results["table"]["mobilenet | warp"]["default"]["hit"]["mean"]  # doctest: +SKIP
    0.66
    """
    cache = Cache(settings.out / "cache")
    rows: list[Row] = []
    with progress_bar(settings.progress) as bar:
        for name in settings.encoders.split(","):
            rows += measure_encoder(load_encoder(name.strip(), settings), name.strip(), settings, cache, bar)
            if name.strip() == "minilm" and settings.steps:
                encoder = train_noun_encoder(settings, cache, bar)
                rows += measure_truth(encoder, "minilm, nouns", text_truths.noun_cases, settings, cache, bar)
    return report.build_report(rows, settings)


def load_encoder(name: str, settings: ArenaSettings) -> Encoder:
    """Load an encoder by its name, or from a folder of that name inside the data."""
    folder = settings.data / name
    if not folder.is_dir():
        reads_text = name.startswith(("minilm", "sentence:"))
        return (
            encoders.load(name, size=settings.size)
            if settings.size and not reads_text
            else encoders.load(name)
        )
    kind = "sentence" if (folder / "modules.json").is_file() else "vision"
    return encoders.load(f"{kind}:{folder}")


def train_noun_encoder(settings: ArenaSettings, cache: Cache, bar: Progress) -> Encoder:
    """Train the upper half of MiniLM to count the nouns that two sentences share, as `bilrp study sentences` does."""
    pair = sentence("minilm"), sentence("minilm", features="sum")
    data = settings.data / "stsb"
    texts = sts_data.select_noun_sentences(sts_data.read_pairs(data, "train"))
    test = sts_data.select_noun_sentences(sts_data.read_pairs(data, "dev"))[:2]
    result = load_or_train(
        pair, texts, [(test[0], test[1])], steps=settings.steps, seed=settings.seed, bar=bar, cache=cache
    )
    return replace(result.encoder, similarity="dot")


def measure_encoder(
    encoder: Encoder, name: str, settings: ArenaSettings, cache: Cache, bar: Progress
) -> Iterator[Row]:
    """Yield the measures of every method on every pair of the encoder's ground truths.

    Args:
        encoder: the encoder.
        name: its name in the table.
        settings: the settings of the study.
        cache: cache of the measures.
        bar: progress bar, advanced once per pair.
    """
    truths = TEXT_TRUTHS if is_text_encoder(encoder) else IMAGE_TRUTHS
    for truth in truths:
        yield from measure_truth(encoder, name, truth, settings, cache, bar)


def measure_truth(
    encoder: Encoder, name: str, truth: Truth, settings: ArenaSettings, cache: Cache, bar: Progress
) -> Iterator[Row]:
    """Yield {"encoder", "truth", "group", "methods": {method: {measure: value}}} of each pair of one ground truth.

    Args:
        encoder, name, settings, cache, bar: as for `measure_encoder`.
        truth: makes the pairs.
    """
    assert isinstance(encoder.module, nn.Module)
    is_text = is_text_encoder(encoder)
    methods = choose_methods(settings, is_text=is_text)
    origin: Row = {"weights": hash_weights(encoder.module), "version": CACHE_VERSION}
    cases = list(truth(encoder, settings))
    bar.start(f"{name}, {truth.__name__.removesuffix('_cases')}", len(cases))
    for case in cases:
        if "composite" not in origin:  # another default composite gives other results
            origin["composite"] = default_composite_name(encoder, case.a)
        regions = None if is_text else photo_truths.region_side(settings, case.a)
        base = compute_key(_identify(case), origin | {"regions": regions})
        ours: list[Explanation] = []  # filled when the first method that is not cached needs it
        covered: ScoresWithout = {}
        row = {}
        for label, method in methods.items():
            key = compute_key(base, {"method": label, "steps": settings.integration_steps})
            row[label] = load_or_compute_row(
                cache,
                key,
                lambda method=method, case=case, ours=ours, covered=covered, regions=regions: measure(
                    encoder,
                    run_method(method, methods[OUR_METHOD], ours, encoder, case, regions),
                    case,
                    covered,
                ),
            )
        yield {"encoder": name, "truth": case.truth, "group": case.group, "methods": row}
        bar.advance()


def choose_methods(settings: ArenaSettings, *, is_text: bool) -> dict[str, Method]:
    """Return the methods by name: the default, those that the settings name (all without names), and entries from outside.

    Args:
        settings: the settings of the study.
        is_text: whether they are for texts.
    """
    methods = (text_methods if is_text else image_methods)(settings.integration_steps)
    names = [name.strip() for name in settings.methods.split(",") if name.strip()]
    known = {*text_methods(1), *image_methods(1)}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"--methods {unknown[0]}: use some of {', '.join(sorted(known))}")
    chosen = {name: each for name, each in methods.items() if not names or name in (OUR_METHOD, *names)}
    return chosen | {entry: load_entry(entry) for entry in filter(None, settings.entry.split(","))}


def default_composite_name(encoder: Encoder, x: Any) -> str:
    """Return the name of the composite that the encoder uses by default."""
    item = read_item(encoder, x)
    with torch.no_grad():
        return composite_name(resolve_composite(encoder, encoder.record(item.x, item.model_input)))


def is_text_encoder(encoder: Encoder) -> bool:
    """Return whether the encoder reads texts."""
    return isinstance(encoder.module, SentenceModel)


def _identify(case: Case) -> str:
    """Return a text that is different for different pairs and truths."""
    sides = [x if isinstance(x, str) else hash_array(x) for x in (case.a, case.b)]
    truths = [hash_array(each) for each in (case.match, case.mask)]
    return repr((case.truth, case.cover, *sides, *truths))
