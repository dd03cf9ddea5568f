"""Each evaluation where the right answer is known by construction: perfect, random, reversed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import bilrp
from bilrp import baselines, composites, evaluation, regions
from bilrp.encoders import vgg
from bilrp.errors import InputError
from bilrp.evaluation import correspondences, metrics, sanity_checks
from bilrp.explanation import Explanation
from bilrp_studies.common.stereo_images import load_stereo_pair
from type_asserts import assert_sequential


class Weighted(nn.Module):
    """φ(x) = √w ⊙ x: the similarity is Σ_i w_i x_i x'_i, so that the truth is diag(w x x')."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(weights.sqrt())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def with_relevance(encoder, a, b, relevance: Tensor) -> Explanation:
    """An explanation that says what we want it to say."""
    return replace(baselines.saliency(encoder, a, b, regions=regions.features()), relevance=relevance)


@pytest.fixture
def task():
    weights = torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0, 0.5, 6.0, 0.25])
    return Weighted(weights), torch.ones(1, 8), torch.ones(1, 8), torch.diag(weights)


# ---------------------------------------------------------------- truth


def test_acs_of_truth_reversed_and_random():
    generator = torch.Generator().manual_seed(0)
    truth = (torch.rand(4000, 6, 6, generator=generator) < 0.1).double()
    truth = truth[truth.flatten(1).any(1)]
    assert evaluation.acs(3 * truth, truth) == pytest.approx(1)
    assert evaluation.acs(-truth, truth) == pytest.approx(-1)
    noise = torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    assert abs(evaluation.acs(noise, truth)) < 0.02
    # Even relevance scores √(share of matches), the chance level of a method that knows nothing but the sign.
    expected = (truth.flatten(1).mean(1)).sqrt().mean()
    assert evaluation.acs(torch.ones_like(truth), truth) == pytest.approx(float(expected))


def test_acs_leaves_out_pairs_without_truth_and_counts_empty_explanations():
    truth = torch.stack([torch.eye(2), torch.zeros(2, 2), torch.eye(2)])
    result = torch.stack([torch.eye(2), torch.ones(2, 2), torch.zeros(2, 2)])
    assert evaluation.acs(result, truth) == pytest.approx(0.5)
    with pytest.raises(InputError, match="not defined"):
        evaluation.acs(result[1:2], truth[1:2])


def test_acs_takes_explanations(task):
    encoder, a, b, truth = task
    explanation = bilrp.explain(
        encoder, a, b, regions=regions.features(), composite=composites.uniform(0.0), similarity="dot"
    )
    assert evaluation.acs([explanation], [truth]) == pytest.approx(1)
    with pytest.raises(InputError, match="coarsen"):
        evaluation.cosine(explanation, torch.ones(3, 3))


def test_share_of_perfect_random_reversed_and_cancelling():
    match = torch.eye(20)
    perfect = evaluation.relevance_share(2.5 * match, match)
    assert (perfect.positive, perfect.signed) == (1, 1)
    assert perfect.lift == pytest.approx(20)
    worst = evaluation.relevance_share(-match, match)
    assert (worst.positive, worst.signed) == (0, -1)
    generator = torch.Generator().manual_seed(1)
    drawn = [evaluation.relevance_share(torch.randn(20, 20, generator=generator), match) for _ in range(200)]
    assert sum(s.positive for s in drawn) / 200 == pytest.approx(1 / 20, abs=0.005)
    assert abs(sum(s.signed for s in drawn) / 200) < 0.005
    # All positive relevance right, but as much negative relevance elsewhere: only the signed share notices.
    noisy = match - torch.roll(match, 1, dims=1)
    cancelling = evaluation.relevance_share(noisy, match)
    assert cancelling.positive == 1
    assert cancelling.signed == pytest.approx(0.5)


def test_share_counts_only_where_the_truth_is_known():
    relevance = torch.tensor([[1.0, 0.0], [0.0, 9.0]])
    match, among = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0], [0.0]])
    assert evaluation.relevance_share(relevance, match, mask=among).positive == 1
    assert evaluation.relevance_share(relevance, match).positive == pytest.approx(0.1)
    with pytest.raises(InputError, match="share is not defined"):
        evaluation.relevance_share(relevance, torch.zeros(2, 2))


# ---------------------------------------------------------------- conservation


