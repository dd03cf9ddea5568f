"""Encoders by name, from model folders and from live objects; readers of images and texts; pretrained weights.

May import the modules of the root package, io, rules and trace.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilrp.encoders.hf_clip import clip
    from bilrp.encoders.hf_vision import vision
    from bilrp.encoders.live.image_text import from_open_clip
    from bilrp.encoders.live.pictures import from_timm
    from bilrp.encoders.live.recognition import from_transformers
    from bilrp.encoders.live.texts import from_callable, from_sentence_transformers
    from bilrp.encoders.mobile_cnns import efficientnet, mobilenet
    from bilrp.encoders.registry import load
    from bilrp.encoders.sentence_encoder import sentence
    from bilrp.encoders.vgg import vgg16

# Imported on first use, so that the table of encoder families can be read without torch.
_EXPORTS = {
    "clip": "bilrp.encoders.hf_clip",
    "efficientnet": "bilrp.encoders.mobile_cnns",
    "from_callable": "bilrp.encoders.live.texts",
    "from_open_clip": "bilrp.encoders.live.image_text",
    "from_sentence_transformers": "bilrp.encoders.live.texts",
    "from_timm": "bilrp.encoders.live.pictures",
    "from_transformers": "bilrp.encoders.live.recognition",
    "load": "bilrp.encoders.registry",
    "mobilenet": "bilrp.encoders.mobile_cnns",
    "sentence": "bilrp.encoders.sentence_encoder",
    "vgg16": "bilrp.encoders.vgg",
    "vision": "bilrp.encoders.hf_vision",
}
__all__ = [
    "clip",
    "efficientnet",
    "from_callable",
    "from_open_clip",
    "from_sentence_transformers",
    "from_timm",
    "from_transformers",
    "load",
    "mobilenet",
    "sentence",
    "vgg16",
    "vision",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'bilrp.encoders' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
