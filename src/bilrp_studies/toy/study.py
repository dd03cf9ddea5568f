"""Toy study (section 4 of the paper): explanations of similarity compared with a known ground truth.

A network is trained to count the matches between two sequences of six digits. It does so almost without error, so
its explanations should be the 6×6 pattern of matches.
"""

from __future__ import annotations

from bilrp.progress import progress_bar
from bilrp.render.report import Report
from bilrp_studies.common.thread_limit import single_thread
from bilrp_studies.toy import report
from bilrp_studies.toy.digit_task import DIGIT_OVERLAP, make_digit_vectors, train
from bilrp_studies.toy.settings import ToySettings
from bilrp_studies.toy.toy_results import collect_results, cosine_row, measure_network

OTHER_OVERLAPS = (0.1, 0.25, 1.0)  # to test how the results depend on the correlation of digits


def run(settings: ToySettings) -> Report:
    """Run the whole study: train one network per seed and compare its explanations with the ground truth.

    >>> run(ToySettings(seeds=1, pairs=10, iterations=100)).results["seeds"]
    1
    """
    # Seeds are multiples of 10 because a run uses its seed and the five after it. The networks on more or less correlated
    # digits use the first run's seed.
    first, count = settings.seed, settings.seeds
    numbers = [10 * k for k in range(first, first + count)] + [10 * first] * len(OTHER_OVERLAPS)
    codes = [
        make_digit_vectors(*each)
        for each in zip(numbers, (DIGIT_OVERLAP,) * count + OTHER_OVERLAPS, strict=True)
    ]
    with progress_bar(settings.progress) as bar, single_thread():
        bar.start("training networks", settings.iterations)
        seeds = [number + 1 for number in numbers]
        nets = train(codes, seeds, iterations=settings.iterations, bar=bar)
        bar.start("explaining", len(nets))
        runs = []
        for net, vectors, number in zip(nets, codes, numbers, strict=True):
            runs.append(measure_network(net, vectors, number, pairs=settings.pairs))
            bar.advance()
    runs, others = runs[:count], sorted([runs[0], *runs[count:]], key=lambda run: run.digit_cosine)
    results = {**collect_results(runs), "by_likeness": [cosine_row(run) for run in others]}
    return report.build_report(runs, results, settings)
