"""Check that a tag, the package and the changelog name one version: python tools/check_version.py v0.1.0"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def check(tag: str) -> str:
    """Return the version, or exit with what disagrees."""
    package = (ROOT / "src/bilrp/__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    version = match.group(1) if match else "none"
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, the package has version {version}: tag v{version}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)': rename Unreleased")
    return version


if __name__ == "__main__":
    print(check(sys.argv[1]))
