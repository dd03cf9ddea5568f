"""Clusters: their explanations are means over members, exactly; stable where the data are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collection_helpers import tiny_encoder
from PIL import Image

from bilrp import collection
from bilrp.collection.clusters import Clusters, LabelOptions, label_rows, measure_stability, sort_labels
from bilrp.collection.core import Collection
from bilrp.errors import InputError

pytest.importorskip("sklearn", reason="needs scikit-learn")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Thirty pictures: a red, green or blue square on noise."""
    folder, rng = tmp_path_factory.mktemp("clusters"), np.random.default_rng(0)
    for number in range(30):
        pixels = rng.integers(90, 130, (32, 32, 3), dtype=np.uint8)
        pixels[16:, 16:] = 0
        pixels[16:, 16:, number % 3] = 255
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return collection.build(folder, tiny_encoder(), folder.parent / f"{folder.name}.lance")


@pytest.fixture(scope="module")
def clusters(pictures: Collection) -> Clusters:
    return pictures.clusters(3, similarity="cosine", resamples=3)


def test_labels_are_the_colours(clusters: Clusters) -> None:
    colours = [int(Path(name).stem) % 3 for name in clusters.collection.names]
    assert len({*zip(colours, clusters.labels.tolist(), strict=True)}) == 3
    assert [len(cluster) for cluster in clusters] == [10, 10, 10]
    assert all(cluster.stability == 1 for cluster in clusters)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_values_are_means_over_members(pictures: Collection, similarity: str) -> None:
    """⟨P_I, m⟩ is the mean of the item's shares with all members, and the contrast the difference of two such means."""
    clusters = pictures.clusters(3, similarity=similarity, resamples=0)
    why, cluster = clusters.explain(1, members=2), clusters[1]
    rival = clusters[cluster.rival or 0]
    for item, shared, contrast in zip(why.items, why.shared, why.contrasts, strict=True):
        own, other = (
            pictures.share(item, each.members, similarity=similarity).double().mean(1)
            for each in (cluster, rival)
        )
        scale = float(own.abs().max())
        assert float((shared.values.double() - own).abs().max()) < 0.01 * scale  # stored parts are rounded
        assert float((contrast.values.double() - (own - other)).abs().max()) < 0.01 * scale
        rows = pictures.embeddings.astype(np.float64)
        if similarity == "cosine":
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        expected = float((rows[list(cluster.members)] @ rows[item]).mean())
        assert shared.score == pytest.approx(expected, rel=1e-5)
        assert contrast.score == pytest.approx(
            expected - float((rows[list(rival.members)] @ rows[item]).mean()), abs=1e-5
        )
        assert contrast.score > 0
        assert float(shared.values.sum()) + shared.unattributed == pytest.approx(shared.score, abs=1e-5)


def test_cohesion_and_separation_are_means_over_pairs(clusters: Clusters) -> None:
    rows = clusters.collection.embeddings.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    products = rows @ rows.T
    for cluster in clusters:
        inside = products[np.ix_(cluster.members, cluster.members)]
        size = len(cluster)
        assert cluster.cohesion == pytest.approx((inside.sum() - np.trace(inside)) / (size * (size - 1)))
        assert cluster.rival is not None
        across = products[np.ix_(cluster.members, clusters[cluster.rival].members)]
        assert cluster.separation == pytest.approx(across.mean())
        assert [*cluster.members] == sorted(
            cluster.members, key=lambda n: -inside_mean(products, n, cluster.members)
        )


def inside_mean(products: np.ndarray, item: int, members: tuple[int, ...]) -> float:
    return float(products[item, list(members)].mean())


def test_examples_are_on_the_square(clusters: Clusters) -> None:
    for number in range(3):
        for example in clusters.explain(number, members=3).examples:
            assert example.box is not None and example.box[2] > 0.5 and example.box[3] > 0.5


def test_figure(clusters: Clusters) -> None:
    figure = clusters.explain(0, members=2).plot()
    assert len(figure.axes) == 6


def test_noise_is_unstable_and_blobs_are_stable() -> None:
    rng = np.random.default_rng(0)
    noise, blobs = rng.normal(size=(60, 5)), rng.normal(size=(60, 5)) * 0.1
    blobs[:30, 0] += 9
    stabilities = []
    for rows in (noise, blobs):
        options = LabelOptions(k=2, method="kmeans", min_size=5)
        labels = sort_labels(label_rows(rows, **options, seed=0))
        stabilities.append(measure_stability(rows, labels, options, 8, 0).mean())
    assert stabilities[1] == 1 and stabilities[0] < 0.9


def test_hdbscan_finds_the_number(pictures: Collection) -> None:
    clusters = pictures.clusters(min_size=4, similarity="cosine", resamples=0)
    assert len(clusters) == 3 and clusters[0].stability is None


def test_options_are_checked(pictures: Collection) -> None:
    with pytest.raises(InputError, match="number of clusters"):
        pictures.clusters(1)
    with pytest.raises(InputError, match="number of clusters"):
        pictures.clusters(method="kmeans")
    with pytest.raises(InputError, match="no cluster 7"):
        pictures.clusters(3, resamples=0).explain(7)
