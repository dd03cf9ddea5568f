"""Text encoders of live objects: SentenceTransformer, a transformers model with its tokenizer, a function with a tokenizer.

The object itself runs, with its own tokens; the output of its token embedding is the input that is explained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

from bilrp.encoder import MODEL_RUN_LOCK, Encoder
from bilrp.encoders.live.first_use import TOLERANCE, FirstUseCheck, to_tensor
from bilrp.encoders.live.token_embedding import find_token_embedding
from bilrp.encoders.live.token_reader import (
    BackendTokenizer,
    BytePairTokenizer,
    LiveTextReader,
    bytes_to_text,
    text_to_bytes,
)
from bilrp.encoders.sentence_encoder import UNLIMITED_TOKENS, count_positions, read_everyday_sentences
from bilrp.encoders.text import st_folder
from bilrp.encoders.text.heads import Normalize, Pooling
from bilrp.encoders.text.reader import TOKENIZER_LOCK, FastTokenizer
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import tokens
from bilrp.trace.fingerprint import hash_code, hash_weights
from bilrp.trace.intermediate_input import run_from_module
from bilrp.trace.introspection import find_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE_TEXT = "The cat sat on a mat, 1 2 3."  # to find the token embedding
ID_PARAMETERS = ("input_ids", "ids", "token_ids", "tokens", "batch", "features", "inputs")
ST_SIMILARITIES = {
    "dot": "dot",
    "dot_product": "dot",
    "maxsim": "maxsim",
}  # of sentence-transformers; else cosine
POOLER = "pooler"  # the model's own pooler output, in place of a pooling over tokens


class _LiveTextModel(nn.Module):
    """Token ids [texts, tokens] → embeddings [texts, h], by the live object.

    Padded texts are run together if that gives the embeddings of each text alone, which is compared once.
    """

    supports_padding = True
    input_layer = ""  # the token embedding
    probe: tuple[int, ...] = ()  # ids of a text
    pad_id = 0
    pads_exactly: bool | None = None

    def forward(self, token_ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        raise NotImplementedError

    def make_batch_module(self, items: Sequence[Item]) -> nn.Module | None:
        """Return (1, texts, tokens, width) → (texts, h) for texts that are padded at the end; None if it cannot."""
        if not self.supports_padding or any(item.model_input is None for item in items):
            return None
        if self.pads_exactly is None:
            self.pads_exactly = self._check_padding()
        rows = [item.model_input[0] for item in items]  # type: ignore[index]
        return _PaddedIds(self, *pad_rows(rows, self.pad_id)) if self.pads_exactly else None

    def _check_padding(self) -> bool:
        """Return whether two texts of different lengths have the same embeddings together as alone."""
        device = next(self.parameters()).device
        rows = [torch.tensor(ids, device=device) for ids in (self.probe, self.probe[: len(self.probe) // 2])]
        with torch.no_grad(), MODEL_RUN_LOCK:
            try:
                together = self(*pad_rows(rows, self.pad_id))
                alone = torch.cat([self(row[None]) for row in rows])
            except (RuntimeError, TypeError, ValueError, IndexError):  # it takes one text only
                return False
        tolerance = TOLERANCE * max(1.0, float(alone.abs().max()))
        return together.shape == alone.shape and float((together - alone).abs().max()) <= tolerance


class _PaddedIds(nn.Module):
    """Rows of the token embedding of padded texts (1, texts, tokens, width) → their embeddings (texts, h)."""

    def __init__(self, model: _LiveTextModel, token_ids: Tensor, lengths: list[int]):
        super().__init__()
        self.model, self.token_ids, self.lengths = model, token_ids, lengths

    def forward(self, x: Tensor) -> Tensor:
        run = run_from_module(self.model, self.model.input_layer, self.token_ids, lengths=self.lengths)
        return run(x[0])


def pad_rows(rows: Sequence[Tensor], pad_id: int) -> tuple[Tensor, list[int]]:
    """Return ids [texts, tokens], padded at the end, and the length of each text.

    >>> pad_rows([torch.tensor([5, 6]), torch.tensor([7])], 0)
    (tensor([[5, 6],
            [7, 0]]), [2, 1])
    """
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad_id), [*map(len, rows)]


def make_mask(token_ids: Tensor, lengths: list[int] | None) -> Tensor:
    """Return 1 for each token of a text, and 0 for its padding; without lengths there is none."""
    if lengths is None:
        return torch.ones_like(token_ids)
    positions = torch.arange(token_ids.shape[1], device=token_ids.device)
    return (positions < torch.tensor(lengths, device=token_ids.device)[:, None]).to(token_ids.dtype)


class _SentenceTransformerModel(_LiveTextModel):
    """Token ids → sentence embeddings, by the model's own modules."""

    def __init__(self, model: nn.Module, prompt_tokens: int):
        super().__init__()
        self.model, self.prompt_tokens = model, prompt_tokens

    def forward(self, token_ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        features: dict[str, Any] = {"input_ids": token_ids, "attention_mask": make_mask(token_ids, lengths)}
        if self.prompt_tokens:
            features["prompt_length"] = self.prompt_tokens
        output = self.model(features)
        # a token encoder (ColBERT) has one vector for each token
        name = "sentence_embedding" if "sentence_embedding" in output else "token_embeddings"
        if name not in output:
            raise InputError(
                "the model returns no sentence_embedding: add a pooling, or pass (transformers model, tokenizer)"
            )
        width = getattr(self.model, "truncate_dim", None)
        return output[name] if width is None else output[name][..., : int(width)]


class _TransformersModel(_LiveTextModel):
    """Token ids → hidden states → pooling and heads."""

    def __init__(self, model: nn.Module, heads: Sequence[nn.Module]):
        super().__init__()
        self.model, self.heads = model, nn.ModuleList(heads)
        self.supports_padding = not heads or (isinstance(heads[0], Pooling) and heads[0].is_linear)

    def forward(self, token_ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        features = {"input_ids": token_ids, "attention_mask": make_mask(token_ids, lengths)}
        return self.embed(features, lengths)

    def embed(self, features: Mapping[str, Any], lengths: list[int] | None = None) -> Tensor:
        """Return the embeddings of the tokenizer's features (ids, mask, …); `lengths` of the texts, if they are padded."""
        options = {"use_cache": False} if getattr(self.model.config, "use_cache", False) else {}
        output = self.model(**features, **options)
        if not len(self.heads):
            return output.pooler_output
        hidden, (pooling, *heads) = output.last_hidden_state, self.heads
        if lengths is None:
            embedding = pooling(hidden)
        else:
            assert isinstance(pooling, Pooling)
            weights = pooling.token_weights(lengths).to(hidden.device, hidden.dtype)
            embedding = (hidden * weights[..., None]).sum(1)
        for head in heads:
            embedding = head(embedding)
        return embedding


class _CallableModel(_LiveTextModel):
    """A function of token ids or of texts as a module, with the modules that it refers to."""

    def __init__(self, function: Callable[..., object], takes: str, modules: Sequence[nn.Module]):
        super().__init__()
        self.function, self.takes, self.parts = [function], takes, nn.ModuleList(modules)
        self.takes_mask = "attention_mask" in _parameter_names(function)
        self.supports_padding = takes == "ids" and self.takes_mask

    def forward(self, token_ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        return self.embed(bytes_to_text(token_ids) if self.takes == "texts" else token_ids, lengths)

    def embed(self, raw_input: Any, lengths: list[int] | None = None) -> Tensor:
        """Return the function's embedding [texts, h] of a text or of ids [texts, n]; `lengths`, if they are padded."""
        (function,) = self.function
        if self.takes == "texts":
            with TOKENIZER_LOCK:  # the function calls the tokenizer
                result = function([raw_input])
        else:
            mask = {"attention_mask": make_mask(raw_input, lengths)} if self.takes_mask else {}
            result = function(raw_input, **mask)
        embedding = result if isinstance(result, Tensor) else to_tensor(result, "the function")
        return embedding if embedding.dim() > 1 else embedding[None]


def from_sentence_transformers(
    model: Any, *, prompt: str | None = None, regions: TextRegionSpec = "words"
) -> Encoder:
    """Return a live `sentence_transformers.SentenceTransformer` as an encoder; its weights are not copied.

    The embedding is that of `model.encode(text)`, with the model's prompt, pooling, heads, truncation and similarity; it is
    compared with `encode` at first use.

    Args:
        model: the SentenceTransformer.
        prompt: name of one of the model's prompts ("query"), or the text of a prompt; the model's default if None.
        regions: "words", "tokens", "sentences", or (start, stop) spans of characters.

    >>> encoder = from_sentence_transformers(SentenceTransformer("all-MiniLM-L6-v2"))  # doctest: +SKIP
    """
    prompts = dict(getattr(model, "prompts", None) or {})
    default = getattr(model, "default_prompt_name", None)
    text = prompts.get(default, "") if prompt is None else prompts.get(prompt, prompt)
    tokenize = getattr(model, "preprocess", None) or model.tokenize
    limit = getattr(model, "max_seq_length", None)
    tokenizer = wrap_tokenizer(model.tokenizer, "the model's tokenizer")
    modules = [module for module in model if isinstance(module, nn.Module)]
    excludes_prompt = any(getattr(module, "include_prompt", True) is False for module in modules)

    def own_token_ids(prompted: str) -> list[int]:
        return tokenize([prompted])["input_ids"][0].tolist()

    def encode(text_alone: str) -> Any:
        options = {"prompt": text} if text else {}
        with TOKENIZER_LOCK:
            return model.encode([text_alone], show_progress_bar=False, convert_to_tensor=True, **options)

    prompt_tokens = 0
    if excludes_prompt and text:
        prompt_tokens = len(own_token_ids(text)) - 1  # as sentence-transformers counts them
    name = getattr(getattr(model, "model_card_data", None), "base_model", None) or _source_name(model)
    return build_text_encoder(
        _SentenceTransformerModel(model, prompt_tokens),
        tokenizer,
        prompt=text,
        limit=None if limit is None or limit >= UNLIMITED_TOKENS else int(limit),
        regions=regions,
        name=f"SentenceTransformer({name})" + (f" (prompt {text!r})" if prompt is not None else ""),
        similarity=ST_SIMILARITIES.get(str(getattr(model, "similarity_fn_name", None)).lower(), "cosine"),
        own_token_ids=own_token_ids,
        check=FirstUseCheck(
            model,
            (text, limit, getattr(model, "truncate_dim", None), *map(repr, modules[1:])),
            encode,
            "model.encode",
            "pass (transformers model, tokenizer) with pooling, or save the model and use bilrp.encoders.sentence(folder)",
        ),
    )


def from_text_model(
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_seq_length: int | None = None,
    regions: TextRegionSpec = "words",
) -> Encoder:
    """Return a live transformers model with its fast tokenizer as a text encoder (see `from_transformers`).

    Args:
        model: The model.
        tokenizer: Its fast tokenizer.
        pooling: How the last hidden states become one vector; default by the type of the model.
        normalize: Divide the embedding by its norm.
        max_seq_length: Longest text in tokens; longer ones are truncated.
        regions: Regions of texts.
    """
    fast = wrap_tokenizer(tokenizer, "the tokenizer")
    config = model.config
    inner = model.get_encoder() if getattr(config, "is_encoder_decoder", False) else model
    heads = _choose_heads(model, pooling, normalize)
    limits = [n for n in (fast.model_max_length, count_positions(inner, config.to_dict())) if n]
    limit = min((n for n in limits if n < UNLIMITED_TOKENS), default=None)
    limit = limit if max_seq_length is None else min(max_seq_length, limit or max_seq_length)
    module = _TransformersModel(inner, heads)

    def embed_alone(text: str) -> Tensor:
        cut: dict[str, Any] = {} if limit is None else {"truncation": True, "max_length": limit}
        with TOKENIZER_LOCK:
            features = tokenizer([text], return_tensors="pt", **cut)
        device = next(inner.parameters()).device
        return module.embed({name: value.to(device) for name, value in features.items()})

    chosen = POOLER if not heads else "+".join(repr(head) for head in heads)
    return build_text_encoder(
        module,
        fast,
        limit=limit,
        regions=regions,
        name=f"{type(model).__name__}({_source_name(model)}), {chosen}",
        similarity="maxsim" if heads and getattr(heads[0], "modes", ()) == ("tokens",) else "cosine",
        check=FirstUseCheck(
            inner,
            (id(tokenizer), chosen, limit),
            embed_alone,
            "model(**tokenizer(text))",
            "pass the tokenizer that belongs to the model",
        ),
    )


def from_callable(
    function: Callable[..., object],
    tokenizer: object,
    *,
    takes: Literal["texts", "ids"] | None = None,
    max_seq_length: int | None = None,
    regions: TextRegionSpec = "words",
    similarity: str = "cosine",
) -> Encoder:
    """Return a function or module that computes embeddings, with its tokenizer, as a text encoder.

    Args:
        function: called with a list of one text, or with token ids [1, n] (and `attention_mask`, if it has that parameter);
            returns an embedding [1, h] as a tensor, computed by torch calls.
        tokenizer: a fast tokenizer of transformers, or a `tokenizers.Tokenizer`.
        takes: "texts" or "ids"; None: "ids" for modules and for functions whose first parameter is called input_ids, ids
            or tokens.
        max_seq_length: the length at which the function truncates, if it does.
        regions: "words", "tokens", "sentences", or (start, stop) spans of characters.
        similarity: the default similarity.

    >>> encoder = from_callable(lambda texts: net(tokenizer(texts)), tokenizer)  # doctest: +SKIP
    """
    names = _parameter_names(function)
    if takes is None:
        is_module = isinstance(function, nn.Module)
        takes = "ids" if is_module or (names and names[0] in ID_PARAMETERS) else "texts"
    modules = _reach_modules(function)
    if not modules:
        raise InputError(
            "no torch module is reachable from the function: refer to the model by a variable, or pass the model itself"
        )
    fast = wrap_tokenizer(tokenizer, "the tokenizer")
    module = _CallableModel(function, takes, modules)
    cut: dict[str, Any] = {} if max_seq_length is None else {"truncation": True, "max_length": max_seq_length}

    def embed_alone(text: str) -> Tensor:
        if takes == "texts":
            return module.embed(text)
        device = next(module.parameters()).device
        return module.embed(torch.tensor([fast(text, **cut)["input_ids"]], device=device))

    label = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = "" if isinstance(function, nn.Module) else f" {hash_code(function, tensors=False)}"
    return build_text_encoder(
        module,
        fast,
        limit=max_seq_length,
        regions=regions,
        name=f"{label}{code}",
        similarity=similarity,
        takes_text=takes == "texts",
        check=FirstUseCheck(
            modules[0],
            (label, code, takes, id(tokenizer), max_seq_length),
            embed_alone,
            "the function",
            "pass the tokenizer that the function uses, and max_seq_length where it truncates",
        ),
    )


def _is_fast(tokenizer: object) -> TypeGuard[FastTokenizer]:
    return bool(getattr(tokenizer, "is_fast", False))


def wrap_tokenizer(tokenizer: object, name: str) -> FastTokenizer:
    """Return a tokenizer that gives the characters of each token; raise if it cannot."""
    if _is_fast(tokenizer):
        return tokenizer
    inner = getattr(tokenizer, "tokenizer", None)
    if _is_fast(inner):
        return inner
    if hasattr(tokenizer, "token_to_id") and hasattr(tokenizer, "encode"):
        return BackendTokenizer(tokenizer)
    if all(hasattr(tokenizer, each) for each in ("encode", "decode", "sot_token_id", "eot_token_id")):
        return BytePairTokenizer(tokenizer)
    raise InputError(
        f"{name} ({type(tokenizer).__name__}) does not give the characters of its tokens: pass a fast tokenizer, e.g. "
        "AutoTokenizer.from_pretrained(..., use_fast=True), or a tokenizers.Tokenizer"
    )


def build_text_encoder(
    module: nn.Module,
    tokenizer: FastTokenizer,
    *,
    check: FirstUseCheck,
    limit: int | None,
    regions: TextRegionSpec,
    name: str,
    similarity: str,
    prompt: str = "",
    own_token_ids: Callable[[str], Sequence[int]] | None = None,
    takes_text: bool = False,
    embedding_space: str | None = None,
) -> Encoder:
    """Return the encoder of a module that is called with token ids, or with the bytes of a text.

    Args:
        module: The model, with an embedding layer for tokens.
        tokenizer: Its fast tokenizer.
        check: Compares the first embedding with that of the live object.
        limit: Longest text in tokens, or None.
        regions: Regions of texts.
        name: Name of the encoder.
        similarity: Its own similarity.
        prompt: Put before every text.
        own_token_ids: Text → token ids of the live object, if it does not use `tokenizer` as it is.
        takes_text: The module is called with the bytes of a text.
        embedding_space: Id of the space of embeddings; default: a hash of the weights.
    """
    ids = list(own_token_ids(PROBE_TEXT)) if own_token_ids else list(tokenizer(PROBE_TEXT)["input_ids"])
    device = next(module.parameters()).device
    probe = text_to_bytes(PROBE_TEXT) if takes_text else torch.tensor([ids], device=device)
    with MODEL_RUN_LOCK:
        layer = find_token_embedding(module, probe, ids)
    if isinstance(module, _LiveTextModel):
        module.input_layer, module.probe = layer, tuple(ids)
        module.pad_id = int(getattr(tokenizer, "pad_token_id", None) or 0)
    reader = LiveTextReader(
        module.get_submodule(layer),
        tokenizer,
        prompt,
        limit,
        regions,
        model=module,
        input_layer=layer,
        check=check,
        own_token_ids=own_token_ids,
        takes_text=takes_text,
    )
    space = embedding_space or f"{type(check.owner).__name__} {hash_weights(list(module.parameters()))}"
    return Encoder(
        module=module,
        read=reader,
        regions=tokens(),
        name=name,
        input_layer=layer,
        similarity=similarity,
        embedding_space=space,
        # captions of images are unlike sentences, and their encoder is compared with another one; one vector for each token
        # has no mean over texts
        typical_inputs=()
        if embedding_space or not isinstance(regions, str) or similarity == "maxsim"
        else read_everyday_sentences(),
    )


def _choose_heads(model: PreTrainedModel, pooling: str | None, normalize: bool | None) -> list[nn.Module]:
    """Return the pooling and the modules after it: as asked, else by the folder of the model, else by its kind."""
    if pooling == POOLER:
        if normalize:
            raise InputError("pooling='pooler' is the model's own output: leave out normalize")
        return []
    heads: list[nn.Module] = []
    if pooling is not None:
        heads = [Pooling((pooling,))]
    else:
        folder = str(getattr(model, "name_or_path", "") or "")
        stored = None
        if folder and (Path(folder) / "modules.json").is_file():
            stored = st_folder.read_model_folder(folder)
        if stored is not None and stored.pooling:
            heads = [Pooling(stored.pooling), *stored.post_pooling]
        else:
            heads = [Pooling(("last" if st_folder.is_decoder(model.config.to_dict()) else "mean",))]
    if normalize is not None:
        heads = [head for head in heads if not isinstance(head, Normalize)]
    return [*heads, *([Normalize()] if normalize else [])]


def _reach_modules(function: Callable[..., object]) -> list[nn.Module]:
    """Return the modules that a function, method or callable object refers to."""
    owners: list[Hashable] = [function, getattr(function, "__self__", None)]
    held = [
        value for owner in owners if owner is not None for value in getattr(owner, "__dict__", {}).values()
    ]
    reached = [*find_modules(function), *(value for value in held if isinstance(value, nn.Module))]
    if isinstance(function, nn.Module):
        reached = [function]
    return list({id(module): module for module in reached}.values())


def _parameter_names(function: Callable[..., object]) -> list[str]:
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        return list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return []


def _source_name(model: object) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)
