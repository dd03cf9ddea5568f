"""Agreement between the explanations of MobileNetV2 and VGG-16 on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from bilrp import evaluation
from bilrp.decomposition import Decomposition
from bilrp.encoder import Encoder
from bilrp.encoders import vgg
from bilrp.explanation import Explanation, pair
from bilrp.pipeline import decompose
from bilrp.progress import Progress
from bilrp.regions import grid
from bilrp_studies.common.image_folders import LabeledImage
from bilrp_studies.vision.settings import VisionSettings


class PooledVGG(nn.Module):
    """VGG-16 with global average pooling, like MobileNet's; without it VGG-16 compares position by position."""

    def __init__(self, network: vgg.VGG16):
        super().__init__()
        self.features = network.features

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3))


@dataclass(frozen=True, eq=False)
class PairAgreement:
    """One pair explained by both networks: rank correlation over pairs of regions, and over the regions of each image."""

    a: str
    b: str
    pairs: float
    regions: float
    cosines: tuple[float, float]
    explanations: tuple[Explanation, Explanation]


def load_pooled_vgg(settings: VisionSettings) -> Encoder:
    """Load VGG-16 at its last pooling with the paper's composite and global average pooling."""
    encoder = vgg.vgg16(weights=settings.weights, size=settings.size, progress=settings.progress)
    assert isinstance(encoder.module, vgg.VGG16)
    return replace(encoder, module=PooledVGG(encoder.module), name="vgg16:31, averaged", layers=None)


def compare_models(
    encoders: tuple[Encoder, Encoder], images: Sequence[LabeledImage], settings: VisionSettings, bar: Progress
) -> list[PairAgreement]:
    """Compare the explanations of both networks on every pair of consecutive photographs.

    Args:
        encoders: The two networks.
        images: The photographs.
        settings: Number of pairs and regions.
        bar: Progress bar, advanced once per pair.
    """
    bar.start("agreement with VGG-16", min(len(images), settings.pairs + 1) - 1)
    result, before = [], None
    for item in images[: settings.pairs + 1]:
        now = tuple(_decompose_image(net, item, settings) for net in encoders)
        if before is not None:
            result.append(
                _compare_pair([pair(a, b, similarity="cosine") for a, b in zip(before, now, strict=True)])
            )
            bar.advance()
        before = now
    return result


def _decompose_image(encoder: Encoder, image: LabeledImage, settings: VisionSettings) -> Decomposition:
    return replace(decompose(encoder, image.pixels, regions=grid(settings.regions)), name=image.name)


def _compare_pair(explanations: list[Explanation]) -> PairAgreement:
    ours, theirs = explanations
    sides = zip(ours.marginals(), theirs.marginals(), strict=True)
    regions = [evaluation.rank_correlation(x[None], y[None]) for x, y in sides]
    return PairAgreement(
        a=ours.a.name,
        b=ours.b.name,
        pairs=evaluation.rank_correlation(ours, theirs),
        regions=sum(regions) / len(regions),
        cosines=(ours.score, theirs.score),
        explanations=(ours, theirs),
    )
