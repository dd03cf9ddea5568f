"""Compile the native part, where there is a C compiler; without one the package is plain Python and slower."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/bilrp/native")


class Native(BuildHookInterface):
    """*.c → native.compiled, beside them: the wheel carries both, and an editable installation finds it there.

    Not native.so, which Python would take for a module.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        if not compiled(sorted(folder.glob("*.c")), folder / "native.compiled"):
            self.app.display_warning("no C compiler: deep convolutions will be slower")
            return
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{system}"  # it is no extension of Python's: any version will do
        build_data["artifacts"].append((FOLDER / "native.compiled").as_posix())


def compiled(sources: list[Path], target: Path) -> bool:
    """Did a compiler make it? Whole or not at all."""
    partial = target.with_suffix(".partial")
    flags = [
        "-O3",
        "-ffp-contract=fast",
        "-shared",
        "-fPIC",
        f"-DSOURCE_CHECKSUM={zlib.crc32(b''.join(source.read_bytes() for source in sources))}u",
    ]
    if platform.machine() in ("x86_64", "AMD64"):
        flags += ["-mavx2", "-mfma"]  # what torch itself asks for; others use the twin in torch
    command = [*shlex.split(os.environ.get("CC", "cc")), *flags, *map(str, sources), "-o", str(partial)]
    target.unlink(missing_ok=True)
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        partial.unlink(missing_ok=True)
        return False
    partial.replace(target)
    return True
