"""The corpus study: a small corpus, and what its measurements count."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilrp_studies.corpus.made_pages import EDITIONS, make_corpus
from bilrp_studies.corpus.settings import CorpusSettings
from bilrp_studies.corpus.study import run


def test_copies_are_copies() -> None:
    """Every copied number is its source's, but for one digit where it was changed; origins are the first pages."""
    pages = make_corpus(CorpusSettings(pages=60, changed_percent=20))
    copies = [(page, copy) for page in pages for copy in page.copies]
    assert len(pages) == 60 and len(copies) > 20
    for page, copy in copies:
        source = pages[copy.source]
        assert EDITIONS[source.edition].year < EDITIONS[page.edition].year
        for (row, column), (r, c) in copy.cells.items():
            here, there = page.numbers[row][column], source.numbers[r][c]
            differing = sum(a != b for a, b in zip(here, there, strict=True))
            assert differing == ((row, column) in copy.changed)
            assert page.origins[row][column] == source.origins[r][c]
    assert any(copy.changed for _, copy in copies)


@pytest.mark.slow
def test_the_graph_restores_who_copied_from_whom(tmp_path: Path) -> None:
    report = run(CorpusSettings(out=tmp_path, pages=60, steps=600))
    edges, earliest = report.results["edges"], report.results["earliest"]
    assert edges["true"] >= 20 and edges["precision"] >= 0.8 and edges["recall"] >= 0.8
    assert earliest["right"] >= 0.8
    assert (tmp_path / "net.html").is_file()
