"""Two towers from one folder: pictures and texts in one space (CLIP and OpenCLIP, SigLIP, Chinese-CLIP)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilrp.encoder import Encoder, Towers
from bilrp.encoders import hf_checkpoint
from bilrp.encoders.image_processor import Preparation, preparation
from bilrp.encoders.hf_vision import patches
from bilrp.encoders.text.reader import Reader
from bilrp.encoders.text.segmentation import Cut
from bilrp.errors import InputError
from bilrp.inputs import Item
from bilrp.regions import tokens
from bilrp.trace.fingerprint import of_tensors
from bilrp.trace.intermediate_input import running_from

KNOWN = ("clip", "siglip", "chinese_clip")
TABLE = {
    "chinese_clip": "word_embeddings"
}  # of the module that looks tokens up; its output is what is explained


class Pictures(nn.Module):
    """Pixels (1, 3, H, W) → the picture's embedding, of length 1 where `normalise`."""

    def __init__(self, model: nn.Module, normalise: bool):
        super().__init__()
        self.model, self.normalise = model, normalise

    def forward(self, x: Tensor) -> Tensor:
        return _finished(self.model.get_image_features(pixel_values=x), self.normalise)  # type: ignore[operator]


class Texts(nn.Module):
    """Token embeddings (1, tokens, width) → the text's embedding, of length 1 where `normalise`.

    These towers take token numbers only, so the run begins at the output of the table `start`. The numbers matter to
    CLIP as far as they say where the text ends, which is at the last token: one text at a time needs no padding.
    """

    def __init__(self, model: nn.Module, normalise: bool, start: str, last: int):
        super().__init__()
        self.inner, self.normalise, self.start, self.last = _Numbers(model), normalise, start, last

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        numbers[:, -1] = self.last
        return _finished(running_from(self.inner, self.start, numbers)(x), self.normalise)


class _Numbers(nn.Module):
    """Token numbers → the text's features."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, numbers: Tensor) -> Tensor:
        return _features(self.model.get_text_features(input_ids=numbers))


@dataclass(frozen=True, eq=False)
class Padded(Reader):
    """A reader of texts that are all of one length, as SigLIP was trained: the padding is in no region."""

    padding: int = 0
    length: int = 0

    def __call__(self, thing: Any) -> Item:
        item = super().__call__(thing)
        missing = self.length - item.x.shape[1]
        if missing <= 0:
            return item
        cut = item.cut
        assert cut is not None

        def padded(wanted: Any) -> Any:
            regions, view = cut(wanted)
            beyond = regions.labels.new_full((missing, regions.labels.shape[1]), -1)
            return replace(regions, labels=torch.cat([regions.labels, beyond])), view

        x = torch.cat([item.x, self.embedded([self.padding] * missing)], 1)
        regions, view = padded(self.regions)
        return replace(item, x=x, regions=regions, view=view, cut=padded)


def clip(
    folder: str | Path, *, regions: Cut = "words", normalise: bool = True, dtype: torch.dtype = torch.float32
) -> Towers:
    """Pictures and texts in one space, from a folder made by `save_pretrained`: patches against words.

    Embeddings have length 1 as the model compares them, so that the dot product is the cosine; `normalise=False`
    leaves that out. `regions` says how texts are cut: "words", "tokens", "sentences".

    >>> bilrp.explain(clip("clip-vit-base-patch32"), "cat.jpg", "a cat on a sofa").top(1)  # doctest: +SKIP
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"{folder}: there is no such folder; give one with a saved image-text model")
    config = hf_checkpoint.config_of(root)
    transformers = hf_checkpoint.library("vision", "image-text encoders")
    hf_checkpoint.refuse_what_runs_code(root, config, transformers)
    kind = config["model_type"]
    if kind not in KNOWN:
        raise InputError(
            f"{root} holds a model of type {kind!r}, which has no two towers that are known: {', '.join(KNOWN)}"
        )
    prepare = preparation(root)
    with hf_checkpoint.quiet(transformers), hf_checkpoint.one_line(root):
        tokenizer = transformers.AutoTokenizer.from_pretrained(root, **hf_checkpoint.LOCAL)
        model: Any = hf_checkpoint.model(
            root, transformers.AutoModel, dtype, spare=".pooler" if kind == "chinese_clip" else None
        )
    if not tokenizer.is_fast:
        raise InputError(
            f"{root}: its tokenizer gives no offsets, so words cannot be found: save a fast tokenizer (tokenizer.json)"
        )
    made = _made(model, kind, tokenizer, regions, normalise)
    space = f"{kind} {of_tensors(model.state_dict().values())}" + ("" if normalise else " (not normalised)")
    pictures = Encoder(
        module=Pictures(model, normalise).eval(),
        read=prepare if dtype == torch.float32 else _Typed(prepare, dtype),
        regions=patches(model.config.vision_config.patch_size),
        name=f"clip:{folder} (image)",
        picture=prepare.picture,
        space=space,
    )
    texts = Encoder(
        module=made[0].eval(), read=made[1], regions=tokens(), name=f"clip:{folder} (text)", space=space
    )
    return Towers(pictures, texts, name=f"clip:{folder}")


def _made(model: Any, kind: str, tokenizer: Any, regions: Cut, normalise: bool) -> tuple[Texts, Reader]:
    """The text tower and how it reads: CLIP up to its end token, SigLIP padded to its full length."""
    config = model.config.text_config
    table = f"text_model.embeddings.{TABLE.get(kind, 'token_embedding')}"
    length = config.max_position_embeddings
    reader = Reader(model.get_submodule(table), tokenizer, "", length, regions)
    last = 0
    if (
        kind == "clip"
    ):  # older configurations name a wrong end token; there the model takes the largest number for the end
        last = config.vocab_size - 1 if config.eos_token_id == 2 else config.eos_token_id
    texts = Texts(model, normalise, f"model.{table}", last)
    if kind != "siglip":
        return texts, reader
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 1
    return texts, Padded(reader.embed, tokenizer, "", length, regions, padding=padding, length=length)


@dataclass(frozen=True)
class _Typed:
    """Pictures in the type of the model's weights."""

    prepare: Preparation
    dtype: torch.dtype

    def __call__(self, thing: Any) -> Item:
        item = self.prepare(thing)
        return replace(item, x=item.x.to(self.dtype))


def _features(found: Any) -> Tensor:
    """The features that a tower gives, alone or among other outputs, as versions of transformers differ."""
    return getattr(found, "pooler_output", found)


def _finished(found: Any, normalise: bool) -> Tensor:
    features = _features(found)
    return F.normalize(features, dim=-1) if normalise else features
