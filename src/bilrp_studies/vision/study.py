"""Vision study: five candidate composites on networks with batch norm, MobileNetV2 and EfficientNet-Lite0.

Batch norm produces biases that absorb most of a score under LRP-γ. Planted patches, known warps and occlusion evaluate the
remaining relevance of each candidate. The results of each pair are cached in OUT/cache, so an interrupted study resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bilrp import encoders
from bilrp.encoder import Encoder, read_tensor
from bilrp.errors import InputError
from bilrp.progress import Progress, progress_bar
from bilrp.render.report import Report
from bilrp_studies.common import image_folders
from bilrp_studies.common.cache import Cache, compute_key, hash_array, hash_weights
from bilrp_studies.common.result_cache import load_or_compute_row
from bilrp_studies.vision import model_agreement, report
from bilrp_studies.vision.composite_metrics import CANDIDATE_COMPOSITES, CachedDecomposer, measure_pair
from bilrp_studies.vision.settings import VisionSettings

CACHE_VERSION = 1  # of the cached measures of a pair; changing it invalidates the cache
MIN_PHOTOGRAPHS = 3  # a pair, and one to plant


def run(settings: VisionSettings) -> Report:
    """Run the whole study on a folder of photographs and return its report.

    >>> found = run(VisionSettings(data=Path("photos"))).results  # doctest: +SKIP
    >>> found["table"]["mobilenet"]["secant to the blurred picture"]["unattributed"]  # doctest: +SKIP
    {'mean': 0.13, 'low': 0.11, 'high': 0.16}
    """
    result = image_folders.read_stills(settings.data, size=settings.size)
    if len(result.items) < MIN_PHOTOGRAPHS:
        raise InputError(f"{settings.data}: at least {MIN_PHOTOGRAPHS} readable photographs are needed")
    nets = [
        maker(size=settings.size, progress=settings.progress)
        for maker in (encoders.mobilenet, encoders.efficientnet)
    ]
    pixels = [item.pixels for item in result.items[: settings.pairs + 1]]
    cache = Cache(settings.out / "cache")
    with torch.no_grad(), progress_bar(settings.progress) as bar:
        rows = {net.name: measure_pairs(net, pixels, settings, cache, bar) for net in nets}
        both = (nets[0], model_agreement.load_pooled_vgg(settings))
        compared = model_agreement.compare_models(both, result.items, settings, bar)
    return report.build_report(rows, compared, settings, result)


def measure_pairs(
    encoder: Encoder, pixels: Sequence[Any], settings: VisionSettings, cache: Cache, bar: Progress
) -> list[dict[str, dict[str, float]]]:
    """Return the measures of each pair of consecutive photographs; cached ones are loaded.

    Args:
        encoder: The network.
        pixels: The photographs.
        settings: The settings of the study.
        cache: Cache of the measures.
        bar: Progress bar, advanced once per pair.
    """
    inputs = [read_tensor(encoder, each) for each in pixels]
    given = {
        name: CachedDecomposer(encoder, settings.regions, composite)
        for name, composite in CANDIDATE_COMPOSITES.items()
    }
    assert isinstance(encoder.module, nn.Module)
    # The number of pairs and of resamples does not affect the results of one pair.
    chosen = settings.result_options() | {"pairs": 0, "resamples": 0}
    names = [composite.name for composite in CANDIDATE_COMPOSITES.values()]
    origin = {
        "weights": hash_weights(encoder.module),
        "composites": names,
        "version": CACHE_VERSION,
        **chosen,
    }
    bar.start(encoder.name, len(inputs) - 1)
    rows = []
    for number in range(len(inputs) - 1):
        a, b, third = (inputs[(number + k) % len(inputs)] for k in (0, 1, 2))
        key = compute_key("".join(hash_array(x) for x in (a, b, third)), {**origin, "number": number})
        rows.append(
            load_or_compute_row(
                cache, key, partial(_measure_pair, encoder, given, (a, b, third), number, settings)
            )
        )
        bar.advance()
    return rows


def _measure_pair(
    encoder: Encoder, decomposers: dict[str, CachedDecomposer], images: tuple[Tensor, Tensor, Tensor], number: int,
    settings: VisionSettings,
) -> dict[str, dict[str, float]]:  # fmt: skip
    return measure_pair(encoder, decomposers, *images, number=number, seed=settings.seed)