@pytest.mark.parametrize("gamma", [0.0, 0.1, 1.0])
def test_conservation_is_perfect_without_biases_and_not_with_them(gamma):
    torch.manual_seed(0)
    for bias in (False, True):
        net = nn.Sequential(
            nn.Linear(6, 9, bias=bias), nn.ReLU(), nn.Linear(9, 5, bias=bias), nn.ReLU()
        ).double()
        x, y = torch.rand(2, 1, 6, dtype=torch.float64)
        explanation = evaluation.conservation(
            bilrp.explain(net, x, y, composite=composites.uniform(gamma), similarity="dot")
        )
        assert explanation.explained + explanation.unattributed == pytest.approx(explanation.score)
        assert (explanation.unattributed_share < 1e-9) == (not bias)


def test_negative_share_shows_cancellation(task):
    encoder, a, b, truth = task
    assert evaluation.conservation(with_relevance(encoder, a, b, truth)).negative_share == 0
    half = truth - torch.roll(truth, 1, dims=1)
    assert evaluation.conservation(with_relevance(encoder, a, b, half)).negative_share == pytest.approx(0.5)


def test_conservation_of_the_truth_of_noise_and_of_the_reverse(task):
    encoder, a, b, truth = task

    def share(relevance: Tensor) -> float:
        return evaluation.conservation(with_relevance(encoder, a, b, relevance)).unattributed_share

    assert share(truth) == pytest.approx(0, abs=1e-6)
    assert share(torch.zeros(8, 8)) == pytest.approx(1)
    assert share(-truth) == pytest.approx(2)
    # Noise attributes nothing on average: what it leaves scatters around all of the score.
    generator = torch.Generator().manual_seed(0)
    drawn = [share(torch.randn(8, 8, generator=generator)) for _ in range(200)]
    assert sum(drawn) / 200 == pytest.approx(1, abs=0.1)


# ---------------------------------------------------------------- deletion and insertion


def test_curves_of_the_truth_are_the_known_ones(task):
    encoder, a, b, truth = task
    # One removal breaks one match, the largest first: y falls by w at each of the first eight removals, then stays 0.
    weights = truth.diagonal().sort(descending=True).values
    gone = weights.cumsum(0) / weights.sum()
    falling = torch.cat([torch.ones(1), 1 - gone, torch.zeros(8)])
    curve = evaluation.deletion(encoder, with_relevance(encoder, a, b, truth), a, b, steps=16)
    torch.testing.assert_close(curve.relative_scores, falling, atol=1e-6, rtol=0)
    assert curve.area == pytest.approx(float(torch.trapezoid(falling, torch.linspace(0, 1, 17))))
    # It takes two additions to make one match.
    rising = torch.cat([torch.zeros(1), gone]).repeat_interleave(2)[:-1]
    added = evaluation.insertion(encoder, with_relevance(encoder, a, b, truth), a, b, steps=16)
    torch.testing.assert_close(added.relative_scores, rising, atol=1e-6, rtol=0)


def test_truth_is_best_random_between_and_reversed_worst(task):
    encoder, a, b, truth = task
    generator = torch.Generator().manual_seed(0)
    for curve, sign in ((evaluation.deletion, 1), (evaluation.insertion, -1)):
        best, worst = (
            sign * curve(encoder, with_relevance(encoder, a, b, r), a, b).area for r in (truth, -truth)
        )
        orders = [torch.randn(8, 8, generator=generator) for _ in range(30)]
        drawn = [sign * curve(encoder, with_relevance(encoder, a, b, r), a, b).area for r in orders]
        assert best < min(drawn)
        assert worst > max(drawn)


def test_orders_are_permutations_and_match_brute_force():
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    for order in (evaluation.removal_order(relevance), evaluation.insertion_order(relevance)):
        assert sorted(torch.cat(order).tolist()) == list(range(12))
    path = torch.cat(evaluation.removal_order(relevance))
    rows, columns = torch.ones(5, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    for region in path.argsort().tolist():
        left = []
        for other in range(12):
            r, c = rows.clone(), columns.clone()
            (r if other < 5 else c)[other if other < 5 else other - 5] = 0
            gone = (rows if other < 5 else columns)[other if other < 5 else other - 5] == 0
            left.append(torch.inf if gone else float(r @ relevance @ c))
        assert left[region] == pytest.approx(min(left))
        (rows if region < 5 else columns)[region if region < 5 else region - 5] = 0


def test_deletion_removes_whole_regions_and_only_those_listed():
    encoder = nn.Flatten()
    a, b = torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)
    mask = torch.full((8, 8), -1)
    mask[:4, :4], mask[4:, 4:] = 0, 1
    explanation = bilrp.explain(
        encoder, a, b, regions=regions.labels(mask), composite=composites.uniform(0.0), similarity="dot"
    )
    curve = evaluation.deletion(encoder, explanation, a, b, steps=4)
    inside = (mask >= 0).float()
    torch.testing.assert_close(curve.scores[-1], (a * b * (1 - inside)).sum())
    blurred = evaluation.deletion(encoder, explanation, a, b, steps=4, baseline=evaluation.blur_baseline(2))
    assert blurred.scores[0] == curve.scores[0]
    assert blurred.scores[-1] != curve.scores[-1]


