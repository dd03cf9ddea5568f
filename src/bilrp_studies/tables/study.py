"""Tables study (section 6): a bigram network for scanned tables, trained on few labels and validated by explanations."""

from __future__ import annotations

import time

from bilrp.progress import progress_bar
from bilrp.render.report import Report
from bilrp_studies.tables import report
from bilrp_studies.tables.digit_model import load_or_train, measure_learning_curve, split_pages
from bilrp_studies.tables.measurements import measure_all
from bilrp_studies.tables.settings import TablesSettings


def run(settings: TablesSettings) -> Report:
    """Train unless weights are given, measure on test pages, and return the report.

    >>> run(TablesSettings(data=Path("historic_tables"))).results["digit_f1"]  # doctest: +SKIP
    0.99
    """
    start = time.perf_counter()
    with progress_bar(settings.progress) as bar:
        split = split_pages(settings, bar)
        model = load_or_train(split, settings, bar)
        rows = [] if settings.weights else measure_learning_curve(split, model, settings, bar)
        result = measure_all(split, model, settings, bar)
    results = {**result.results, "learning_curve": rows, "train_seconds": model.train_seconds}
    results["study_seconds"] = time.perf_counter() - start
    return report.build_report(split, model, result, rows, results, settings)
