"""Captions study: a small dual encoder of synthetic scenes, evaluated by the pointing game.

There are two games, each with one to four named objects: scenes that contain only the objects that their caption names,
and scenes of four objects of which some are named, as in FIxLIP's evaluation of CLIP. The trained model and the scores of
each scene are cached in OUT/cache, so an interrupted study resumes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from bilrp.progress import Progress, progress_bar
from bilrp.render.report import Report
from bilrp_studies.captions import report
from bilrp_studies.captions.caption_model import CaptionModel, load_or_train
from bilrp_studies.captions.methods import all_methods
from bilrp_studies.captions.pointing_game import Row, score_scene
from bilrp_studies.captions.retrieval import evaluate_retrieval
from bilrp_studies.captions.scenes import MAX_OBJECTS, Scene, draw_scene
from bilrp_studies.captions.settings import CaptionsSettings
from bilrp_studies.common.cache import Cache, compute_key, hash_array
from bilrp_studies.common.result_cache import load_or_compute_row
from bilrp_studies.common.thread_limit import single_thread

CACHE_VERSION = 1  # of the cached scores of a scene; changing it invalidates the cache
GAMES = ("all named", "four drawn")
OBJECT_COUNTS = range(1, MAX_OBJECTS + 1)
EXAMPLE_GAMES = (
    ("all named", 2),
    ("four drawn", 2),
    ("all named", 3),
)  # games and object counts whose first scene is shown in the report


def run(settings: CaptionsSettings) -> Report:
    """Run the whole study: draw scenes, train, explain, report.

    >>> run(CaptionsSettings(out=tmp, steps=1, scenes=2, retrieval=4)).results["retrieval"]["of"]
    4
    """
    cache = Cache(settings.out / "cache")
    with torch.no_grad(), progress_bar(settings.progress) as bar, single_thread():
        model = load_or_train(steps=settings.steps, seed=settings.seed, cache=cache, bar=bar)
        learnt = evaluate_retrieval(model, settings.retrieval, settings.seed)
        rows = {
            game: {
                n: _score_scenes(model, draw_scenes(settings, game, n), settings, cache, bar)
                for n in OBJECT_COUNTS
            }
            for game in GAMES
        }
        shown = [draw_scenes(settings, game, count)[0] for game, count in EXAMPLE_GAMES]
        return report.build_report(
            settings, all_methods(settings.integration_steps), model, learnt, rows, shown
        )


def draw_scenes(settings: CaptionsSettings, game: str, count: int) -> list[Scene]:
    """Draw the scenes of one game, determined by the seed.

    Args:
        settings: Seed and number of scenes.
        game: "all named" or "four drawn".
        count: Number of named objects per scene.
    """
    generator = np.random.default_rng([settings.seed, 2, GAMES.index(game), count])
    objects = MAX_OBJECTS if game == "four drawn" else count
    return [draw_scene(generator, object_count=objects, named_count=count) for _ in range(settings.scenes)]


def _score_scenes(
    model: CaptionModel, scenes: list[Scene], settings: CaptionsSettings, cache: Cache, bar: Progress
) -> list[Row]:
    """Score every method on each scene; cached scores are loaded."""
    compared = all_methods(settings.integration_steps)
    origin = {
        "space": model.dual_encoder.image.embedding_space,
        "methods": [(method.name, method.description) for method in compared],
        "version": CACHE_VERSION,
    }
    bar.start(f"explaining {len(scenes)} scenes", len(scenes))
    rows = []
    for scene in scenes:
        key = compute_key(hash_array(scene.pixels), {**origin, "caption": scene.caption})
        rows.append(load_or_compute_row(cache, key, partial(score_scene, compared, model, scene)))
        bar.advance()
    return rows
