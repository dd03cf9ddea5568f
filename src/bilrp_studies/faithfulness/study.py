"""Faithfulness study: five methods on pairs of photographs under the whole suite of `bilrp.evaluation`.

The results of each pair are cached in OUT/cache, so an interrupted study resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp import evaluation
from bilrp.encoder import Encoder, read_tensor
from bilrp.encoders import vgg
from bilrp.errors import InputError
from bilrp.progress import Progress, progress_bar
from bilrp.render.report import Report
from bilrp_studies.common import image_folders
from bilrp_studies.common.cache import Cache, compute_key, hash_array, hash_weights
from bilrp_studies.common.result_cache import load_or_compute_row
from bilrp_studies.faithfulness import report
from bilrp_studies.faithfulness.pair_metrics import (
    EvaluationContext,
    PreparedImage,
    measure_pair,
    prepare_image,
)
from bilrp_studies.faithfulness.settings import FaithfulnessSettings


def run(settings: FaithfulnessSettings) -> Report:
    """Run the whole study on a folder of photographs and return its report.

    >>> found = run(FaithfulnessSettings(data=Path("photos"))).results  # doctest: +SKIP
    >>> found["table"]["31"]["bilrp"]["insertion"]  # doctest: +SKIP
    {'mean': 0.62, 'low': 0.59, 'high': 0.65}
    """
    result = image_folders.read_stills(settings.data, size=settings.size)
    if len(result.items) < 2:
        raise InputError(f"{settings.data}: two readable photographs are needed, found one")
    top = max(settings.layers)
    encoder = vgg.vgg16(top, weights=settings.weights, size=None, progress=settings.progress)
    depth = len(evaluation.list_weighted_modules(encoder.module))
    bench = EvaluationContext(
        encoder, evaluation.randomize_weights(encoder, depth, seed=settings.seed), settings
    )
    with progress_bar(settings.progress) as bar:
        rows = list(_measure_pairs(bench, result.items, settings.out / "cache", bar))
    return report.build_report(rows, settings, result)


def _measure_pairs(
    context: EvaluationContext, items: Sequence[image_folders.LabeledImage], cache_folder: Path, bar: Progress
) -> Iterator[dict[str, Any]]:
    """Yield one row for each pair of neighbours in the chain of similar images; cached rows are loaded."""
    inputs = [read_tensor(context.encoder, item.pixels) for item in items]
    order = order_by_similarity(context.encoder, inputs)[: context.settings.pairs + 1]
    # The number of pairs and of resamples does not affect the results of one pair.
    chosen = context.settings.result_options() | {"pairs": 0, "resamples": 0}
    assert isinstance(context.encoder.module, nn.Module)
    origin = {"weights": hash_weights(context.encoder.module), **chosen}
    bar.start("pairs", len(order) - 1)
    held: dict[int, PreparedImage] = {}

    def made(i: int, j: int, number: int) -> dict[str, Any]:
        for k in set(held) - {i, j}:  # of the previous pair, keep only the image shared with this one
            del held[k]
        for k in {i, j} - set(held):
            held[k] = prepare_image(context, items[k].name, inputs[k])
        return measure_pair(context, held[i], held[j], number)

    for number, (i, j) in enumerate(pairwise(order)):
        key = compute_key(
            hash_array(inputs[i]) + hash_array(inputs[j]), {**origin, "number": number, "version": 4}
        )
        yield load_or_compute_row(Cache(cache_folder), key, partial(made, i, j, number))
        bar.advance()


def order_by_similarity(encoder: Encoder, inputs: Sequence[Tensor], batch_size: int = 16) -> list[int]:
    """Order the images so that neighbours are similar: each is followed by the nearest one left (cosine, last layer).

    Args:
        encoder: VGG-16 up to the highest layer.
        inputs: The images, (1, C, H, W) each.
        batch_size: Images per forward pass.
    """
    with torch.inference_mode():
        rows = [
            encoder.module(torch.cat(list(inputs[k : k + batch_size]))).flatten(1)
            for k in range(0, len(inputs), batch_size)
        ]
    unit = torch.nn.functional.normalize(torch.cat(rows), dim=1)
    table = unit @ unit.T
    table.fill_diagonal_(-torch.inf)
    order = [int(table.max(1).values.argmax())]
    while len(order) < len(inputs):
        table[:, order[-1]] = -torch.inf
        order.append(int(table[order[-1]].argmax()))
    return order
