"""Build hook: compile the native kernels if there is a C compiler; without them the package is pure Python and slower.

Environment variables:
    BILRP_PURE      1: compile nothing, so that the wheel works on every system
    BILRP_PLATFORM  platform tag of the wheel, if CC compiles for another system (see `tools/build_wheels.py`)
    CC              the C compiler with its options; default: cc
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/bilrp/native")


class NativeBuildHook(BuildHookInterface):
    """Compile *.c to native.compiled next to them, for the wheel and for editable installations.

    It is not called native.so, which Python would take for an extension module.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark the wheel as built for this platform; any version of Python can load the library."""
        if os.environ.get("BILRP_PURE") == "1":
            return
        folder, tag = Path(self.root) / FOLDER, choose_platform()
        if not compile_library(sorted(folder.glob("*.c")), folder / "native.compiled", tag):
            self.app.display_warning("no C compiler: deep convolutions will be slower")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        build_data["artifacts"].append((FOLDER / "native.compiled").as_posix())


def choose_platform() -> str:
    """Return the platform tag of the wheel: BILRP_PLATFORM, else this machine's."""
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return os.environ.get("BILRP_PLATFORM", here)


def compile_library(sources: list[Path], target: Path, tag: str) -> bool:
    """Compile the sources into a shared library, atomically; return whether a compiler did.

    Args:
        sources: The C files, in the order of their names, in the folder of the target.
        target: The library.
        tag: Platform tag of the wheel it is for.
    """
    partial = target.with_suffix(".partial")
    flags = [
        "-O3",
        "-ffp-contract=fast",
        "-shared",
        "-s",  # no symbols of the machine it is built on
        f"-DSOURCE_CHECKSUM={zlib.crc32(b''.join(source.read_bytes() for source in sources))}u",
    ]
    if not tag.startswith("win"):
        flags.append("-fPIC")
    if tag.endswith(("x86_64", "amd64")):
        flags += ["-mavx2", "-mfma"]  # required by torch's own kernels; without them the twin in torch runs
    # Names without their folder: a Mach-O library has its output path in it, and builds in two folders would differ.
    names = [source.name for source in sources]
    command = [*shlex.split(os.environ.get("CC", "cc")), *flags, *names, "-o", partial.name]
    target.unlink(missing_ok=True)
    try:
        subprocess.run(command, cwd=target.parent, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        partial.unlink(missing_ok=True)
        return False
    partial.replace(target)
    return True
