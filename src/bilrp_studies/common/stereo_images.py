"""A stereo pair of photographs with known correspondences, from scikit-image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bilrp.errors import InputError, import_optional


def load_stereo_pair() -> tuple[Path, Path, np.ndarray]:
    """Return two photographs of a motorcycle and the disparity of the left one: x in the left is x − d in the right.

    >>> load_stereo_pair()[2].shape
    (500, 741)
    """
    samples = import_optional("skimage.data", "studies", "the stereo pair's photographs")
    folder = Path(str(samples.__file__)).parent
    paths = folder / "motorcycle_left.png", folder / "motorcycle_right.png"
    if not all(path.is_file() for path in (*paths, folder / "motorcycle_disp.npz")):
        left, right, disparity = samples.stereo_motorcycle()
        raise InputError(
            f"scikit-image keeps its stereo pair elsewhere ({left.shape}, {right.shape}, {disparity.shape})"
        )
    with np.load(folder / "motorcycle_disp.npz") as stored:
        return *paths, stored["arr_0"]
