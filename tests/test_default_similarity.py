"""One default similarity: the encoder's own, cosine where it names none, the same for every caller."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import bilrp
from bilrp.encoders import bigram, vgg
from bilrp.errors import InputError, MismatchError
from bilrp.similarity import bilinear, cosine, resolve_similarity


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).requires_grad_(False)


@pytest.mark.parametrize("model", [make_net(), lambda x: x.square(), bilrp.Encoder(make_net())])
def test_a_model_that_names_none_is_compared_by_cosine(model: nn.Module | bilrp.Encoder) -> None:
    a, b = torch.rand(2, 1, 4)
    assert bilrp.explain(model, a, b).similarity == "cosine"
    sides = [bilrp.decompose(model, x) for x in (a, b)]
    assert {side.origin["similarity"] for side in sides} == {"cosine"}
    assert bilrp.pair(sides[0], sides[1]).similarity == "cosine"


@pytest.mark.parametrize("name", ["dot", "cosine", "squared_distance"])
def test_every_caller_uses_the_encoders_own(name: str) -> None:
    encoder = bilrp.Encoder(make_net(), similarity=name)
    a, b = torch.rand(2, 1, 4)
    left, right = (bilrp.decompose(encoder, x) for x in (a, b))
    scores = {
        bilrp.explain(encoder, a, b).score,
        bilrp.pair(left, right).score,
        bilrp.explain_sets([left], [right]).score,
        bilrp.baselines.hessian_product(encoder, a, b).score,
        bilrp.pair(left, right, similarity=name).score,
    }
    assert max(scores) == pytest.approx(min(scores), rel=1e-6)
    if name == "squared_distance":
        with pytest.raises(InputError, match="contrast with similarity='dot'"):
            bilrp.contrast(left, right, left)
        with pytest.raises(InputError, match="explain_many needs similarity='dot' or 'cosine'"):
            bilrp.explain_many([left, right])
    else:
        assert bilrp.contrast(left, right, left).toward.similarity == name
        joint = bilrp.explain_many([left, right])
        assert joint.similarity == name
        assert joint.score == pytest.approx(max(scores), rel=1e-6)


def test_the_similarity_asked_for_comes_first() -> None:
    encoder = bilrp.Encoder(make_net(), similarity="dot")
    a, b = torch.rand(2, 1, 4)
    assert bilrp.explain(encoder, a, b, similarity="cosine").similarity == "cosine"
    assert bilrp.explain(encoder, a, b, similarity=cosine()).similarity == "cosine"


def test_explain_many_by_cosine_adds_up() -> None:
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU()).requires_grad_(False)
    sides = [bilrp.decompose(net, x[None]) for x in torch.rand(3, 4)]
    joint = bilrp.explain_many(sides)
    units = [side.embedding / side.embedding.norm() for side in sides]
    assert joint.score == pytest.approx(float((units[0] * units[1] * units[2]).sum()), rel=1e-5)
    assert joint.unattributed == pytest.approx(0, abs=1e-6)


def test_a_stored_decomposition_remembers_it(tmp_path: Path) -> None:
    encoder = bilrp.Encoder(make_net(), similarity="dot")
    paths = [
        bilrp.decompose(encoder, x[None]).save(tmp_path / f"{n}.npz") for n, x in enumerate(torch.rand(2, 4))
    ]
    assert bilrp.pair(*map(bilrp.Decomposition.load, paths)).similarity == "dot"


def test_two_defaults_need_a_choice() -> None:
    encoder = bilrp.Encoder(make_net(), name="net", similarity="dot")
    left = bilrp.decompose(encoder, torch.rand(1, 4))
    right = bilrp.decompose(replace(encoder, similarity="cosine"), torch.rand(1, 4))
    with pytest.raises(MismatchError, match=r"different similarities \(dot and cosine\): give one"):
        bilrp.pair(left, right)
    assert bilrp.pair(left, right, similarity="dot").similarity == "dot"


def test_a_similarity_with_numbers_of_its_own_is_given_again() -> None:
    encoder = bilrp.Encoder(make_net(), similarity=bilinear(torch.eye(3), "head"))
    a, b = torch.rand(2, 1, 4)
    assert bilrp.explain(encoder, a, b).similarity == "head"
    with pytest.raises(InputError, match="unknown similarity 'head'"):
        bilrp.pair(bilrp.decompose(encoder, a), bilrp.decompose(encoder, b))


def test_the_papers_encoders_use_the_dot_product(random_weights: dict[str, torch.Tensor]) -> None:
    assert vgg.vgg16(5, weights=random_weights).similarity == "dot"
    assert bigram.bigram().similarity == "dot"
    assert resolve_similarity(None, None).name == "cosine"
