"""Figures without pyplot that notebooks still show."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTEBOOK_DPI = 110


def make_figure(size: tuple[float | int, float | int]) -> Figure:
    """Return an empty white figure of this size in inches, which a notebook shows as PNG.

    A notebook draws figures only once pyplot is imported, so the figure brings its own PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure_class()(figsize=size, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


@cache
def _figure_class() -> type[Figure]:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that a notebook shows in a fresh kernel."""

        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png", dpi=NOTEBOOK_DPI)
            return data.getvalue()

    return NotebookFigure
