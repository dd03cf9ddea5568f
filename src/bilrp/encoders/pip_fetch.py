"""Download one file with pip's own session and index pages. Run as a script in a separate, isolated Python process.

`pip download` is not used, because it runs the build backend of a source archive to read its metadata. Like pip-tools,
this calls pip's finder instead: indexes, find-links, proxy, certificates and credentials are those of the user's pip,
and nothing is built. The script imports nothing of bilrp, so that it starts fast.

Usage: python -I pip_fetch.py PROJECT FILENAME SHA256 SIZE OUTPUT
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from pathlib import Path

MAX_MEMORY_BYTES = 1 << 30  # an index page can be of any length
PIP_ARGUMENTS = ["--no-input", "--no-cache-dir", "--no-binary=:none:", "--only-binary=:none:"]


class FailureLog(logging.Handler):
    """Collect the index pages that pip could not read; pip logs them and continues."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("Could not fetch URL"):
            self.reasons.append(record.getMessage())


def download(project: str, filename: str, sha256: str, size: int, output: Path) -> list[str]:
    """Write the file to `output` and return [], or return the reasons why no candidate was accepted.

    Args:
        project: name of the project on the index.
        filename: file name of the archive.
        sha256: expected sha256 of the archive.
        size: its length in bytes.
        output: the file to write.
    """
    from pip._internal.commands import create_command

    log = FailureLog()
    logging.basicConfig(level=logging.DEBUG, handlers=[log])
    command = create_command("download")
    options, _ = command.parse_args(PIP_ARGUMENTS)
    with command.main_context():
        session = command.get_default_session(options)  # type: ignore[attr-defined]
        finder = command._build_package_finder(options, session, ignore_requires_python=True)  # type: ignore[attr-defined]
        links = [candidate.link for candidate in finder.find_all_candidates(project)]
        for link in (link for link in links if link.filename == filename):
            try:
                check = hashlib.sha256()
                length = 0
                response = session.get(
                    link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True
                )
                response.raise_for_status()
                with output.open("wb") as file:
                    for chunk in response.iter_content(1 << 18):
                        length += len(chunk)
                        if length > size:
                            break
                        check.update(chunk)
                        file.write(chunk)
                if length == size and check.hexdigest() == sha256:
                    return []
                host = link.netloc.rpartition("@")[2] or "find-links"
                log.reasons.append(f"{host} has another file, not {size} bytes with sha256 {sha256[:12]}…")
            except Exception as error:
                log.reasons.append(f"{type(error).__name__}: {error}")
    return log.reasons or ["it is not on any index or find-links page of pip's configuration"]


def main(project: str, filename: str, sha256: str, size: str, output: str) -> int:
    """Run `download` in a process with a memory limit; print the reasons of a failure and return the exit code.

    Args:
        project, filename, sha256, size, output: As for `download`.
    """
    # stdin is a pipe from the parent process that is never written to: it closes when the parent ends.
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    except (ImportError, OSError, ValueError):  # Windows, or a lower limit is set already
        pass
    try:
        reasons = download(project, filename, sha256, int(size), Path(output))
    except BaseException as error:  # pip exits on unreadable configuration files
        reasons = [f"{type(error).__name__}: {error}"]
    line = "; ".join(dict.fromkeys(" ".join(reason.split()) for reason in reasons))
    print(line[:2000], flush=True)
    return bool(reasons)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
