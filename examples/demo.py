"""A real pair explained from beginning to end: leaves out/demo.png and out/demo.html and says where.

The two photographs are scikit-image's stereo pair of a motorcycle. VGG-16's weights are fetched once (64 MB).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import bilrp
from bilrp.encoders import vgg16
from bilrp.errors import BilrpError
from bilrp.render import figure, page
from bilrp_studies.common.stereo_images import load_stereo_pair

OUT = Path(__file__).resolve().parents[1] / "out"

NEXT = """
next, with files of your own (.venv/bin/bilrp, or activate .venv):
  bilrp explain A.jpg B.jpg -o why.html        which parts of your two pictures match
  bilrp index PICTURES -o mine.lance           a folder, to be searched whole or by a part
  bilrp ops package.module:function            your own model: every step, and the rule it gets"""


def main() -> None:
    left, right, _ = load_stereo_pair()
    print("VGG-16: from the cache, or fetched once (64 MB)")
    encoder = vgg16(31, progress=sys.stderr.isatty())
    print(f"explaining {left.name} and {right.name}, exactly, on {encoder.name}: some seconds")
    start = time.perf_counter()
    explanation = bilrp.explain(encoder, left, right, progress=sys.stderr.isatty())
    print(f"{time.perf_counter() - start:.0f} s: {explanation.summary()}")
    picture = figure.write(explanation, OUT / "demo.png", names=(left.name, right.name))
    explorer = page.write(explanation, OUT / "demo.html", names=(left.name, right.name))
    print(f"a picture:         {picture}")
    print(f"a page to explore: {explorer.as_uri()}")
    print(NEXT)


if __name__ == "__main__":
    try:
        main()
    except BilrpError as error:
        sys.exit(f"demo: {error}")
