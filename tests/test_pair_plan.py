"""A pair by its smaller side: the parts of the smaller input are pulled through the larger one, and equal what both give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bilrp
from bilrp import composites, explanation, similarity
from bilrp.encoder import read_item
from bilrp.errors import MismatchError
from text_folders import ARCHITECTURES

SHORT, LONG = "A cat sat.", "Two dogs run through the snow; one jumps. " * 5
WHITENING = torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> bilrp.Encoder:
    folder = ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"))
    return bilrp.encoders.sentence(folder, dtype=torch.float64, max_seq_length=60)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parts were computed, one number of regions for each time."""
    counts: list[int] = []
    execute = bilrp.pipeline.PreparedInput.plan_and_execute

    def counted(self: Any, regions: Any, **options: Any) -> Any:
        counts.append(regions.count)
        return execute(self, regions, **options)

    monkeypatch.setattr(bilrp.pipeline.PreparedInput, "plan_and_execute", counted)
    return counts


def distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


@pytest.mark.parametrize(
    "chosen", ["cosine", "dot", similarity.bilinear(WHITENING)], ids=["cosine", "dot", "bilinear"]
)
@pytest.mark.parametrize("composite", [None, composites.uniform(0.0)], ids=["centered", "zero"])
@pytest.mark.parametrize("texts", [(SHORT, LONG), (LONG, SHORT)], ids=["small first", "large first"])
def test_it_is_the_product_of_both_parts(
    encoder: Any, chosen: Any, composite: Any, texts: Any, runs: Any
) -> None:
    items = [read_item(encoder, text) for text in texts]
    pulled = explanation.explain_items(encoder, *items, similarity=chosen, composite=composite)
    assert len(runs) == 1  # those of the short text
    both = explanation.explain_items(encoder, *items, similarity=chosen, composite=composite, keep_parts=True)
    assert len(runs) == 3
    assert distance(pulled.relevance, both.relevance) < 1e-9 * max(1.0, float(both.relevance.abs().max()))
    assert pulled.score == both.score
    assert pulled.breakdown.unattributed == pytest.approx(both.breakdown.unattributed, abs=1e-9)
    assert pulled.reference_score == both.reference_score
    for ours, theirs in zip(pulled.reference_terms or (), both.reference_terms or (), strict=True):
        assert distance(ours, theirs) < 1e-9


def test_the_parts_of_the_larger_input_are_computed_when_they_are_read(
    encoder: Any, runs: Any, tmp_path: Path
) -> None:
    pulled = bilrp.explain(encoder, SHORT, LONG)
    assert pulled.summary()
    assert len(runs) == 1
    apart = bilrp.decompose(encoder, LONG)
    assert distance(pulled.b.parts, apart.parts) == 0
    assert len(runs) == 3
    assert distance(pulled.b.unattributed, apart.unattributed) < 1e-12
    loaded = bilrp.Explanation.load(pulled.save(tmp_path / "pair.npz"))
    assert distance(loaded.b.parts, apart.parts) == 0
    assert len(runs) == 3


def test_parts_of_other_weights_are_refused(encoder: Any) -> None:
    pulled = bilrp.explain(encoder, SHORT, LONG)
    weight = next(encoder.module.parameters())
    before = weight.detach().clone()
    with torch.no_grad():
        weight += 1
        with pytest.raises(MismatchError, match=r"explain again.*weights"):
            _ = pulled.b.parts
        weight.copy_(before)
    assert pulled.b.parts.shape == (pulled.b.regions.count, 16)


def test_where_it_does_not_apply_both_are_decomposed(encoder: Any, runs: Any) -> None:
    bilrp.explain(encoder, SHORT, LONG, similarity="squared_distance")
    bilrp.explain(encoder, SHORT, LONG, project=5)
    bilrp.explain(encoder, SHORT, "A cat sat on the mat.")  # about as long
    assert len(runs) == 6


def test_inputs_of_sizes_that_do_not_fit_are_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
    with pytest.raises(MismatchError, match="12 and 4 coordinates"):
        bilrp.explain(net, torch.rand(1, 1, 8), torch.rand(1, 1, 4))
