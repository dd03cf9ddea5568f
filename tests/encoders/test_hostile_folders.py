"""Untrusted model folders: what would fill the memory, block, or reach for code on a network is refused first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="text encoders need bilrp[text]")

from bilrp.encoders import clip, hf_checkpoint, sentence, vision
from bilrp.errors import InputError
from dual_encoder_folders import PAIRS
from text_folders import ARCHITECTURES, sentence_transformers, write_json
from vision_folders import ARCHITECTURES as PICTURES

MEGABYTES = 300  # over what the child had after a small model
WIDE = 24_000
# A child measures how far its memory rises: it loads a small model first, so that the imports do not count.
CHILD = """
import json, resource, sys
from bilrp.encoders import sentence, vision
from bilrp.errors import InputError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

small, *folders = sys.argv[1:]
sentence(small)
taken = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**31, -1))  # a failure must not take the machine with it
said = {}
for folder in folders:
    before = peak()
    try:
        (vision if "vision" in folder else sentence)(folder)
        words = "loaded"
    except InputError as error:
        words = str(error)
    except Exception as error:
        words = f"loaded: {error}"
    said[folder] = [words, peak() - before]
print(json.dumps(said))
"""


def change_config(folder: Path, **values: Any) -> Path:
    """The same folder with other numbers or words in its config.json."""
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | values)
    return folder


def test_a_config_that_declares_more_than_its_weights_takes_no_memory(tmp_path: Path) -> None:
    """A layer, a vocabulary, positions, a pooler, a dense head of 24,000² numbers: 2.3 GB each, in folders of kilobytes."""
    bert, picture = ARCHITECTURES[0], next(each for each in PICTURES if each.name == "convnext")
    small = bert.save(tmp_path / "small", dtype=torch.float32)
    many = WIDE * WIDE
    folders = [
        change_config(bert.save(tmp_path / "inner"), intermediate_size=many // 16),
        change_config(bert.save(tmp_path / "words"), vocab_size=many // 16),
        change_config(bert.save(tmp_path / "positions"), max_position_embeddings=many // 16),
        change_config(bert.save(tmp_path / "pooler"), hidden_size=WIDE, num_hidden_layers=0, vocab_size=100),
        change_config(picture.save(tmp_path / "vision"), hidden_sizes=[WIDE] * 2),
    ]
    mean = {"pooling_mode_mean_tokens": True}
    dense = sentence_transformers(bert.save(tmp_path / "dense"), pooling=mean, dense=(16, 8, "torch.nn.Tanh"))
    about = json.loads((dense / "2_Dense" / "config.json").read_text())
    write_json(dense / "2_Dense" / "config.json", about | {"in_features": WIDE, "out_features": WIDE})
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(small), *map(str, [*folders, dense])],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-400:]
    for folder, (words, rose) in json.loads(ran.stdout).items():
        name = Path(folder).name
        assert not words.startswith("loaded") and "\n" not in words and folder in words, (name, words)
        assert rose < MEGABYTES, f"{name}: {rose:.0f} MB before {words}"


REMOTE = [
    {"attn_implementation": "owner/repo"},
    {"_attn_implementation": "kernels-community/flash-attn"},
    {"_attn_implementation": {"text_config": "owner/repo@main:name"}},
    {"attn_implementation": "paged|owner/repo"},
    {"text_config": {"_attn_implementation_internal": "owner/repo"}},
    {"experts_implementation": "owner/repo"},
    {"kernel_config": {"RMSNorm": "owner/repo:Norm"}},
    {"backbones": [{"deep": [{"attn_implementation": "owner/repo"}]}]},
    {"text_config": {"auto_map": {"AutoModel": "owner/repo--model.Model"}}},
    {"quantization_config": {"quant_method": "fp8"}},
    {"vision_config": {"quantization_config": {"quant_method": "awq"}}},
    {"compression_config": {"quant_method": "compressed-tensors"}},
    {"kernels": ["owner/repo"]},
    {"fusion_config": {"mlp": True}},
]


def test_a_header_counts_as_far_as_its_file_has_bytes(tmp_path: Path) -> None:
    """Else one that claims a shape, also of a file that is not loaded, would vouch for any config."""
    header = b'{"a":{"dtype":"F32","shape":[24000,24000],"data_offsets":[0,2304000000]}}'
    (tmp_path / "spare.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert hf_checkpoint.count_stored_parameters(tmp_path) < 100


@pytest.mark.parametrize("values", REMOTE, ids=lambda values: next(iter(values)))
def test_a_name_that_leads_to_remote_code_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    text = change_config(ARCHITECTURES[0].save(tmp_path / "text", dtype=torch.float32), **values)
    with pytest.raises(InputError, match=r"never run|not supported") as refused:
        sentence(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("place", ["vision", "towers"])
def test_every_kind_of_folder_is_looked_through(tmp_path: Path, place: str) -> None:
    if place == "vision":
        picture = next(each for each in PICTURES if each.name == "vit").save(tmp_path / place)
        with pytest.raises(InputError, match="never run"):
            vision(change_config(picture, attn_implementation="owner/repo"))
        return
    pair = PAIRS[0].save(tmp_path / place)
    text = json.loads((pair / "config.json").read_text())["text_config"]
    with pytest.raises(InputError, match="never run"):
        clip(change_config(pair, text_config=text | {"_attn_implementation": "owner/repo"}))


def test_harmless_names_still_load(tmp_path: Path) -> None:
    """What `save_pretrained` itself may write, and sizes of kernels of a convolution."""
    folder = ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32)
    values = {
        "_attn_implementation": "sdpa",
        "quantization_config": None,
        "auto_map": {},
        "kernel_size": [3, 3],
    }
    assert sentence(change_config(folder, **values, _name_or_path="owner/repo")).name.startswith("sentence:")


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors.index.json", "odd"])
def test_a_pipe_in_a_folder_is_refused_before_it_blocks(tmp_path: Path, name: str) -> None:
    folder = ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="not a regular file"):
        sentence(folder)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/dev/zero", "sub/../../x.safetensors"])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, shard: str) -> None:
    folder = ARCHITECTURES[0].save(tmp_path / "bert", dtype=torch.float32)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    write_json(
        folder / "model.safetensors.index.json", {"weight_map": {"embeddings.word_embeddings.weight": shard}}
    )
    with pytest.raises(InputError, match="points outside of its folder"):
        sentence(folder)
