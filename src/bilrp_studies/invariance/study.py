"""Invariance study (section 5.2 and Table 2 of the paper): how invariant is the similarity model, and to what?

INV measures how much more similar neighbouring frames are than any two frames. BiLRP explains their similarity, and the
motion between the frames splits the relevance into links that follow a moving part, static links, and the rest.
"""

from __future__ import annotations

import numpy as np

from bilrp.progress import progress_bar
from bilrp.render.report import Report
from bilrp_studies.common import image_folders
from bilrp_studies.common.image_folders import Clip
from bilrp_studies.common.vgg_layers import compute_grams, load_layered_vgg
from bilrp_studies.invariance import optical_flow, report
from bilrp_studies.invariance.explained_frames import explain_frames
from bilrp_studies.invariance.inv_score import make_band
from bilrp_studies.invariance.settings import InvarianceSettings


def run(settings: InvarianceSettings) -> Report:
    """Run the whole study on `data/<action>/<clip>/*.jpg` (or videos, or still images with a transform); return its report.

    >>> run(InvarianceSettings(data=Path("sports"))).results["inv"]["31"]  # doctest: +SKIP
    4.1
    """
    change = optical_flow.parse_transform(settings.transform) if settings.transform else None
    result = _stills(settings, change) if change else _clips(settings)
    cache_folder = settings.out / "cache" if settings.cache is None else settings.cache
    steps = load_layered_vgg(
        settings.layers, weights=settings.weights, cache_folder=cache_folder, progress=settings.progress
    )
    band = make_band(result.items, settings.lag)
    frames = [frame for clip in result.items for frame in clip.frames]
    with progress_bar(settings.progress) as bar:
        kernels = compute_grams(steps, frames, bar)
        cases = explain_frames(steps, result.items, settings, change, bar)
    return report.build_report(result, settings, band, kernels, cases)


def _clips(settings: InvarianceSettings) -> image_folders.FolderContents:
    return image_folders.read_clips(
        settings.data, size=settings.size, crop=settings.crop, max_frames=settings.max_frames
    )


def _stills(settings: InvarianceSettings, transform: optical_flow.Transform) -> image_folders.FolderContents:
    """Return each still image and its transformed version as a clip of two frames."""
    result = image_folders.read_stills(settings.data, size=settings.size, crop=settings.crop)
    clips = tuple(
        Clip(item.name, np.stack([item.pixels, transform.apply(item.pixels)]), (item.name, transform.name))
        for item in result.items
    )
    return image_folders.FolderContents(clips, result.skipped, result.notes)
