"""Is what the members of a cluster share inside the object's box? python benchmarks/cluster_boxes.py FOLDER [-e ENCODER]

FOLDER has photographs in images/ and Pascal VOC boxes in annotations/. Crops of the photographs are clustered, typical
members of each cluster are explained, and the positive relevance inside the boxes is compared with their area.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from PIL import Image

from bilrp import collection
from bilrp.attribution import Attribution
from bilrp.findings.region_layout import to_label_image

SIDE_PIXELS = 224
CROP_FRACTIONS = (0.55, 0.95)  # of the sides of a photograph


def read_boxes(path: Path) -> np.ndarray:
    """Return (left, top, right, bottom) of each object in fractions of the photograph."""
    root = ElementTree.parse(path).getroot()
    size = [float(root.findtext(f"size/{name}") or 0) for name in ("width", "height")]
    names = ("xmin", "ymin", "xmax", "ymax")
    rows = [[float(each.findtext(f"bndbox/{name}") or 0) for name in names] for each in root.iter("object")]
    return np.array(rows).reshape(-1, 4) / np.array(size * 2)


def write_crops(folder: Path, out: Path, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Write random crops of the photographs; return the mask of all objects of each."""
    masks = {}
    for path in sorted((folder / "images").iterdir()):
        annotation = folder / "annotations" / f"{path.stem}.xml"
        if not annotation.is_file():
            continue
        image, boxes = Image.open(path).convert("RGB"), read_boxes(annotation)
        for number in range(count):
            wide, high = rng.uniform(*CROP_FRACTIONS, 2)
            left, top = rng.uniform(0, 1 - wide), rng.uniform(0, 1 - high)
            across, down = image.size
            window = (left * across, top * down, (left + wide) * across, (top + high) * down)
            mask = np.zeros((SIDE_PIXELS, SIDE_PIXELS), bool)
            for x0, y0, x1, y1 in boxes:
                columns = np.clip([(x0 - left) / wide, (x1 - left) / wide], 0, 1) * SIDE_PIXELS
                rows = np.clip([(y0 - top) / high, (y1 - top) / high], 0, 1) * SIDE_PIXELS
                mask[round(rows[0]) : round(rows[1]), round(columns[0]) : round(columns[1])] = True
            if 0.02 < mask.mean() < 0.7:  # a box that fills the picture tells nothing
                name = f"{path.stem}-{number}.png"
                crop = image.resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.BICUBIC, box=window)
                crop.save(out / name)
                masks[name] = mask
    return masks


def measure_inside(attribution: Attribution, mask: np.ndarray) -> tuple[float, bool, float]:
    """Return the share of positive relevance in the boxes, whether the strongest region is in one, and their area."""
    labels = to_label_image(attribution.regions)
    assert labels is not None
    values = attribution.values.double().numpy()
    inside = np.asarray(Image.fromarray(mask).resize(labels.shape[::-1], Image.Resampling.NEAREST))
    fractions = np.array([inside[labels == n].mean() for n in range(len(values))])
    positive = values.clip(min=0)
    return (
        float((positive * fractions).sum() / positive.sum()),
        bool(fractions[values.argmax()] >= 0.5),
        float(mask.mean()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-e", "--encoder", default="efficientnet")
    parser.add_argument("--crops", type=int, default=20, help="of each photograph")
    parser.add_argument("--clusters", type=int, default=16)
    parser.add_argument("--members", type=int, default=6, help="that are explained, of each cluster")
    parser.add_argument("-o", "--output", type=Path, help="folder for figures of the clusters")
    options = parser.parse_args()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        crops = Path(place) / "crops"
        crops.mkdir()
        masks = write_crops(options.folder, crops, options.crops, np.random.default_rng(0))
        built = collection.build(crops, options.encoder, Path(place) / "crops.lance")
        print(f"{len(built)} crops, {time.process_time() - start:.0f} s of CPU time", flush=True)
        clusters = built.clusters(options.clusters)
        print("stability", [round(each.stability or 0, 2) for each in clusters], flush=True)
        rows = {"shared": [], "contrast": []}
        for number in range(len(clusters)):
            why = clusters.explain(number, members=options.members)
            for kind, some in (("shared", why.shared), ("contrast", why.contrasts)):
                rows[kind] += [
                    measure_inside(each, masks[built.names[item]])
                    for item, each in zip(why.items, some, strict=True)
                ]
            if options.output is not None and number < 4:
                why.plot().savefig(options.output / f"cluster-{number}.png")
    for kind, some in rows.items():
        share, pointing, area = np.array(some, dtype=float).T
        text = f"relevance in boxes {share.mean():.3f}, strongest in one {pointing.mean():.3f}, area {area.mean():.3f}"
        print(f"{kind}: {text}, above the area in {(share > area).mean():.2f} of {len(some)} members")
    print(f"{time.process_time() - start:.0f} s of CPU time")


if __name__ == "__main__":
    main()
