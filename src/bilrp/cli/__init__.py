"""The command line: words only. It parses, calls the library and prints; nothing imports it."""

from bilrp.cli.commands import app, main

__all__ = ["app", "main"]
