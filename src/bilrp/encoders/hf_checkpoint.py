"""A folder that `save_pretrained` made, read without running anything of it.

Only names, numbers and tensors come out of a folder: architectures are those of the installed transformers, remote code
is refused, weights are safetensors or restricted pickles of plain tensors, and nothing is looked up on a network.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bilrp.errors import InputError, import_optional, wrap_errors
from bilrp.io import files

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MAX_JSON_BYTES = 16_000_000  # bytes of a configuration
MAX_LAYERS = 1000
LAYER_COUNT_SUFFIXES = (
    "layers",
    "layer",
    "depth",
    "depths",
    "blocks",
    "stages",
    "experts",
)  # how names of such numbers end
MAX_MISSING_PARAMETERS = 32_000_000  # of heads and buffers that no folder has
UNSUPPORTED_CONFIG_KEYS = (
    "quantization_config",
    "compression_config",
    "fusion_config",
)  # other layers than the architecture's
MAX_TEXT_FILE_BYTES = 64_000_000  # of a tokenizer's files: the largest known have 35 MB
LOCAL_ONLY_OPTIONS = {"local_files_only": True, "trust_remote_code": False}


def read_config(folder: Path, made_by: str = "save_pretrained") -> Mapping[str, Any]:
    """What config.json says, with at least a model_type."""
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder} holds an adapter, not a model: merge it into its base model and save that"
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: give a folder made by {made_by}")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{folder / 'config.json'} names no model_type: it is no model's configuration")
    return config


def import_transformers(extra: str, purpose: str) -> Any:
    """transformers, or one line that says which extra has it."""
    return import_optional("transformers", extra, purpose)


def check_checkpoint(folder: Path, config: Mapping[str, Any], transformers: Any) -> None:
    """Code of its own, an architecture nobody knows, no weights: each is one line."""
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


def _iterate_entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every (name, value) of a configuration, also of those inside of it, however deep."""
    waiting: list[Any] = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each.items()
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()


def _reject_remote_code(folder: Path, config: Mapping[str, Any]) -> None:
    """Names by which transformers would load code or kernels, from the folder or from a repository ("owner/name")."""
    for name, value in _iterate_entries(config):
        if not value:
            continue
        if name == "auto_map":
            own = value.get("AutoModel") or next(iter(value.values())) if isinstance(value, dict) else value
            raise InputError(
                f"{folder} wants code of its own ({own}), and code from a model's folder is never run: "
                "convert it to one of transformers' own architectures"
            )
        if name in UNSUPPORTED_CONFIG_KEYS:
            raise InputError(
                f"{folder}: a model with a {name} is not loaded, as its layers are others than its architecture's: "
                "save it with plain floating-point weights"
            )
        if ("implementation" in name or "kernel" in name) and "/" in (said := json.dumps(value)):
            raise InputError(
                f"{folder}: {name} in its config.json names a repository ({said[:80]}), and code from a repository is "
                "never run: remove that line"
            )


def _check_files(folder: Path) -> None:
    """Regular files of a size that such files have; an index names files of the folder alone."""
    for path in folder.iterdir():
        if path.is_dir():
            continue
        if not path.is_file():  # a pipe would block its reader for ever; a link to nothing is no file either
            raise InputError(f"{path} is no regular file: remove it")
        if path.suffix in (".json", ".txt", ".model") and path.stat().st_size > MAX_TEXT_FILE_BYTES:
            raise InputError(
                f"{path} is longer than {MAX_TEXT_FILE_BYTES / 1e6:g} MB, which is more than it should ever be"
            )
        if path.suffix == ".bin":
            check_torch_file(path)
        if path.name.endswith(".index.json"):
            index = read_json(path)
            shards = index.get("weight_map") if isinstance(index, dict) else None
            for shard in set(map(str, shards.values())) if isinstance(shards, dict) else ():
                if shard in ("", ".", "..") or "/" in shard or "\\" in shard:
                    raise InputError(f"{path} points out of its folder: {shard}")


