"""Build small random models of transformers for docs/coverage.md: each class of its AutoModel table, as encoders.

Does not use bilrp. A configuration is built from the fields of its class; of several candidates, the first with which the
model runs in plain PyTorch is used.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MAX_WEIGHTS = 40_000_000
MAX_OUTPUTS = 8  # compared coordinates of the embedding
TOKENS = 9
SAMPLES = 1600  # of a waveform
FRAMES = 64  # of a spectrogram
IMAGE = 64  # pixels
FEATURES = {"image": "get_image_features", "text": "get_text_features", "audio": "get_audio_features"}

SIZES: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "dim": 32, "n_embd": 32, "embedding_size": 32, "emb_dim": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "depth": 2,
    "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "attention_heads": 4,
    "intermediate_size": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "ffn_dim": 48, "d_ff": 48, "hidden_dim": 48,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "d_kv": 8, "head_dim": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 120, "max_position_embeddings": 80, "n_positions": 80, "image_size": IMAGE,
    "projection_dim": 16, "embed_dim": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "max_source_positions": 32, "max_target_positions": 32, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16, "attention_dim": 32, "num_blocks": 2,
    "num_hidden_groups": 1, "encoder_hidden_size": 32, "encoder_dim": 32, "feed_forward_proj_dim": 48, "mamba_d_state": 8,
    "max_length": 64, "rotary_dim": 4, "n_group": 2, "topk_group": 1, "state_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


NEEDED = {"vocab_size", "num_experts_per_tok"}  # sizes that are None in some classes


@dataclass(frozen=True, eq=False)
class Case:
    """A model as an encoder: `module(model_input)` is its embedding, `start` the module whose output is explained."""

    name: str
    module: nn.Module
    model_input: Tensor
    start: str | None


class Embedding(nn.Module):
    """A model that returns a tensor of at most MAX_OUTPUTS numbers."""

    def __init__(self, model: nn.Module, call: str, argument: str, more: dict[str, Any]):
        super().__init__()
        self.model, self.call, self.argument, self.more = model, call, argument, more

    def forward(self, x: Tensor) -> Tensor:
        x = x[0] if "grid_thw" in "".join(self.more) else x
        return extract_embedding(getattr(self.model, self.call)(**{self.argument: x}, **self.more))


class Submodule(nn.Module):
    """A submodule that takes one tensor."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return extract_embedding(self.part(x))


def extract_embedding(result: Any) -> Tensor:
    """Return the pooled output, else the mean over positions of the last hidden state."""
    names = ("pooler_output", "image_embeds", "text_embeds", "last_hidden_state", "hidden_states", "logits")
    values = [result] if isinstance(result, Tensor) else [getattr(result, name, None) for name in names]
    if isinstance(result, tuple | list):
        values = list(result)
    value = next((value for value in values if value is not None and len(value)), None)
    if value is None:
        value = next(v for v in result.values() if isinstance(v, Tensor) and v.is_floating_point())
    while not isinstance(value, Tensor):
        value = value[-1]
    if value.dim() == 4:
        value = value.mean((2, 3))
    elif value.dim() > 1:
        value = value.flatten(1, -2).mean(1) if value.dim() > 2 else value.mean(0, keepdim=True)
    return value.reshape(1, -1)[:, :MAX_OUTPUTS]


