"""Atomic file writes and stored results. May import errors and, to check stored results, similarity."""
