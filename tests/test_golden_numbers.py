"""The promise on numbers: explanations of one hundred golden pairs stay as they are (docs/policy.md)."""

from __future__ import annotations

import pytest

import golden_pairs as pairs
from bilrp.errors import BilrpError


@pytest.mark.slow
def test_a_hundred_golden_pairs_keep_their_numbers() -> None:
    pytest.importorskip("skimage", reason="needs scikit-image for its photographs")
    pytest.importorskip("transformers", reason="needs transformers for MiniLM")
    try:
        differences = pairs.compare()
    except BilrpError as error:
        if "download" not in str(error):
            raise
        pytest.skip(f"needs the weights of the named encoders: {error}")
    assert len(differences) == 100
    changed = {name: value for name, value in differences.items() if not value < pairs.TOLERANCE}
    assert not changed, (
        f"python tests/golden_pairs.py --write, if this is on purpose, and say so in CHANGELOG: {changed}"
    )


def test_a_changed_number_is_noticed() -> None:
    golden = [0.5, 0.1, 1.0, 0.3, 0.2]
    assert pairs.measure_difference(golden, golden) == 0
    assert pairs.measure_difference([*golden[:-1], 0.2 + 2 * pairs.TOLERANCE], golden) > pairs.TOLERANCE
    assert pairs.measure_difference(golden[:-1], golden) == float("inf")
