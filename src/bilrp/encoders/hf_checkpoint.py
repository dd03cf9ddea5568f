"""Load folders written by `save_pretrained` without running code from them.

Architectures are those of the installed transformers, remote code is rejected, weights are safetensors or pickles read
with weights_only, and nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bilrp.errors import InputError, import_optional, wrap_errors
from bilrp.io import files

if TYPE_CHECKING:
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MAX_JSON_BYTES = 16_000_000
MAX_LAYERS = 1000
# suffixes of configuration keys that count layers
LAYER_COUNT_SUFFIXES = ("layers", "layer", "depth", "depths", "blocks", "stages", "experts")
MAX_MISSING_PARAMETERS = 32_000_000  # heads and buffers that are not in the checkpoint
# these replace the layers of the architecture
UNSUPPORTED_CONFIG_KEYS = ("quantization_config", "compression_config", "fusion_config")
MAX_TEXT_FILE_BYTES = 64_000_000  # the largest known tokenizer files have 35 MB
LOCAL_ONLY_OPTIONS = {"local_files_only": True, "trust_remote_code": False}


def read_config(folder: Path, saved_by: str = "save_pretrained") -> Mapping[str, Any]:
    """Read config.json, which must have a model_type.

    Args:
        folder: model folder.
        saved_by: what writes such folders, for the error message.
    """
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} contains an adapter, not a model: merge it into its base model and save that"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: pass a folder written by {saved_by}")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(
            f"{folder / 'config.json'} has no model_type: it is not the configuration of a model"
        )
    return config


def import_transformers(extra: str, purpose: str) -> ModuleType:
    """Import transformers, or raise an error that names the extra to install."""
    return import_optional("transformers", extra, purpose)


def check_checkpoint(folder: Path, config: Mapping[str, object], transformers: ModuleType) -> None:
    """Raise `InputError` for remote code, an unknown architecture, missing weights, or implausible files.

    Args:
        folder, config: model folder, and its config.json.
        transformers: the imported transformers package.
    """
    _reject_remote_code(folder, config)
    kind = config.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"{folder}: transformers {transformers.__version__} does not know the architecture {kind!r} of its config.json"
        )
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise InputError(f"{folder} has no weights: {WEIGHT_FILES[0]} (or {WEIGHT_FILES[2]}) is missing")
    _check_files(folder)
    _check_depth(folder, config)


def _iterate_entries(config: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield every (name, value) of a configuration, at any depth."""
    stack: list[Any] = [config]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield from value.items()
        stack += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _reject_remote_code(folder: Path, config: Mapping[str, object]) -> None:
    """Raise for entries by which transformers would load code or kernels from the folder or a repository ("owner/name")."""
    for name, value in _iterate_entries(config):
        if not value:
            continue
        if name == "auto_map":
            code = value.get("AutoModel") or next(iter(value.values())) if isinstance(value, dict) else value
            raise InputError(
                f"{folder} needs its own code ({code}), and code from a model folder is never run: "
                "convert it to an architecture of transformers"
            )
        if name in UNSUPPORTED_CONFIG_KEYS:
            raise InputError(
                f"{folder}: models with a {name} are not supported: save it with plain floating-point weights"
            )
        if ("implementation" in name or "kernel" in name) and "/" in (text := json.dumps(value)):
            raise InputError(
                f"{folder}: {name} in its config.json refers to a repository ({text[:80]}), and code from a repository is "
                "never run: remove that line"
            )


def _check_files(folder: Path) -> None:
    """Raise for special files, very large text files, packed torch files, and indexes that point outside of the folder."""
    for path in folder.iterdir():
        if path.is_dir():
            continue
        if not path.is_file():  # reading a pipe would block; a dangling link
            raise InputError(f"{path} is not a regular file: remove it")
        if path.suffix in (".json", ".txt", ".model") and path.stat().st_size > MAX_TEXT_FILE_BYTES:
            raise InputError(
                f"{path} is larger than {MAX_TEXT_FILE_BYTES / 1e6:g} MB, which is too large for such a file"
            )
        if path.suffix == ".bin":
            check_torch_file(path)
        if path.name.endswith(".index.json"):
            index = read_json(path)
            shards = index.get("weight_map") if isinstance(index, dict) else None
            for shard in set(map(str, shards.values())) if isinstance(shards, dict) else ():
                if shard in ("", ".", "..") or "/" in shard or "\\" in shard:
                    raise InputError(f"{path} points outside of its folder: {shard}")


