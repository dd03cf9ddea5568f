"""Corpus study: a made corpus of table pages, and who copied from whom."""
