"""Differences: contributions add up to the squared distance, and what was changed comes first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp.errors import InputError
from bilrp.inputs import Text
from bilrp.regions import Regions
from bilrp.render.findings_figure import list_differences, serialize_differences


def make_net(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(8, 6, 3, bias=bias), nn.Flatten()
    )  # fmt: skip
    return net.double()


def squared_distance(e: bilrp.Explanation) -> float:
    a, b = e.a.embedding, e.b.embedding
    if e.similarity == "cosine":
        a, b = a / a.norm(), b / b.norm()
    return float((a - b).square().sum())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
@pytest.mark.parametrize("regions", [4, 8])
def test_all_differences_and_the_unattributed_add_up_to_the_distance(similarity, regions, shared):
    a, b = torch.rand(2, 1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    e = bilrp.explain(make_net(), a, b, regions=regions, similarity=similarity)
    differences = e.differences(10**6, shared=shared)
    total = sum(d.contribution for d in differences) + e.distance.unattributed
    assert total == pytest.approx(squared_distance(e), abs=1e-9)
    assert e.distance.squared_distance == pytest.approx(squared_distance(e), abs=1e-9)
    for side in "ab":  # every region is in exactly one difference
        numbers = sorted(n for d in differences if d.side == side for n in d.regions)
        assert numbers == list(range(getattr(e, side).regions.count))
    values = [(d.is_matched, -d.contribution) for d in differences]
    assert values == sorted(values) or not shared or [v for _, v in values] == sorted(v for _, v in values)
    assert shared or values == sorted(values)
    assert e.differences(2, shared=shared) == differences[:2] and e.differences(0) == []


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_an_exact_contribution_is_the_product_of_the_part_with_the_difference(similarity):
    a, b = torch.rand(2, 1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    e = bilrp.explain(make_net(), a, b, regions=8, similarity=similarity)
    lengths = [side.embedding.norm() if similarity == "cosine" else 1.0 for side in (e.a, e.b)]
    delta = e.a.embedding / lengths[0] - e.b.embedding / lengths[1]
    for d in e.differences(10**6, shared=False):
        side, length, sign = (e.a, lengths[0], 1) if d.side == "a" else (e.b, lengths[1], -1)
        assert d.contribution == pytest.approx(
            float(sign * (side.parts[d.regions] / length @ delta).sum()), abs=1e-9
        )


def test_the_changed_patch_is_the_first_difference():
    a = torch.rand(1, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    b = a.clone()
    b[..., 16:32, 40:56] = 3.0
    first = bilrp.explain(make_net(), a, b, regions=8, similarity="dot").differences()[0]
    assert {2 * 8 + 5, 2 * 8 + 6, 3 * 8 + 5, 3 * 8 + 6} & {*first.regions}
    assert len(first.regions) <= 16


def test_a_moved_patch_is_a_match_and_not_a_difference_if_another_is_new():
    """A patch that moves by whole regions is equal on both sides; a patch that only B has is not."""
    generator = torch.Generator().manual_seed(3)
    a = torch.zeros(1, 3, 64, 64, dtype=torch.float64)
    moved, new = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=generator)
    a[0, :, 0:8, 0:8] = moved
    b = torch.zeros_like(a)
    b[0, :, 32:40, 48:56], b[0, :, 48:56, 8:16] = moved, 0.5 * new
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 24, 8, 8, bias=False)
    nn.init.normal_(convolution.weight)
    pooled = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    e = bilrp.explain(pooled, a, b, regions=8, similarity="dot")
    place = {"a": 0, "b": 4 * 8 + 6, "new": 6 * 8 + 1}
    assert (place["a"], place["b"]) in e.distance.matched
    first = list_differences(e, 1)[0]
    assert (first.side, first.regions) == ("b", [place["new"]]) and not first.is_matched
    assert all(not {place[d.side]} & {*d.regions} for d in list_differences(e))
    total = sum(d.contribution for d in e.differences(10**6)) + e.distance.unattributed
    assert total == pytest.approx(squared_distance(e), abs=1e-9)


def test_matched_differences_are_shown_only_where_nothing_else_differs():
    a = torch.rand(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    e = bilrp.explain(make_net(), a, 0.9 * a, regions=8, similarity="dot")
    shown = list_differences(e)
    assert shown and all(d.is_matched for d in shown)
    assert serialize_differences(e)["differs_lead"].startswith("Nothing is without a match")


def test_equal_inputs_have_no_difference():
    a = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    e = bilrp.explain(make_net(), a, a, regions=8)
    assert e.distance.is_zero and e.distance.compute_share(0.1) is None
    assert all(abs(d.contribution) < 1e-9 for d in e.differences(99))


def test_vectors_have_differences():
    net = nn.Linear(5, 4).double()
    a, b = torch.rand(2, 1, 5, dtype=torch.float64)
    e = bilrp.explain(net, a, b, similarity="dot")
    total = sum(d.contribution for d in e.differences(99)) + e.distance.unattributed
    assert total == pytest.approx(squared_distance(e), abs=1e-9)


def test_words_and_special_tokens_are_not_grouped():
    torch.manual_seed(3)

    def side(words: tuple[str, ...], parts: torch.Tensor) -> bilrp.Decomposition:
        names = ("[CLS]", *words, "[SEP]")
        regions = Regions(labels=torch.arange(len(names)), count=len(names), kind="tokens", names=names)
        starts = [len(" ".join(words[:n])) + (n > 0) for n in range(len(words))]
        spans = (None, *((s, s + len(w)) for s, w in zip(starts, words, strict=True)), None)
        view = Text(" ".join(words), spans)
        return bilrp.Decomposition(parts, parts.sum(0), regions, {"encoder": "x"}, view=view)

    parts = torch.rand(5, 8, dtype=torch.float64)
    extra = torch.cat([parts[:3], 4 * torch.rand(1, 8, dtype=torch.float64) - 2, parts[3:]])
    e = bilrp.pair(
        side(("it", "is", "safe"), parts), side(("it", "is", "not", "safe"), extra), similarity="dot"
    )
    first = e.differences()[0]
    assert (first.side, first.regions) == ("b", [3])
    assert all(d.regions in ([0], [5]) for d in e.differences(99) if d.side == "b" and {0, 5} & {*d.regions})


def test_embeddings_of_two_sizes_have_no_distance():
    net = nn.Conv1d(2, 3, 1).double()
    a, b = torch.rand(1, 2, 4, dtype=torch.float64), torch.rand(1, 2, 5, dtype=torch.float64)
    e = bilrp.explain(
        lambda x: net(x).transpose(1, 2), a, b, similarity="maxsim", regions=bilrp.regions.features()
    )
    with pytest.raises(InputError, match="one size"):
        e.differences()


def test_a_phrase_that_the_whole_other_text_matches_is_not_a_difference():
    """One word of a is spread over three words of b: no pair is much alike, and the sum is."""
    words = Regions(torch.arange(4), 4, "tokens", names=("one", "two", "three", "four"))
    parts_a, parts_b = torch.zeros(4, 8, dtype=torch.float64), torch.zeros(4, 8, dtype=torch.float64)
    parts_a[0, :3], parts_a[1, 6] = 1.0, 0.8
    parts_b[0, 0], parts_b[1, 1], parts_b[2, 2] = 0.8, 0.8, 0.8
    parts_b[:3, 4] = torch.tensor([0.9, -0.45, -0.45])
    sides = [bilrp.Decomposition(p, p.sum(0), words, {}) for p in (parts_a, parts_b)]
    e = bilrp.pair(sides[0], sides[1], similarity="dot")
    of_a = {tuple(d.regions): d.is_matched for d in e.differences(10) if d.side == "a"}
    assert of_a[(0,)] and not of_a[(1,)]
    assert not any(d.is_matched for d in e.differences(10, shared=False))
