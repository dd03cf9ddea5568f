"""Which words go with which region? A small two-tower model of drawn scenes, and the pointing game on it.

Two games, each with one to four named objects: scenes that show no more than their caption names, and scenes of four
objects of which some are named, which is how FIxLIP plays it on CLIP. The trained model and what each scene gave are kept
in OUT/cache, so that an interrupted study goes on where it stopped.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from bilrp.io.cache import Cache, content_of, key_of
from bilrp.progress import Progress, tracking
from bilrp_studies.captions import report
from bilrp_studies.captions.methods import methods
from bilrp_studies.captions.caption_model import Model, trained
from bilrp_studies.captions.pointing_game import Row, judged
from bilrp_studies.captions.retrieval import retrieved
from bilrp_studies.captions.scenes import MOST, Scene, draw
from bilrp_studies.captions.settings import CaptionsSettings
from bilrp_studies.common.result_cache import kept_row
from bilrp.render.report import Report
from bilrp_studies.common.thread_limit import one_thread

VERSION = 1  # of what one scene gives: another number, and nothing kept before is read
GAMES = ("all named", "four drawn")
COUNTS = range(1, MOST + 1)
SHOWN = (("all named", 2), ("four drawn", 2), ("all named", 3))  # games whose first scene is in the report


def run(settings: CaptionsSettings) -> Report:
    """The whole study, from drawing and training to report.

    >>> run(CaptionsSettings(out=tmp, steps=1, scenes=2, retrieval=4)).results["retrieval"]["of"]
    4
    """
    cache = Cache(settings.out / "cache")
    with torch.no_grad(), tracking(settings.progress) as bar, one_thread():
        model = trained(steps=settings.steps, seed=settings.seed, cache=cache, bar=bar)
        learnt = retrieved(model, settings.retrieval, settings.seed)
        rows = {
            game: {n: _rows(model, scenes_of(settings, game, n), settings, cache, bar) for n in COUNTS}
            for game in GAMES
        }
        shown = [scenes_of(settings, game, count)[0] for game, count in SHOWN]
        return report.write(settings, methods(settings.path), model, learnt, rows, shown)


def scenes_of(settings: CaptionsSettings, game: str, count: int) -> list[Scene]:
    """The scenes of one game with that many named objects, the same for the same seed."""
    generator = np.random.default_rng([settings.seed, 2, GAMES.index(game), count])
    objects = MOST if game == "four drawn" else count
    return [draw(generator, objects=objects, named=count) for _ in range(settings.scenes)]


def _rows(
    model: Model, scenes: list[Scene], settings: CaptionsSettings, cache: Cache, bar: Progress
) -> list[Row]:
    """What every method scores on each scene; scenes already judged are read."""
    compared = methods(settings.path)
    origin = {
        "space": model.towers.image.space,
        "methods": [(method.name, method.about) for method in compared],
        "version": VERSION,
    }
    bar.start(f"explaining {len(scenes)} scenes", len(scenes))
    rows = []
    for scene in scenes:
        key = key_of(content_of(scene.pixels), {**origin, "caption": scene.caption})
        rows.append(kept_row(cache, key, partial(judged, compared, model, scene)))
        bar.advance()
    return rows
