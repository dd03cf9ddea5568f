"""A stereo pair of photographs with known correspondences, from scikit-image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bilrp.errors import InputError


def stereo_pair() -> tuple[Path, Path, np.ndarray]:
    """The two photographs of a motorcycle, and the disparity of the left one: x in the left is x − d in the right.

    >>> stereo_pair()[2].shape
    (500, 741)
    """
    try:
        import skimage.data
    except ImportError:
        raise InputError("the stereo pair comes with scikit-image: pip install 'bilrp[studies]'") from None
    folder = Path(str(skimage.data.__file__)).parent
    paths = folder / "motorcycle_left.png", folder / "motorcycle_right.png"
    if not all(path.is_file() for path in (*paths, folder / "motorcycle_disp.npz")):
        left, right, disparity = skimage.data.stereo_motorcycle()
        raise InputError(
            f"scikit-image keeps its stereo pair elsewhere ({left.shape}, {right.shape}, {disparity.shape})"
        )
    with np.load(folder / "motorcycle_disp.npz") as stored:
        return *paths, stored["arr_0"]
