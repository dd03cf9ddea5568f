"""Encoders by name and from model folders, with their readers of images and texts and their pretrained weights.

May import the modules of the root package, io, rules and trace.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilrp.encoders.hf_clip import clip
    from bilrp.encoders.hf_vision import vision
    from bilrp.encoders.mobile_cnns import efficientnet, mobilenet
    from bilrp.encoders.registry import load
    from bilrp.encoders.sentence_encoder import sentence
    from bilrp.encoders.vgg import vgg16

# Imported on first use, so that the table of encoder families can be read without torch.
_EXPORTS = {
    "clip": "bilrp.encoders.hf_clip",
    "efficientnet": "bilrp.encoders.mobile_cnns",
    "load": "bilrp.encoders.registry",
    "mobilenet": "bilrp.encoders.mobile_cnns",
    "sentence": "bilrp.encoders.sentence_encoder",
    "vgg16": "bilrp.encoders.vgg",
    "vision": "bilrp.encoders.hf_vision",
}
__all__ = ["clip", "efficientnet", "load", "mobilenet", "sentence", "vgg16", "vision"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bilrp.encoders' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
