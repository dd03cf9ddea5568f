"""Check the types of the page's and the app's JavaScript with tsc; `make lint` runs it.

tsc is installed from npm into out/npm, with the node and npm that pyright uses. Where npm has no network, the types
are not checked, and this says so.
The files are checked in the folders in which the server serves them, because they import each other by URL.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from pyright import node
from pyright.errors import PyrightError

from bilrp.app.static_files import ASSET_PACKAGES

INSTALL_SECONDS = 120
TYPESCRIPT_VERSION = "5.9.3"
CACHE = Path(__file__).parents[1] / "out" / "npm"
OPTIONS = {
    "allowJs": True,
    "checkJs": True,
    "noEmit": True,
    "target": "es2023",
    "lib": ["es2023", "dom", "dom.iterable"],
    "module": "esnext",
    "moduleResolution": "bundler",
    "types": [],
}


def copy_sources(folder: Path) -> dict[str, Path]:
    """Copy every .js file to the path of its URL, and return the file of each path."""
    origins = {}
    for name, package in ASSET_PACKAGES.items():
        (folder / name).mkdir()
        for source in Path(str(resources.files(package))).joinpath("web").glob("*.js"):
            text = source.read_text("utf-8")
            (folder / name / source.name).write_text(text, "utf-8")
            origins[f"{name}/{source.name}"] = source
    return origins


def install_package(name: str, version: str, script: str) -> Path | None:
    """Install a package of npm once, and return the path of its script; None if it cannot be installed here."""
    folder = CACHE / f"{name}-{version}"
    path = folder / "node_modules" / name / script
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ("--silent", "--no-fund", "--no-audit", "--prefix", str(folder))
        try:
            node.run("npm", "install", *options, f"{name}@{version}", check=True, timeout=INSTALL_SECONDS)
        except (OSError, subprocess.SubprocessError, PyrightError):
            return None
    return path


def check(folder: Path, script: Path) -> list[str]:
    """Return the error messages of tsc, by its script, for the .js files below `folder`."""
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS}), "utf-8")
    done = node.run("node", str(script), "-p", str(folder), cwd=folder, stdout=subprocess.PIPE, text=True)
    lines = str(done.stdout).splitlines()
    return lines if done.returncode == 0 or lines else ["tsc failed without a message"]


def main() -> int:
    """Print the errors with the paths of the sources, and return the exit status."""
    script = install_package("typescript", TYPESCRIPT_VERSION, "bin/tsc")
    if script is None:
        print(
            "tsc cannot be installed here (npm without a network?): the types of JavaScript are not checked"
        )
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        origins = copy_sources(Path(temporary))
        lines = check(Path(temporary), script)
    for line in lines:
        path, parenthesis, rest = line.partition("(")
        print(f"{origins.get(path, path)}{parenthesis}{rest}")
    unmarked = [path for path in origins.values() if not path.read_text("utf-8").startswith("// @ts-check\n")]
    for path in unmarked:
        print(f"{path}: start the file with // @ts-check")
    return 1 if lines or unmarked else 0


if __name__ == "__main__":
    sys.exit(main())
