"""Two towers from one folder: pictures and texts in one space (CLIP and OpenCLIP, SigLIP, Chinese-CLIP)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp.encoder import DualEncoder, Encoder
from bilrp.encoders import hf_checkpoint
from bilrp.encoders.hf_vision import patch_regions
from bilrp.encoders.image_processor import ImageProcessor, load_image_processor
from bilrp.encoders.text.reader import TextReader
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import tokens
from bilrp.trace.fingerprint import hash_tensors
from bilrp.trace.intermediate_input import run_from_module

SUPPORTED_MODEL_TYPES = ("clip", "siglip", "chinese_clip")
TOKEN_EMBEDDING_NAMES = {
    "chinese_clip": "word_embeddings"
}  # of the module that looks tokens up; its output is what is explained


class ImageTower(nn.Module):
    """Pixels (1, 3, H, W) → the picture's embedding, of length 1 where `normalize`."""

    def __init__(self, model: nn.Module, normalize: bool):
        super().__init__()
        self.model, self.normalize = model, normalize

    def forward(self, x: Tensor) -> Tensor:
        return _finish_embedding(self.model.get_image_features(pixel_values=x), self.normalize)  # type: ignore[operator]


class TextTower(nn.Module):
    """Token embeddings (1, tokens, width) → the text's embedding, of length 1 where `normalize`.

    These towers take token numbers only, so the run begins at the output of the table `input_layer`. The numbers matter to
    CLIP as far as they say where the text ends, which is at the last token: one text at a time needs no padding.
    """

    def __init__(self, model: nn.Module, normalize: bool, input_layer: str, end_token_id: int):
        super().__init__()
        self.features, self.normalize = _TextFeatures(model), normalize
        self.input_layer, self.end_token_id = input_layer, end_token_id

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        numbers[:, -1] = self.end_token_id
        return _finish_embedding(run_from_module(self.features, self.input_layer, numbers)(x), self.normalize)


class _TextFeatures(nn.Module):
    """Token numbers → the text's features."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor) -> Tensor:
        return _features(self.model.get_text_features(input_ids=token_ids))


@dataclass(frozen=True, eq=False)
class PaddedTextReader(TextReader):
    """A reader of texts that are all of one length, as SigLIP was trained: the padding is in no region."""

    padding_id: int = 0
    length: int = 0

    def __call__(self, raw_input: Any) -> Item:
        item = super().__call__(raw_input)
        missing = self.length - item.x.shape[1]
        if missing <= 0:
            return item
        cut = item.segment
        assert cut is not None

        def padded(wanted: Any) -> Any:
            regions, view = cut(wanted)
            beyond = regions.labels.new_full((missing, regions.labels.shape[1]), -1)
            return replace(regions, labels=torch.cat([regions.labels, beyond])), view

        x = torch.cat([item.x, self.embed_tokens([self.padding_id] * missing)], 1)
        regions, view = padded(self.regions)
        return replace(item, x=x, regions=regions, view=view, segment=padded)


def clip(
    source: str | Path,
    *,
    regions: TextRegionSpec = "words",
    normalize: bool = True,
    dtype: torch.dtype = torch.float32,
) -> DualEncoder:
    """Pictures and texts in one space, from a folder made by `save_pretrained`: patches against words.

    Embeddings have length 1 as the model compares them, so that the dot product is the cosine; `normalize=False`
    leaves that out. `regions` says how texts are cut: "words", "tokens", "sentences".

    >>> bilrp.explain(clip("clip-vit-base-patch32"), "cat.jpg", "a cat on a sofa").top(1)  # doctest: +SKIP
    """
    root = Path(source).expanduser()
    if not root.is_dir():
        raise InputError(f"{source}: there is no such folder; give one with a saved image-text model")
    config = hf_checkpoint.read_config(root)
    transformers = hf_checkpoint.import_transformers("vision", "image-text encoders")
    hf_checkpoint.check_checkpoint(root, config, transformers)
    kind = config["model_type"]
    if kind not in SUPPORTED_MODEL_TYPES:
        raise InputError(
            f"{root} holds a model of type {kind!r}, which has no two towers that are known: "
            f"{', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    prepare = load_image_processor(root)
    with hf_checkpoint.silence_transformers(transformers), hf_checkpoint.wrap_load_errors(root):
        tokenizer = transformers.AutoTokenizer.from_pretrained(root, **hf_checkpoint.LOCAL_ONLY_OPTIONS)
        model: Any = hf_checkpoint.load_model(
            root, transformers.AutoModel, dtype, ignore_missing=".pooler" if kind == "chinese_clip" else None
        )
    if not tokenizer.is_fast:
        raise InputError(
            f"{root}: its tokenizer gives no offsets, so words cannot be found: save a fast tokenizer (tokenizer.json)"
        )
    made = _build_text_tower(model, kind, tokenizer, regions, normalize)
    space = f"{kind} {hash_tensors(model.state_dict().values())}" + ("" if normalize else " (not normalised)")
    pictures = Encoder(
        module=ImageTower(model, normalize).eval(),
        read=prepare if dtype == torch.float32 else _CastReader(prepare, dtype),
        regions=patch_regions(model.config.vision_config.patch_size),
        name=f"clip:{source} (image)",
        to_image=prepare.to_image,
        embedding_space=space,
        similarity="cosine",
    )
    texts = Encoder(
        module=made[0].eval(),
        read=made[1],
        regions=tokens(),
        name=f"clip:{source} (text)",
        embedding_space=space,
        similarity="cosine",
    )
    return DualEncoder(pictures, texts, name=f"clip:{source}")


def _build_text_tower(
    model: Any, model_type: str, tokenizer: Any, regions: TextRegionSpec, normalize: bool
) -> tuple[TextTower, TextReader]:
    """The text tower and how it reads: CLIP up to its end token, SigLIP padded to its full length."""
    config = model.config.text_config
    table = f"text_model.embeddings.{TOKEN_EMBEDDING_NAMES.get(model_type, 'token_embedding')}"
    length = config.max_position_embeddings
    reader = TextReader(model.get_submodule(table), tokenizer, "", length, regions)
    last = 0
    if (
        model_type == "clip"
    ):  # older configurations name a wrong end token; there the model takes the largest number for the end
        last = config.vocab_size - 1 if config.eos_token_id == 2 else config.eos_token_id
    texts = TextTower(model, normalize, f"model.{table}", last)
    if model_type != "siglip":
        return texts, reader
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 1
    return texts, PaddedTextReader(
        reader.embed, tokenizer, "", length, regions, padding_id=padding, length=length
    )


@dataclass(frozen=True)
class _CastReader:
    """Pictures in the type of the model's weights."""

    processor: ImageProcessor
    dtype: torch.dtype

    def __call__(self, raw_input: Any) -> Item:
        item = self.processor(raw_input)
        return replace(item, x=item.x.to(self.dtype))


def _features(outputs: Any) -> Tensor:
    """The features that a tower gives, alone or among other outputs, as versions of transformers differ."""
    return getattr(outputs, "pooler_output", outputs)


def _finish_embedding(outputs: Any, normalize: bool) -> Tensor:
    features = _features(outputs)
    return F.normalize(features, dim=-1) if normalize else features
