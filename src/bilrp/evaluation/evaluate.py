"""Is the explanation true? One suite for explanations of pairs: each function takes an `Explanation`, or a method.

A *method* is any function (encoder, a, b) → Explanation, such as `bilrp.explain` or a baseline. Where the true
matches are known, they are a 0/1 matrix shaped like the relevance, [regions of a, regions of b].

| question | function | best | random | reversed |
|---|---|---|---|---|
| does it look like the truth? | `acs` (`cosine`) | 1 | 0 | −1 |
| does it add up to the score? | `conservation` | unattributed share 0 | 1 | 2 |
| do its pairs carry the score? | `deletion`, `insertion` | least, most area | between | most, least |
| does it join what truly corresponds (stereo, a known warp)? | `correspondence` | signed share 1 | 0 | −1 |
| does it point to planted content? | `pointing` | signed share 1 | 0 | −1 |
| does it depend on the model? | `randomisation` | 0 | 0 | 1 if it never looks |
| does it survive small noise? | `stability` | 1 | 0 | −1 |
"""

from __future__ import annotations

from bilrp.evaluation.metrics import Conservation, Curve, Share, acs, blurred, conservation, cosine, deletion, insertion, insertion_order, rank_correlation, relevance_of, removal_order, replaced, share
from bilrp.evaluation.sanity_checks import Method, noisy, random_method, randomisation, randomised, stability, weighted_modules
from bilrp.evaluation.correspondences import affine, correspondence, destinations, from_disparity, matches, pasted, planted, pointing, warped

__all__ = [
    "Conservation",
    "Curve",
    "Method",
    "Share",
    "acs",
    "affine",
    "blurred",
    "conservation",
    "correspondence",
    "cosine",
    "deletion",
    "destinations",
    "from_disparity",
    "insertion",
    "insertion_order",
    "matches",
    "noisy",
    "pasted",
    "planted",
    "pointing",
    "random_method",
    "randomisation",
    "randomised",
    "rank_correlation",
    "relevance_of",
    "removal_order",
    "replaced",
    "share",
    "stability",
    "warped",
    "weighted_modules",
]