# ---------------------------------------------------------------- known maps


@pytest.mark.parametrize(
    ("warp", "moved"),
    [
        ({"shift": (8, 16)}, lambda x: torch.roll(x, (8, 16), (2, 3))),
        ({"flip": True}, lambda x: x.flip(3)),
        ({"rotate": 90}, lambda x: x.rot90(1, (2, 3))),
        ({"rotate": 180, "flip": True}, lambda x: x.flip(2)),
    ],
)
def test_warp_moves_pixels_where_it_says(warp, moved):
    x = torch.rand(1, 3, 32, 32)
    matrix = evaluation.affine_matrix(**warp, size=(32, 32))
    image, where = evaluation.warp_image(x, matrix), evaluation.warp_pixel_map(matrix, (32, 32))
    inside = ~where.isnan().any(-1)
    rows, columns = where[inside].round().long().unbind(-1)
    torch.testing.assert_close(image[0, :, rows, columns], x[0, :, inside], atol=1e-4, rtol=0)
    torch.testing.assert_close(image[0, :, rows, columns], moved(x)[0, :, rows, columns], atol=1e-4, rtol=0)


def test_zoom_is_a_crop():
    x = torch.rand(1, 1, 32, 32)
    matrix = evaluation.affine_matrix(zoom=2, size=(32, 32))
    assert torch.allclose(matrix @ torch.tensor([15.5, 15.5, 1.0]), torch.tensor([15.5, 15.5]))
    known = ~evaluation.warp_pixel_map(matrix, (32, 32)).isnan().any(-1)
    assert known[8:24, 8:24].all() and known.sum() == 16 * 16
    assert evaluation.warp_image(x, matrix).shape == x.shape