def list_model_types() -> list[str]:
    """Return all model types of transformers' AutoModel."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def build_cases(model_type: str) -> Iterator[Case | str]:
    """Yield the encoders of a model type in float64 and eval mode, or why it has none."""
    from transformers.models.auto import modeling_auto as auto

    for no_encoders, why in (
        (auto.MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES, "no encoder: matches keypoints of two images"),
        (auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES, "no encoder: makes a waveform of a text"),
    ):
        if model_type in no_encoders:
            yield why
            return
    problem = ""
    for configuration in small_configurations(model_type):
        try:
            model = build_model(model_type, configuration)
        except Exception as error:
            problem = problem or f"not built: {format_error(error)}"
            continue
        cases: list[Case] = []
        for name, call, owner in list_calls(model):
            case_problem = None
            for case in candidate_inputs(name, call, owner):
                try:
                    with torch.no_grad():
                        out = case.module(case.model_input)
                    assert bool(torch.isfinite(out).all()) and bool(out.any()), (
                        "no embedding: zero, or not finite"
                    )
                    cases.append(case)
                    break
                except Exception as error:
                    case_problem = case_problem or f"does not run: {format_error(error)}"
            problem = problem or case_problem or ""
        if cases:
            yield from cases
            return
    yield problem or "no small configuration"


def small_configurations(model_type: str) -> Iterator[Any]:
    """Yield small configurations: first with divided lists of widths, then with these unchanged."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    for sizes, divide in ((SIZES, 8), (SIZES, 1)):
        try:
            yield build_configuration(kind, sizes, divide)
        except Exception:
            continue