def _check_depth(folder: Path, config: Mapping[str, Any]) -> None:
    """A model of very many layers takes hours to be made, also without memory for its weights."""
    for name, value in _iterate_entries(config):
        if name.endswith(LAYER_COUNT_SUFFIXES):
            numbers = [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int)]
            if sum(numbers) > MAX_LAYERS:
                raise InputError(
                    f"{folder / 'config.json'} describes {sum(numbers)} layers ({name}), at most {MAX_LAYERS} are made"
                )


def _check_size(folder: Path, auto_class: Any) -> None:
    """What a model is made of must lie in the folder: numbers in config.json alone fill no memory.

    The model is made on the meta device, where tensors have shapes and no memory. The folder may lack a head that is
    not used, and buffers, which are made anew: half of the model, and what `MAX_MISSING_PARAMETERS` says.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, **LOCAL_ONLY_OPTIONS)
    with torch.device("meta"):
        made = auto_class.from_config(config, attn_implementation="eager")
    claimed = sum(tensor.numel() for tensor in (*made.parameters(), *made.buffers()))
    stored = count_stored_parameters(folder)
    if claimed > 2 * stored + MAX_MISSING_PARAMETERS:
        raise InputError(
            f"{folder / 'config.json'} describes a model of {claimed:,} numbers, and the weights beside it have {stored:,}: "
            "they are not those of this model"
        )


def count_stored_parameters(folder: Path) -> int:
    """How many numbers the weights in a folder have, by their headers; a byte each, where torch files hold them."""
    count = 0
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            # a header may claim what the file has no bytes for
            count += min(sum(math.prod(shape) for shape in _read_tensor_shapes(path)), path.stat().st_size)
        elif path.suffix == ".bin":
            count += path.stat().st_size
    return count


def _read_tensor_shapes(path: Path) -> list[list[int]]:
    """The shapes of the tensors of a safetensors file, by its header alone."""
    with wrap_errors(f"{path} cannot be loaded"), files.open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_JSON_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(file.read(size))
        return [list(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]


def check_torch_file(path: Path) -> None:
    """A torch file packs nothing: one that does could unpack to any size."""
    with wrap_errors(f"{path} cannot be read as a torch file"):
        if not zipfile.is_zipfile(path):
            return  # of the older kind, which packs nothing either
        with zipfile.ZipFile(path) as file:
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.infolist()):
                raise InputError(f"{path} is packed, as no torch file is: save it again")


def load_model(
    folder: Path, auto_class: Any, dtype: torch.dtype, *, ignore_missing: str | None = None
) -> nn.Module:
    """The model with every one of its weights from the folder, but for those with `spare` in their name."""
    _check_size(folder, auto_class)
    options = {**LOCAL_ONLY_OPTIONS, "dtype": dtype, "weights_only": True, "output_loading_info": True}
    try:
        made, report = auto_class.from_pretrained(folder, attn_implementation="sdpa", **options)
    except ValueError as error:
        if "attention implementation" not in str(error) and "scaled_dot_product_attention" not in str(error):
            raise
        made, report = auto_class.from_pretrained(folder, attn_implementation="eager", **options)
    missing = sorted(
        name for name in report["missing_keys"] if ignore_missing is None or ignore_missing not in name
    )
    if missing:
        raise InputError(
            f"{folder}: weights are missing for {missing[0]} ({len(missing)} in all): "
            "they are not those of the architecture in config.json"
        )
    return made.eval().requires_grad_(False)


def read_json(path: Path, default: Any = None) -> Any:
    """The JSON of a file; where there is no such file, the default, if there is one."""
    if default is not None and not path.is_file():
        return default
    try:
        return json.loads(files.read_text(path, kind="JSON", max_bytes=MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None


@contextmanager
def silence_transformers(transformers: Any) -> Iterator[None]:
    """No progress bars and warnings while a folder is read; what matters is said in our own words."""
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
    """Whatever a reader of foreign files raises becomes one line that names the folder."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # transformers, safetensors, pickle and tokenizers raise every kind there is
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise InputError(f"{folder} cannot be loaded: {lines[0][:300]}") from None
