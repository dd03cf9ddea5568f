"""ONNX files: the same parts as the torch module that they were made of, and errors that say what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bilrp
from bilrp.errors import InputError


@pytest.fixture(scope="module")
def onnx() -> Any:
    try:
        import onnx2torch  # type: ignore[import-not-found]  # noqa: F401
    except (ImportError, RuntimeError):
        pytest.skip("needs onnx2torch, and a torchvision that fits torch")
    return pytest.importorskip("onnx", reason="needs onnx")


def save(onnx: Any, path: Path, net: nn.Sequential, *, inputs: tuple[str, ...] = ("x",)) -> Path:
    """Write Conv, BatchNorm, ReLU, global mean, by hand: the exporter would be one more dependency."""
    make, numbers = onnx.helper, onnx.numpy_helper
    state = {name: value for name, value in net.state_dict().items() if value.dim()}
    nodes = [
        make.make_node("Conv", ["x", "0.weight", "0.bias"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        make.make_node("BatchNormalization", ["a", *(name for name in state if name[0] == "1")], ["b"]),
        make.make_node("Relu", ["b"], ["c"]),
        make.make_node("GlobalAveragePool", ["c"], ["d"]),
        make.make_node("Flatten", ["d"], ["y"]),
    ]
    floats = onnx.TensorProto.FLOAT
    graph = make.make_graph(
        nodes,
        "net",
        [make.make_tensor_value_info(name, floats, [1, 3, 32, 48]) for name in inputs],
        [make.make_tensor_value_info("y", floats, [1, 8])],
        [numbers.from_array(value.numpy(), name) for name, value in state.items()],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers).eval()


def test_a_file_has_the_parts_of_its_module(onnx: Any, net: nn.Sequential, tmp_path: Path) -> None:
    path = save(onnx, tmp_path / "net.onnx", net)
    encoder = bilrp.encoders.load(f"onnx:{path}")
    x = torch.rand(1, 3, 32, 48)
    ours, expected = bilrp.decompose(encoder, x, regions=4), bilrp.decompose(net, x, regions=4)
    assert torch.equal(ours.parts, expected.parts) and torch.equal(ours.embedding, expected.embedding)
    from PIL import Image as Pillow

    picture = Pillow.new("RGB", (100, 80), "red")
    assert bilrp.decompose(encoder, picture).view is not None  # read at the file's own size
    with pytest.raises(InputError, match="32 × 48 only"):
        bilrp.encoders.load(f"onnx:{path}", size=64)
    texts = save(onnx, tmp_path / "text.onnx", net, inputs=("x", "attention_mask"))
    with pytest.raises(InputError, match="x, attention_mask"):
        bilrp.encoders.load(f"onnx:{texts}")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match="is not an ONNX file"):
        bilrp.encoders.load(f"onnx:{tmp_path / 'broken.onnx'}")


def test_without_onnx2torch_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="is not a file"):
        bilrp.encoders.load("onnx:nothing.onnx")
    (tmp_path / "net.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match="pip install onnx2torch, with a torchvision"):
        bilrp.encoders.load(f"onnx:{tmp_path / 'net.onnx'}")
