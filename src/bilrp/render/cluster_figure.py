"""Draw members of a cluster: each picture, what it shares with the members, and what separates it from the rival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bilrp.errors import InputError, to_printable
from bilrp.findings.region_layout import to_label_image
from bilrp.inputs import Image
from bilrp.render.figure import tint_pixels
from bilrp.render.notebook_figure import make_figure
from bilrp.render.styles import resolve_palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bilrp.attribution import Attribution

COLUMN_INCHES = 2.0
MAX_NAME_CHARACTERS = 24


def plot(shared: Sequence[Attribution], contrasts: Sequence[Attribution], *, title: str = "") -> Figure:
    """Draw one column for each member.

    Args:
        shared: What each member shares with the others.
        contrasts: What separates each from the rival; may be empty.
        title: Heading of the figure.
    """
    if not shared or not all(isinstance(each.view, Image) for each in shared):
        raise InputError("only clusters of pictures are drawn: use examples, or spans() of each attribution")
    rows = [("shared with the members", shared), ("against the nearest cluster", contrasts)]
    rows = [(label, some) for label, some in rows if some]
    size = (COLUMN_INCHES * len(shared) + 0.4, COLUMN_INCHES * (1 + len(rows)) + 0.4)
    figure, palette = make_figure(size), resolve_palette("paper")
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1 + len(rows), len(shared), squeeze=False)
    for column, each in enumerate(shared):
        assert isinstance(each.view, Image)
        high, wide = (int(n) for n in each.regions.labels.shape[-2:])
        picture = each.view.crop_to_input((high, wide))
        axes[0, column].imshow(picture)
        name = to_printable(each.name)
        is_long = len(name) > MAX_NAME_CHARACTERS
        axes[0, column].set_title(f"{name[: MAX_NAME_CHARACTERS - 1]}…" if is_long else name, fontsize=7)
        for line, (_, some) in enumerate(rows, 1):
            weights = _spread_values(some[column])
            tinted = tint_pixels(picture, weights / (np.abs(weights).max() or 1.0), palette)
            axes[line, column].imshow(tinted)
    for line, label in enumerate(["", *(label for label, _ in rows)]):
        axes[line, 0].set_ylabel(label, fontsize=7)
    for each in axes.flat:
        each.set_xticks([])
        each.set_yticks([])
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def _spread_values(attribution: Attribution) -> np.ndarray:
    """Return the value of each pixel's region."""
    labels = to_label_image(attribution.regions)
    if labels is None:
        raise InputError("these regions are not areas of a picture")
    values = np.append(attribution.values.double().numpy(), 0.0)  # −1: in no region
    return values[labels]
