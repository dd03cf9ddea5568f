"""Weights are hashed once; a checksum detects changes for every input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bilrp
from bilrp.trace import fingerprint


def test_weights_changed_behind_their_version_are_noticed_by_the_next_call() -> None:
    net, x = nn.Linear(3, 2), torch.rand(1, 3)
    before = bilrp.decompose(net, x).origin["weights"]
    net.weight.data[0, 0] += 1  # no version counts this
    assert bilrp.decompose(net, x).origin["weights"] != before


def test_weights_that_stayed_are_not_hashed_again_and_any_other_are(monkeypatch) -> None:
    hashed = []
    full = fingerprint.hash_tensors
    monkeypatch.setattr(
        fingerprint, "hash_tensors", lambda tensors: hashed.append(1) or full([t.clone() for t in tensors])
    )
    weight, odd = torch.randn(300, 200), torch.zeros(13, dtype=torch.uint8)
    double = torch.randn(64, 64, dtype=torch.float64)
    tall = torch.randn(2048, 8, dtype=torch.float64)
    large = torch.randn(512, 512)
    weights = [
        weight,
        double,
        odd,
        tall,
        large,
        torch.zeros(0),
        weight[3:, 1:],
        torch.ones(4, dtype=torch.bfloat16),
    ]

    def hash_and_count() -> tuple[str, int]:
        return fingerprint.hash_weights(weights), len(hashed)

    first = hash_and_count()
    assert hash_and_count() == first == (full(weights), 1)
    numbers = weight.numpy()
    for count, change in enumerate(
        (
            lambda: numbers.__setitem__((299, 199), numbers[299, 199] + 1),
            lambda: numbers.__imul__(-1),
            lambda: numbers[:, 1::2].__imul__(-1),
            lambda: double.data.neg_(),
            lambda: numbers.__setitem__([0, 41], numbers[[41, 0]]),  # two rows change places
            lambda: odd.data.__setitem__(12, 1),
            lambda: tall.data.__setitem__([0, 1021], tall[[1021, 0]]),  # as far apart as there are columns
            lambda: tall.data[:2042].neg_(),
            lambda: large.data[:, 1::2].neg_(),  # the highest bit of every word
            lambda: large.data[:, ::2].neg_(),
            lambda: large.data[1::2, 1::2].neg_(),
            lambda: large.data.__setitem__([3, 500], large[[500, 3]]),
            lambda: large.data.copy_(large.flip(1)),
            lambda: large.data.copy_(large.T.clone()),
            lambda: large.view(torch.int32).numpy().__setitem__((7, 9), large.view(torch.int32)[7, 9] ^ 1),
        ),
        2,
    ):
        before = hash_and_count()[0]
        change()
        assert hash_and_count() == (full(weights), count) and hash_and_count()[0] != before


def test_weights_are_summed_once_within_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the block by address and version counter; a write that torch counts is seen there too."""
    sums: list[int] = []
    summed = fingerprint.compute_checksum
    monkeypatch.setattr(fingerprint, "compute_checksum", lambda weights: sums.append(1) or summed(weights))
    weights = [torch.rand(3, 4), torch.rand(5)]
    with fingerprint.hash_weights_once():
        first = fingerprint.hash_weights(weights)
        assert fingerprint.hash_weights(weights) == first and len(sums) == 1
        weights[0].add_(1)
        assert fingerprint.hash_weights(weights) != first and len(sums) == 2
    assert fingerprint.hash_weights(weights) != first and len(sums) == 3
