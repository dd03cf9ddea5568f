"""Check the format of the page's and the app's JavaScript with prettier (`make lint`), or apply it (`make format`).

prettier is installed from npm as tsc is (`javascript_types.py`); where npm has no network, this says so and checks nothing.
"""

from __future__ import annotations

import sys
from importlib import resources

from pyright import node

from bilrp.app.static_files import ASSET_PACKAGES
from javascript_types import install_package

PRETTIER_VERSION = "3.6.2"
# 140: the width of the Markdown; templates of HTML and CSS in strings are left as they are
OPTIONS = ("--print-width=140", "--embedded-language-formatting=off", "--no-config", "--log-level=warn")


def run_prettier(action: str, script: str) -> int:
    """Run prettier on every .js file; `action` is --check or --write. Return its exit status."""
    folders = [f"{resources.files(package)}/web/*.js" for package in ASSET_PACKAGES.values()]
    return node.run("node", script, *OPTIONS, action, *folders).returncode


def main(action: str = "--check") -> int:
    """Check or write, and say what to do."""
    script = install_package("prettier", PRETTIER_VERSION, "bin/prettier.cjs")
    if script is None:
        print(
            "prettier cannot be installed here (npm without a network?): JavaScript is not formatted or checked"
        )
        return 0
    status = run_prettier(action, str(script))
    if status:
        print("format JavaScript with make format")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
