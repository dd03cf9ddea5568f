"""How invariant is the similarity model, and is its invariance real? (Section 5.2 and Table 2 of the paper.)

INV says how much more similar neighbouring frames are than any two frames. BiLRP says what makes them so, and the motion
between the frames splits that into what followed a moving part, what stood still, and the rest.
"""

from __future__ import annotations

import numpy as np

from bilrp.progress import tracking
from bilrp_studies.common import image_folders
from bilrp_studies.common.image_folders import Clip
from bilrp_studies.common.vgg_layers import grams, ladder
from bilrp.render.report import Report
from bilrp_studies.invariance import optical_flow, report
from bilrp_studies.invariance.explained_frames import explain_cases
from bilrp_studies.invariance.settings import InvarianceSettings
from bilrp_studies.invariance.inv_score import band_of


def run(settings: InvarianceSettings) -> Report:
    """The whole study: `data/<action>/<clip>/*.jpg` (or videos, or stills with a transform) in, a report out.

    >>> run(InvarianceSettings(data=Path("sports"))).results["inv"]["31"]  # doctest: +SKIP
    4.1
    """
    change = optical_flow.parse(settings.transform) if settings.transform else None
    found = _stills(settings, change) if change else _clips(settings)
    kept = settings.out / "cache" if settings.cache is None else settings.cache
    steps = ladder(settings.layers, weights=settings.weights, folder=kept, progress=settings.progress)
    band = band_of(found.items, settings.lag)
    frames = [frame for clip in found.items for frame in clip.frames]
    with tracking(settings.progress) as bar:
        kernels = grams(steps, frames, bar)
        cases = explain_cases(steps, found.items, settings, change, bar)
    return report.write(found, settings, band, kernels, cases)


def _clips(settings: InvarianceSettings) -> image_folders.Found:
    return image_folders.clips(settings.data, size=settings.size, crop=settings.crop, most=settings.frames)


def _stills(settings: InvarianceSettings, change: optical_flow.Transform) -> image_folders.Found:
    """Each still picture and its transformed self as a clip of two frames."""
    found = image_folders.stills(settings.data, size=settings.size, crop=settings.crop)
    clips = tuple(
        Clip(item.name, np.stack([item.pixels, change.apply(item.pixels)]), (item.name, change.name))
        for item in found.items
    )
    return image_folders.Found(clips, found.skipped, found.notes)
