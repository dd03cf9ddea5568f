"""Answers as JSON: what `--json`, the HTTP API and the tools of `bilrp serve --mcp` return, each with a versioned schema.

`shapes` defines them once; the files in `schemas/` are made from it (docs/make_schemas.py). May import render, collection
and what is below.
"""
