"""Encoders ready to use."""

from bilrp.encoders.sentence import sentence
from bilrp.encoders.vgg import vgg16

__all__ = ["sentence", "vgg16"]
