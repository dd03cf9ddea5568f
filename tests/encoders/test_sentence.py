"""Sentence encoders from folders: every architecture, the laws of decompositions, what files say, what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import bilrp
from bilrp.composites import transformer
from bilrp.encoders import sentence
from bilrp.errors import BilrpError, InputError
from bilrp.inputs import Item, Text
from text_folders import ARCHITECTURES, CORPUS, Architecture, sentence_transformers, write_json

BERT = ARCHITECTURES[0]
TEXTS = ("The cat sat on a rug, unbelievably.", "Two kittens rested.")


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda architecture: architecture.name)
def saved(request, tmp_path_factory) -> tuple[Architecture, Path]:
    return request.param, request.param.save(tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return BERT.save(tmp_path_factory.mktemp("bert"))


def load(folder: Path, **options: Any) -> bilrp.Encoder:
    return sentence(folder, dtype=torch.float64, **options)


def as_transformers_does(
    folder: Path, texts: list[str], pooling: str, *, encoder_only: bool = False
) -> Tensor:
    """Embeddings by transformers' own tokenizer and model: a padded batch, masks, pooling by hand."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    maker = transformers.AutoModelForTextEncoding if encoder_only else transformers.AutoModel
    model = maker.from_pretrained(folder, dtype=torch.float64).eval()
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].double()
    if pooling == "last":
        return hidden[torch.arange(len(texts)), mask.sum(1).long() - 1]
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def embedding(encoder: bilrp.Encoder, text: str) -> Tensor:
    assert encoder.read is not None
    item = encoder.read(text)
    assert isinstance(item, Item)
    with torch.no_grad():
        return encoder.module(item.x)[0]


def test_embeddings_are_those_of_transformers(saved: tuple[Architecture, Path]) -> None:
    architecture, folder = saved
    encoder = load(folder)
    texts = [*TEXTS, *CORPUS]
    expected = as_transformers_does(
        folder, texts, architecture.pooling, encoder_only=architecture.encoder_only
    )
    result = torch.stack([embedding(encoder, text) for text in texts])
    # the model's own norms and attention round to float32 in some architectures, padded and unpadded alike
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_push_equals_pull_and_words_sum_their_subwords(saved: tuple[Architecture, Path]) -> None:
    _, folder = saved
    encoder = load(folder)
    pushed, pulled = (
        bilrp.decompose(encoder, TEXTS[0], mode=mode, composite=transformer()) for mode in ("push", "pull")
    )
    largest = float(pushed.parts.abs().max())
    assert float((pushed.parts - pulled.parts).abs().max()) < 1e-9 * largest
    assert pushed.origin["composite"] == "transformer(0)"
    torch.testing.assert_close(pushed.embedding, embedding(encoder, TEXTS[0]))
    torch.testing.assert_close(pushed.parts.sum(0) + pushed.unattributed, pushed.embedding)
    tokens = bilrp.decompose(load(folder, regions="tokens"), TEXTS[0], composite=transformer())
    assert tokens.parts.shape[0] > pushed.parts.shape[0]
    torch.testing.assert_close(tokens.parts.sum(0), pushed.parts.sum(0), rtol=0, atol=1e-9 * largest)
    assert pushed.regions.names is not None and "unbelievably" in pushed.regions.names


def test_nothing_is_lost_without_biases(saved: tuple[Architecture, Path], tmp_path: Path) -> None:
    """With zero biases, and positions counted with their tokens, words and marks account for the whole embedding."""
    architecture, folder = saved
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        weights[name] = torch.zeros_like(weight) if name.endswith("bias") and weight.dim() == 1 else weight
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    decomposition = bilrp.decompose(load(tmp_path, features="sum"), TEXTS[0], composite=transformer())
    scale = float(decomposition.embedding.norm())
    assert float(decomposition.unattributed.norm()) < 1e-6 * scale  # norms in float32 leave their rounding
    torch.testing.assert_close(
        decomposition.embedding, bilrp.decompose(load(tmp_path), TEXTS[0]).embedding, rtol=1e-6, atol=1e-9
    )
    assert architecture.name


