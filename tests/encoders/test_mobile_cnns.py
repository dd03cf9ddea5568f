"""MobileNetV2 and EfficientNet-Lite0: weights by name, the laws of decompositions, and a planted patch that is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import bilrp
from bilrp import evaluation
from bilrp.encoder import read_item
from bilrp.encoders import efficientnet, mobilenet
from bilrp.encoders.downloads import WeightsError, cache_folder
from bilrp.encoders.mobile_cnns import EFFICIENTNET, MOBILENET, Architecture, ConvNormActivation, MobileCNN
from bilrp.encoders.photograph_means import find_photograph_mean, hash_module
from bilrp.errors import InputError
from vision_folders import randomize_weights

BOTH = pytest.mark.parametrize(
    ("maker", "design"),
    [(mobilenet, MOBILENET), (efficientnet, EFFICIENTNET)],
    ids=["mobilenet", "efficientnet"],
)


def make_published(design: Architecture) -> tuple[MobileCNN, dict[str, Tensor]]:
    """A random network, and its weights as a state dict under the published names."""
    torch.manual_seed(0)
    network = randomize_weights(MobileCNN(design), lambda net: net.train()(torch.randn(4, 3, 64, 64)))
    assert isinstance(network, MobileCNN)
    layers = [layer for layer in network.modules() if isinstance(layer, ConvNormActivation)]
    stored: dict[str, Tensor] = {"classifier.1.weight": torch.zeros(2, 2)}
    for layer, (conv, norm) in zip(layers, design.layer_names(), strict=True):
        stored |= {f"{conv}.{name}": tensor for name, tensor in layer.conv.state_dict().items()}
        stored |= {f"{norm}.{name}": tensor for name, tensor in layer.norm.state_dict().items()}
    return network, stored


@BOTH
def test_weights_find_their_places(maker, design: Architecture, tmp_path: Path) -> None:
    network, stored = make_published(design)
    torch.save(stored, tmp_path / "weights.pth")
    encoder = maker(weights=tmp_path / "weights.pth", size=64)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(encoder.module(x), network(x))
    assert encoder.module(x).shape == (1, 1280)
    double = bilrp.Encoder(encoder.module.double(), name="double")  # type: ignore[union-attr]
    regions = bilrp.regions.grid(16)
    # a few of the 1280 coordinates, mixed at random, say as much as all, and are pulled in a moment
    push, pull = (
        bilrp.decompose(double, x.double(), regions=regions, mode=m, project=8) for m in ("push", "pull")
    )
    assert float((push.parts - pull.parts).abs().max()) < 1e-9 * float(push.parts.abs().max())
    assert push.origin["composite"] == "graded(0.5, 0.25, 0.1, 0)"
    # the random projection of the embedding, of which nothing is left
    assert float(push.unattributed.abs().max()) < 1e-9 * float(push.embedding.abs().max())


@BOTH
def test_other_weights_are_refused(maker, design: Architecture, tmp_path: Path) -> None:
    _, stored = make_published(design)
    first = next(iter(design.layer_names()))[0]
    torch.save({name: t for name, t in stored.items() if not name.startswith(first)}, tmp_path / "less.pth")
    (tmp_path / "text.pth").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({**stored, f"{first}.weight": stored[f"{first}.weight"] * float("nan")}, tmp_path / "nan.pth")
    for name, message in (
        ("less", "is missing"),
        ("text", "not a torch file"),
        ("list", "state dict"),
        ("nan", "NaN"),
    ):
        with pytest.raises(WeightsError, match=message):
            maker(weights=tmp_path / f"{name}.pth")
    with pytest.raises(InputError, match="no such weights file"):
        maker(weights=tmp_path / "nowhere.pth")
    with pytest.raises(InputError, match="at least 32 pixels"):
        maker(size=16)


@pytest.mark.data
@BOTH
def test_a_planted_patch_is_found(maker, design: Architecture) -> None:
    package = design.package
    home = cache_folder() / f"{package.project}-{package.version}"
    data = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
    photographs = sorted((data / "pascal_voc" / "images").glob("*.jpg"))
    if not all((home / name).is_file() for name in package.members) or len(photographs) < 3:
        pytest.skip("needs the network's weights in the cache and the photographs of BILRP_DATA")
    encoder, side, step = maker(), 96, 32
    blur = evaluation.blur_baseline(step)
    # the middle of a photograph, on two others without their detail
    with Image.open(photographs[7]) as full:
        patch = F.interpolate(read_item(encoder, full).x, (side, side), mode="bilinear", antialias=True)[0]
    a, b = (blur(read_item(encoder, path).x) for path in photographs[:2])
    a, b, where = evaluation.paste_patch(a, b, patch=patch, at_a=(0, step), at_b=(4 * step, 3 * step))
    explanation = bilrp.explain(encoder, a, b, regions=step)
    pasted = evaluation.match_pasted_regions(where, explanation.a.regions, explanation.b.regions)
    assert evaluation.relevance_share(explanation, pasted).lift >= 5
    first = explanation.findings(1)[0]
    assert pasted.any(1)[list(first.a)].float().mean() > 0.5, "patch with patch comes first"
    assert pasted.any(0)[list(first.b)].float().mean() > 0.5
    # what any two photographs share is known, and nothing else is left
    terms = explanation.breakdown
    assert explanation.a.origin["composite"] == "centered(graded(0.5, 0.25, 0.1, 0))"
    assert terms.unattributed - terms.shared == pytest.approx(0, abs=1e-4)
    assert float(explanation.relevance.sum()) == pytest.approx(terms.specific, abs=1e-4)
    # γ alone, whose leftovers these rules were chosen against, leaves almost all
    alone = bilrp.explain(encoder, a, b, regions=step, composite=bilrp.composites.uniform(0.25))
    assert abs(alone.unattributed) > 0.9 * alone.score


def test_means_are_found_by_the_values_of_the_weights() -> None:
    torch.manual_seed(0)
    network = MobileCNN(MOBILENET)
    assert find_photograph_mean(network) is None
    key = hash_module(network)
    assert hash_module(network.double()) == key
    with torch.no_grad():
        next(network.parameters()).view(-1)[0] += 1e-3
    assert hash_module(network) != key


@pytest.mark.data
def test_resnet50_has_a_mean_embedding_of_photographs() -> None:
    data = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (data / "resnet50").is_dir():
        pytest.skip("needs BILRP_DATA with resnet50")
    encoder = bilrp.encoders.load(f"vision:{data / 'resnet50'}")
    photographs = sorted((data / "pascal_voc" / "images").glob("*.jpg"))[:8]
    assert encoder.mean_embedding is not None
    with torch.no_grad():
        rows = [encoder.module(read_item(encoder, path).x).flatten() for path in photographs]
    likeness = torch.stack([F.cosine_similarity(row.double(), encoder.mean_embedding, dim=0) for row in rows])
    assert float(likeness.min()) > 0.3, "each photograph is like the mean"
