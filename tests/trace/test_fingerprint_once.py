"""Weights are hashed once in one call, and looked at again in the next."""

from __future__ import annotations

import torch
from torch import nn

import bilrp
from bilrp.trace import tape


def test_two_inputs_of_one_call_share_one_look_at_the_weights(monkeypatch) -> None:
    looks = []
    monkeypatch.setattr(tape, "of_tensors", lambda tensors: str(looks.append(len(tensors))))
    net = nn.Linear(3, 2)
    bilrp.explain(net, torch.rand(1, 3), torch.rand(1, 3))
    assert looks == [2]
    list(bilrp.decompose_many(net, [torch.rand(1, 3)] * 3))
    assert looks == [2, 2]


def test_weights_changed_behind_their_version_are_noticed_by_the_next_call() -> None:
    net, x = nn.Linear(3, 2), torch.rand(1, 3)
    before = bilrp.decompose(net, x).origin["weights"]
    net.weight.data[0, 0] += 1  # no version counts this
    assert bilrp.decompose(net, x).origin["weights"] != before