class Pixels(nn.Module):
    """Mean colour of each 8×8 patch: a similarity of patches in the same place."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x, 8)


def test_correspondence_of_a_perfect_explanation_under_a_shift():
    spec = regions.grid(8)(torch.zeros(1, 3, 64, 64))
    where = evaluation.warp_pixel_map(evaluation.affine_matrix(shift=(8, -16), size=(64, 64)), (64, 64))
    exact, known = evaluation.match_regions(where, spec, spec, tolerance=0)
    match, among = evaluation.match_regions(where, spec, spec)
    grid = torch.arange(64).reshape(8, 8)
    for row, column in ((0, 2), (3, 5), (6, 7)):
        assert exact[grid[row, column]].nonzero().item() == grid[row + 1, column - 2]
        neighbours = match[grid[row, column]].reshape(8, 8)
        assert neighbours.sum() == neighbours[max(0, row) : row + 3, max(0, column - 3) : column].sum() >= 4
    # What leaves the image has no match and does not count: the last row and the first two columns.
    assert torch.equal(
        known[:, 0].reshape(8, 8),
        torch.ones(8, 8).index_fill(0, torch.tensor(7), 0).index_fill(1, torch.tensor([0, 1]), 0),
    )
    assert evaluation.relevance_share(exact, match, mask=among).signed == 1
    assert evaluation.relevance_share(-exact, match, mask=among).signed == -1
    with pytest.raises(InputError, match="scale the map"):
        evaluation.match_regions(where[:32], spec, spec)
    noise = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    result = evaluation.relevance_share(noise, match, mask=among)
    assert result.lift == pytest.approx(1, abs=0.1)


def test_correspondence_of_a_model_that_compares_places():
    x = torch.rand(1, 3, 64, 64)
    explanation = bilrp.explain(
        Pixels(), x, x, regions=regions.grid(8), composite=composites.uniform(0.0), similarity="dot"
    )
    for flip, expected in ((False, 1.0), (True, 0.0)):
        where = evaluation.warp_pixel_map(evaluation.affine_matrix(flip=flip, size=(64, 64)), (64, 64))
        assert evaluation.correspondence(explanation, where, tolerance=0).positive == pytest.approx(expected)
        reverse = replace(explanation, relevance=-explanation.relevance)
        assert evaluation.correspondence(reverse, where, tolerance=0).signed == pytest.approx(-expected)


def test_disparity_moves_left():
    disparity = torch.full((16, 32), 8.0)
    disparity[:, 24:] = torch.inf
    spec = regions.grid(8)(torch.zeros(1, 3, 16, 32))
    match, among = evaluation.match_regions(
        evaluation.disparity_pixel_map(disparity), spec, spec, tolerance=0
    )
    assert match[1].nonzero().item() == 0
    assert match[6].nonzero().item() == 5
    assert among[:, 0].tolist() == [0, 1, 1, 0] * 2


@pytest.mark.slow
@pytest.mark.data
def test_correspondence_of_vgg_on_the_stereo_pair(data):
    """Paper rules at 128 pixels, 8×8 regions: about 21 times chance at layer 17 and 9.5 times at layer 31."""
    pytest.importorskip("skimage")
    paths, size = load_stereo_pair(), 128
    encoder = vgg.vgg16(31, weights=data / "vgg16" / "vgg16_features.safetensors", size=None)
    images = [Image.open(path).resize((size, size), Image.Resampling.BICUBIC) for path in paths[:2]]
    a, b = (bilrp.decompose(encoder, image, regions=regions.grid(8), layers=(17, 31)) for image in images)
    height, width = paths[2].shape
    rows, columns = (((torch.arange(size) + 0.5) * n / size).long() for n in (height, width))
    disparity = torch.from_numpy(paths[2])[rows][:, columns] * (size / width)
    where = evaluation.disparity_pixel_map(disparity)
    for layer, lift, signed in ((17, 21, 0.69), (31, 9.5, 0.25)):
        explanation = evaluation.correspondence(bilrp.pair(a[layer], b[layer], similarity="dot"), where)
        assert explanation.lift == pytest.approx(lift, rel=0.05)
        assert explanation.signed == pytest.approx(signed, abs=0.02)


def test_planted_content_is_found_by_a_perfect_explanation_only():
    a, b, patch = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 32, 32), torch.rand(3, 16, 8)
    first, second, where = evaluation.paste_patch(a, b, patch=patch, at_a=(8, 0), at_b=(16, 24))
    assert torch.equal(first[0, :, 8:24, :8], patch) and torch.equal(second[0, :, 16:, 24:], patch)
    assert first.count_nonzero() == second.count_nonzero() == patch.count_nonzero()
    spec = regions.grid(8)(a)
    match = evaluation.match_pasted_regions(where, spec, spec)
    assert match.nonzero().tolist() == [[4, 11], [4, 15], [8, 11], [8, 15]]
    # Nothing but the patch is in the images, so everything a faithful explanation finds joins the two pastes.
    encoder = nn.Sequential(nn.AvgPool2d(32), nn.Flatten())
    explanation = bilrp.explain(
        encoder, first, second, regions=regions.grid(8), composite=composites.uniform(0.0), similarity="dot"
    )
    assert evaluation.pointing_game(explanation, where).signed == pytest.approx(1)
    assert evaluation.pointing_game(
        replace(explanation, relevance=-explanation.relevance), where
    ).signed == pytest.approx(-1)
    even = evaluation.pointing_game(replace(explanation, relevance=torch.ones(16, 16)), where)
    assert even.positive == even.chance == pytest.approx(4 / 256)
    generator = torch.Generator().manual_seed(0)
    drawn = [evaluation.relevance_share(torch.randn(16, 16, generator=generator), match) for _ in range(300)]
    assert sum(s.positive for s in drawn) / 300 == pytest.approx(4 / 256, abs=0.002)
    assert abs(sum(s.signed for s in drawn) / 300) < 0.002
    with pytest.raises(InputError, match="does not fit into the image"):
        evaluation.paste_patch(a, b, patch=patch, at_a=(8, 0), at_b=(24, 24))


# ---------------------------------------------------------------- randomisation and stability


@pytest.fixture
def net():
    torch.manual_seed(3)
    layers = [nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU()]
    return nn.Sequential(*layers).requires_grad_(False)


def test_randomisation_tells_model_from_input(net):
    x, y = torch.rand(2, 1, 40)
    for blind in (baselines.saliency, evaluation.random_method()):
        unmoved = evaluation.randomization(blind, net, x, y)
        assert list(unmoved.values()) == pytest.approx([1, 1, 1])
    before = [p.clone() for p in net.parameters()]
    result = evaluation.randomization(bilrp.explain, net, x, y)
    assert list(result) == [1, 2, 3]
    assert abs(result[3]) < 0.2
    assert result[3] < result[1] < 0.999
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    # A method that draws new numbers at every call has nothing in common with itself: chance.
    drawn = iter(range(100))
    fresh = lambda *given: evaluation.random_method(seed=next(drawn))(*given)  # noqa: E731
    assert all(abs(value) < 0.1 for value in evaluation.randomization(fresh, net, x, y).values())


def weight(net: nn.Module, layer: int) -> torch.Tensor:
    return net.get_parameter(f"{layer}.weight")


def test_randomised_keeps_the_layers_below_and_the_spread(net):
    copy = assert_sequential(evaluation.randomize_weights(net, 2).module)
    assert torch.equal(weight(copy, 0), weight(net, 0))
    for k in (2, 4):
        assert not torch.equal(weight(copy, k), weight(net, k))
        assert weight(copy, k).std() == pytest.approx(float(weight(net, k).std()), rel=0.1)
    second = assert_sequential(evaluation.randomize_weights(net, 1).module)
    assert torch.equal(weight(second, 4), weight(copy, 4))
    with pytest.raises(InputError, match="3 layers"):
        evaluation.randomize_weights(net, 4)
    with pytest.raises(InputError, match="function"):
        evaluation.randomize_weights(lambda x: x, 1)


def test_stability_of_constant_linear_and_random_methods(net):
    x, y = torch.rand(2, 1, 40)
    constant = evaluation.random_method(seed=5)
    assert evaluation.stability(constant, net, x, y) == pytest.approx(1)
    drawn = iter(range(100))
    fresh = lambda *given: evaluation.random_method(seed=next(drawn))(*given)  # noqa: E731
    assert abs(evaluation.stability(fresh, net, x, y, repeats=5)) < 0.08
    signs = iter([1, -1])  # the sign changes as soon as anything moves
    turning = lambda *given: replace(result := constant(*given), relevance=next(signs) * result.relevance)  # noqa: E731
    assert evaluation.stability(turning, net, x, y) == pytest.approx(-1)
    calm, rough = (evaluation.stability(bilrp.explain, net, x, y, noise=s, repeats=3) for s in (0.01, 0.5))
    assert rough < calm < 1
    assert calm > 0.99
    assert evaluation.stability(bilrp.explain, net, x, y, noise=0.0) == pytest.approx(1)


def test_rank_correlation_matches_scipy_with_ties():
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randint(5, (2, 7, 9), generator=generator).float()
    expected = stats.spearmanr(a.flatten(), b.flatten()).statistic
    assert evaluation.rank_correlation(a, b) == pytest.approx(expected)
    assert evaluation.rank_correlation(a, -a) == pytest.approx(-1)
    assert evaluation.rank_correlation(a, torch.ones(7, 9)) == 0
    assert not math.isnan(evaluation.rank_correlation(torch.zeros(2, 2), torch.zeros(2, 2)))


# ---------------------------------------------------------------- public names


def test_the_package_exports_every_public_name_of_its_modules():
    for module in (metrics, correspondences, sanity_checks):
        own = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        }
        assert own - {"safe_ratio"} <= set(evaluation.__all__), module.__name__
        assert all(getattr(evaluation, name) is getattr(module, name) for name in own - {"safe_ratio"})


def test_hit_rate_and_auc_by_counting() -> None:
    """Against loops over rows and over pairs of pairs, with ties and a mask."""
    torch.manual_seed(11)
    relevance = torch.randint(0, 4, (6, 5)).double()
    match, mask = (torch.rand(6, 5) < 0.3).double(), (torch.rand(6, 5) < 0.8).double()
    match[0, 0] = mask[0, 0] = 1
    rows = []
    for row in range(6):
        counted = [j for j in range(5) if mask[row, j]]
        if any(match[row, j] for j in counted):
            top = max(float(relevance[row, j]) for j in counted)
            best = [j for j in counted if float(relevance[row, j]) == top]
            rows.append(sum(float(match[row, j]) for j in best) / len(best))
    assert evaluation.hit_rate(relevance, match, mask=mask) == pytest.approx(sum(rows) / len(rows))
    inside = [(float(relevance[i, j]), bool(match[i, j])) for i in range(6) for j in range(5) if mask[i, j]]
    won = [(x > y) + 0.5 * (x == y) for x, true in inside if true for y, other in inside if not other]
    assert evaluation.roc_auc(relevance, match, mask=mask) == pytest.approx(sum(won) / len(won))
    assert evaluation.roc_auc(torch.ones(6, 5), match) == 0.5
    assert evaluation.roc_auc(match, match) == 1.0 == evaluation.hit_rate(match, match)
    with pytest.raises(InputError, match="every pair"):
        evaluation.roc_auc(relevance, torch.ones(6, 5))
