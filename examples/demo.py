"""Explain a real pair of photographs and write out/demo.png and out/demo.html.

The photographs are scikit-image's stereo pair of a motorcycle. EfficientNet-Lite0 is downloaded once (17 MB).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import bilrp
from bilrp.covering import describe_covering
from bilrp.encoders import efficientnet
from bilrp.errors import BilrpError
from bilrp.render import figure, page
from bilrp_studies.common.stereo_images import load_stereo_pair

OUT = Path(__file__).resolve().parents[1] / "out"

NEXT_COMMANDS = """
next, with your own files (.venv/bin/bilrp, or activate .venv):
  bilrp explain A.jpg B.jpg -o why.html        which parts of two images match
  bilrp index IMAGES -o mine.lance             index a folder, to search it by an image or a part of one
  bilrp ops package.module:function            every step of your own model and its rule"""


def main() -> None:
    left, right, _ = load_stereo_pair()
    print("loading EfficientNet-Lite0 (downloaded once, 17 MB)")
    encoder = efficientnet(progress=sys.stderr.isatty())
    print(f"explaining {left.name} and {right.name} with {encoder.name}, exactly: a few seconds")
    start = time.perf_counter()
    explanation = bilrp.explain(encoder, left, right, progress=sys.stderr.isatty())
    print(f"{time.perf_counter() - start:.0f} s: {explanation.summary()}")
    print(describe_covering(explanation.cover_findings()))
    image = figure.write(explanation, OUT / "demo.png", names=(left.name, right.name))
    explorer = page.write(explanation, OUT / "demo.html", names=(left.name, right.name))
    print(f"figure:           {image}")
    print(f"interactive page: {explorer.as_uri()}")
    print(NEXT_COMMANDS)


if __name__ == "__main__":
    try:
        main()
    except BilrpError as error:
        sys.exit(f"demo: {error}")
