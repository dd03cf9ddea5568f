"""Rows of a collection that unpack to gigabytes: each is refused in one line, before the memory is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lance", reason="collections need bilrp[collection]")

MEGABYTES = 450  # over what the child had before it read the bombs
# A child measures how far its memory rises, as this process may have been larger before.
CHILD = """
import io, json, resource, struct, zlib
import torch
from PIL import Image
from bilrp import inputs
from bilrp.collection import packed_parts, parts_table, thumbnails
from bilrp.errors import InputError

def safetensors(name, size):
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    pack = zlib.compressobj(1)
    yield pack.compress(struct.pack("<Q", len(header)) + header)
    for _ in range(size // 1_000_000):
        yield pack.compress(bytes(1_000_000))
    yield pack.flush()

def picture(kind):
    buffer = io.BytesIO()
    Image.new("L", (11_300, 11_300)).save(buffer, kind)
    return buffer.getvalue()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

frame, jpeg, png = b"".join(safetensors("labels", 600_000_000)), picture("JPEG"), picture("PNG")
view = torch.frombuffer(bytearray(png), dtype=torch.uint8)
packed = packed_parts.pack(torch.ones(1, 4))
about = json.dumps({"kind": "image", "box": [0, 0, 1, 1], "full": [1, 1]})
reads = {
    "frame": lambda: parts_table.restore_decomposition(packed, frame, torch.ones(4)),
    "thumbnail": lambda: thumbnails.from_row(jpeg, None, about),
    "view": lambda: inputs.deserialize_view({"view": view}, {"view": about}),
}
before, said = peak(), {}
for kind, read in reads.items():
    try:
        read()
        said[kind] = "read"
    except (InputError, KeyError) as error:
        said[kind] = str(error)
print(json.dumps([said, len(frame), peak() - before]))
"""


def test_rows_that_unpack_to_gigabytes_are_refused_first() -> None:
    """A frame of 600 MB in 3, a thumbnail and a view of 127 megapixels."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-400:]
    errors, packed, rose = json.loads(ran.stdout)
    assert packed < 3_000_000 and rose < MEGABYTES, f"{rose:.0f} MB"
    for kind, words in {
        "frame": "decompresses to more than",
        "thumbnail": "11300×11300",
        "view": "11300×11300",
    }.items():
        assert words in errors[kind] and "\n" not in errors[kind], errors
