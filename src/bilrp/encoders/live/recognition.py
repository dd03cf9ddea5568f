"""Recognise live objects by what they offer, and make encoders of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

from bilrp.encoder import DualEncoder, Encoder
from bilrp.encoders.live.image_text import ImageTextProcessor, from_clip, from_open_clip, has_both_encoders
from bilrp.encoders.live.pictures import from_image_model, from_timm
from bilrp.encoders.live.texts import from_callable, from_sentence_transformers, from_text_model
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.image_processing_utils import BaseImageProcessor


def adapt(model: object) -> Encoder | DualEncoder | None:
    """Return the encoder of a live object or tuple of objects; None if it is none that is known here.

    Args:
        model: a SentenceTransformer, a timm model, (transformers model, tokenizer | image processor | processor),
            (timm model, transform), (open_clip model, preprocess, tokenizer), or (function or module, tokenizer).
    """
    if isinstance(model, tuple):
        return _adapt_tuple(model)
    if is_sentence_transformer(model):
        return from_sentence_transformers(model)
    return from_timm(model) if is_timm(model) else None


def _adapt_tuple(parts: tuple[Any, ...]) -> Encoder | DualEncoder | None:
    if len(parts) == 3 and has_both_encoders(parts[0]) and callable(parts[1]) and callable(parts[2]):
        return from_open_clip(*parts)
    if len(parts) != 2 or not callable(parts[0]) or isinstance(parts[1], str | Encoder | DualEncoder):
        return None
    model, second = parts
    is_reader = not isinstance(model, nn.Module) and any(is_kind(model) for is_kind in READER_KINDS)
    if is_reader and isinstance(second, nn.Module):
        names = type(second).__name__, type(model).__name__
        raise InputError(f"give the model first: ({names[0]}, {names[1]})")
    if any(is_kind(second) for is_kind in READER_KINDS):
        if is_sentence_transformer(model):
            raise InputError("a SentenceTransformer has its tokenizer: pass the model alone")
        return from_transformers(model, second) if is_transformers(model) else from_callable(model, second)
    return from_timm(model, second) if is_timm(model) and not isinstance(second, nn.Module) else None


def from_transformers(
    model: PreTrainedModel,
    processor: object,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_seq_length: int | None = None,
    regions: TextRegionSpec = "words",
) -> Encoder | DualEncoder:
    """Return a live transformers model with its tokenizer or processor as an encoder; its weights are not copied.

    Args:
        model: an AutoModel.
        processor: its fast tokenizer (texts), its image processor (images), or a processor with both (CLIP, SigLIP).
        pooling: texts: "mean", "cls", "last", "max", "pooler" …; images: "cls", "pooler" or "mean". None: as the
            modules.json of the model's folder says; else the last token of decoders and the mean of other texts; the first
            token of ViT and DINO and the pooler output of other image models.
        normalize: scale the embedding of a text to length 1; None: as modules.json says, else not.
        max_seq_length: maximal number of tokens; None: the tokenizer's, at most the model's positions.
        regions: regions of texts: "words", "tokens", "sentences", or spans of characters.

    >>> encoder = from_transformers(model, tokenizer, pooling="mean")  # doctest: +SKIP
    """
    for_texts = {"normalize": normalize, "max_seq_length": max_seq_length}
    if is_tokenizer(processor):
        return from_text_model(model, processor, pooling=pooling, regions=regions, **for_texts)
    unused = [name for name, value in for_texts.items() if value is not None]
    if unused:
        raise InputError(
            f"{unused[0]} is for texts, and {type(processor).__name__} reads images: leave it out"
        )
    if is_processor(processor):
        if pooling is not None:
            raise InputError("an image-text model has its own pooling: leave out pooling")
        return from_clip(model, processor, regions=regions)
    if is_image_processor(processor):
        return from_image_model(model, processor, pooling=pooling)
    raise InputError(
        f"{type(processor).__name__} is neither a tokenizer nor an image processor: pass the model's, e.g. "
        "AutoTokenizer.from_pretrained or AutoImageProcessor.from_pretrained"
    )


def is_sentence_transformer(model: object) -> bool:
    """Return whether a model encodes texts by itself: `encode`, `tokenizer`, and a sequence of modules."""
    if not isinstance(model, nn.Module) or not callable(getattr(model, "encode", None)):
        return False
    tokenizes = callable(getattr(model, "tokenize", None)) or callable(getattr(model, "preprocess", None))
    return tokenizes and hasattr(model, "tokenizer") and hasattr(model, "__iter__")


def is_transformers(model: object) -> TypeGuard[PreTrainedModel]:
    """Return whether a model has a configuration and is called by the names of a tokenizer's output."""
    return isinstance(model, nn.Module) and hasattr(model, "config") and hasattr(model.config, "to_dict")


def is_timm(model: object) -> TypeGuard[nn.Module]:
    """Return whether a model has timm's interface of features and head."""
    parts = ("forward_features", "forward_head")
    return isinstance(model, nn.Module) and all(callable(getattr(model, part, None)) for part in parts)


def is_tokenizer(value: object) -> bool:
    """Return whether a value turns texts into token ids: of transformers, or a tokenizers.Tokenizer."""
    converts = hasattr(value, "convert_ids_to_tokens") or hasattr(value, "token_to_id")
    return converts and not isinstance(value, nn.Module)


def is_image_processor(value: object) -> TypeGuard[BaseImageProcessor]:
    """Return whether a value turns images into pixel values, as image processors of transformers."""
    return "pixel_values" in (getattr(value, "model_input_names", None) or ()) and not is_processor(value)


def is_processor(value: object) -> TypeGuard[ImageTextProcessor]:
    """Return whether a value has both a tokenizer and an image processor."""
    return hasattr(value, "tokenizer") and hasattr(value, "image_processor")


READER_KINDS = (is_tokenizer, is_image_processor, is_processor)
"""What reads the input of a transformers model."""
