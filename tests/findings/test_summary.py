"""The summary: its numbers are the explanation's, and warnings appear only where they apply."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import bilrp
from bilrp.findings import formatting, random_baseline
from bilrp.findings.grouping import Finding
from bilrp.findings.special_tokens import select_regions
from bilrp.findings.summary import describe_verdict, list_warnings, summarize
from bilrp.inputs import Image, Text
from bilrp.regions import Regions, grid, labels, tokens
from bilrp.render import findings_figure as findings
from type_asserts import assert_not_none


def make_net(bias: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def make_explanation(seed: int = 0, **options) -> bilrp.Explanation:
    torch.manual_seed(seed)
    a, b = 0.2 * torch.rand(2, 1, 3, 64, 64)
    a[..., 8:24, 8:24] *= 10
    b[..., 40:56, 24:40] *= 10
    options.setdefault("similarity", "dot")
    return bilrp.explain(make_net(), a, b, regions=8, **options)


@pytest.mark.parametrize("similarity", ["dot", "cosine", "squared_distance"])
def test_the_cosine_and_the_score_are_there_and_true(similarity):
    e = make_explanation(similarity=similarity)
    a, b = e.a.embedding.double(), e.b.embedding.double()
    verdict = describe_verdict(e)
    assert f"osine {formatting.format_number(float(torch.cosine_similarity(a, b, dim=0)))}" in verdict
    assert e.summary().startswith(verdict)
    if similarity != "cosine":
        assert f"{similarity.replace('_', ' ')} {formatting.format_number(e.score)}" in verdict


def test_the_first_findings_are_named_by_number_with_their_shares():
    e = make_explanation()
    first = e.findings()[0]
    assert first.relevance == pytest.approx(float(e.relevance[first.a][:, first.b].double().sum()))
    assert f"Carried by match 1 ({formatting.format_share(assert_not_none(first.share))})" in e.summary()
    assert not re.search(r" px|upper|lower|middle|bottom", e.summary()), "no sizes and directions of images"


def test_what_counts_against_and_what_is_unattributed():
    e = make_explanation()
    R = e.relevance.clone()
    R[0, 0] -= 0.3 * e.score
    for_it, against = (float(part.sum()) for part in (R.double().clamp(min=0), R.double().clamp(max=0)))
    summary = replace(e, relevance=R).summary()
    rest = formatting.format_number(e.score - for_it - against)
    assert (
        f"In the score of {formatting.format_number(e.score)}, matching regions add {formatting.format_number(for_it)}, "
        f"others take away {formatting.format_number(-against)}, {rest} (30 %) is unattributed." in summary
    )
    assert "nothing is unattributed" in e.summary()


def test_self_terms_of_a_distance_set_the_two_apart():
    e = make_explanation(similarity="squared_distance")
    assert e.self_terms is not None
    far = replace(e, score=10 * assert_not_none(e.breakdown.scale))  # not near zero: shares
    apart = float(e.relevance.double().clamp(min=0).sum() + sum(w.double().sum() for w in e.self_terms))
    summary = far.summary()
    assert f"regions that differ add {formatting.format_number(apart)}, " in summary
    alike = float(e.relevance.double().clamp(max=0).sum())
    assert f"regions that are alike take away {formatting.format_number(-alike)}" in summary
    assert re.search(r"Most alike: .+ \(−[\d,.]+ %\)", summary), "it lowers the distance"


def test_the_warning_about_the_unattributed_comes_first():
    e = make_explanation()
    summary = replace(e, score=3 * e.score).summary()
    assert summary.index("Warning: more than half of the score is unattributed.") < summary.index(
        "Carried by"
    )
    assert "more than half" not in e.summary()


def test_a_projection_is_an_estimate_with_its_error():
    """The error is right: over many seeds the estimate strays from the exact score by what the sentence says."""
    generator = torch.Generator().manual_seed(1)
    a, b = torch.rand(2, 200, dtype=torch.float64, generator=generator)
    exact = float(a @ b)
    estimates, errors = [], []
    for seed in range(300):
        w = bilrp.similarity.random_projection(20, 200, seed=seed, like=a)
        estimates.append(float((w @ a) @ (w @ b)))
        errors.append(np.hypot(float((w @ a).norm() * (w @ b).norm()), estimates[-1]) / np.sqrt(20))
    assert np.std(np.array(estimates) - exact) == pytest.approx(np.mean(errors), rel=0.15)
    e = make_explanation(project=5)
    summary = e.summary()
    p, q = e.a.embedding.double(), e.b.embedding.double()
    error = np.hypot(float(p.norm() * q.norm()), float(p @ q)) / np.sqrt(5)
    assert summary.startswith(
        f"Estimated dot {formatting.format_number(e.score)} ± {error:.2g} (5 random dimensions, not exact)"
    )


def test_a_score_of_zero_has_no_shares():
    net = nn.Linear(4, 4, bias=False)
    nn.init.eye_(net.weight)
    e = bilrp.explain(net, torch.eye(4)[:1], torch.eye(4)[1:2], similarity="dot")
    assert e.score == 0 and e.findings() == []
    assert "%" not in e.summary()


def test_a_score_near_zero_has_relevance_in_units_of_the_score_and_no_shares():
    e = make_explanation()
    small = replace(e, score=0.04 * assert_not_none(e.breakdown.scale))
    assert small.breakdown.is_near_zero and not e.breakdown.is_near_zero
    assert all(finding.share is None for finding in small.findings())
    summary = small.summary()
    assert "%" not in summary
    assert f"match 1 ({formatting.format_signed(small.findings()[0].relevance)})" in summary
    assert f"In the score of {formatting.format_number(small.score)} (near zero), " in summary
    assert "unattributed" in summary and "more than half" not in summary


def test_inputs_that_are_the_same_are_called_so():
    e = make_explanation()
    assert describe_verdict(bilrp.pair(e.a, e.a)).startswith("Practically the same picture to the model (")


def test_the_border_is_named_where_it_has_more_than_its_area():
    e = make_explanation()
    assert "border" not in e.summary()
    R = torch.zeros_like(e.relevance)
    R[:8, 9] = 1.0
    summary = replace(e, relevance=R, score=8.0).summary()
    assert "100 % of the relevance is on the border of A, 44 % of its area" in summary
    assert "border of B" not in summary


def test_one_region_that_dominates_is_named():
    e = make_explanation()
    R = torch.full_like(e.relevance, 0.001)
    R[27] = 1.0
    summary = replace(e, relevance=R, score=float(R.sum())).summary()
    assert re.search(r"One region of A \(x \d+–\d+ %, y \d+–\d+ %\) has 9\d % of the relevance", summary)
    assert "ne region of B" not in summary


def test_nothing_stands_out_in_an_even_spread():
    rng = torch.Generator().manual_seed(0)
    e = bilrp.explain(make_net(), *torch.rand(2, 1, 3, 256, 256, generator=rng), regions=8, similarity="dot")
    R = torch.rand(e.relevance.shape, generator=rng)
    even = replace(e, relevance=R, score=float(R.sum()))
    assert "Nothing stands out" in even.summary()
    assert "Nothing stands out" not in make_explanation().summary()


def test_words_are_quoted_and_places_of_other_regions_are_numbers():
    x = torch.rand(1, 3, 6)
    e = bilrp.explain(
        lambda t: t.mean(1),
        x,
        x,
        regions=(tokens(("a", "black", "cat")), tokens(("the", "cat", "sat"))),
        similarity="dot",
    )
    assert re.search(r"“[a-z … ]+” with “[a-z … ]+” \(", e.summary())
    plain = bilrp.explain(nn.Linear(4, 2), *torch.rand(2, 1, 4), similarity="dot")
    assert "region" in plain.summary()


def test_segments_have_places():
    mask = torch.zeros(32, 32, dtype=torch.long)
    mask[:10, 20:], mask[20:] = 1, 2
    regions = labels(mask)(torch.zeros(1, 3, 32, 32))
    assert formatting.describe_location(regions, None, [1]) == "x 62–100 %, y 0–31 %"
    assert formatting.describe_location(regions, None, [2]) == "x 0–100 %, y 62–100 %"
    assert formatting.describe_location(regions, None, [0, 1, 2]) == "x 0–100 %, y 0–100 %"


def test_random_pairs_say_how_much_is_much():
    e = make_explanation()
    small = e.a.embedding.clone()
    small[0] *= 30  # a cosine below 0.99
    e = replace(e, a=replace(e.a, embedding=small))
    cosine = float(torch.cosine_similarity(e.a.embedding, e.b.embedding, dim=0))
    assert "more than any of 3 random pairs" in e.summary(random_scores=[-0.1, -0.2, -0.3])
    assert e.summary(random_scores=[-0.1, -0.2, -0.3]).startswith("Very similar")
    assert "no more than usual among 2 random pairs" in e.summary(random_scores=[cosine - 0.2, cosine + 0.1])
    assert "less than any of 1 random pair;" in e.summary(random_scores=[1.1])
    assert e.summary(random_scores=[1.1]).startswith("Not similar")
    assert "random" not in e.summary() and "1 is the same" in e.summary()


@pytest.mark.parametrize(
    ("percentile", "verdict"),
    [
        (0, "Not similar"),
        (60, "Not similar"),
        (80, "Slightly similar"),
        (96, "Similar"),
        (99.5, "Very similar"),
    ],
)
def test_verdicts_follow_the_percentile(percentile, verdict):
    cosines = np.linspace(0, 1, 1001)
    word, comparison = random_baseline.judge(
        percentile / 100 + 1e-6, random_baseline.compute_baseline(cosines)
    )
    assert word == verdict
    assert "1,001 random pairs" in comparison


def test_a_part_is_not_compared_with_whole_photographs(monkeypatch):
    monkeypatch.setattr(
        random_baseline, "look_up_baseline", lambda *_: random_baseline.compute_baseline([-1.0] * 2)
    )
    e = make_explanation()
    small = e.a.embedding.clone()
    small[0] *= 30
    e = replace(e, a=replace(e.a, embedding=small))
    assert "random pairs" in e.summary()
    part = replace(e.a, regions=select_regions(e.a.regions, [3, 4]), parts=e.a.parts[[3, 4]])
    assert "random pairs" not in replace(e, a=part, relevance=e.relevance[[3, 4]]).summary()


def test_long_texts_are_compared_with_paragraphs():
    def make_side(words: int) -> bilrp.Decomposition:
        regions = tokens(("word",) * words)(torch.zeros(1, words, 3))
        spans = tuple((5 * n, 5 * n + 4) for n in range(words))
        view = Text(" ".join(["word"] * words), spans)
        origin = {"encoder": "minilm", "weights": "f575070ab52cf231"}
        parts = torch.rand(words, 3, generator=torch.Generator().manual_seed(words))
        embedding = torch.tensor([1.0, 10 / words, words / 40])
        return bilrp.Decomposition(parts, embedding, regions, origin, view=view)

    short, longer = make_side(6), make_side(31)
    assert "pairs of unrelated sentences" in bilrp.pair(short, make_side(12), similarity="cosine").summary()
    mixed = bilrp.pair(short, longer, similarity="cosine")
    assert "1,200 pairs of a sentence and an unrelated paragraph" in mixed.summary()
    assert (
        "190 pairs of unrelated paragraphs"
        in bilrp.pair(longer, make_side(80), similarity="cosine").summary()
    )
    unknown = replace(longer, origin={"encoder": "mine", "weights": "0"})
    assert "unrelated" not in bilrp.pair(unknown, unknown, similarity="cosine").summary()


def test_a_negation_in_one_sentence_is_said():
    def make_side(text: str) -> bilrp.Decomposition:
        words = text.split()
        starts = [len(" ".join(words[:n])) + (n > 0) for n in range(len(words))]
        spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
        regions = tokens(tuple(words))(torch.zeros(1, len(words), 3))
        parts = torch.rand(len(words), 3, generator=torch.Generator().manual_seed(1))
        return bilrp.Decomposition(parts, parts.sum(0), regions, {"weights": "0"}, view=Text(text, spans))

    plain, negated = make_side("The drug is safe"), make_side("The drug isn't safe")
    warning = bilrp.pair(plain, negated, similarity="cosine").summary()
    assert "Only B has “n't”" in warning and "not that they agree" in warning
    for same in (plain, negated):
        assert "Only" not in bilrp.pair(same, same, similarity="cosine").summary()


def test_a_cosine_far_above_all_random_pairs_is_nearly_the_same():
    scores = [0.1, 0.2, 0.5]
    e = make_explanation()
    for cosine, verdict in ((0.9, "Nearly the same"), (0.8, "Very similar")):
        a = torch.zeros_like(e.a.embedding)
        a[0] = 1.0
        b = a.clone()
        b[1] = (1 / cosine**2 - 1) ** 0.5
        explanation = replace(
            e, a=replace(e.a, embedding=a), b=replace(e.b, embedding=b), similarity="cosine", score=cosine
        )
        assert explanation.summary(random_scores=scores).startswith(verdict)


@pytest.mark.data
def test_the_stored_baseline_is_what_the_photographs_give(data):
    from bilrp.encoder import read_tensor
    from bilrp.encoders.vgg import vgg16

    encoder = vgg16(31, weights=data / "vgg16" / "vgg16_features.safetensors")
    files = sorted((data / "pascal_voc" / "images").glob("*.jpg"))[::4]
    inputs = [read_tensor(encoder, path) for path in files]
    rows = torch.stack([encoder.module(x).flatten() for x in inputs])
    cosines = nn.functional.normalize(rows) @ nn.functional.normalize(rows).T
    pairs = cosines[tuple(torch.triu_indices(len(rows), len(rows), 1))]
    explanation = bilrp.explain(encoder, inputs[0], inputs[1], regions=64, similarity="dot")
    baseline = random_baseline.look_up_baseline(explanation.a.origin, (128, 128), (128, 128))
    assert baseline is not None and baseline.pair_count == 2016
    assert random_baseline.look_up_baseline(explanation.a.origin, (96, 96)) is None
    middle = random_baseline.compute_baseline(pairs.tolist()).quantiles[4]
    assert middle == pytest.approx(baseline.quantiles[4], abs=0.03)
    comparison = "random pairs of everyday photographs"
    assert comparison in explanation.summary()
    for resize, compared in (("stretch", True), ("crop", False), ("pad", False)):
        encoder = vgg16(31, weights=data / "vgg16" / "vgg16_features.safetensors", resize=resize)
        assert (
            comparison in bilrp.explain(encoder, files[1], files[2], regions=64, similarity="dot").summary()
        ) is compared


def test_matches_of_an_image_are_numbered_as_on_its_cards():
    e = make_explanation()
    R = torch.zeros_like(e.relevance)
    R[27, 27], R[36, 36], R[0, 0] = 3.0, -2.0, 1.0
    findings = [Finding([27], [27], 3.0, 1.5), Finding([36], [36], -2.0, -1.0), Finding([0], [0], 1.0, 0.5)]
    summary = summarize(replace(e, relevance=R, score=2.0), findings)
    assert "Carried by match 1 (150 %) and match 3 (50 %)." in summary


def test_the_list_for_pages_is_the_findings():
    e = make_explanation()
    for entry, finding in zip(findings.serialize_findings(e), e.findings(), strict=True):
        assert (entry["a"], entry["b"], entry["relevance"]) == (finding.a, finding.b, finding.relevance)
        assert re.fullmatch(r"x \d+–\d+ %, y \d+–\d+ % ↔ x \d+–\d+ %, y \d+–\d+ %", entry["label"])
    assert summarize(e, e.findings()) == e.summary()
    (warning,) = list_warnings(e, e.findings())
    assert "never measured for images under the rules uniform(0.25)" in warning


@pytest.mark.parametrize(
    ("composite", "is_said"),
    [
        ("transformer(0)", True),
        ("centered(transformer(0))", True),
        ("conv_attention(0.25)", True),
        ("centered(graded())", False),
        ("uniform(0.5)", False),  # of the encoder of tables, which is measured
        ("uniform(0.25", False),  # a name like a default's
        ("paper_vgg", False),
    ],
)
def test_rules_without_evidence_on_images_are_said(composite: str, is_said: bool) -> None:
    """Of a picture, or of a picture and a text; the rules of texts were measured."""
    view, text = Image(np.zeros((8, 8, 3), np.uint8), (0.0, 0.0, 8.0, 8.0)), Text("a cat", ((0, 1), (2, 5)))
    regions = grid(4)(torch.zeros(1, 3, 8, 8))
    picture = bilrp.Decomposition(
        torch.rand(4, 6), torch.rand(6), regions, {"encoder": "x", "composite": composite}, view=view
    )
    for other in (picture, replace(picture, view=text)):
        warnings = list_warnings(bilrp.pair(picture, other, similarity="dot"), [])
        assert any("never measured for images" in each for each in warnings) == is_said
    texts = replace(picture, view=text)
    warnings = list_warnings(bilrp.pair(texts, texts, similarity="dot"), [])
    assert not any("never measured" in each for each in warnings)


def test_special_tokens_are_not_findings() -> None:
    torch.manual_seed(0)
    regions = Regions(labels=torch.arange(4), count=4, kind="tokens", names=("[CLS]", "a", "cat", "[SEP]"))
    view = Text("a cat", (None, (0, 1), (2, 5), None))
    side = bilrp.Decomposition(torch.rand(4, 6) + 1, torch.rand(6) + 5, regions, {"encoder": "x"}, view=view)
    explanation = bilrp.pair(side, side, similarity="dot")
    assert all({*f.a, *f.b} <= {1, 2} for f in explanation.findings()) and explanation.findings()
    assert "“”" not in explanation.summary() and "[SEP]" not in explanation.summary()
    rest = float(explanation.relevance.sum()) - sum(f.relevance for f in explanation.findings(99))
    assert rest > 0  # special tokens are in the breakdown


@pytest.mark.slow
def test_the_stored_baseline_of_sentences_is_what_the_sentences_give():
    from bilrp.encoder import read_item

    minilm = bilrp.encoders.load("minilm")
    sentences = minilm.typical_inputs
    items = [read_item(minilm, sentence) for sentence in sentences]
    rows = torch.stack([minilm.forward_fn(item.model_input)(item.x).flatten() for item in items]).detach()
    unit = nn.functional.normalize(rows)
    pairs = (unit @ unit.T)[tuple(torch.triu_indices(len(rows), len(rows), 1))]
    e = bilrp.explain(minilm, sentences[0], sentences[1])
    baseline = assert_not_none(random_baseline.look_up_baseline(e.a.origin))
    assert baseline.pair_count == len(pairs) == 1770
    assert random_baseline.compute_baseline(pairs.tolist()).quantiles == pytest.approx(
        baseline.quantiles, abs=2e-3
    )
    assert "1,770 pairs of unrelated sentences" in e.summary()


@pytest.mark.slow
def test_the_word_that_was_changed_is_the_first_difference():
    for a, b, words in (
        ("The drug is safe.", "The drug is not safe.", {"not"}),
        ("A dog runs in the park.", "A dog runs in the big park.", {"big"}),
        ("I love this film.", "I hate this film.", {"love", "hate"}),  # either: one replaced the other
    ):
        e = bilrp.explain("minilm", a, b)
        first = e.differences()[0]
        names = assert_not_none((e.a if first.side == "a" else e.b).regions.names)
        assert len(first.regions) == 1 and names[first.regions[0]] in words
