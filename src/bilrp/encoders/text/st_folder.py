"""A folder in sentence-transformers' or transformers' layout, read without running anything of it (see `saved`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilrp.encoders import hf_checkpoint
from bilrp.encoders.hf_checkpoint import read_config, read_json, silence_transformers, wrap_load_errors
from bilrp.encoders.text import heads
from bilrp.errors import InputError

SAVED_BY = "save_pretrained or sentence-transformers"


@dataclass(frozen=True)
class ModelFolder:
    """What a folder's files say: where the transformer lies, what stands on it, and how a text is prepared.

    `pooling` is None where no file says it.
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
    """Read modules.json and its kin; a plain transformers folder has none, and says nothing about pooling."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise InputError(
            f"{path}: there is no such folder; give 'minilm', or a folder with a saved text model"
        )
    if not (root / "modules.json").is_file():
        return ModelFolder(root, read_config(root, SAVED_BY))
    listed = read_json(root / "modules.json")
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{root / 'modules.json'} does not list modules: save the model again")
    modules = [
        (_module_type(entry, root), root / _relative_folder(entry.get("path", ""), root)) for entry in listed
    ]
    if modules[0][0] != "Transformer":
        raise InputError(
            f"{root}: its first module is {modules[0][0]}, not a Transformer, and cannot be followed"
        )
    first = modules[0][1]
    preparing = read_json(first / "sentence_bert_config.json", {})
    speaking = read_json(root / "config_sentence_transformers.json", {})
    pooling, include_prompt, after = _read_heads(modules[1:], root)
    prompts = speaking.get("prompts") or {}
    return ModelFolder(
        first,
        read_config(first, SAVED_BY),
        pooling=pooling,
        include_prompt=include_prompt,
        post_pooling=after,
        max_seq_length=preparing.get("max_seq_length"),
        lowercase=bool(preparing.get("do_lower_case")),
        prompts={str(name): str(text) for name, text in prompts.items() if text},
        default_prompt=speaking.get("default_prompt_name"),
    )


def load_transformer(model_folder: ModelFolder, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """The transformer, frozen and in evaluation mode, and its tokenizer."""
    transformers = hf_checkpoint.import_transformers("text", "text encoders")
    hf_checkpoint.check_checkpoint(model_folder.path, model_folder.config, transformers)
    with silence_transformers(transformers), wrap_load_errors(model_folder.path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model_folder.path, **hf_checkpoint.LOCAL_ONLY_OPTIONS
        )
        model = _load_model(model_folder, transformers, dtype)
    if not tokenizer.is_fast:
        raise InputError(
            f"{model_folder.path}: its tokenizer gives no offsets, so tokens cannot be found in the text: "
            "save it as a fast tokenizer (tokenizer.json)"
        )
    if set(tokenizer.get_vocab()) <= set(
        tokenizer.all_special_tokens
    ):  # what transformers makes of no file at all
        raise InputError(
            f"{model_folder.path}: there are no words of a tokenizer in it (tokenizer.json): save yours there with "
            "tokenizer.save_pretrained"
        )
    if model_folder.lowercase:
        _lowercase_first(tokenizer)
    return model, tokenizer


def is_decoder(config: Mapping[str, Any]) -> bool:
    """Does each token see only those before it? Then the last one is the only one that saw them all."""
    from transformers.models.auto import modeling_auto as auto

    kind = config.get("model_type")
    speaks = (
        kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )
    return bool(config.get("is_decoder") or speaks) and config.get("is_causal", True)


def _load_model(model_folder: ModelFolder, transformers: Any, dtype: torch.dtype) -> nn.Module:
    from transformers.models.auto import modeling_auto as auto

    alone = (
        model_folder.config["model_type"] in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
    )  # T5 without its decoder
    maker = transformers.AutoModelForTextEncoding if alone else transformers.AutoModel
    model: Any = hf_checkpoint.load_model(model_folder.path, maker, dtype, ignore_missing="pooler")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # a head for another task, random where the folder has no weights for it
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model.get_encoder() if model.config.is_encoder_decoder else model


def _read_heads(
    modules: list[tuple[str, Path]], root: Path
) -> tuple[tuple[str, ...] | None, bool, tuple[nn.Module, ...]]:
    """Pooling, whether it counts the prompt, and what comes after it; without pooling, tokens stay tokens."""
    pooling: tuple[str, ...] | None = None
    include_prompt, after = True, []
    for kind, folder in modules:
        config = read_json(folder / "config.json", {})
        if kind == "Pooling":
            if after:
                raise InputError(
                    f"{root}: a module before the pooling cannot be followed ({kind} comes late)"
                )
            pooling, include_prompt = _pooling_modes(config, folder), bool(config.get("include_prompt", True))
        elif kind == "Normalize":
            after.append(heads.Normalize())
        elif kind == "Dense":
            after.append(_load_dense(config, folder))
        elif kind == "LayerNorm":
            with torch.device("meta"):
                norm = heads.LayerNorm(int(config.get("dimension", 0)))
            after.append(_load_weights(norm, folder))
        elif kind != "Dropout":
            raise InputError(
                f"{root}: a module of type {kind} cannot be followed; known are {', '.join(SUPPORTED_MODULES)}"
            )
    return pooling or ("tokens",), include_prompt, tuple(after)


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
    found = tuple(named.get(flag, flag.removesuffix("_tokens") if "weighted" in flag else flag)
                  for flag in sorted(flags, key=lambda f: order.index(f) if f in order else 99))  # fmt: skip
    if not found:
        raise InputError(f"{folder / 'config.json'} names no pooling")
    return found


def _load_dense(config: Mapping[str, Any], folder: Path) -> nn.Module:
    try:
        with torch.device("meta"):
            made = heads.Dense(
                int(config["in_features"]),
                int(config["out_features"]),
                bias=bool(config.get("bias", True)),
                activation=str(config.get("activation_function", "torch.nn.Tanh")),
                residual=bool(config.get("use_residual")),
            )
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{folder / 'config.json'} does not describe a dense layer") from None
    return _load_weights(made, folder)


def _load_weights(module: nn.Module, folder: Path) -> nn.Module:
    """A module on the meta device with its weights from the folder, every one of them: shapes are compared first."""
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
    """The class a module was saved from, by name: none is ever imported."""
    named = entry.get("type") if isinstance(entry, dict) else None
    if not isinstance(named, str):
        raise InputError(f"{root / 'modules.json'} lists a module without a type")
    package, kind = named.partition(".")[0], named.rpartition(".")[2]
    if package not in {"sentence_transformers", "pylate"} or kind not in SUPPORTED_MODULES:
        raise InputError(
            f"{root}: a module of type {named} cannot be followed, and code from a model's folder is never run; "
            f"known are {', '.join(SUPPORTED_MODULES)}"
        )
    return kind


def _relative_folder(path: Any, root: Path) -> Path:
    """A module's folder, inside the model's own."""
    relative = Path(str(path))
    if relative.is_absolute() or ".." in relative.parts:
        raise InputError(f"{root / 'modules.json'} points out of its folder: {path}")
    return relative


def _lowercase_first(tokenizer: Any) -> None:
    """Lower case first, as sentence-transformers does; offsets still refer to the text as it was."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if backend.normalizer else [])])
