"""Transfer study (section 5.1 and Table 1 of the paper): how transferable is the similarity model?

A linear SVM on each layer measures how well the layer's similarity serves another task. BiLRP on a test image and its most
similar training image shows why: relevance on few regions means that little other information was retained.
"""

from __future__ import annotations

import numpy as np

from bilrp.progress import progress_bar
from bilrp.render.report import Report
from bilrp_studies.common import image_folders
from bilrp_studies.common.vgg_layers import compute_grams, load_layered_vgg
from bilrp_studies.transfer import report
from bilrp_studies.transfer.settings import TransferSettings
from bilrp_studies.transfer.svm import measure_accuracies
from bilrp_studies.transfer.train_test_pairs import choose_pairs, explain_pairs


def run(settings: TransferSettings) -> Report:
    """Run the whole study on `data/<class>/*.jpg` and return its report.

    >>> run(TransferSettings(data=Path("faces"), crop=0.6)).results["accuracy"]["17"]  # doctest: +SKIP
    0.83
    """
    result = image_folders.read_classes(settings.data, size=settings.size, crop=settings.crop)
    cache_folder = settings.out / "cache" if settings.cache is None else settings.cache
    steps = load_layered_vgg(
        settings.layers, weights=settings.weights, cache_folder=cache_folder, progress=settings.progress
    )
    pixels = [item.pixels for item in result.items]
    labels = np.unique([item.label for item in result.items], return_inverse=True)[1]
    with progress_bar(settings.progress) as bar:
        kernels = compute_grams(steps, pixels, bar)
        reached = dict(zip(steps.layers, measure_accuracies(kernels, labels, settings, bar), strict=True))
        best = max(reached, key=lambda layer: reached[layer].mean)
        chosen = choose_pairs(kernels[best], labels, count=settings.pairs, seed=settings.seed)
        explained = explain_pairs(steps, pixels, chosen, settings, bar)
    return report.build_report(result, settings, labels, reached, chosen, explained, best)
