"""Build the source distribution and all wheels into a folder: python tools/build_wheels.py dist

One wheel is pure Python and works everywhere; the others add the native kernels, compiled here for each system by Zig's
C compiler (pip install ziglang). The kernels are a plain shared library loaded with ctypes, so no Python headers and no
other machine are needed. Set SOURCE_DATE_EPOCH for reproducible archives; hatchling has a fixed default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Platform(NamedTuple):
    """A system that has wheels of torch: its platform tag and Zig's name for it."""

    tag: str
    target: str


PLATFORMS = (
    Platform("manylinux2014_x86_64", "x86_64-linux-gnu.2.17"),
    Platform("manylinux2014_aarch64", "aarch64-linux-gnu.2.17"),
    Platform("macosx_11_0_arm64", "aarch64-macos.11.0"),
    Platform("macosx_11_0_x86_64", "x86_64-macos.11.0"),
    Platform("win_amd64", "x86_64-windows-gnu"),
)


def build(folder: Path, platforms: tuple[Platform, ...] = PLATFORMS) -> list[Path]:
    """Build the source distribution, and from it the pure wheel and one wheel for each platform.

    Args:
        folder: Where the files are written.
        platforms: Platforms to compile for.
    """
    folder = folder.resolve()
    hatchling = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run([*hatchling, "-t", "sdist", "-d", str(folder)], cwd=ROOT, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as workdir:
        shutil.unpack_archive(archive, workdir, filter="data")
        (sources,) = Path(workdir).iterdir()
        build_wheel = [*hatchling, "-t", "wheel", "-d", str(folder)]
        for platform in (None, *platforms):
            subprocess.run(build_wheel, cwd=sources, check=True, env=os.environ | _environment(platform))
    wheels = sorted(folder.glob("*.whl"))
    missing = [p.tag for p in platforms if not any(p.tag in wheel.name for wheel in wheels)]
    if missing:
        raise SystemExit(f"no wheel for {', '.join(missing)}: is ziglang installed?")
    return [archive, *wheels]


def _environment(platform: Platform | None) -> dict[str, str]:
    if platform is None:
        return {"BILRP_PURE": "1"}
    compiler = f"{sys.executable} -m ziglang cc -target {platform.target}"
    return {"BILRP_PURE": "0", "BILRP_PLATFORM": platform.tag, "CC": compiler}


if __name__ == "__main__":
    for path in build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")):
        print(path.name, path.stat().st_size)
