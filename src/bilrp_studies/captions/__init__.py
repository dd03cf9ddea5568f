"""Captions study: the pointing game between caption words and image regions of synthetic scenes."""
