"""Are explanations of real photograph pairs true to the model? Five methods under the whole suite of `bilrp.evaluate`.

What one pair gave is kept in OUT/cache, so that an interrupted study goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.io.cache import Cache, content_of, key_of, weights_of
from bilrp.encoder import Encoder, read_input
from bilrp.encoders import vgg
from bilrp.progress import Progress, tracking
from bilrp.errors import InputError
from bilrp.evaluation import evaluate
from bilrp_studies.common import image_folders
from bilrp_studies.common.result_cache import kept_row
from bilrp.render.report import Report
from bilrp_studies.faithfulness import report
from bilrp_studies.faithfulness.settings import FaithfulnessSettings
from bilrp_studies.faithfulness.pair_metrics import Bench, Picture, measured, prepared


def run(settings: FaithfulnessSettings) -> Report:
    """The whole study: a folder of photographs in, a report out.

    >>> found = run(FaithfulnessSettings(data=Path("photos"))).results  # doctest: +SKIP
    >>> found["table"]["31"]["bilrp"]["insertion"]  # doctest: +SKIP
    {'mean': 0.62, 'low': 0.59, 'high': 0.65}
    """
    found = image_folders.stills(settings.data, size=settings.size)
    if len(found.items) < 2:
        raise InputError(f"{settings.data}: two readable photographs are needed, found one")
    top = max(settings.layers)
    encoder = vgg.vgg16(top, weights=settings.weights, size=None, progress=settings.progress)
    depth = len(evaluate.weighted_modules(encoder.module))
    bench = Bench(encoder, evaluate.randomised(encoder, depth, seed=settings.seed), settings)
    with tracking(settings.progress) as bar:
        rows = list(_rows(bench, found.items, settings.out / "cache", bar))
    return report.write(rows, settings, found)


def _rows(
    bench: Bench, items: Sequence[image_folders.Picture], kept: Path, bar: Progress
) -> Iterator[dict[str, Any]]:
    """One row for each pair along the chain of similar pictures; rows already on disk are read."""
    inputs = [read_input(bench.encoder, item.pixels) for item in items]
    order = chain(bench.encoder, inputs)[: bench.settings.pairs + 1]
    # Neither how many pairs there are nor how they are resampled changes what one pair gives.
    chosen = bench.settings.decisive() | {"pairs": 0, "resamples": 0}
    assert isinstance(bench.encoder.module, nn.Module)
    origin = {"weights": weights_of(bench.encoder.module), **chosen}
    bar.start("pairs", len(order) - 1)
    held: dict[int, Picture] = {}

    def made(i: int, j: int, number: int) -> dict[str, Any]:
        for k in set(held) - {
            i,
            j,
        }:  # of the pair before, only the picture that is also in this one is needed
            del held[k]
        for k in {i, j} - set(held):
            held[k] = prepared(bench, items[k].name, inputs[k])
        return measured(bench, held[i], held[j], number)

    for number, (i, j) in enumerate(pairwise(order)):
        key = key_of(
            content_of(inputs[i]) + content_of(inputs[j]), {**origin, "number": number, "version": 4}
        )
        yield kept_row(Cache(kept), key, partial(made, i, j, number))
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
