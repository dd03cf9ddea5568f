"""Last layer, occlusion of pairs and PAIR-X against their definitions, in float64, and on real weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import baselines, regions
from bilrp.errors import InputError
from bilrp.evaluation import positions
from bilrp.evaluation.feature_baselines import match_mutually

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
TOLERANCE = 1e-10


class Network(nn.Module):
    """Two convolutions with a residual, a mean over positions and a linear head."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 4, stride=4)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 8, 2, stride=2)
        self.head = nn.Linear(8, 5, bias=bias)

    def middle(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return F.relu(x + self.second(x))

    def last(self, x: Tensor) -> Tensor:
        return F.relu(self.down(self.middle(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(x).mean((2, 3)))


def network(*, bias: bool = False) -> Network:
    torch.manual_seed(0)
    return Network(bias=bias).double().eval().requires_grad_(False)


def images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    first, second = torch.rand(2, 1, 3, 32, 32).double()
    return first, second


class Sequence(nn.Module):
    """Token embeddings -> attention -> mean over tokens -> length one."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.widen, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def hidden(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
            x = self.norm(x + self.narrow(F.gelu(self.widen(x))))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.hidden(x).mean(1), dim=1)


def sequence() -> Sequence:
    torch.manual_seed(3)
    return Sequence().double().eval().requires_grad_(False)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("side", [8, 16, 4])
def test_last_layer_is_products_of_positions_and_adds_up(similarity: str, side: int) -> None:
    """By loops over positions: their products by the head, upsampled or summed to regions; the sum is the score."""
    model, (a, b) = network(), images()
    result = baselines.last_layer(model, a, b, regions=side, similarity=similarity)
    assert abs(result.unattributed) < TOLERANCE * max(1, abs(result.score))
    if side == 4:
        result = result.coarsen(regions.grid(8))
    size, cells = max(side, 8), 32 // max(side, 8)
    expected = torch.zeros(cells**2, cells**2).double()
    maps = [model.head(model.last(x)[0].permute(1, 2, 0)) / 16 for x in (a, b)]  # bias-free head
    for i in range(16):
        for j in range(16):
            owner = [(n // 4 * 8 // size) * cells + n % 4 * 8 // size for n in (i, j)]
            expected[owner[0], owner[1]] += maps[0][i // 4, i % 4] @ maps[1][j // 4, j % 4]
    lengths = model(a).norm() * model(b).norm() if similarity == "cosine" else 1.0
    assert torch.allclose(result.relevance, expected / lengths, atol=TOLERANCE, rtol=0)


def test_last_layer_leaves_the_bias_of_the_head() -> None:
    model, (a, b) = network(bias=True), images()
    result = baselines.last_layer(model, a, b, regions=8, similarity="dot")
    assert torch.allclose(result.a.unattributed, model.head.bias, atol=TOLERANCE)


def test_last_layer_of_tokens_is_the_hidden_states() -> None:
    model = sequence()
    a, b = torch.randn(1, 5, 8).double(), torch.randn(1, 3, 8).double()
    result = baselines.last_layer(model, a, b, regions=regions.tokens(), similarity="dot")
    states = [model.hidden(x)[0] / x.shape[1] for x in (a, b)]
    parts = [each / each.sum(0).norm() for each in states]
    assert torch.allclose(result.relevance, parts[0] @ parts[1].T, atol=TOLERANCE)
    assert abs(result.unattributed) < TOLERANCE


class Patches(nn.Module):
    """A small vision transformer: tokens of patches after a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Conv2d(3, 8, 8, stride=8), Sequence()
        self.start = nn.Parameter(torch.randn(1, 1, 8))

    def tokens(self, x: Tensor) -> Tensor:
        return self.body.hidden(torch.cat([self.start, self.embed(x).flatten(2).transpose(1, 2)], dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x)[:, 1:].mean(1)


def test_last_layer_of_a_vision_transformer_is_the_tokens_of_its_patches() -> None:
    torch.manual_seed(5)
    model, (a, b) = Patches().double().eval().requires_grad_(False), images()
    result = baselines.last_layer(model, a, b, regions=8, similarity="dot")
    states = [model.tokens(x)[0, 1:] / 16 for x in (a, b)]
    assert torch.allclose(result.relevance, states[0] @ states[1].T, atol=TOLERANCE)


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
def test_occlusion_is_the_second_difference_of_scores(similarity: str) -> None:
    """Four runs for each pair of regions, for every similarity."""
    model, (a, b) = network(bias=True), images()
    result = baselines.occlusion(model, a, b, regions=16, similarity=similarity, fill=0.25)
    score = bilrp.similarity.SIMILARITIES[similarity]().score
    labels = regions.grid(16)(a).labels

    def cover(x: Tensor, region: int | None) -> Tensor:
        return model(x if region is None else torch.where(labels == region, 0.25, x))[0]

    for i in range(4):
        for j in range(4):
            expected = (
                score(cover(a, None), cover(b, None)) - score(cover(a, i), cover(b, None))
                - score(cover(a, None), cover(b, j)) + score(cover(a, i), cover(b, j))
            )  # fmt: skip
            assert float(result.relevance[i, j]) == pytest.approx(expected, abs=TOLERANCE)
    assert result.score == pytest.approx(score(model(a)[0], model(b)[0]))


def test_occlusion_of_a_linear_encoder_is_hessian_product() -> None:
    torch.manual_seed(2)
    model = nn.Linear(6, 4, bias=False).double().requires_grad_(False)
    a, b = torch.randn(2, 1, 6).double()
    result = baselines.occlusion(model, a, b, regions=regions.features(), similarity="dot")
    expected = baselines.hessian_product(model, a, b, regions=regions.features(), similarity="dot")
    assert torch.allclose(result.relevance, expected.relevance, atol=TOLERANCE)
    assert abs(result.unattributed) < TOLERANCE


def test_occlusion_fills() -> None:
    """The mean of an image by channel, a function, a tensor; tokens are deleted on request."""
    model, (a, b) = network(), images()
    mean = baselines.occlusion(model, a, b, regions=16)
    same = baselines.occlusion(model, a, b, regions=16, fill=lambda x: x.mean((2, 3), keepdim=True))
    assert torch.equal(mean.relevance, same.relevance)
    tokens = sequence()
    x, y = torch.randn(1, 4, 8).double(), torch.randn(1, 3, 8).double()
    result = baselines.occlusion(tokens, x, y, regions=regions.tokens(), similarity="dot", fill="delete")
    shorter = tokens(x[:, [0, 1, 3]])
    assert torch.allclose(result.a.parts[2], (tokens(x) - shorter)[0], atol=TOLERANCE)
    with pytest.raises(InputError, match="fill='delete' needs a sequence"):
        baselines.occlusion(model, a, b, regions=16, fill="delete")
    with pytest.raises(InputError, match="fill of shape"):
        baselines.occlusion(model, a, b, regions=16, fill=torch.zeros(7))


def test_pairx_by_its_definition() -> None:
    """Loops over the positions of the map of twice the side, and relevance by z⁺ as plain matrices."""
    model, (a, b) = network(), images()
    result = baselines.pairx(model, a, b, regions=8, similarity="dot")
    assert abs(float(result.relevance.sum())) > 0 and bool((result.relevance >= 0).all())
    maps, weights = [], []
    for x, other in ((a, b), (b, a)):
        middle, last = model.middle(x), model.last(x)
        upper = (
            last * (model.head.weight.T @ model(other)[0])[None, :, None, None] / 16
        )  # relevance of the last map
        assert model.down.bias is not None
        positive = model.down.weight.clamp(min=0)
        bias = model.down.bias.clamp(min=0)[None, :, None, None]
        total = F.conv2d(middle, positive, stride=2) + bias
        back = F.conv_transpose2d(upper / torch.where(total == 0, 1, total), positive, stride=2)
        weights.append((middle * back)[0].abs().sum(0))
        maps.append(middle[0])
    expected = torch.zeros(16, 16).double()
    left, right = (each.flatten(1).T for each in maps)
    for p in range(64):
        q = int((right - left[p]).norm(dim=1).argmin())
        if int((left - right[q]).norm(dim=1).argmin()) == p:
            owner = [n // 8 // 2 * 4 + n % 8 // 2 for n in (p, q)]
            expected[owner[0], owner[1]] += weights[0].flatten()[p] * weights[1].flatten()[q]
    assert torch.allclose(result.relevance, expected, atol=TOLERANCE)


def test_pairx_matches_a_shifted_image() -> None:
    """On a map that moves with the image, each position's neighbour is where it moved to."""
    model, (a, _) = network(), images()
    shifted = torch.roll(a, 8, dims=3)
    result = baselines.pairx(model, a, shifted, regions=8)
    assert [int(result.relevance[row].argmax()) for row in (0, 1, 5, 6)] == [1, 2, 6, 7]


def test_mutual_nearest_neighbours_are_at_most_one_for_each() -> None:
    torch.manual_seed(4)
    result = match_mutually(torch.randn(30, 4), torch.randn(20, 4))
    assert bool((result.sum(0) <= 1).all()) and bool((result.sum(1) <= 1).all()) and 0 < result.sum() <= 20


def test_an_encoder_without_positions_is_refused() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.rand(1, 4)
    for baseline in (baselines.last_layer, baselines.pairx):
        with pytest.raises(InputError, match="no feature map or hidden states"):
            baseline(model, x, x)


def test_the_middle_of_tokens_is_halfway() -> None:
    model, x = sequence(), torch.randn(1, 4, 8).double()
    tape = bilrp.Encoder(model).record(x)
    halfway = positions.find_middle(tape, positions.lrp_zero())
    assert 0 < len(halfway.tail) < len(halfway.program.links)
    assert baselines.pairx(model, x, x, regions=regions.tokens()).relevance.diag().min() > 0


@pytest.mark.parametrize("name", ["last_layer", "occlusion", "pairx"])
def test_all_report_the_models_own_score(name: str, tmp_path: Path) -> None:
    model, (a, b) = network(), images()
    result = getattr(baselines, name)(bilrp.Encoder(model, similarity="dot"), a, b, regions=8)
    assert result.score == pytest.approx(float((model(a) * model(b)).sum()), abs=1e-12)
    assert result.unattributed == pytest.approx(result.score - float(result.relevance.sum()), abs=1e-12)
    assert name in result.a.origin["composite"]
    second = bilrp.Explanation.load(result.save(tmp_path / "found.npz"))
    assert torch.equal(second.relevance, result.relevance) and second.score == result.score


@pytest.mark.skipif(not (DATA / "resnet50").is_dir(), reason="needs BILRP_DATA with resnet50")
def test_last_layer_and_pairx_of_resnet50() -> None:
    """Real weights: the last 7×7 map adds up to the cosine, PAIR-X matches on the 14×14 map."""
    encoder = bilrp.encoders.load(f"vision:{DATA / 'resnet50'}")
    photographs = sorted((DATA / "pascal_voc" / "images").glob("*.jpg"))[:1]
    x = bilrp.encoder.read_tensor(encoder, photographs[0])
    moved = torch.roll(x, 64, dims=3)
    result = baselines.last_layer(encoder, x, moved, regions=32)
    assert result.relevance.shape == (49, 49) and abs(result.unattributed) < 1e-5
    middle = positions.find_middle(encoder.record(x), positions.lrp_zero())
    assert middle.patches == (14, 14)
    matched = baselines.pairx(encoder, x, moved, regions=32).relevance
    rows = [row for row in range(49) if row % 7 in (1, 2, 3)]  # away from the seam
    hits = [int(matched[row].argmax()) == row + 2 for row in rows]
    assert sum(hits) > len(hits) / 2
