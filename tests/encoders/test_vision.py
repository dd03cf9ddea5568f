"""Image encoders from folders: every architecture, the laws of decompositions, what files say, what is refused."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import bilrp
from bilrp.encoders import vision
from bilrp.encoders.hf_vision import patch_regions
from bilrp.encoders.image_processor import load_image_processor
from bilrp.errors import InputError
from bilrp.inputs import Item
from type_asserts import assert_instance
from vision_folders import ARCHITECTURES, SIDE, Architecture

VIT = ARCHITECTURES[0]


def photograph(seed: int, size: tuple[int, int] = (70, 50)) -> Image.Image:
    """Noise at a coarse scale, so that resizing has something to do."""
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR)


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda architecture: architecture.name)
def saved(request, tmp_path_factory) -> tuple[Architecture, Path]:
    return request.param, request.param.save(tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    return VIT.save(tmp_path_factory.mktemp("vit"))


@pytest.fixture
def copied(vit: Path, tmp_path: Path) -> Path:
    for file in vit.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def read(encoder: bilrp.Encoder, element: Any) -> Item:
    assert encoder.read is not None
    item = encoder.read(element)
    assert isinstance(item, Item)
    return item


def test_every_architecture(saved: tuple[Architecture, Path]) -> None:
    architecture, folder = saved
    encoder = vision(folder, dtype=torch.float64)
    pixels = read(encoder, photograph(0)).x
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    before = {
        name: weight.clone()
        for name, weight in assert_instance(encoder.module, nn.Module).state_dict().items()
    }
    with torch.no_grad():
        result = model(pixel_values=pixels)
        expected = result.last_hidden_state[:, 0] if architecture.pooling == "cls" else result.pooler_output
        if architecture.processor is not None:
            theirs = architecture.processor()(photograph(0), return_tensors="pt")["pixel_values"]
            assert torch.allclose(pixels.float(), theirs, atol=1e-6)
    push, pull = (bilrp.decompose(encoder, photograph(0), mode=mode) for mode in ("push", "pull"))
    assert torch.allclose(push.embedding, expected.flatten(), rtol=1e-9, atol=1e-12)
    scale = float(push.parts.abs().max())
    assert scale > 1e-9 * float(push.embedding.abs().max())
    assert float((push.parts - pull.parts).abs().max()) < 1e-9 * scale
    assert torch.allclose(push.parts.sum(0) + push.unattributed, push.embedding, rtol=1e-12, atol=1e-12)
    assert push.regions.count == architecture.regions
    second = bilrp.explain(encoder, photograph(0), photograph(1), similarity="dot")
    assert torch.equal(second.a.parts, bilrp.decompose(encoder, photograph(0)).parts)
    assert abs(second.relevance.sum() + second.unattributed - second.score) < 1e-9 * abs(second.score)
    after = assert_instance(encoder.module, nn.Module).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(row.problem for row in bilrp.ops(encoder, photograph(0)))


def test_without_biases_nothing_is_unattributed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 1])
    transformers.ResNetModel(config).eval().save_pretrained(tmp_path)  # running means and biases are 0
    transformers.ConvNextImageProcessorPil(size={"shortest_edge": SIDE}).save_pretrained(tmp_path)
    decomposition = bilrp.decompose(vision(tmp_path, dtype=torch.float64), photograph(0))
    assert float(decomposition.unattributed.abs().max()) < 1e-9 * float(decomposition.embedding.abs().max())


def test_dinov3_resizes_numbers_not_bytes(tmp_path: Path) -> None:
    config = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": {"height": 16, "width": 24}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    pixels = torch.from_numpy(np.array(photograph(0))).permute(2, 0, 1).float()[None] / 255
    small = torch.nn.functional.interpolate(pixels, (16, 24), mode="bilinear", antialias=True)[0]
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (small - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert torch.allclose(load_image_processor(tmp_path)(photograph(0)).x[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("processor", "options"),
    [
        ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}}),
        ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 48}, "crop_pct": 0.9}),
        ("CLIPImageProcessorPil", {"size": {"shortest_edge": 20}, "crop_size": {"height": 40, "width": 33}}),
        ("EfficientNetImageProcessorPil", {"rescale_offset": True, "rescale_factor": 1 / 127.5}),
        ("EfficientNetImageProcessorPil", {"include_top": False, "do_center_crop": True}),
        ("DeiTImageProcessorPil", {}),
        ("SiglipImageProcessorPil", {"do_normalize": False}),
        ("BitImageProcessorPil", {"do_resize": False, "do_center_crop": False}),
    ],
)
def test_pictures_are_prepared_as_transformers_does(processor: str, options: dict[str, Any], tmp_path: Path):
    theirs = getattr(transformers, processor)(**options)
    theirs.save_pretrained(tmp_path)
    for size in ((70, 50), (31, 90)):
        expected = theirs(photograph(3, size), return_tensors="pt")["pixel_values"].float()
        result = load_image_processor(tmp_path)(photograph(3, size))
        assert result.x.shape == expected.shape
        assert torch.allclose(result.x, expected, atol=2e-5), (result.x - expected).abs().max()


def test_the_view_says_where_the_input_is(vit: Path, tmp_path: Path) -> None:
    config = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 25}, "crop_size": 20}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    prepare = load_image_processor(tmp_path)
    item = prepare(photograph(0, (100, 50)))
    assert item.view is not None and item.view.box == (30.0, 4.0, 70.0, 44.0)  # type: ignore[union-attr]
    assert prepare.to_image(item.x).shape == (20, 20, 3)


def test_an_older_file_says_less(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"feature_extractor_type": "ViTFeatureExtractor", "size": 24, "image_mean": [0.5] * 3})
    )
    assert load_image_processor(tmp_path)(photograph(0)).x.shape == (1, 3, 24, 24)


def test_many_patches_are_taken_together() -> None:
    assert patch_regions(16)(torch.zeros(1, 3, 224, 224)).count == 196
    assert patch_regions([4, 4])(torch.zeros(1, 3, 224, 224)).count == 28 * 28
    assert patch_regions(None)(torch.zeros(1, 3, 32, 32)).count == 16


def test_torchvision_is_never_needed(vit: Path) -> None:
    bilrp.explain(vision(vit), photograph(0), photograph(1), similarity="dot")
    assert "torchvision" not in sys.modules and "timm" not in sys.modules


def test_another_pooling_is_another_encoder(vit: Path) -> None:
    first, mean = vision(vit), vision(vit, pooling="mean")
    assert first.name != mean.name
    with pytest.raises(InputError, match="unknown pooling 'middle'"):
        vision(vit, pooling=cast(Any, "middle"))


def read_refusal(folder: Path) -> str:
    with pytest.raises(InputError) as result:
        vision(folder)
    message = str(result.value)
    assert "\n" not in message and str(folder) in message
    return message


def change(path: Path, **said: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))


def test_bad_folders_cost_one_line(copied: Path, tmp_path: Path) -> None:
    assert "no such folder" in read_refusal(tmp_path / "nowhere")
    prepared = (copied / "preprocessor_config.json").read_text()
    (copied / "preprocessor_config.json").unlink()
    assert "has no preprocessor_config.json" in read_refusal(copied)
    for damaged in (
        "[1]",
        "{",
        '{"image_processor_type": "Mine"}',
        '{"image_processor_type": "ViTImageProcessor", "size": "big"}',
    ):
        (copied / "preprocessor_config.json").write_text(damaged)
        read_refusal(copied)
    (copied / "preprocessor_config.json").write_text(prepared)
    change(copied / "preprocessor_config.json", size={"height": 10**9, "width": 10**9})
    assert "too large" in read_refusal(copied)
    change(copied / "preprocessor_config.json", size={"height": SIDE, "width": SIDE}, image_std=[0, 0, 0])
    read_refusal(copied)
    (copied / "preprocessor_config.json").write_text(prepared)
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[:100])
    assert "cannot be loaded" in read_refusal(copied)
    (copied / "model.safetensors").unlink()
    assert "has no weights" in read_refusal(copied)
    (copied / "config.json").unlink()
    assert "has no config.json" in read_refusal(copied)


def test_unknown_architectures_and_code_are_refused(copied: Path) -> None:
    change(copied / "config.json", model_type="nonesuch")
    assert "does not know the architecture 'nonesuch'" in read_refusal(copied)
    change(copied / "config.json", model_type="vit", auto_map={"AutoModel": "mine.Model"})
    (copied / "mine.py").write_text("raise SystemExit('code of a folder was run')")
    assert "never run" in read_refusal(copied)


def test_missing_weights_are_named(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights = {name: weight for name, weight in weights.items() if "layernorm_before" not in name}
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "weights are missing" in read_refusal(copied)


class Harmful:
    def __reduce__(self):
        return (sys.exit, ("a pickle was run",))


def test_a_pickle_is_read_only_as_plain_tensors(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    torch.save(weights, copied / "pytorch_model.bin")
    assert vision(copied).name == f"vision:{copied}"
    with (copied / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Harmful(), file)
    read_refusal(copied)


def test_a_text_model_is_not_an_image_encoder(copied: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20
    )
    transformers.BertModel(config).save_pretrained(copied)
    assert "not images" in read_refusal(copied)
