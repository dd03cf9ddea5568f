"""Dual encoders: images and texts in one space, what can be paired, what is refused, and runs that begin inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

import bilrp
from bilrp.encoder import DualEncoder, read_item
from bilrp.encoders import clip, vision
from bilrp.errors import InputError, MismatchError
from dual_encoder_folders import PAIRS, Pair

TEXTS = ("A cat sat on the mat.", "Two dogs run through the snow")


def photograph(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((70, 50), Image.Resampling.BILINEAR)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: pair.name)
def saved(request, tmp_path_factory) -> tuple[Pair, Path]:
    return request.param, request.param.save(tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return PAIRS[0].save(tmp_path_factory.mktemp("clip"))


def as_transformers_does(folder: Path, pair: Pair, text: str, image: Image.Image) -> tuple[Tensor, Tensor]:
    """(text, image) embeddings by transformers' own tokenizer, processor and model, compared as it compares them."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = {"padding": "max_length", "max_length": 40} if pair.name == "siglip" else {}
    numbers = tokenizer(text, return_tensors="pt", **padding)["input_ids"]
    pixels = pair.processor()(image, return_tensors="pt")["pixel_values"].double()
    with torch.no_grad():
        result = model(input_ids=numbers, pixel_values=pixels)
    return result.text_embeds[0], result.image_embeds[0]


def test_every_kind(saved: tuple[Pair, Path]) -> None:
    pair, folder = saved
    dual_encoder = clip(folder, dtype=torch.float64)
    expected = as_transformers_does(folder, pair, TEXTS[0], photograph(0))
    for item, tower, embedding in zip(
        (TEXTS[0], photograph(0)), (dual_encoder.text, dual_encoder.image), expected, strict=True
    ):
        push, pull = (bilrp.decompose(tower, item, mode=mode) for mode in ("push", "pull"))
        assert torch.allclose(push.embedding, embedding, rtol=1e-6, atol=1e-6)  # pixels are float32 there
        scale = float(push.parts.abs().max())
        assert scale > 1e-6
        assert float((push.parts - pull.parts).abs().max()) < 1e-9 * scale
        assert torch.allclose(push.parts.sum(0) + push.unattributed, push.embedding, atol=1e-12)
    explanation = bilrp.explain(dual_encoder, photograph(0), TEXTS[0], similarity="dot")
    assert explanation.score == pytest.approx(float(expected[0] @ expected[1]), abs=1e-6)
    assert (
        explanation.a.regions.count == 16
        and explanation.b.regions.names is not None
        and "cat" in explanation.b.regions.names
    )
    assert abs(float(explanation.relevance.sum()) + explanation.unattributed - explanation.score) < 1e-12
    swapped = bilrp.explain(dual_encoder, TEXTS[0], photograph(0), similarity="dot")
    assert torch.allclose(swapped.relevance, explanation.relevance.T, atol=1e-12)
    for a, b in ((photograph(0), photograph(1)), TEXTS):
        assert abs(bilrp.explain(dual_encoder, a, b, similarity="dot").score) <= 1 + 1e-9
        itself = bilrp.explain(dual_encoder, a, a, similarity="dot")
        assert itself.score == pytest.approx(1.0) and torch.allclose(
            itself.relevance, itself.relevance.T, atol=1e-12
        )
    for tower, item in ((dual_encoder.image, photograph(0)), (dual_encoder.text, TEXTS[0])):
        assert not any(row.problem for row in bilrp.ops(tower, item))


def test_spaces_refuse_each_other(folder: Path, tmp_path: Path) -> None:
    dual_encoder, others = clip(folder), clip(PAIRS[0].save(tmp_path, seed=1))
    picture, text = bilrp.decompose(dual_encoder, photograph(0)), bilrp.decompose(others, TEXTS[0])
    with pytest.raises(MismatchError, match="space"):
        bilrp.pair(picture, text, similarity="dot")
    with pytest.raises(MismatchError, match="do not share a space"):
        bilrp.explain((dual_encoder.image, others.text), photograph(0), TEXTS[0], similarity="dot")
    assert bilrp.pair(
        picture, bilrp.decompose(dual_encoder, TEXTS[0]), similarity="dot"
    ).score == pytest.approx(bilrp.explain(dual_encoder, photograph(0), TEXTS[0], similarity="dot").score)
    with pytest.raises(MismatchError, match="space"):
        DualEncoder(dual_encoder.image, others.text)
    unlike = bilrp.decompose(dual_encoder, photograph(1), composite=bilrp.composites.uniform(0.1))
    with pytest.raises(MismatchError, match="composite"):
        bilrp.pair(picture, unlike, similarity="dot")  # one encoder, two composites


def test_a_pair_is_kept_and_read_again(folder: Path, tmp_path: Path) -> None:
    explanation = bilrp.explain(clip(folder), photograph(0), TEXTS[0], similarity="dot")
    second = bilrp.Explanation.load(explanation.save(tmp_path / "why.npz"))
    assert torch.equal(second.relevance, explanation.relevance)
    assert second.b.view is not None and second.summary() == explanation.summary()


