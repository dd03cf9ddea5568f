"""Figures shared by several studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure outside pyplot's global state.

    >>> new_figure((4.0, 3.0)).get_size_inches().tolist()
    [4.0, 3.0]
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=size, facecolor="white", dpi=130)
    FigureCanvasAgg(canvas)
    return canvas
