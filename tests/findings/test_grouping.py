"""Findings: disjoint, connected, complete, and equal to planted matches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bilrp import explain
from bilrp.evaluation.correspondences import paste_patch
from bilrp.findings import grouping
from bilrp.findings.region_layout import compute_layout
from bilrp.findings.special_tokens import select_regions
from bilrp.regions import Regions, features, grid, labels, tokens
from type_asserts import assert_not_none

PLANE = grid(8)(torch.zeros(1, 3, 64, 64))


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def patch(top: int, left: int, height: int, width: int, across: int = 8) -> list[int]:
    return [across * y + x for y in range(top, top + height) for x in range(left, left + width)]


def segments() -> Regions:
    """Three vertical bands of a 12 × 12 picture, the last in two pieces that touch it nowhere."""
    mask = torch.zeros(12, 12, dtype=torch.long)
    mask[:, 4:8], mask[:, 8:], mask[:4, 8:] = 1, 2, 3
    return labels(mask)(torch.zeros(1, 3, 12, 12))


@given(seed=st.integers(0, 200), kind=st.sampled_from(["grid", "words", "segments", "mixed"]))
def test_each_pair_is_in_one_finding_at_most_and_a_finding_is_the_sum_of_its_pairs(seed, kind):
    words = tokens(("the", "cat", "and", "the", "other", "cat", "sat"))(torch.zeros(1, 7, 3))
    a, b = {
        "grid": (PLANE, PLANE),
        "words": (words, words),
        "segments": (segments(), segments()),
        "mixed": (PLANE, words),
    }[kind]
    R = noise(a.count, b.count, seed) ** 3
    findings = grouping.extract_findings(R, a, b, score=7.0, k=5)
    owned = np.zeros(R.shape, int)
    for finding in findings:
        owned[np.ix_(finding.a, finding.b)] += 1
        assert finding.relevance == pytest.approx(R[np.ix_(finding.a, finding.b)].sum(), rel=1e-12)
        assert finding.share == pytest.approx(finding.relevance / 7.0)
    assert owned.max(initial=0) <= 1
    rest = R[owned == 0].sum()
    assert sum(f.relevance for f in findings) + rest == pytest.approx(R.sum(), rel=1e-9, abs=1e-9)
    assert 1 <= len(findings) <= 5
    strengths = [abs(f.relevance) for f in findings]
    assert strengths == sorted(strengths, reverse=True)


@given(seed=st.integers(0, 200))
def test_a_block_has_only_neighbours_and_the_words_of_a_finding_are_one_phrase(seed):
    layout, words = compute_layout(PLANE), tokens()(torch.zeros(1, 9, 2))
    R = noise(PLANE.count, 9, seed) ** 3
    density = grouping.RelevanceDensity.from_relevance(R, layout, compute_layout(words))
    for block in density.find_blocks():
        assert density.a.select_connected(block.members[0], int(block.members[0].argmax())).sum() == sum(
            block.members[0]
        )
    for finding in grouping.extract_findings(R, PLANE, words, score=1.0):
        assert finding.b == list(range(finding.b[0], finding.b[-1] + 1))


@given(seed=st.integers(0, 200))
def test_a_and_b_exchanged_give_the_same_findings(seed):
    words = tokens()(torch.zeros(1, 9, 2))
    R = noise(PLANE.count, 9, seed) ** 3
    there = [(f.a, f.b) for f in grouping.extract_findings(R, PLANE, words, score=1.0)]
    back = [(f.b, f.a) for f in grouping.extract_findings(R.T, words, PLANE, score=1.0)]
    assert there == back


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_block_in_noise_is_found_with_its_sign(sign):
    R = 0.1 * noise(64, 64)
    rows, columns = patch(1, 1, 3, 3), patch(4, 5, 2, 3)
    R[np.ix_(rows, columns)] += sign * 2.0
    first = grouping.extract_findings(R, PLANE, PLANE, score=100.0)[0]
    assert (first.a, first.b) == (rows, columns)
    assert first.relevance == R[np.ix_(rows, columns)].sum() and first.relevance * sign > 0


def test_one_eye_that_is_like_both_eyes_of_the_other_is_one_finding():
    R = np.zeros((64, 64))
    eye, left, right = patch(3, 3, 2, 2), patch(2, 1, 2, 2), patch(2, 5, 2, 2)
    R[np.ix_(eye, left)], R[np.ix_(eye, right)] = 2.0, 1.0
    findings = grouping.extract_findings(R, PLANE, PLANE, score=1.0)
    assert [(f.a, f.b) for f in findings] == [(eye, sorted(left + right))]
    assert findings[0].relevance == R.sum()


@pytest.mark.parametrize("cross", [1.9, 0.5])
def test_two_eyes_and_two_eyes_are_at_most_as_many_findings_as_eyes(cross):
    """Four blocks: one finding where all are alike, one for each eye where an eye is hardly like the other one."""
    R = np.zeros((64, 64))
    left, right = patch(3, 1, 2, 2), patch(3, 5, 2, 2)
    R[np.ix_(left, left)] = R[np.ix_(right, right)] = 2.0
    R[np.ix_(left, right)] = R[np.ix_(right, left)] = cross
    findings = grouping.extract_findings(R, PLANE, PLANE, score=1.0)
    assert len(findings) <= 2
    assert {n for f in findings for n in f.a} == {*left, *right} == {n for f in findings for n in f.b}


def test_findings_of_opposite_sign_are_not_merged_and_weak_ones_are_left_out():
    R = np.zeros((64, 64))
    eye, left, right, nose = patch(3, 3, 2, 2), patch(2, 1, 2, 2), patch(2, 5, 2, 2), patch(6, 3, 2, 2)
    R[np.ix_(eye, left)], R[np.ix_(eye, right)], R[np.ix_(nose, nose)] = 2.0, -1.0, 0.1
    findings = grouping.extract_findings(R, PLANE, PLANE, score=1.0)
    assert [(f.a, f.b) for f in findings] == [(eye, left), (eye, right)]


def test_words_already_matched_match_each_other_in_no_new_finding():
    """The drug is safe, and the drug is safe: that "drug" is a little like "safe" is no third fact."""
    words = tokens(("drug", "is", "safe"))(torch.zeros(1, 3, 2))
    R = np.array([[5.0, 0, 1.5], [0, 0, 0], [1.2, 0, 4.0]])
    findings = grouping.extract_findings(R, words, words, score=11.7)
    assert [(f.a, f.b) for f in findings] == [([0], [0]), ([2], [2])]


def test_words_join_with_the_next_word_and_with_the_same_word():
    a = tokens(("A", "young", "girl", "saw", "a", "girl"))(torch.zeros(1, 6, 2))
    b = tokens(("little", "girls"))(torch.zeros(1, 2, 2))
    R = np.zeros((6, 2))
    R[[1, 2], 0], R[[2, 5], 1] = 3.0, 4.0
    findings = grouping.extract_findings(R, a, b, score=14.0)
    assert [(f.a, f.b, f.share) for f in findings] == [([1, 2, 5], [0, 1], 1.0)]


def test_nothing_is_found_in_nothing_and_a_single_pair_is_a_finding():
    assert grouping.extract_findings(np.zeros((64, 64)), PLANE, PLANE, score=0.0) == []
    one = features()(torch.zeros(1, 1))
    assert grouping.extract_findings(np.ones((1, 1)), one, one, score=1.0) == [
        grouping.Finding([0], [0], 1.0, 1.0)
    ]
    assert grouping.extract_findings(np.ones((1, 1)), one, one, score=0.0)[0].share is None
    assert grouping.extract_findings(np.ones((1, 1)), one, one, score=1.0, k=0) == []


def test_details_are_seen_where_a_wide_window_sees_one_block_all_over():
    """Equal numbers all over two tables: many small findings, none of half a page."""
    rng = np.random.default_rng(0)
    fine = grid(8)(torch.zeros(1, 1, 256, 256))
    a, b = rng.integers(0, 12, (2, fine.count))
    R = (a[:, None] == b).astype(float)
    findings = grouping.extract_findings(R, fine, fine, score=R.sum())
    assert len(findings) == 12
    assert max(len(f.a) for f in findings) < fine.count / 4


def test_the_work_does_not_grow_with_what_is_found(monkeypatch):
    """1,024 × 1,024 regions: as many blocks grown as peaks are looked at, not one for each pair."""
    fine = grid(4)(torch.zeros(1, 1, 128, 128))
    calls = []
    grow = grouping.RelevanceDensity.grow_from_side
    monkeypatch.setattr(
        grouping.RelevanceDensity, "grow_from_side", lambda *args: calls.append(1) or grow(*args)
    )
    grouping.extract_findings(noise(1024, 1024), fine, fine, score=1.0)
    assert len(calls) <= 3 * 4 * grouping.MAX_PEAKS


def test_the_planted_patch_is_the_first_finding():
    """A patch copied from one picture into the other, at another place, and a network that pools over places."""
    generator = torch.Generator().manual_seed(3)
    ground = 0.2 * torch.rand(2, 1, 3, 96, 96, generator=generator)
    a, b, _ = paste_patch(
        *ground, patch=torch.rand(3, 24, 24, generator=generator), at_a=(16, 8), at_b=(56, 48)
    )
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 5, stride=2, bias=False), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    )
    explanation = explain(net, a, b, regions=8, similarity="cosine")
    first = explanation.findings()[0]
    assert set(first.a) & set(patch(2, 1, 3, 3, 12)) and set(first.b) & set(patch(7, 6, 3, 3, 12))
    assert (
        len(set(first.a) - set(patch(1, 0, 5, 5, 12))) == 0 == len(set(first.b) - set(patch(6, 5, 5, 5, 12)))
    )
    total = sum(f.relevance for f in explanation.findings())
    mask = torch.ones_like(explanation.relevance, dtype=torch.bool)
    for f in explanation.findings():
        mask[torch.tensor(f.a)[:, None], torch.tensor(f.b)] = False
    assert total + float(
        explanation.relevance[mask].double().sum()
    ) + explanation.unattributed == pytest.approx(explanation.score)


def test_a_strong_part_and_what_it_leaves_of_a_larger_match_are_one_finding():
    """A wheel within a motorcycle: not the wheel, and around it the rest of the motorcycle."""
    R = np.zeros((64, 64))
    wheel = patch(1, 1, 2, 2), patch(1, 4, 2, 2)
    R[np.ix_(patch(1, 1, 4, 2), patch(1, 4, 4, 2))] = 2.0
    R[np.ix_(*wheel)] = 10.0
    findings = grouping.extract_findings(R, PLANE, PLANE, score=float(R.sum()))
    assert [(f.a, f.b) for f in findings] == [(patch(1, 1, 4, 2), patch(1, 4, 4, 2))]
    assert assert_not_none(findings[0].share) == pytest.approx(1)


def test_findings_stay_where_they_are_when_regions_get_finer():
    """The same picture in patches of 16 and of 8 pixels: the strongest findings cover each other."""
    generator = torch.Generator().manual_seed(0)
    ground = 0.2 * torch.rand(2, 1, 3, 128, 128, generator=generator)
    a, b, _ = paste_patch(
        *ground, patch=torch.rand(3, 40, 40, generator=generator), at_a=(8, 16), at_b=(72, 64)
    )
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 5, stride=2, bias=False), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    )
    fine = explain(net, a, b, regions=8, similarity="cosine")
    coarse = fine.coarsen(grid(16))  # sums of the same relevance
    both = zip(_areas(coarse, coarse.findings(1)[0]), _areas(fine, fine.findings(1)[0]), strict=True)
    assert min(_overlap(one, other) for one, other in both) > 0.5


def _areas(explanation, finding) -> list[np.ndarray]:
    sides = zip((explanation.a, explanation.b), (finding.a, finding.b), strict=True)
    return [np.isin(side.regions.labels[0].numpy(), members) for side, members in sides]


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    return float((one & other).sum() / (one | other).sum())


@pytest.mark.parametrize("box", [(1, 1, 3, 3), (0, 0, 5, 6), (0, 0, 8, 8)], ids=["narrow", "wide", "whole"])
def test_a_part_tells_what_the_whole_tells(box):
    """A part that is hardly more than the block has no rest to measure it against: the whole input is the measure."""
    R = 0.1 * noise(64, 64)
    rows, columns = patch(1, 1, 3, 3), patch(4, 5, 2, 3)
    R[np.ix_(rows, columns)] += 2.0
    part = patch(*box)
    first = grouping.extract_findings(R[part], select_regions(PLANE, part), PLANE, score=100.0)[0]
    assert ([part[n] for n in first.a], first.b) == (rows, columns)


def test_a_match_with_much_of_a_picture_is_not_lost():
    """A face matches all of another animal, and most of all its face: the block ends earlier instead of being dropped."""
    coarse = grid(32)(torch.zeros(1, 1, 224, 224))
    rng = np.random.default_rng(0)
    R = 0.02 * rng.standard_normal((49, 49))
    face, animal, other_face = [16, 17, 23, 24], range(14, 42), [18, 19, 25, 26]
    R[np.ix_(face, animal)] += 0.5
    R[np.ix_(face, other_face)] += 0.5
    first = grouping.extract_findings(R, coarse, coarse, score=float(R.sum()))[0]
    assert first.a == face and set(other_face) <= set(first.b)
    assert first.relevance > 0.15 * R.sum()
