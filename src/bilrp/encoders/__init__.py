"""Encoders ready to use, by name and from files: VGG-16, sentences, tables of digits; images, weights, where to fetch them.

May import what a user holds, disk, rules and trace.
"""

from bilrp.encoders.sentences import sentence
from bilrp.encoders.vgg import vgg16

__all__ = ["sentence", "vgg16"]