def test_each_input_is_read_by_its_encoder(folder: Path, tmp_path: Path, monkeypatch) -> None:
    dual_encoder = clip(folder)
    photograph(0).save(tmp_path / "cat.png")
    (tmp_path / "note.txt").write_text("a cat")
    monkeypatch.chdir(tmp_path)
    for item in ("cat.png", tmp_path / "cat.png", photograph(0), torch.zeros(1, 3, 32, 32)):
        assert dual_encoder.encoder_for(item) is dual_encoder.image
    for text in ("a cat", "cat", "note.txt", "cat.png on a sofa"):
        assert dual_encoder.encoder_for(text) is dual_encoder.text
    with pytest.raises(InputError, match=r"dog\.png: no such image file"):
        dual_encoder.encoder_for("dog.png")
    assert bilrp.explain(dual_encoder, "cat.png", "a cat", similarity="dot").a.name == "cat.png"


def test_two_encoders_that_say_they_share_a_space() -> None:
    torch.manual_seed(0)
    long, short = (nn.Linear(n, 3, bias=False).double().requires_grad_(False) for n in (6, 4))
    first, second = (
        bilrp.Encoder(net, name=name, embedding_space="toy")
        for net, name in ((long, "long"), (short, "short"))
    )
    a, b = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
    explanation = bilrp.explain((first, second), a, b, similarity="dot")
    assert explanation.relevance.shape == (6, 4)
    assert explanation.score == pytest.approx(float(long(a)[0] @ short(b)[0]))
    assert abs(explanation.unattributed) < 1e-12
    with pytest.raises(MismatchError, match="do not share a space"):
        bilrp.explain((first, short), a, b, similarity="dot")
    with pytest.raises(InputError, match="needs two"):
        bilrp.explain((first, second, first), a, b, similarity="dot")  # type: ignore[arg-type]
    saliency = bilrp.baselines.saliency((first, second), a, b)
    assert saliency.relevance.shape == (6, 4)


class Bag(nn.Module):
    """Token numbers in, one vector out; nothing takes embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(torch.relu(self.table(numbers)) * (numbers > 2)[..., None]).sum(1)


def test_a_run_begins_inside_a_model() -> None:
    torch.manual_seed(0)
    net = Bag().double().eval().requires_grad_(False)
    encoder = bilrp.Encoder(net, name="bag", input_layer="table")
    numbers = torch.tensor([[1, 5, 9, 7]]), torch.tensor([[4, 5, 2, 8]])
    push, pull = (bilrp.decompose(encoder, numbers[0], mode=mode) for mode in ("push", "pull"))
    assert push.parts.shape == (4, 3) and torch.allclose(push.embedding, net(numbers[0])[0])
    assert torch.allclose(push.parts, pull.parts, atol=1e-12) and not push.parts[0].any()  # 1 is masked
    assert torch.allclose(push.parts.sum(0), push.embedding)
    assert torch.allclose(push.parts[1], net(torch.tensor([[5]]))[0])
    explanation = bilrp.explain(encoder, *numbers, similarity="dot")
    assert abs(explanation.unattributed) < 1e-12
    assert explanation.score == pytest.approx(float(net(numbers[0])[0] @ net(numbers[1])[0]))
    assert [row.problem for row in bilrp.ops(encoder, numbers[0])].count(None) == len(
        bilrp.ops(encoder, numbers[0])
    )
    assert not net.table._forward_hooks and net.table.forward.__func__ is nn.Embedding.forward


@pytest.mark.parametrize(("start", "said"), [("tabel", "use 'table'"), ("relu", "no module")])
def test_an_unknown_input_layer_raises_an_error(start: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        bilrp.decompose(bilrp.Encoder(Bag(), input_layer=start), torch.tensor([[3]]))
    with pytest.raises(InputError, match=r"not an nn\.Module"):
        bilrp.decompose(bilrp.Encoder(lambda x: x, input_layer="table"), torch.tensor([[3]]))


def test_a_start_made_of_others_is_refused() -> None:
    """Its first weights are used before its output is there: explaining from those would be another question."""
    inner = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))
    net = nn.Sequential(inner, nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(InputError, match=r"consists of others \(0.0, 0.1\)"):
        bilrp.decompose(bilrp.Encoder(net, input_layer="0"), torch.tensor([[3, 5]]))
    assert bilrp.decompose(bilrp.Encoder(net, input_layer="0.1"), torch.tensor([[3, 5]])).parts.shape == (
        2,
        2,
    )


def test_the_start_of_clips_text_tower(folder: Path) -> None:
    class Texts(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.text_model, self.text_projection = model.text_model, model.text_projection

        def forward(self, numbers: Tensor) -> Tensor:
            return self.text_projection(self.text_model(input_ids=numbers).pooler_output)

    model = transformers.CLIPModel.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = bilrp.Encoder(Texts(model).eval(), input_layer="text_model.embeddings.token_embedding")
    numbers = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    ours = bilrp.decompose(clip(folder, normalize=False, regions="tokens", dtype=torch.float64), TEXTS[0])
    decomposition = bilrp.decompose(encoder, numbers)
    assert torch.allclose(decomposition.parts, ours.parts, atol=1e-12)
    assert read_item(encoder, numbers).model_input is numbers


def test_bad_folders_cost_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        clip(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"has no config\.json"):
        clip(tmp_path)
    with pytest.raises(InputError, match=r"use bilrp\.encoders\.clip"):
        vision(folder)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(InputError, match="are not supported as image-text encoders"):
        clip(tmp_path)
