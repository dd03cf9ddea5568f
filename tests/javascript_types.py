"""Check the types of the page's and the app's JavaScript with tsc; `make lint` runs it.

tsc is installed from npm into out/typescript, with the node and npm that pyright uses, and so runs wherever pyright does.
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

from bilrp.app.static_files import ASSET_PACKAGES

TYPESCRIPT_VERSION = "5.9.3"
CACHE = Path(__file__).parents[1] / "out" / "typescript"
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


def install_compiler() -> Path:
    """Install tsc once, and return the path of its script."""
    script = CACHE / TYPESCRIPT_VERSION / "node_modules" / "typescript" / "bin" / "tsc"
    if not script.exists():
        script.parents[3].mkdir(parents=True, exist_ok=True)
        package = f"typescript@{TYPESCRIPT_VERSION}"
        arguments = (
            "install",
            "--silent",
            "--no-fund",
            "--no-audit",
            "--prefix",
            str(script.parents[3]),
            package,
        )
        node.run("npm", *arguments, check=True)
    return script


def check(folder: Path) -> list[str]:
    """Return the error messages of tsc for the .js files below `folder`."""
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS}), "utf-8")
    done = node.run(
        "node", str(install_compiler()), "-p", str(folder), cwd=folder, stdout=subprocess.PIPE, text=True
    )
    lines = str(done.stdout).splitlines()
    return lines if done.returncode == 0 or lines else ["tsc failed without a message"]


def main() -> int:
    """Print the errors with the paths of the sources, and return the exit status."""
    with tempfile.TemporaryDirectory() as temporary:
        origins = copy_sources(Path(temporary))
        lines = check(Path(temporary))
    for line in lines:
        path, parenthesis, rest = line.partition("(")
        print(f"{origins.get(path, path)}{parenthesis}{rest}")
    unmarked = [path for path in origins.values() if not path.read_text("utf-8").startswith("// @ts-check\n")]
    for path in unmarked:
        print(f"{path}: start the file with // @ts-check")
    return 1 if lines or unmarked else 0


if __name__ == "__main__":
    sys.exit(main())
