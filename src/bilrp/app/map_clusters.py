"""Clusters of a collection as labels of its map: where each is, its typical item, what it shares, how stable it is."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import numpy as np

from bilrp.answers.http_shapes import MapCluster
from bilrp.app.collection_session import CollectionSession
from bilrp.collection.clusters import Clusters
from bilrp.errors import BilrpError, InputError
from bilrp.inputs import Text

MIN_ITEMS, MAX_ITEMS = 24, 5000  # fewer can be read one by one; more take minutes
MAX_CLUSTERS = 10  # as many labels find room
RESAMPLES = 5
MIN_GROUP_FRACTION = 0.5  # of a cluster: then it is named by that group


def list_clusters(session: CollectionSession, places: np.ndarray) -> list[MapCluster]:
    """Return the labels of a map of items at these places [items, 2], largest cluster first.

    Empty for few or many items, or without scikit-learn.
    """
    count = len(session.collection)
    if not MIN_ITEMS <= count <= MAX_ITEMS:
        return []
    try:
        clusters = session.collection.clusters(
            min(MAX_CLUSTERS, round((count / 2) ** 0.5)), similarity="cosine", resamples=RESAMPLES
        )
    except InputError:  # no scikit-learn
        return []
    rows: list[MapCluster] = []
    for cluster in clusters:
        x, y = np.median(places[list(cluster.members)], axis=0)
        rows.append({
            "x": float(x),
            "y": float(y),
            "count": len(cluster),
            "stability": cluster.stability,
            "text": _name_cluster(session, clusters, cluster.number),
            "typical": session.label(cluster.members[0]),
        })  # fmt: skip
    return rows


def _name_cluster(session: CollectionSession, clusters: Clusters, number: int) -> str:
    """Return what sets a typical text apart from the nearest cluster, or the group of most pictures; else nothing."""
    members = clusters[number].members
    if isinstance(session.collection.view(members[0]), Text):
        with suppress(BilrpError):
            return clusters.explain(number, members=1).examples[0].text
    group, most = Counter(session.item_groups[n] for n in members).most_common(1)[0]
    return group if most >= MIN_GROUP_FRACTION * len(members) else ""
