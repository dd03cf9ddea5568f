"""Photographs study (section 5): nearest neighbours explained at two layers side by side, and true correspondences.

Explanations show why a layer considers two photographs similar. On a stereo pair the true matches are known: the share of
positive relevance within one region of the true match is compared with chance and with Hessian×Product.
"""

from __future__ import annotations

from functools import partial

from bilrp.encoder import Encoder
from bilrp.encoders import images, vgg, vgg_weights
from bilrp.explanation import Explanation
from bilrp.progress import Progress, progress_bar
from bilrp.render.report import Report
from bilrp.rules import composites
from bilrp_studies.common.stereo_images import load_stereo_pair
from bilrp_studies.photos import nearest_neighbours as near
from bilrp_studies.photos import report
from bilrp_studies.photos.settings import PhotosSettings
from bilrp_studies.photos.stereo_agreement import StereoAgreement, map_destinations, measure_agreement


def run(settings: PhotosSettings) -> Report:
    """Run the whole study on a folder of photographs and return its report.

    >>> run(PhotosSettings(data=Path("photographs"), pairs=2)).results["stereo"][31]  # doctest: +SKIP
    """
    layers = settings.layers
    read = partial(images.read, size=settings.size, resize="crop")
    paths, skipped = near.filter_readable(near.find_photographs(settings.data), read)
    tensors = vgg_weights.load(settings.weights, progress=settings.progress)
    encoder = vgg.vgg16(max(layers), weights=tensors, size=settings.size, resize="crop")
    with progress_bar(settings.progress) as bar:
        bar.start(f"embeddings of {len(paths)} photographs", len(layers))
        neighbours: dict[int, near.NearestNeighbours] = {}
        for n in layers:
            neighbours[n] = near.find_neighbours(near.compute_embeddings(paths, n, tensors, read))
            bar.advance()
        chosen = near.choose_nearest_pairs(neighbours[max(layers)].similarity, settings.pairs)
        bar.start("explaining pairs", len(chosen))
        pairs = []
        for i, j in chosen:
            explained = near.explain_at_layers(encoder, paths[i], paths[j], layers, "cosine")
            mutual = {
                n: neighbours[n].nearest_to(i) == j and neighbours[n].nearest_to(j) == i for n in layers
            }
            pairs.append(near.ExplainedPair((paths[i].name, paths[j].name), explained, mutual))
            bar.advance()
        stereo = _explain_stereo(encoder, settings, bar)
    return report.build_report(paths, skipped, neighbours, pairs, stereo, settings)


def _explain_stereo(encoder: Encoder, settings: PhotosSettings, bar: Progress) -> report.StereoResults:
    """Explain the stereo pair by BiLRP and Hessian×Product at each layer, and measure agreement with the true matches."""
    left, right, disparity = load_stereo_pair()
    where = map_destinations(disparity, size=settings.size)
    result: dict[int, dict[str, tuple[Explanation, StereoAgreement]]] = {n: {} for n in settings.layers}
    bar.start("explaining the stereo pair", 2)
    for name, composite in (("BiLRP", None), ("Hessian×Product", composites.hessian_product())):
        for n, explained in near.explain_at_layers(
            encoder, left, right, settings.layers, composite=composite
        ).items():
            result[n][name] = explained, measure_agreement(explained, where)
        bar.advance()
    return result
