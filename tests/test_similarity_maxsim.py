"""Late interaction: the best token of b for each of a, held constant, on pairs of regions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bilrp
from bilrp.encoders import sentence
from bilrp.errors import InputError
from bilrp.similarity import maxsim
from text_folders import ARCHITECTURES


def by_loops(
    a: torch.Tensor, b: torch.Tensor, p: torch.Tensor, q: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """Score and relevance with explicit loops; a, b (tokens, width), p, q (regions, tokens, width)."""
    score, relevance = 0.0, torch.zeros(len(p), len(q), dtype=p.dtype)
    for i in range(len(a)):
        products = [float(a[i] @ b[j]) for j in range(len(b))]
        best = products.index(max(products))
        score += products[best]
        for one in range(len(p)):
            for other in range(len(q)):
                relevance[one, other] += p[one, i] @ q[other, best]
    return score, relevance


def test_score_and_relevance_by_loops() -> None:
    a, b = torch.randn(4, 3, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    p, q = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(5, 6, 3, dtype=torch.float64)
    score, relevance = by_loops(a, b, p, q)
    result = maxsim(3)
    assert result.score(a.flatten(), b.flatten()) == pytest.approx(score)
    torch.testing.assert_close(
        result.relevance(p.flatten(1), q.flatten(1), a.flatten(), b.flatten()), relevance
    )


def test_ties_share_equally() -> None:
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0, 2.0, 5.0])
    q = torch.eye(4)
    assert maxsim(2).relevance(a[None], q, a, b).tolist() == [[0.5, 0.0, 0.5, 0.0]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> bilrp.Encoder:
    folder: Path = ARCHITECTURES[0].save(tmp_path_factory.mktemp("bert"))
    return sentence(folder, pooling="tokens", normalize=True, dtype=torch.float64)


def test_token_embeddings_of_different_lengths(encoder: bilrp.Encoder, tmp_path: Path) -> None:
    texts = "Two kittens rested.", "The cat sat on a rug, unbelievably."
    explanation = bilrp.explain(encoder, *texts, similarity="maxsim")
    assert explanation.a.embedding.shape != explanation.b.embedding.shape
    width = 16
    a, b = (d.embedding.reshape(-1, width) for d in (explanation.a, explanation.b))
    p, q = (d.parts.reshape(len(d.parts), -1, width) for d in (explanation.a, explanation.b))
    score, relevance = by_loops(a, b, p, q)
    assert explanation.score == pytest.approx(score)
    torch.testing.assert_close(explanation.relevance, relevance)
    assert explanation.score == pytest.approx(float(explanation.relevance.sum()) + explanation.unattributed)
    loaded = [
        bilrp.Decomposition.load(d.save(tmp_path / f"{k}.npz"))
        for k, d in enumerate((explanation.a, explanation.b))
    ]
    second = bilrp.pair(*loaded, similarity="maxsim")
    torch.testing.assert_close(second.relevance, explanation.relevance)


def test_what_does_not_fit_says_so(encoder: bilrp.Encoder) -> None:
    pooled = torch.nn.Linear(4, 3)
    with pytest.raises(InputError, match="does not pool"):
        bilrp.explain(pooled, torch.rand(1, 4), torch.rand(1, 4), similarity="maxsim")
    with pytest.raises(InputError, match="does not pool"):
        bilrp.explain(encoder, "A cat.", "A dog.", similarity="maxsim", project=4)
    with pytest.raises(InputError, match="cannot be split into vectors"):
        maxsim(3).score(torch.rand(4), torch.rand(6))
    with pytest.raises(InputError, match=r"maxsim\(width\)"):
        maxsim().score(torch.rand(4), torch.rand(4))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_an_explanation_of_inputs_of_two_lengths_is_stored_and_loaded(suffix: str, tmp_path: Path) -> None:
    encoder = bilrp.Encoder(torch.nn.Linear(4, 3), name="tokens")
    x, y = torch.randn(1, 5, 4), torch.randn(1, 7, 4)
    for similarity, a, b in (("maxsim", x, y), (maxsim(3), x.flatten(1)[:, :4], y.flatten(1)[:, :4])):
        explanation = bilrp.explain(encoder, a, b, similarity=similarity)
        loaded = bilrp.Explanation.load(explanation.save(tmp_path / f"why{suffix}"))
        assert torch.equal(loaded.relevance, explanation.relevance) and loaded.score == explanation.score
