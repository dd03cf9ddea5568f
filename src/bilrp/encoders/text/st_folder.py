"""Load text models from sentence-transformers and transformers folders, without running their code (see `hf_checkpoint`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoders import hf_checkpoint
from bilrp.encoders.hf_checkpoint import read_config, read_json, silence_transformers, wrap_load_errors
from bilrp.encoders.text import heads
from bilrp.encoders.text.reader import FastTokenizer
from bilrp.errors import InputError

SAVED_BY = "save_pretrained or sentence-transformers"


@dataclass(frozen=True)
class ModelFolder:
    """Description of a model folder.

    Args:
        path, config: folder of the transformer, and its config.json.
        pooling: pooling modes, or None if the folder does not define them.
        include_prompt: pool the prompt's tokens too.
        post_pooling: modules after the pooling.
        max_seq_length: maximal number of tokens.
        lowercase: convert texts to lower case.
        prompts: prompts by name.
        default_prompt: name of the default prompt.
    """

    path: Path
    config: Mapping[str, Any]
    pooling: tuple[str, ...] | None = None
    include_prompt: bool = True
    post_pooling: tuple[nn.Module, ...] = ()
    max_seq_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_model_folder(path: str | Path) -> ModelFolder:
    """Read modules.json and the files it refers to; a plain transformers folder has only config.json."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise InputError(f"{path}: no such folder; use 'minilm', or a folder with a saved text model")
    if not (root / "modules.json").is_file():
        return ModelFolder(root, read_config(root, SAVED_BY))
    entries = read_json(root / "modules.json")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{root / 'modules.json'} is not a list of modules: save the model again")
    modules = [
        (_module_type(entry, root), root / _relative_folder(entry.get("path", ""), root)) for entry in entries
    ]
    if modules[0][0] != "Transformer":
        raise InputError(f"{root}: its first module is {modules[0][0]}; only Transformer is supported")
    first = modules[0][1]
    bert_config = read_json(first / "sentence_bert_config.json", {})
    st_config = read_json(root / "config_sentence_transformers.json", {})
    pooling, include_prompt, post_pooling = _read_heads(modules[1:], root)
    prompts = st_config.get("prompts") or {}
    return ModelFolder(
        first,
        read_config(first, SAVED_BY),
        pooling=pooling,
        include_prompt=include_prompt,
        post_pooling=post_pooling,
        max_seq_length=bert_config.get("max_seq_length"),
        lowercase=bool(bert_config.get("do_lower_case")),
        prompts={str(name): str(text) for name, text in prompts.items() if text},
        default_prompt=st_config.get("default_prompt_name"),
    )


def load_transformer(model_folder: ModelFolder, dtype: torch.dtype) -> tuple[nn.Module, FastTokenizer]:
    """Return the transformer, without gradients and in evaluation mode, and its tokenizer."""
    transformers = hf_checkpoint.import_transformers("text", "text encoders")
    hf_checkpoint.check_checkpoint(model_folder.path, model_folder.config, transformers)
    with silence_transformers(transformers), wrap_load_errors(model_folder.path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model_folder.path, **hf_checkpoint.LOCAL_ONLY_OPTIONS
        )
        model = _load_model(model_folder, transformers, dtype)
    if not tokenizer.is_fast:
        raise InputError(
            f"{model_folder.path}: its tokenizer has no character offsets: save a fast tokenizer (tokenizer.json)"
        )
    if set(tokenizer.get_vocab()) <= set(
        tokenizer.all_special_tokens
    ):  # transformers creates an empty tokenizer if there is no file
        raise InputError(
            f"{model_folder.path}: it has no tokenizer (tokenizer.json): save it there with tokenizer.save_pretrained"
        )
    if model_folder.lowercase:
        _lowercase_first(tokenizer)
    return model, tokenizer


