"""Sentence, table, JSON and page payload of 200 random results hold the same numbers."""

from __future__ import annotations

import random
import re
from typing import Any

import torch

import bilrp
from bilrp.answers.explanations import build_explain
from bilrp.cli import terminal
from bilrp.findings.formatting import format_number, format_share, format_signed
from bilrp.inputs import Text
from bilrp.regions import NUMBERS, Regions, grid
from bilrp.render import page

RESULTS = 200


def make_text(draw: random.Random, size: int) -> bilrp.Decomposition:
    count = draw.randint(2, 6)
    names = ("[CLS]", *(f"w{n}" for n in range(count)), "[SEP]")
    spans = (None, *((3 * n, 3 * n + 2) for n in range(count)), None)
    view = Text(" ".join(names[1:-1]), spans)
    regions = Regions(labels=torch.arange(count + 2), count=count + 2, kind="tokens", names=names)
    return make_side(draw, regions, size, view)


def make_image(draw: random.Random, size: int) -> bilrp.Decomposition:
    return make_side(draw, grid(8)(torch.zeros(1, 3, 32, 32)), size, None)


def make_table(draw: random.Random, size: int) -> bilrp.Decomposition:
    count = draw.randint(3, 8)
    labels = torch.arange(32 * 64).reshape(1, 32, 64) // (32 * 64 // (count + 1))
    names = (*(str(draw.randint(10, 14)) for _ in range(count)), "rest of the page")
    regions = Regions(labels.clamp(max=count), count + 1, NUMBERS, names=names)
    return make_side(draw, regions, size, None)


def make_side(draw: random.Random, regions: Regions, size: int, view: Text | None) -> bilrp.Decomposition:
    generator = torch.Generator().manual_seed(draw.randrange(10**6))
    spread = draw.choice([0.02, 0.3, 1.0])
    common = torch.full((size,), draw.choice([0.0, 0.0, 0.1, 1.0]), dtype=torch.float64)
    parts = common + spread * torch.randn(regions.count, size, generator=generator, dtype=torch.float64)
    rest = draw.choice([0.0, 0.1, 1.0]) * torch.randn(size, generator=generator, dtype=torch.float64)
    return bilrp.Decomposition(parts, parts.sum(0) + rest, regions, {"encoder": "random"}, view=view)


def test_sentence_table_json_and_page_hold_the_same_numbers() -> None:
    draw = random.Random(0)
    near_zero = 0
    for _ in range(RESULTS):
        make = draw.choice([make_text, make_image, make_table])
        size = draw.randint(3, 12)
        similarity = draw.choice(["dot", "cosine", "squared_distance"])
        e = bilrp.pair(make(draw, size), make(draw, size), similarity=similarity)
        about: Any = build_explain(e, names=("a", "b"), encoder="random")
        payload, printed = page.build_payload(e), " ".join(terminal.format_summary(about).split())
        summary = about["summary"]
        near_zero += about["near_zero"]

        # the page has the numbers of the JSON
        breakdown = payload["breakdown"]
        for ours, theirs in (("positive", "positive"), ("negative", "negative"), ("score", "score")):
            assert breakdown[theirs] == about[ours]
        assert breakdown["unattributed"] == about["unattributed"]
        assert breakdown.get("special_tokens", 0.0) == about["special_tokens"]
        assert payload["summary"] == summary and payload["verdict"] == about["verdict"]
        assert summary.startswith(about["verdict"]) and payload["near_zero"] == about["near_zero"]
        pairs = zip(payload["findings"], about["findings"], strict=True)
        assert all((p["relevance"], p["share"]) == (f["relevance"], f["share"]) for p, f in pairs)
        theirs = [(d["side"], d["contribution"], d["share"]) for d in payload["differences"]]
        assert theirs == [(d["side"], d["contribution"], d["share"]) for d in about["differences"]]

        # the sentence and the table have the JSON's numbers, by one rounding
        assert f"{similarity.replace('_', ' ')} {format_number(about['score'])}" in summary.lower()
        said = {
            "negative": r"are alike take away (\S+), ",
            "special_tokens": r"special tokens (?:add|take away) (\S+), ",
        }
        if similarity == "squared_distance":
            apart = about["positive"] + about["self_terms"]
            assert re.search(rf" that differ add {re.escape(format_number(apart))}, ", summary)
        else:
            assert re.search(rf"matching \w+ add {re.escape(format_number(about['positive']))}, ", summary)
            said["negative"] = r"others take away (\S+), "
        said["unattributed"] = r", (\S*\d)(?: \(\S+ %\))? is unattributed"
        for name, phrase in said.items():
            for number in re.findall(phrase, summary):
                value = about[name] if name == "unattributed" else abs(about[name])
                assert number == format_number(value)
        named = [f for f in about["findings"] if (f["relevance"] < 0) == (similarity == "squared_distance")][
            :3
        ]
        for finding in named:
            share = finding["share"]
            said = format_signed(finding["relevance"]) if share is None else format_share(share)
            assert f"({said})" in summary
        if make is make_table:
            assert all(
                str(len(about["numbers"]) or "No") in text
                for text in (summary, payload["matches_text"]["text"])
            )
            total = sum(match["relevance"] for match in about["numbers"])
            said = format_signed(total) if about["near_zero"] else format_share(total / about["score"])
            assert not about["numbers"] or f"({said}" in summary
        for percentile in re.findall(r"(?:more|less) than (?:any|\d+ %)(.*)", about["verdict"]):
            assert re.match(r" of [\d,]+ .*pair", percentile), "no percentile without its set"
        if about["near_zero"]:
            sentences = summary.split(" One region of")[0]  # shares of the relevance, not of the score
            assert "%" not in sentences.split(" border")[0] or "of the relevance" in sentences
            assert all(about[f"{name}_share"] is None for name in ("positive", "negative", "explained"))
            assert all(f["share"] is None for f in about["findings"])
        else:
            assert f"{format_share(about['positive_share'])}" in printed
            assert f"{format_share(about['negative_share'])}" in printed
        for difference in about["differences"][:3]:
            if difference["share"] >= 0.005:
                assert f"({format_share(difference['share'])})" in about["differs_most"]
    assert RESULTS / 20 < near_zero < RESULTS, "both kinds occur"
