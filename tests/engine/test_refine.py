"""Coarse to fine: each step is exact for its own partition, and the last has the finest regions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp import composites, refinement, regions
from bilrp.errors import InputError
from models import Residual, randomize_norms, transformer, vgg_like
from type_asserts import assert_not_none


def image(seed: int = 0, size: tuple[int, int] = (24, 28)) -> torch.Tensor:
    return torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES = {
    "vgg": (vgg_like, image, 4, "gamma"),
    "residual": (Residual, image, 3, "gamma"),
    "segments": (vgg_like, image, regions.labels(torch.arange(24 * 28).reshape(24, 28) % 37), "gamma"),
    "tokens": (lambda: transformer(True, False), lambda: image()[:, 0, :, :8], None, "lrp-0"),
    "features": (lambda: nn.Sequential(nn.Linear(30, 9), nn.GELU()), lambda: image().flatten(1)[:, :30], None, "lrp-0"),
}  # fmt: skip


def make_case(name: str):
    build, draw, spec, rules = CASES[name]
    composite = composites.uniform(0.25 if rules == "gamma" else 0.0)
    return randomize_norms(build()), draw(), {"regions": spec, "composite": composite}


@pytest.mark.parametrize("name", CASES)
def test_every_step_sums_the_finest_parts_and_the_last_step_has_them(name: str) -> None:
    model, x, options = make_case(name)
    full = bilrp.decompose(model, x, **options)
    steps = list(bilrp.refine(model, x, **options))
    assert len(steps) > 1
    for decomposition in steps:
        expected = full.coarsen(regions.labels(decomposition.regions.labels))
        torch.testing.assert_close(decomposition.parts, expected.parts, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(decomposition.embedding, full.embedding, rtol=0, atol=0)
    counts = [decomposition.regions.count for decomposition in steps]
    assert counts == sorted(set(counts)) and counts[0] <= refinement.INITIAL_GROUPS
    last = steps[-1]
    assert torch.equal(last.regions.labels, full.regions.labels) and last.regions.kind == full.regions.kind
    torch.testing.assert_close(last.parts, full.parts, rtol=1e-9, atol=1e-9)
    bilrp.pair(last, full, similarity="dot")


def test_groups_of_patches_are_boxes_each_in_the_one_before() -> None:
    model, x, options = make_case("vgg")
    before = None
    for decomposition in bilrp.refine(model, x, **options):
        boxes, labels = decomposition.regions.boxes, decomposition.regions.labels[0]
        assert boxes is not None
        for number, (top, left, bottom, right) in enumerate(boxes.tolist()):
            assert bool((labels[top:bottom, left:right] == number).all())
            if before is not None:
                assert len(before[top:bottom, left:right].unique()) == 1
        before = labels
    assert before is not None


def test_what_is_split_is_where_the_share_is_large() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 4, bias=False)).double()
    x = torch.full((1, 1, 32, 32), 1e-3, dtype=torch.float64)
    x[..., 20:24, 4:8] = 5.0
    decomposition = bilrp.decompose(net, x, regions=2, max_regions=40)
    assert decomposition.regions.count <= 40
    sizes = torch.bincount(decomposition.regions.labels.flatten())
    inside = decomposition.regions.labels[0, 20:24, 4:8].unique()
    assert int(sizes[inside].max()) == 4 and int(sizes.max()) == 64


def test_a_refined_decomposition_costs_what_its_regions_cost() -> None:
    model, x, options = make_case("residual")
    options["mode"] = "push"
    full, some = bilrp.decompose(model, x, **options), bilrp.decompose(model, x, max_regions=20, **options)
    assert some.regions.count <= 20 < full.regions.count
    assert assert_not_none(some.plan).flops < assert_not_none(full.plan).flops


@pytest.mark.parametrize("name", ["vgg", "tokens"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_two_inputs_refine_by_the_relevance_of_their_pairs(name: str, similarity: str) -> None:
    model, a, options = make_case(name)
    b = a.flip(1) if name == "tokens" else image(1)
    full = bilrp.explain(model, a, b, similarity=similarity, **options)
    explanation = bilrp.explain(model, a, b, similarity=similarity, max_regions=22, **options)
    assert explanation.relevance.shape[0] <= 22
    labels = [regions.labels(side.regions.labels) for side in (explanation.a, explanation.b)]
    expected = full.coarsen((labels[0], labels[1]))
    torch.testing.assert_close(explanation.relevance, expected.relevance, rtol=1e-9, atol=1e-9)
    assert explanation.score == pytest.approx(full.score)


def test_a_budget_is_a_number_of_regions() -> None:
    model, x, options = make_case("vgg")
    assert bilrp.decompose(model, x, max_regions=1, **options).regions.count == 1
    assert bilrp.decompose(model, x, max_regions=10**6, **options).regions.count == 42
    for wrong in (0, -1, True):
        with pytest.raises(InputError, match="max_regions must be a whole number of at least 1"):
            bilrp.decompose(model, x, max_regions=wrong, **options)
    with pytest.raises(InputError, match="leave out layers"):
        bilrp.decompose(model, x, **{**options, "max_regions": 20, "layers": [1]})
