"""A folder that `save_pretrained` made, read without running anything of it.

Only names, numbers and tensors come out of a folder: architectures are those of the installed transformers, remote code
is refused, weights are safetensors or restricted pickles of plain tensors, and nothing is looked up on a network.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bilrp.disk import files
from bilrp.errors import InputError, from_extra, guarded

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MOST_JSON = 16_000_000  # bytes of a configuration
MOST_WORDS = 64_000_000  # of a tokenizer's files: the largest known have 35 MB
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def config_of(folder: Path, made_by: str = "save_pretrained") -> Mapping[str, Any]:
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


def library(extra: str, what: str) -> Any:
    """transformers, or one line that says which extra has it."""
    return from_extra("transformers", extra, what)


def refuse_what_runs_code(folder: Path, config: Mapping[str, Any], transformers: Any) -> None:
    """Code of its own, an architecture nobody knows, no weights: each is one line."""
    wanted = config.get("auto_map") or {}
    own = wanted.get("AutoModel") or next(iter(wanted.values()), None) if isinstance(wanted, dict) else wanted
    if own:
        raise InputError(
            f"{folder} wants code of its own ({own}), and code from a model's folder is never run: "
            "convert it to one of transformers' own architectures"
        )
    kind = config.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"{folder}: transformers {transformers.__version__} does not know the architecture {kind!r} of its config.json"
        )
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise InputError(f"{folder} has no weights: {WEIGHTS[0]} (or {WEIGHTS[2]}) is missing")
    _refuse_what_claims_too_much(folder, config)


LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "num_decoder_layers")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")  # of transformers, whose layers are all of one width


def _refuse_what_claims_too_much(folder: Path, config: Mapping[str, Any]) -> None:
    """What a model is made of must lie in the folder: numbers in config.json alone fill no memory."""
    sizes = {path: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    for path, size in sizes.items():
        if path.suffix in (".json", ".txt", ".model") and size > MOST_WORDS:
            raise InputError(
                f"{path} is longer than {MOST_WORDS / 1e6:g} MB, which is more than it should ever be"
            )
        if path.suffix == ".bin":
            check_torch(path)
    weights = sum(size for path, size in sizes.items() if path.suffix in (".safetensors", ".bin"))
    for part in (config, *(each for each in config.values() if isinstance(each, dict))):
        layers, width = _largest(part, LAYERS), _largest(part, WIDTHS)
        if (
            layers > 1000 or layers * width**2 > 8 * weights
        ):  # a layer has several matrices, a number half a byte or more
            raise InputError(
                f"{folder / 'config.json'} describes {layers} layers of width {width}, for which {weights} bytes of "
                "weights are too few: they are not those of this model"
            )


def _largest(config: Mapping[str, Any], words: tuple[str, ...]) -> int:
    """The largest whole number under such a name; 1 where there is none."""
    found = [
        value
        for name, value in config.items()
        if isinstance(value, int) and not isinstance(value, bool) and name in words
    ]
    return max(1, *found, 1)


def check_torch(path: Path) -> None:
    """A torch file packs nothing: one that does could unpack to any size."""
    with guarded(f"{path} cannot be read as a torch file"):
        if not zipfile.is_zipfile(path):
            return  # of the older kind, which packs nothing either
        with zipfile.ZipFile(path) as file:
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.infolist()):
                raise InputError(f"{path} is packed, as no torch file is: save it again")


def model(folder: Path, maker: Any, dtype: torch.dtype, *, spare: str | None = None) -> nn.Module:
    """The model with every one of its weights from the folder, but for those with `spare` in their name."""
    options = {**LOCAL, "dtype": dtype, "weights_only": True, "output_loading_info": True}
    try:
        made, report = maker.from_pretrained(folder, attn_implementation="sdpa", **options)
    except ValueError as error:
        if "attention implementation" not in str(error) and "scaled_dot_product_attention" not in str(error):
            raise
        made, report = maker.from_pretrained(folder, attn_implementation="eager", **options)
    missing = sorted(name for name in report["missing_keys"] if spare is None or spare not in name)
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
        return json.loads(files.read_text(path, kind="JSON", most=MOST_JSON))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
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
def one_line(folder: Path) -> Iterator[None]:
    """Whatever a reader of foreign files raises becomes one line that names the folder."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # transformers, safetensors, pickle and tokenizers raise every kind there is
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise InputError(f"{folder} cannot be loaded: {lines[0][:300]}") from None
