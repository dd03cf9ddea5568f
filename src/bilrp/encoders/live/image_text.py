"""Image-text encoders of live objects: an open_clip triple, a transformers CLIP model with its processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from bilrp.encoder import DualEncoder, Encoder
from bilrp.encoders.hf_clip import finish_embedding
from bilrp.encoders.hf_vision import patch_regions
from bilrp.encoders.live.first_use import FirstUseCheck
from bilrp.encoders.live.pictures import LiveImageReader, make_processor_reader
from bilrp.encoders.live.texts import build_text_encoder, wrap_tokenizer
from bilrp.encoders.text.segmentation import TextRegionSpec
from bilrp.trace.fingerprint import hash_weights

if TYPE_CHECKING:
    from PIL import Image as Pillow
    from transformers.image_processing_utils import BaseImageProcessor


@runtime_checkable
class ImageTextProcessor(Protocol):
    """A processor of transformers for images and texts."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def image_processor(self) -> BaseImageProcessor: ...


class _Method(nn.Module):
    """Tensor → embedding by a method of a model; newer versions of transformers wrap it in an output object."""

    def __init__(self, model: nn.Module, method: str, argument: str | None = None):
        super().__init__()
        self.model, self.method, self.argument = model, method, argument

    def forward(self, x: Tensor) -> Tensor:
        method = getattr(self.model, self.method)
        output = method(x) if self.argument is None else method(**{self.argument: x})
        return finish_embedding(output, normalize=False)


def from_open_clip(
    model: Any,
    preprocess: Callable[[Pillow.Image], Tensor],
    tokenizer: Callable[[list[str]], Tensor],
    *,
    regions: TextRegionSpec = "words",
) -> DualEncoder:
    """Return a live open_clip model, with its image transform and tokenizer, as two encoders of one embedding space.

    Embeddings are those of `encode_image` and `encode_text`.

    Args:
        model: the model.
        preprocess: Pillow image -> tensor (3, H, W), as `create_model_and_transforms` returns it.
        tokenizer: list of texts -> ids [n, length], as `get_tokenizer` returns it.
        regions: regions of texts.

    >>> encoder = from_open_clip(model, preprocess, open_clip.get_tokenizer("ViT-B-32"))  # doctest: +SKIP
    """
    device = next(model.parameters()).device
    return _build(
        model,
        (_Method(model, "encode_image"), _Method(model, "encode_text")),
        LiveImageReader(preprocess, model),
        tokenizer,
        lambda text: tokenizer([text])[0].tolist(),
        lambda text: model.encode_text(tokenizer([text]).to(device)),
        ("model.encode_text", getattr(getattr(model, "visual", None), "patch_size", None)),
        regions,
    )


def from_clip(model: Any, processor: ImageTextProcessor, *, regions: TextRegionSpec = "words") -> DualEncoder:
    """Return a live transformers image-text model with its processor (see `from_transformers`).

    Args:
        model: The model, for example a CLIPModel.
        processor: Its processor, with a tokenizer and an image processor.
        regions: Regions of texts.
    """
    tokenizer = processor.tokenizer
    # SigLIP is trained with texts of full length, without a mask.
    is_padded = "siglip" in str(model.config.model_type)
    limit = model.config.text_config.max_position_embeddings
    options = {"truncation": True, "max_length": limit, **({"padding": "max_length"} if is_padded else {})}

    def token_ids(text: str) -> list[int]:
        return list(tokenizer(text, **options)["input_ids"])

    def encode(text: str) -> Tensor:
        features = tokenizer([text], return_tensors="pt", **options)
        names = ["input_ids"] if is_padded else list(features)
        device = next(model.parameters()).device
        output = model.get_text_features(**{name: features[name].to(device) for name in names})
        return finish_embedding(output, normalize=False)

    return _build(
        model,
        (
            _Method(model, "get_image_features", "pixel_values"),
            _Method(model, "get_text_features", "input_ids"),
        ),
        make_processor_reader(model, processor.image_processor),
        tokenizer,
        token_ids,
        encode,
        ("model.get_text_features", getattr(model.config.vision_config, "patch_size", None)),
        regions,
    )


def _build(
    model: nn.Module,
    modules: tuple[nn.Module, nn.Module],
    read_image: LiveImageReader,
    tokenizer: object,
    token_ids: Callable[[str], list[int]],
    encode_text: Callable[[str], Tensor],
    about: tuple[str, object],
    regions: TextRegionSpec,
) -> DualEncoder:
    """Return both encoders.

    Args:
        model: the model.
        modules: pixels -> embedding, token ids -> embedding.
        read_image: reads images.
        tokenizer: the model's tokenizer.
        token_ids: text -> ids as the model is called with.
        encode_text: text -> embedding, by the model itself.
        about: the call that embeds texts, and the side of a patch.
        regions: regions of texts.
    """
    name = f"{type(model).__name__}({getattr(model, 'name_or_path', '') or 'live'})"
    space = f"{type(model).__name__} {hash_weights(list(model.parameters()))}"
    image = Encoder(
        module=modules[0],
        read=read_image,
        regions=patch_regions(about[1]),
        name=f"{name} (image)",
        to_image=None if read_image.twin is None else read_image.twin.to_image,
        embedding_space=space,
        similarity="cosine",
    )
    text = build_text_encoder(
        modules[1],
        wrap_tokenizer(tokenizer, "the tokenizer"),
        limit=len(token_ids("a " * 1000)),  # where the tokenizer truncates
        regions=regions,
        name=f"{name} (text)",
        similarity="cosine",
        embedding_space=space,
        own_token_ids=token_ids,
        check=FirstUseCheck(
            model,
            (id(tokenizer), about[0]),
            encode_text,
            about[0],
            "pass the tokenizer that belongs to the model",
        ),
    )
    return DualEncoder(image, text, name=name)


def has_both_encoders(model: object) -> bool:
    """Return whether a model embeds images and texts, as open_clip's do."""
    return callable(getattr(model, "encode_image", None)) and callable(getattr(model, "encode_text", None))
