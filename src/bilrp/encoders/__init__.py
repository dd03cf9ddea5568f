"""Encoders ready to use."""

from bilrp.encoders.vgg import vgg16

__all__ = ["vgg16"]
