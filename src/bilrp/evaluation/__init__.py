"""Metrics for explanations of pairs: each function takes an `Explanation`, or a method.

A *method* is any function (encoder, a, b) → Explanation, such as `bilrp.explain` or a baseline. Known true
matches are a 0/1 matrix shaped like the relevance, [regions of a, regions of b].

| question | function | best | random | reversed |
|---|---|---|---|---|
| does it agree with the ground truth? | `acs` (`cosine`) | 1 | 0 | −1 |
| does it add up to the score? | `conservation` | unattributed share 0 | 1 | 2 |
| do its pairs carry the score? | `deletion`, `insertion` | least, most area | between | most, least |
| does it match corresponding points (stereo, a known warp)? | `correspondence` | signed share 1 | 0 | −1 |
| is the strongest partner of a region a true match? | `hit_rate` | 1 | share of matches | 0 |
| do true matches have more relevance than others? | `roc_auc` | 1 | ½ | 0 |
| does it point to a pasted patch? | `pointing_game` | signed share 1 | 0 | −1 |
| does it depend on the model? | `randomization` | 0 | 0 | 1 if it ignores the model |
| is it stable under small noise? | `stability` | 1 | 0 | −1 |

`tune` searches γ by layer for the best value of any of these. Baseline methods are in `baselines`.

May import the modules of the root package, trace, rules, engine and io; not render, collection, app or cli.
"""

from __future__ import annotations

from bilrp.evaluation.correspondences import (
    affine_matrix,
    correspondence,
    disparity_pixel_map,
    match_pasted_regions,
    match_regions,
    paste_patch,
    pointing_game,
    warp_image,
    warp_pixel_map,
)
from bilrp.evaluation.metrics import (
    Conservation,
    Curve,
    RelevanceShare,
    acs,
    blur_baseline,
    conservation,
    cosine,
    deletion,
    get_relevance,
    hit_rate,
    insertion,
    insertion_order,
    rank_correlation,
    relevance_share,
    removal_order,
    replace_regions,
    roc_auc,
)
from bilrp.evaluation.sanity_checks import (
    Method,
    add_noise,
    list_weighted_modules,
    random_method,
    randomization,
    randomize_weights,
    stability,
)
from bilrp.evaluation.tuning import TuningResult, tune

__all__ = [
    "Conservation",
    "Curve",
    "Method",
    "RelevanceShare",
    "TuningResult",
    "acs",
    "add_noise",
    "affine_matrix",
    "blur_baseline",
    "conservation",
    "correspondence",
    "cosine",
    "deletion",
    "disparity_pixel_map",
    "get_relevance",
    "hit_rate",
    "insertion",
    "insertion_order",
    "list_weighted_modules",
    "match_pasted_regions",
    "match_regions",
    "paste_patch",
    "pointing_game",
    "random_method",
    "randomization",
    "randomize_weights",
    "rank_correlation",
    "relevance_share",
    "removal_order",
    "replace_regions",
    "roc_auc",
    "stability",
    "tune",
    "warp_image",
    "warp_pixel_map",
]
