"""Atomic file writes, stored results and the result cache. May import errors and, to check stored results, similarity."""