def test_the_model_is_untouched(saved: tuple[Architecture, Path]) -> None:
    _, folder = saved
    encoder = load(folder)
    module = encoder.module
    assert isinstance(module, torch.nn.Module)
    before = {name: t.clone() for name, t in (*module.named_parameters(), *module.named_buffers())}
    first, second = (bilrp.explain(encoder, *TEXTS, similarity="cosine") for _ in range(2))
    assert torch.equal(first.relevance, second.relevance)
    after = dict((*module.named_parameters(), *module.named_buffers()))
    assert all(torch.equal(t, after[name]) for name, t in before.items()) and before.keys() == after.keys()
    parts = list(module.modules())
    assert not any(part.training or part._forward_hooks or part._forward_pre_hooks for part in parts)
    assert not any(p.requires_grad or p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("features", ["word", "sum"])
def test_parts_equal_a_plain_implementation(bert: Path, features: str) -> None:
    from bert_reference import parts_and_embedding

    decomposition = bilrp.decompose(
        load(bert, regions="tokens", features=features), TEXTS[0], composite=transformer()
    )
    numbers = transformers.AutoTokenizer.from_pretrained(bert)(TEXTS[0])["input_ids"]
    parts, full = parts_and_embedding(bert, numbers, normalise=False, features=features)
    torch.testing.assert_close(decomposition.embedding, torch.from_numpy(full), rtol=0, atol=1e-12)
    torch.testing.assert_close(decomposition.parts, torch.from_numpy(parts), rtol=0, atol=1e-12)


def test_words_and_sums_do_not_pair(bert: Path) -> None:
    word, summed = (bilrp.decompose(load(bert, features=features), TEXTS[0]) for features in ("word", "sum"))
    with pytest.raises(BilrpError, match="do not belong together"):
        bilrp.pair(word, summed, similarity="dot")


@pytest.mark.parametrize(
    ("config", "pooled"),
    [
        ({"pooling_mode_mean_tokens": True}, lambda h: h.mean(1)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda h: h[:, 0]),
        ({"pooling_mode": "lasttoken"}, lambda h: h[:, -1]),
        ({"pooling_mode_max_tokens": True}, lambda h: h.amax(1)),
        ({"pooling_mode": ["mean", "max"]}, lambda h: torch.cat([h.mean(1), h.amax(1)], 1)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, lambda h: h.sum(1) / h.shape[1] ** 0.5),
        (
            {"pooling_mode_weightedmean_tokens": True},
            lambda h: (
                (h * torch.arange(1, h.shape[1] + 1)[:, None]).sum(1) / torch.arange(1, h.shape[1] + 1).sum()
            ),
        ),
    ],
)
def test_pooling_is_what_the_folder_says(tmp_path: Path, config: dict, pooled) -> None:
    folder = sentence_transformers(BERT.save(tmp_path), pooling=config)
    encoder = load(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    given = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        expected = pooled(model(input_ids=given["input_ids"]).last_hidden_state)[0]
    torch.testing.assert_close(embedding(encoder, TEXTS[0]), expected)
    decomposition = bilrp.decompose(encoder, TEXTS[0])
    torch.testing.assert_close(
        decomposition.parts.sum(0) + decomposition.unattributed, decomposition.embedding
    )


def test_two_in_three_lines_add_up(bert: Path) -> None:
    explanation = bilrp.explain(load(bert, normalize=True), *TEXTS, similarity="cosine")
    assert explanation.relevance.shape == (explanation.a.regions.count, explanation.b.regions.count)
    assert abs(explanation.score - float(explanation.relevance.sum()) - explanation.unattributed) < 1e-12
    assert explanation.a.regions.names is not None and explanation.b.regions.names is not None
    assert explanation.a.regions.names[1:-1] == (
        "The",
        "cat",
        "sat",
        "on",
        "a",
        "rug",
        ",",
        "unbelievably",
        ".",
    )
    assert explanation.b.regions.names == ("[CLS]", "Two", "kittens", "rested", ".", "[SEP]")
    assert isinstance(explanation.a.view, Text)
    assert explanation.a.view.spans[0] is None and explanation.a.view.region_texts[2] == "cat"


@pytest.mark.parametrize(
    "dense", [None, (16, 5, "torch.nn.modules.activation.Tanh"), (16, 9, "torch.nn.modules.linear.Identity")]
)
@pytest.mark.parametrize("normalise", [False, True])
def test_embeddings_are_those_of_sentence_transformers(tmp_path: Path, dense, normalise: bool) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = sentence_transformers(
        BERT.save(tmp_path, dtype=torch.float32), normalise=normalise,
        pooling={"pooling_mode_mean_tokens": True, "word_embedding_dimension": 16},
        limit=12, lower=True, prompts={"query": "the query: ", "document": ""}, default_prompt="query", dense=dense,
    )  # fmt: skip
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = ["THE CAT", "Two dogs run through the snow; one jumps over the mat.", "a"]
    expected = model.encode(texts, convert_to_tensor=True)
    encoder = sentence(folder)
    result = torch.stack([embedding(encoder, text) for text in texts])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    plain = sentence(folder, prompt="")
    torch.testing.assert_close(
        embedding(plain, texts[0]),
        model.encode(texts[0], prompt="", convert_to_tensor=True),
        rtol=0,
        atol=1e-5,
    )


@dataclass(frozen=True)
class Family:
    """Embedders as their makers publish them: an architecture, its pooling, and what is put before a text."""

    architecture: str
    pooling: str
    prompts: dict[str, str] = field(default_factory=dict)
    prompt: str | None = None


FAMILIES = {
    "e5": Family("bert", "mean_tokens", {"query": "query: ", "passage": "passage: "}, "query"),
    "multilingual-e5": Family("xlm-r", "mean_tokens", {"query": "query: ", "passage": "passage: "}, "passage"),
    "bge": Family("bert", "cls_token"),
    "gte": Family("gte", "mean_tokens"),
    "mpnet": Family("mpnet", "mean_tokens"),
    "qwen3-embedding": Family("qwen3", "lasttoken", {"query": "Instruct: find it\nQuery:", "document": ""}, "query"),
    "sentence-t5": Family("t5-gated", "mean_tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families_as_their_makers_publish_them(name: str, tmp_path: Path) -> None:
    """Pooling, normalising and prompts are read from the files: the embedding of sentence-transformers, step by step."""
    library = pytest.importorskip("sentence_transformers")
    family = FAMILIES[name]
    (architecture,) = (each for each in ARCHITECTURES if each.name == family.architecture)
    pooling = {f"pooling_mode_{family.pooling}": True, "word_embedding_dimension": 16}
    if family.pooling != "mean_tokens":
        pooling["pooling_mode_mean_tokens"] = False
    folder = sentence_transformers(
        architecture.save(tmp_path, dtype=torch.float32),
        pooling=pooling,
        normalise=True,
        prompts=family.prompts,
    )
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    named = {} if family.prompt is None else {"prompt_name": family.prompt}
    encoder = sentence(folder, prompt=family.prompt)
    for text in TEXTS:
        expected = model.encode(text, convert_to_tensor=True, **named)
        torch.testing.assert_close(embedding(encoder, text), expected, rtol=0, atol=1e-5)
    exact = load(folder, prompt=family.prompt)
    pushed, pulled = (bilrp.decompose(exact, TEXTS[0], mode=mode) for mode in ("push", "pull"))
    assert float((pushed.parts - pulled.parts).abs().max()) < 1e-9 * float(pushed.parts.abs().max())
    assert pushed.regions.names is not None
    prompt = family.prompts.get(family.prompt or "", "").strip()
    assert not prompt or prompt in pushed.regions.names


def test_a_prompt_is_one_region_and_may_stay_out_of_the_pooling(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False, "word_embedding_dimension": 16}
    folder = sentence_transformers(
        BERT.save(tmp_path, dtype=torch.float32), pooling=pooling, prompts={"query": "the query: "}
    )
    encoder = sentence(folder, prompt="query")
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = model.encode("A cat.", prompt_name="query", convert_to_tensor=True)
    torch.testing.assert_close(embedding(encoder, "A cat."), expected, rtol=0, atol=1e-5)
    decomposition = bilrp.decompose(encoder, "A cat.")
    assert decomposition.regions.names == ("[CLS]", "the query:", "A", "cat", ".", "[SEP]")
    assert (
        isinstance(decomposition.view, Text)
        and decomposition.view.text == "A cat."
        and decomposition.view.spans[1] is None
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cat", ("cat",)),
        ("?!...", ("?", "!", ".", ".", ".")),
        ("שלום עולם", ("שלום", "עולם")),
        ("👍🏽 cat 👩‍👧", ("👍🏽", "cat", "👩‍👧")),
        ("  the\n\ncat\t ", ("the", "cat")),
        ("[SEP] cat", ("[SEP]", "cat")),
        ("Don't", ("Don't",)),
    ],
)
def test_any_text(bert: Path, text: str, names: tuple[str, ...]) -> None:
    explanation = bilrp.explain(load(bert), text, TEXTS[1], similarity="dot")
    assert explanation.a.regions.names is not None
    assert explanation.a.regions.names[1:-1] == names
    assert abs(explanation.score - float(explanation.relevance.sum()) - explanation.unattributed) < 1e-9


@pytest.mark.parametrize("text", ["", "  \n", "\u200b\u200b"])
def test_an_empty_text_is_refused(bert: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"empty|no words"):
        bilrp.decompose(load(bert), text)


def test_what_is_not_a_text_is_refused(bert: Path) -> None:
    with pytest.raises(InputError, match="reads text"):
        bilrp.decompose(load(bert), 3)
    with pytest.raises(InputError, match="Unicode"):
        bilrp.decompose(load(bert), "half \ud83d")


def test_a_text_may_be_a_file(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXTS[0], encoding="utf-8")
    assert (
        bilrp.decompose(load(bert), tmp_path / "a.txt").regions.names
        == bilrp.decompose(load(bert), TEXTS[0]).regions.names
    )
    with pytest.raises(InputError, match="cannot be read as text"):
        bilrp.decompose(load(bert), tmp_path / "none.txt")


def test_words_that_the_tokenizer_does_not_know_are_reported(
    bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = load(bert)
    bilrp.decompose(encoder, "cat cat xylophone")
    assert not caplog.records
    bilrp.decompose(encoder, "xylophone cat zeppelin")
    assert "2 of the 3 tokens of a text are unknown to the tokenizer" in caplog.text


def test_the_longest_text_and_longer(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = load(bert)
    full = bilrp.decompose(encoder, "cat " * 68)
    assert full.regions.count == 70 and not caplog.records
    longer = bilrp.decompose(encoder, "cat " * 99)
    assert longer.regions.count == 70
    assert "101 tokens is truncated to the encoder's maximum of 70" in caplog.text
    torch.testing.assert_close(longer.parts, full.parts)
    assert (
        isinstance(longer.view, Text) and len(longer.view.text) == 4 * 99
    )  # what was left out can still be seen
    assert bilrp.decompose(load(bert, max_seq_length=10), "cat " * 99).regions.count == 10
    with pytest.raises(InputError, match="at most 70, got 71"):
        load(bert, max_seq_length=71)


def test_sentences_and_spans_as_regions(bert: Path) -> None:
    text = "It rains. The cat sat on a rug. Stay in!"
    encoder = load(bert, regions="sentences")
    decomposition = bilrp.decompose(encoder, text)
    assert decomposition.regions.names == ("[CLS]", "It rains.", "The cat sat on a rug.", "Stay in!", "[SEP]")
    by_words = bilrp.decompose(load(bert), text)
    torch.testing.assert_close(decomposition.parts.sum(0), by_words.parts.sum(0))
    spans = bilrp.decompose(load(bert, regions=[(14, 17), (27, 30)]), text)
    assert spans.regions.names == ("[CLS]", "cat", "rug", "[SEP]")
    assert by_words.regions.names is not None
    torch.testing.assert_close(spans.parts[1], by_words.parts[by_words.regions.names.index("cat")])


def test_regions_can_be_asked_for_with_each_explanation(bert: Path) -> None:
    encoder = load(bert)
    text = "It rains. The kittens rested."
    for by in ("tokens", "sentences", [(0, 2)]):
        decomposition = bilrp.decompose(encoder, text, regions=by)
        expected = bilrp.decompose(load(bert, regions=by), text)
        assert decomposition.regions.names == expected.regions.names
        assert isinstance(decomposition.view, Text) and isinstance(expected.view, Text)
        assert decomposition.view.spans == expected.view.spans
        assert torch.equal(decomposition.parts, expected.parts)
    both = bilrp.explain(encoder, text, "Two kittens.", regions=("sentences", "tokens"), similarity="dot")
    assert both.a.regions.kind == "sentences" and both.b.regions.kind == "tokens"
    with pytest.raises(InputError, match="unknown regions 'letters'"):
        bilrp.decompose(encoder, text, regions="letters")


def copy_folder(folder: Path, to: Path, *, without: str = "") -> Path:
    to.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.name != without:
            (to / file.name).write_bytes(file.read_bytes())
    return to


class Harmful:
    def __reduce__(self):
        return (Path.touch, (Path("ran.txt"),))


def bad_folders(bert: Path, at: Path) -> dict[str, tuple[Path, str]]:
    config = json.loads((bert / "config.json").read_text())

    def change_config(name: str, **changes: Any) -> Path:
        folder = copy_folder(bert, at / name)
        write_json(folder / "config.json", {**config, **changes})
        return folder

    def module(name: str, kind: str, path: str = "") -> Path:
        folder = copy_folder(bert, at / name)
        write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": path, "type": kind}])
        return folder

    no_json = copy_folder(bert, at / "no_json")
    (no_json / "config.json").write_text("{")
    no_words = copy_folder(bert, at / "no_words", without="tokenizer.json")
    (no_words / "tokenizer_config.json").unlink()
    torn = copy_folder(bert, at / "torn")
    (torn / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:5000])
    pickled = copy_folder(bert, at / "pickled", without="model.safetensors")
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Harmful()}))
    zipped = copy_folder(bert, at / "zipped", without="model.safetensors")
    torch.save({"x": Harmful()}, zipped / "pytorch_model.bin")
    adapter = copy_folder(bert, at / "adapter")
    write_json(adapter / "adapter_config.json", {})
    dense = sentence_transformers(
        copy_folder(bert, at / "dense"), pooling={"pooling_mode": "mean"}, dense=(16, 4, "os.system")
    )
    head = sentence_transformers(copy_folder(bert, at / "head"), pooling={"pooling_mode": "median"})
    partial = copy_folder(bert, at / "partial")
    weights = load_file(bert / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, partial / "model.safetensors", {"format": "pt"})
    return {
        "nothing": (at / "nothing", "no such folder"),
        "file": (bert / "config.json", "no such folder"),
        "no config": (copy_folder(bert, at / "no_config", without="config.json"), "no config.json"),
        "no weights": (copy_folder(bert, at / "no_weights", without="model.safetensors"), "no weights"),
        "no tokenizer": (
            copy_folder(bert, at / "no_tokenizer", without="tokenizer.json"),
            "cannot be loaded|no character offsets",
        ),
        "no words": (no_words, "has no tokenizer"),
        "no json": (no_json, "cannot be read as JSON"),
        "no type": (change_config("no_type", model_type=None), "has no model_type"),
        "unknown": (
            change_config("unknown", model_type="nonesuch"),
            "does not know the architecture 'nonesuch'",
        ),
        "code": (
            change_config("code", auto_map={"AutoModel": "modeling_evil.Evil"}),
            "code from a model folder is never run",
        ),
        "sizes": (change_config("sizes", hidden_size=32), "cannot be loaded"),
        "torn": (torn, "cannot be loaded"),
        "pickle": (pickled, "cannot be loaded"),
        "zip": (zipped, "cannot be loaded"),
        "adapter": (adapter, "adapter"),
        "partial": (partial, "weights are missing for encoder.layer.1.output.dense.weight"),
        "module": (module("module", "custom_st.Transformer"), "code from a model folder is never run"),
        "outside": (
            module("outside", "sentence_transformers.models.Transformer", "../bert"),
            "points outside of its folder",
        ),
        "first": (module("first", "sentence_transformers.models.Pooling"), "only Transformer is supported"),
        "activation": (dense, "unsupported activation 'os.system'"),
        "pooling": (head, "unknown pooling median"),
    }


def test_bad_folders_are_one_clear_line(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "modeling_evil.py").write_text("open('ran.txt', 'w')")
    for name, (folder, message) in bad_folders(bert, tmp_path).items():
        with pytest.raises(InputError, match=message) as raised:
            sentence(folder)
        assert "\n" not in str(raised.value), name
        assert not (tmp_path / "ran.txt").exists(), name


def test_restricted_pickles_of_plain_tensors_are_read(bert: Path, tmp_path: Path) -> None:
    folder = copy_folder(bert, tmp_path / "pickled", without="model.safetensors")
    torch.save(load_file(bert / "model.safetensors"), folder / "pytorch_model.bin")
    torch.testing.assert_close(embedding(load(folder), TEXTS[0]), embedding(load(bert), TEXTS[0]))


def test_a_missing_extra_says_what_to_install(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'bilrp\[text\]'"):
        sentence(bert)


def test_options_that_change_the_embedding_are_part_of_the_name(bert: Path) -> None:
    assert load(bert).name == f"sentence:{bert}"
    cls = bilrp.decompose(load(bert, pooling="cls"), TEXTS[0])
    with pytest.raises(BilrpError, match="do not belong together"):
        bilrp.pair(cls, bilrp.decompose(load(bert), TEXTS[1]), similarity="dot")
    with pytest.raises(InputError, match="unknown pooling median"):
        load(bert, pooling="median")
    with pytest.raises(InputError, match="unknown features"):
        load(bert, features="letters")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b'{"model_type": "bert", "num_hidden_layers": 10000000}'),
        ("config.json", b'{"model_type": "bert", "hidden_size": 24000, "num_hidden_layers": 2}'),
        ("config.json", None),
        ("tokenizer.json", None),
        ("tokenizer_config.json", None),
    ],
)
def test_a_folder_that_claims_more_than_it_holds_is_refused_before_anything_is_made(tmp_path, file, content):
    """Numbers in a configuration, and files no program writes, take neither memory nor time."""
    folder = ARCHITECTURES[0].save(tmp_path / "model")
    if content is None:
        with (folder / file).open("r+b") as reopened:
            reopened.truncate(70_000_000)
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(
        InputError, match=r"larger than|longer than|describes \d+ layers|describes a model of"
    ):
        sentence(folder)