def build_configuration(kind: Any, sizes: dict[str, Any], divide: int) -> Any:
    """Build a configuration of this class and, recursively, of its sub-configurations."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name in kind.sub_configs:
            part = kind.sub_configs[field.name]
            if not getattr(part, "model_type", ""):  # any configuration: use the type of the default
                part = type(getattr(kind(), field.name, None))
            if getattr(part, "model_type", ""):
                values[field.name] = build_configuration(part, sizes, divide).to_dict()
        elif field.name == "image_size" and isinstance(default, tuple | list):
            values[field.name] = [IMAGE] * len(default)
        elif default is None and field.name in NEEDED:
            values[field.name] = sizes[field.name]
        elif field.name in sizes and isinstance(default, int) and not isinstance(default, bool):
            values[field.name] = min(default, sizes[field.name]) if default > 2 else default
        elif (
            divide > 1
            and isinstance(default, tuple | list)
            and default
            and all(type(n) is int for n in default)
        ):
            if field.name in {"depth", "depths", "layers", "num_blocks", "num_layers", "layer_depths"}:
                values[field.name] = [1] * len(default)
            elif all(n % divide == 0 and n > 31 for n in default):
                values[field.name] = [n // divide for n in default]
    return kind(**values)


def build_model(model_type: str, configuration: Any) -> nn.Module:
    """Build the model with random weights, in float64 and eval mode; raise ValueError if it is not small."""
    from transformers import AutoModel

    with torch.device("meta"):
        weights = sum(p.numel() for p in AutoModel.from_config(configuration).parameters())
    if weights > MAX_WEIGHTS:
        raise ValueError(f"{weights / 1e6:.0f} million weights")
    torch.manual_seed(0)
    # the fused product of all experts does not support float64
    model = AutoModel.from_config(configuration, experts_implementation="eager").double().eval()
    draw = torch.Generator().manual_seed(1)
    for p in model.parameters():  # weights that start as zeros would hide what they multiply
        p.data += 0.05 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
    return model


def list_calls(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield name, method and module: the encoder of the model, its methods that return features, or the model itself."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) and hasattr(model, "get_encoder"):
        yield f"{name} (encoder)", "forward", model.get_encoder()
        return
    features = [(kind, call) for kind, call in FEATURES.items() if hasattr(model, call)]
    for kind, call in features:
        yield f"{name} ({kind})", call, model
    if not features:
        yield name, "forward", model


def candidate_inputs(name: str, call: str, model: nn.Module) -> Iterator[Case]:
    """Yield the encoder with inputs of several shapes; the first that runs is used."""
    signature = inspect.signature(getattr(model, call)).parameters
    argument = "inputs" if "inputs" in signature else getattr(model, "main_input_name", "input_ids")
    if argument not in signature:
        known = ("input_ids", "pixel_values", "input_values", "input_features", "hidden_states")
        argument = next((a for a in known if a in signature), next(iter(signature)))
    draw = torch.Generator().manual_seed(2)
    if argument in {"input_ids", "decoder_input_ids"}:
        start = find_embedding_layer(model, call)
        ids = torch.randint(3, 25, (1, TOKENS), generator=draw)
        for more in ({}, {"bbox": torch.zeros(1, TOKENS, 4, dtype=torch.int64)}):
            yield Case(name, Embedding(model, call, argument, more), ids, start)
        return
    for shape, more in candidate_shapes(argument, model, signature):
        x = torch.rand(shape, generator=draw, dtype=torch.float64)
        yield Case(name, Embedding(model, call, argument, more), x, None)


def find_embedding_layer(model: nn.Module, call: str) -> str | None:
    """Return the name of the token embedding module inside `Embedding`."""
    for owner in (model, getattr(model, "text_model", None)):
        try:
            table = owner.get_input_embeddings()
        except Exception:
            continue
        for name, part in model.named_modules():
            if part is table:  # its output comes from its last submodule with weights
                inner = [n for n, p in part.named_modules() if n and p._parameters]
                return f"model.{name}" + (f".{inner[-1]}" if inner else "")
    return next((f"model.{n}" for n, part in model.named_modules() if isinstance(part, nn.Embedding)), None)


def candidate_shapes(
    argument: str, model: nn.Module, signature: Any
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield shapes that the argument may have, with further arguments that it needs."""
    config = getattr(model, "config", None)
    vision = getattr(config, "vision_config", None) or config
    audio = getattr(config, "audio_config", None) or config
    if argument == "input_values":
        yield (1, SAMPLES), {}
        yield (1, 1, SAMPLES), {}
        size = [getattr(audio, n, None) for n in ("max_length", "num_mel_bins")]
        if all(size):
            yield (1, *size), {}
        return
    if argument == "input_features":
        bins = next((v for n in ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_size", "feat_in")
                     if (v := getattr(audio, n, None))), 80)  # fmt: skip
        frames = 2 * getattr(audio, "max_source_positions", FRAMES // 2)
        yield (1, bins, min(frames, 3000)), {}
        yield (1, FRAMES, bins), {}
        yield (1, 1, FRAMES, bins), {}
        yield (1, bins, FRAMES), {}
        yield (1, FRAMES, 2 * bins), {}
        return
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    side = getattr(vision, "image_size", None) or IMAGE
    high, wide = side[:2] if isinstance(side, tuple | list) else (side, side)
    more: dict[str, Any] = {}
    if "image_sizes" in signature:
        more["image_sizes"] = torch.tensor([[high, wide]])
    grid = next((name for name in signature if name.endswith("grid_thw")), None)
    patch = getattr(vision, "patch_size", 16)
    if grid is not None:
        times = getattr(vision, "temporal_patch_size", 1) * channels
        yield (1, 16, times * patch * patch), {grid: torch.tensor([[1, 4, 4]])}
    if "spatial_shapes" in signature or "pixel_position_ids" in signature:
        more["spatial_shapes"] = torch.tensor([[4, 4]])
        more["pixel_attention_mask"] = torch.ones(1, 16, dtype=torch.int64)
        yield (1, 16, channels * patch * patch), more
    yield (1, channels, high, wide), more
    for size in (IMAGE, 2 * IMAGE, 224, 4 * IMAGE):
        yield (1, channels, size, size), more
    frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", 2)
    yield (1, frames, channels, high, wide), more
    yield (1, 2, channels, high, wide), more
    yield (1, FRAMES, 32), more
    yield (1, math.prod((FRAMES, 1))), more


def format_error(error: BaseException) -> str:
    """Return the type and the first line of an error, without the folders of installed packages."""
    lines = re.sub(r"[^\s']*/site-packages/", "", str(error)).strip().splitlines()
    return f"{type(error).__name__} {lines[0][:160] if lines else ''}".strip()