def is_decoder(config: Mapping[str, object]) -> bool:
    """Return whether attention is causal; the last token is then the default pooling."""
    from transformers.models.auto import modeling_auto as auto

    kind = config.get("model_type")
    is_causal_lm = (
        kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
    return bool(config.get("is_decoder") or is_causal_lm) and bool(config.get("is_causal", True))


def _load_model(model_folder: ModelFolder, transformers: ModuleType, dtype: torch.dtype) -> nn.Module:
    from transformers.models.auto import modeling_auto as auto

    # such as T5 without its decoder
    encoder_only = model_folder.config["model_type"] in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    auto_class = transformers.AutoModelForTextEncoding if encoder_only else transformers.AutoModel
    model: Any = hf_checkpoint.load_model(model_folder.path, auto_class, dtype, ignore_missing="pooler")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # for another task, and random if the folder has no weights for it
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model.get_encoder() if model.config.is_encoder_decoder else model


def _read_heads(
    modules: list[tuple[str, Path]], root: Path
) -> tuple[tuple[str, ...] | None, bool, tuple[nn.Module, ...]]:
    """Return the pooling modes, whether they include the prompt, and the modules after the pooling."""
    pooling: tuple[str, ...] | None = None
    include_prompt, post_pooling = True, []
    for kind, folder in modules:
        config = read_json(folder / "config.json", {})
        if kind == "Pooling":
            if post_pooling:
                raise InputError(f"{root}: modules between Transformer and Pooling are not supported")
            pooling, include_prompt = _pooling_modes(config, folder), bool(config.get("include_prompt", True))
        elif kind == "Normalize":
            post_pooling.append(heads.Normalize())
        elif kind == "Dense":
            post_pooling.append(_load_dense(config, folder))
        elif kind == "LayerNorm":
            with torch.device("meta"):
                norm = heads.LayerNorm(int(config.get("dimension", 0)))
            post_pooling.append(_load_weights(norm, folder))
        elif kind != "Dropout":
            raise InputError(
                f"{root}: modules of type {kind} are not supported, only {', '.join(SUPPORTED_MODULES)}"
            )
    return pooling or ("tokens",), include_prompt, tuple(post_pooling)


SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")


def _pooling_modes(config: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    mode = config.get("pooling_mode")
    if mode:
        return (mode,) if isinstance(mode, str) else tuple(mode)
    named = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "lasttoken": "last"}
    flags = [
        name.removeprefix("pooling_mode_")
        for name, on in config.items()
        if name.startswith("pooling_mode_") and on
    ]
    order = [
        "cls_token",
        "max_tokens",
        "mean_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    ]
    modes = tuple(named.get(flag, flag.removesuffix("_tokens") if "weighted" in flag else flag)
                  for flag in sorted(flags, key=lambda f: order.index(f) if f in order else 99))  # fmt: skip
    if not modes:
        raise InputError(f"{folder / 'config.json'} has no pooling mode")
    return modes


def _load_dense(config: Mapping[str, Any], folder: Path) -> nn.Module:
    try:
        with torch.device("meta"):
            dense = heads.Dense(
                int(config["in_features"]),
                int(config["out_features"]),
                bias=bool(config.get("bias", True)),
                activation=str(config.get("activation_function", "torch.nn.Tanh")),
                residual=bool(config.get("use_residual")),
            )
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{folder / 'config.json'} does not describe a dense layer") from None
    return _load_weights(dense, folder)


def _load_weights(module: nn.Module, folder: Path) -> nn.Module:
    """Load all weights of a module on the meta device; shapes are compared before memory is allocated."""
    with wrap_load_errors(folder):
        weights = {
            name: tensor.to(torch.get_default_dtype()) for name, tensor in _read_tensors(folder).items()
        }
        module.load_state_dict(weights, assign=True)
    return module


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if (folder / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")
    if (folder / "pytorch_model.bin").is_file():
        hf_checkpoint.check_torch_file(folder / "pytorch_model.bin")
        return torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    raise InputError(f"{folder} has no weights: model.safetensors (or pytorch_model.bin) is missing")


def _module_type(entry: Any, root: Path) -> str:
    """Return the class name of a module; the class is never imported."""
    type_name = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(type_name, str):
        raise InputError(f"{root / 'modules.json'} lists a module without a type")
    package, kind = type_name.partition(".")[0], type_name.rpartition(".")[2]
    if package not in {"sentence_transformers", "pylate"} or kind not in SUPPORTED_MODULES:
        raise InputError(
            f"{root}: modules of type {type_name} are not supported (code from a model folder is never run), only "
            f"{', '.join(SUPPORTED_MODULES)}"
        )
    return kind


def _relative_folder(path: Any, root: Path) -> Path:
    """Return a module's path relative to the model folder; raise if it is outside."""
    relative = Path(str(path))
    if relative.is_absolute() or ".." in relative.parts:
        raise InputError(f"{root / 'modules.json'} points outside of its folder: {path}")
    return relative


def _lowercase_first(tokenizer: Any) -> None:
    """Convert to lower case in the tokenizer, as sentence-transformers does; offsets refer to the original text."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if backend.normalizer else [])])
