"""MobileNetV2 and VGG-16 on the same pairs: on which do their explanations agree, and on which not?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from bilrp.decomposition import Decomposition, decompose
from bilrp.encoder import Encoder
from bilrp.encoders import vgg
from bilrp.progress import Progress
from bilrp.explanation import Explanation, pair
from bilrp.evaluation import evaluate
from bilrp.regions import grid
from bilrp_studies.common.image_folders import Picture
from bilrp_studies.vision.settings import VisionSettings


class Pooled(nn.Module):
    """VGG-16 with its last map averaged, as MobileNet has it: else one compares place with place, the other does not."""

    def __init__(self, network: vgg.VGG16):
        super().__init__()
        self.features = network.features

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3))


@dataclass(frozen=True, eq=False)
class Compared:
    """One pair by both: the rank correlations of pairs of regions, and of the regions of either picture."""

    a: str
    b: str
    pairs: float
    regions: float
    cosines: tuple[float, float]
    explained: tuple[Explanation, Explanation]


def pooled_vgg(settings: VisionSettings) -> Encoder:
    """VGG-16 at its last pooling under the paper's rules, its map averaged."""
    encoder = vgg.vgg16(weights=settings.weights, size=settings.size, progress=settings.progress)
    assert isinstance(encoder.module, vgg.VGG16)
    return replace(encoder, module=Pooled(encoder.module), name="vgg16:31, averaged", layers=None)


def compared(
    nets: tuple[Encoder, Encoder], items: Sequence[Picture], settings: VisionSettings, bar: Progress
) -> list[Compared]:
    """Every pair of neighbouring photographs by both networks."""
    bar.start("beside VGG-16", min(len(items), settings.pairs + 1) - 1)
    found, before = [], None
    for item in items[: settings.pairs + 1]:
        now = tuple(_parts(net, item, settings) for net in nets)
        if before is not None:
            found.append(
                _compared([pair(a, b, similarity="cosine") for a, b in zip(before, now, strict=True)])
            )
            bar.advance()
        before = now
    return found


def _parts(net: Encoder, item: Picture, settings: VisionSettings) -> Decomposition:
    return replace(decompose(net, item.pixels, regions=grid(settings.regions)), name=item.name)


def _compared(found: list[Explanation]) -> Compared:
    ours, theirs = found
    sides = zip(ours.marginals(), theirs.marginals(), strict=True)
    regions = [evaluate.rank_correlation(x[None], y[None]) for x, y in sides]
    return Compared(
        a=ours.a.name,
        b=ours.b.name,
        pairs=evaluate.rank_correlation(ours, theirs),
        regions=sum(regions) / len(regions),
        cosines=(ours.score, theirs.score),
        explained=(ours, theirs),
    )
