"""Models in ONNX files, converted to torch modules by onnx2torch."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilrp.errors import InputError, describe_error

if TYPE_CHECKING:
    from torch import nn

    from bilrp.encoders.registry import EncoderOptions


def load_onnx(path: str | Path) -> tuple[nn.Module, tuple[int | None, ...]]:
    """Return the model of an ONNX file as a torch module, and the shape of its input; free dimensions are None.

    The first output is the embedding.
    """
    if not Path(path).is_file():
        raise InputError(f"{path} is not a file: give an ONNX file, as in onnx:model.onnx")
    try:
        onnx, onnx2torch = import_module("onnx"), import_module("onnx2torch")
    except (
        ImportError,
        RuntimeError,
    ) as error:  # torchvision raises RuntimeError where it does not fit torch
        raise InputError(
            f"onnx:FILE needs onnx2torch, which cannot be imported here ({describe_error(error)}): pip install "
            "onnx2torch, with a torchvision that fits torch; or load the model in torch, and pass that"
        ) from error
    try:
        model = onnx.load(str(path))
    except Exception as error:
        raise InputError(f"{path} is not an ONNX file: {describe_error(error)}") from error
    initial = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in initial]
    kinds = {each.name: each.type.tensor_type.elem_type for each in inputs}
    if len(inputs) != 1 or kinds[inputs[0].name] not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise InputError(
            f"{path} has the inputs {', '.join(kinds) or '()'}, and only one input of floats can be explained: for a text "
            "model pass (transformers model, tokenizer), or sentence:FOLDER"
        )
    sizes = inputs[0].type.tensor_type.shape.dim
    try:
        module: Any = onnx2torch.convert(model)
    except Exception as error:  # whatever a converter raises
        raise InputError(f"onnx2torch cannot convert {path}: {describe_error(error)}") from error
    shape = tuple(each.dim_value or None for each in sizes)
    return module.eval().requires_grad_(False), shape


def choose_size(options: EncoderOptions, shape: tuple[int | None, ...], name: str) -> EncoderOptions:
    """Return the options with the file's own size of images, unless they have one; raise if the two differ.

    Args:
        options, shape: Of the user, and of the file's input.
        name: For the error message.
    """
    if len(shape) != 4 or shape[2] is None or shape[3] is None:
        return options
    own = (shape[2], shape[3])
    asked = (options.size, options.size) if isinstance(options.size, int) else options.size
    if asked not in (None, own):
        raise InputError(f"{name} takes images of {own[0]} × {own[1]} only: leave out --size")
    return replace(options, size=own)
