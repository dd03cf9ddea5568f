"""How transferable is the similarity model? (Section 5.1 and Table 1 of the paper.)

A linear SVM on each layer says how well the layer's similarity serves another task; BiLRP on a test picture and its most
similar training picture says why: where relevance sits on a few regions, little else was kept to tell things apart.
"""

from __future__ import annotations

import numpy as np

from bilrp.progress import tracking
from bilrp_studies.common import image_folders
from bilrp_studies.common.vgg_layers import grams, ladder
from bilrp.render.report import Report
from bilrp_studies.transfer import report
from bilrp_studies.transfer.svm import accuracies
from bilrp_studies.transfer.train_test_pairs import choose_pairs, explain_pairs
from bilrp_studies.transfer.settings import TransferSettings


def run(settings: TransferSettings) -> Report:
    """The whole study: `data/<class>/*.jpg` in, a report out.

    >>> run(TransferSettings(data=Path("faces"), crop=0.6)).results["accuracy"]["17"]  # doctest: +SKIP
    0.83
    """
    found = image_folders.classes(settings.data, size=settings.size, crop=settings.crop)
    kept = settings.out / "cache" if settings.cache is None else settings.cache
    steps = ladder(settings.layers, weights=settings.weights, folder=kept, progress=settings.progress)
    pixels = [item.pixels for item in found.items]
    labels = np.unique([item.label for item in found.items], return_inverse=True)[1]
    with tracking(settings.progress) as bar:
        kernels = grams(steps, pixels, bar)
        reached = dict(zip(steps.layers, accuracies(kernels, labels, settings, bar), strict=True))
        best = max(reached, key=lambda layer: reached[layer].mean)
        chosen = choose_pairs(kernels[best], labels, count=settings.pairs, seed=settings.seed)
        explained = explain_pairs(steps, pixels, chosen, settings, bar)
    return report.write(found, settings, labels, reached, chosen, explained, best)
