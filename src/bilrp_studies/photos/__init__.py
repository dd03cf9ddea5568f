"""Photographs study (section 5): nearest neighbours explained, and true correspondences on a stereo pair."""