def _check_depth(folder: Path, config: Mapping[str, object]) -> None:
    """Raise for very many layers: building such a model takes hours, even on the meta device."""
    for name, value in _iterate_entries(config):
        if name.endswith(LAYER_COUNT_SUFFIXES):
            numbers = [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int)]
            if sum(numbers) > MAX_LAYERS:
                raise InputError(
                    f"{folder / 'config.json'} describes {sum(numbers)} layers ({name}); at most {MAX_LAYERS} are supported"
                )


def _check_size(folder: Path, auto_class: type[_BaseAutoModelClass]) -> None:
    """Raise if config.json describes a much larger model than the stored weights, before memory is allocated.

    The model is built on the meta device. Unused heads and buffers may be missing from the folder: up to half of the model
    and `MAX_MISSING_PARAMETERS`.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, **LOCAL_ONLY_OPTIONS)
    with torch.device("meta"):
        model = auto_class.from_config(config, attn_implementation="eager")
    described = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    stored = count_stored_parameters(folder)
    if described > 2 * stored + MAX_MISSING_PARAMETERS:
        raise InputError(
            f"{folder / 'config.json'} describes a model of {described:,} parameters, but the weight files have {stored:,}: "
            "they belong to another model"
        )


def count_stored_parameters(folder: Path) -> int:
    """Return the number of parameters by the headers of the weight files; torch files count one per byte."""
    count = 0
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            # at most one per byte: a header can be wrong
            count += min(sum(math.prod(shape) for shape in _read_tensor_shapes(path)), path.stat().st_size)
        elif path.suffix == ".bin":
            count += path.stat().st_size
    return count


def _read_tensor_shapes(path: Path) -> list[list[int]]:
    """Read the tensor shapes from the header of a safetensors file."""
    with wrap_errors(f"{path} cannot be loaded"), files.open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_JSON_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(file.read(size))
        return [list(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]


def check_torch_file(path: Path) -> None:
    """Raise for a compressed torch file, which could unpack to any size; torch.save never compresses."""
    with wrap_errors(f"{path} cannot be read as a torch file"):
        if not zipfile.is_zipfile(path):
            return  # the older format is not compressed either
        with zipfile.ZipFile(path) as file:
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.infolist()):
                raise InputError(f"{path} is compressed, unlike files of torch.save: save it again")


def load_model(
    folder: Path,
    auto_class: type[_BaseAutoModelClass],
    dtype: torch.dtype,
    *,
    ignore_missing: str | None = None,
) -> nn.Module:
    """Load a model with all its weights from the folder.

    Args:
        folder: model folder.
        auto_class: one of transformers' AutoModel classes.
        dtype: of the weights.
        ignore_missing: weights with this text in their name may be missing.
    """
    _check_size(folder, auto_class)
    import transformers

    is_old = tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 56)
    options = {
        **LOCAL_ONLY_OPTIONS,
        "torch_dtype" if is_old else "dtype": dtype,
        "weights_only": True,
        "output_loading_info": True,
    }
    try:
        model, report = auto_class.from_pretrained(folder, attn_implementation="sdpa", **options)
    except ValueError as error:
        if "attention implementation" not in str(error) and "scaled_dot_product_attention" not in str(error):
            raise
        model, report = auto_class.from_pretrained(folder, attn_implementation="eager", **options)
    missing = sorted(
        name for name in report["missing_keys"] if ignore_missing is None or ignore_missing not in name
    )
    if missing:
        raise InputError(
            f"{folder}: weights are missing for {missing[0]} ({len(missing)} in all): "
            "the weights do not belong to the architecture in config.json"
        )
    return model.eval().requires_grad_(False)


def read_json(path: Path, default: object = None) -> Any:
    """Read a JSON file; return `default`, unless it is None, if the file does not exist."""
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(files.read_text(path, kind="JSON", max_bytes=MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None


@contextmanager
def silence_transformers(transformers: ModuleType) -> Iterator[None]:
    """Disable the progress bars and warnings of transformers; errors are reported by this module."""
    logging = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def wrap_load_errors(folder: Path) -> Iterator[None]:
    """Turn any exception into an `InputError` of one line that names the folder."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # transformers, safetensors, pickle and tokenizers raise many types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise InputError(f"{folder} cannot be loaded: {lines[0][:300]}") from None
