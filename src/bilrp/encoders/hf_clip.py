"""Image-text encoders from transformers model folders: CLIP and OpenCLIP, SigLIP, Chinese-CLIP."""

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
from bilrp.encoders.image_processor import load_image_processor
from bilrp.encoders.text.reader import TextReader
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import tokens
from bilrp.trace.fingerprint import hash_tensors
from bilrp.trace.intermediate_input import run_from_module

SUPPORTED_MODEL_TYPES = ("clip", "siglip", "chinese_clip")
# name of the token embedding module, whose output is the input that is explained
TOKEN_EMBEDDING_NAMES = {"chinese_clip": "word_embeddings"}


class ImageTower(nn.Module):
    """Pixels (1, 3, H, W) → the image's embedding, of length 1 if `normalize`."""

    def __init__(self, model: nn.Module, normalize: bool):
        super().__init__()
        self.model, self.normalize = model, normalize

    def forward(self, x: Tensor) -> Tensor:
        return finish_embedding(self.model.get_image_features(pixel_values=x), self.normalize)  # type: ignore[operator]


class TextTower(nn.Module):
    """Token embeddings (1, tokens, width) → the text's embedding, of length 1 if `normalize`.

    The model takes token ids only, so the run starts at the output of its token embedding, `input_layer`. CLIP uses the
    ids to find the end of the text, which is the last token, because a single text has no padding.
    """

    def __init__(self, model: nn.Module, normalize: bool, input_layer: str, end_token_id: int):
        super().__init__()
        self.features, self.normalize = _TextFeatures(model), normalize
        self.input_layer, self.end_token_id = input_layer, end_token_id

    def forward(self, x: Tensor) -> Tensor:
        token_ids = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        token_ids[:, -1] = self.end_token_id
        return finish_embedding(
            run_from_module(self.features, self.input_layer, token_ids)(x), self.normalize
        )


class _TextFeatures(nn.Module):
    """Token ids → the text's features."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor) -> Tensor:
        return read_features(self.model.get_text_features(input_ids=token_ids))


@dataclass(frozen=True, eq=False)
class PaddedTextReader(TextReader):
    """Pad texts to one length, as in SigLIP's training; padding tokens are in no region."""

    padding_id: int = 0
    length: int = 0

    def __call__(self, raw_input: Any) -> Item:
        item = super().__call__(raw_input)
        missing = self.length - item.x.shape[1]
        if missing <= 0:
            return item
        segment_text = item.segment
        assert segment_text is not None

        def segment(spec: Any) -> Any:
            regions, view = segment_text(spec)
            padding = regions.labels.new_full((missing, regions.labels.shape[1]), -1)
            return replace(regions, labels=torch.cat([regions.labels, padding])), view

        x = torch.cat([item.x, self.embed_tokens([self.padding_id] * missing)], 1)
        regions, view = segment(self.regions)
        return replace(item, x=x, regions=regions, view=view, segment=segment)


def clip(
    source: str | Path,
    *,
    regions: TextRegionSpec = "words",
    normalize: bool = True,
    dtype: torch.dtype = torch.float32,
) -> DualEncoder:
    """Return an image and a text encoder with a common embedding space, from a folder written by `save_pretrained`.

    Args:
        source: the folder.
        regions: regions of texts: "words", "tokens", "sentences", or spans of characters.
        normalize: scale embeddings to length 1, so that the dot product is the cosine.
        dtype: of weights and inputs.

    >>> bilrp.explain(clip("clip-vit-base-patch32"), "cat.jpg", "a cat on a sofa").top(1)  # doctest: +SKIP
    """
    root = Path(source).expanduser()
    if not root.is_dir():
        raise InputError(f"{source}: no such folder; pass a folder with a saved image-text model")
    config = hf_checkpoint.read_config(root)
    transformers = hf_checkpoint.import_transformers("vision", "image-text encoders")
    hf_checkpoint.check_checkpoint(root, config, transformers)
    kind = config["model_type"]
    if kind not in SUPPORTED_MODEL_TYPES:
        raise InputError(
            f"{root}: models of type {kind!r} are not supported as image-text encoders, only "
            f"{', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    processor = load_image_processor(root, dtype)
    with hf_checkpoint.silence_transformers(transformers), hf_checkpoint.wrap_load_errors(root):
        tokenizer = transformers.AutoTokenizer.from_pretrained(root, **hf_checkpoint.LOCAL_ONLY_OPTIONS)
        model: Any = hf_checkpoint.load_model(
            root, transformers.AutoModel, dtype, ignore_missing=".pooler" if kind == "chinese_clip" else None
        )
    if not tokenizer.is_fast:
        raise InputError(
            f"{root}: its tokenizer has no character offsets: save a fast tokenizer (tokenizer.json)"
        )
    text_tower, text_reader = _build_text_tower(model, kind, tokenizer, regions, normalize)
    space = f"{kind} {hash_tensors(model.state_dict().values())}" + ("" if normalize else " (not normalised)")
    image_encoder = Encoder(
        module=ImageTower(model, normalize).eval(),
        read=processor,
        regions=patch_regions(model.config.vision_config.patch_size),
        name=f"clip:{source} (image)",
        to_image=processor.to_image,
        embedding_space=space,
        similarity="cosine",
    )
    text_encoder = Encoder(
        module=text_tower.eval(),
        read=text_reader,
        regions=tokens(),
        name=f"clip:{source} (text)",
        embedding_space=space,
        similarity="cosine",
    )
    return DualEncoder(image_encoder, text_encoder, name=f"clip:{source}")


def _build_text_tower(
    model: Any, model_type: str, tokenizer: Any, regions: TextRegionSpec, normalize: bool
) -> tuple[TextTower, TextReader]:
    """Return the text tower and its reader: SigLIP's pads texts to the full length."""
    config = model.config.text_config
    embedding_name = f"text_model.embeddings.{TOKEN_EMBEDDING_NAMES.get(model_type, 'token_embedding')}"
    length = config.max_position_embeddings
    reader = TextReader(model.get_submodule(embedding_name), tokenizer, "", length, regions)
    end_token_id = 0
    if (
        model_type == "clip"
    ):  # older configurations have a wrong eos_token_id; the model then uses the largest id
        end_token_id = config.vocab_size - 1 if config.eos_token_id == 2 else config.eos_token_id
    tower = TextTower(model, normalize, f"model.{embedding_name}", end_token_id)
    if model_type != "siglip":
        return tower, reader
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 1
    return tower, PaddedTextReader(
        reader.embed, tokenizer, "", length, regions, padding_id=padding, length=length
    )


def read_features(outputs: Any) -> Tensor:
    """Return the features of a tower; newer versions of transformers wrap them in an output object."""
    return getattr(outputs, "pooler_output", outputs)


def finish_embedding(outputs: Any, normalize: bool) -> Tensor:
    features = read_features(outputs)
    return F.normalize(features, dim=-1) if normalize else features
