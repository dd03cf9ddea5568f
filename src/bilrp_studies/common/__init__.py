"""Shared code of the studies: study definitions, image folders, VGG-16 by layer, the stereo pair, caches, bootstrap."""
