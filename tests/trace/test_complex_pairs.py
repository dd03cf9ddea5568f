"""Rotations written with complex numbers are the same rotations by cos and sin, under every composite and both ways."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bilrp
from bilrp import composites, regions
from bilrp.errors import BilrpError
from bilrp.pipeline import Mode
from bilrp.trace.recorder import record

GENERATOR = torch.Generator().manual_seed(6)
X = torch.randn(1, 4, 6, generator=GENERATOR, dtype=torch.float64)
W = torch.randn(6, 6, generator=GENERATOR, dtype=torch.float64)
ANGLES = torch.rand(4, 3, generator=GENERATOR, dtype=torch.float64)
COMPOSITES = [composites.uniform(0.25), composites.hessian_product(), composites.secant("zero")]


def by_complex_numbers(x: Tensor) -> Tensor:
    z = torch.view_as_complex(F.linear(x, W).reshape(1, 4, 3, 2))
    rotated = z * torch.polar(torch.ones_like(ANGLES), ANGLES)
    return torch.view_as_real(0.5 * rotated).flatten(2) @ W


def by_cos_and_sin(x: Tensor) -> Tensor:
    a, b = F.linear(x, W).reshape(1, 4, 3, 2).unbind(-1)
    cos, sin = 0.5 * ANGLES.cos(), 0.5 * ANGLES.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(2) @ W


@pytest.mark.parametrize("composite", COMPOSITES, ids=lambda composite: composite.name)
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_rotation(composite, mode: Mode) -> None:
    actual, expected = (
        bilrp.decompose(rotate, X, regions=regions.features(), composite=composite, mode=mode)
        for rotate in (by_complex_numbers, by_cos_and_sin)
    )
    torch.testing.assert_close(actual.parts, expected.parts)
    torch.testing.assert_close(actual.embedding, by_complex_numbers(X).flatten())


def test_real_and_imaginary_parts() -> None:
    def read(x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(1, 4, 3, 2)) * ANGLES
        return z.real + 2 * z.imag

    a, b = X.reshape(1, 4, 3, 2).unbind(-1)
    tape = record(read, X)
    torch.testing.assert_close(tape.result, (a + 2 * b) * ANGLES)
    parts = bilrp.decompose(read, X, composite=composites.uniform(0.0)).parts
    torch.testing.assert_close(parts.sum(0), read(X).flatten())


def test_a_random_rotation_is_refused() -> None:
    def rotate(x: Tensor) -> Tensor:
        angles = torch.rand(4, 3, dtype=x.dtype)
        z = torch.view_as_complex(x.reshape(1, 4, 3, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(z)

    with pytest.raises(BilrpError, match="random numbers"):
        bilrp.decompose(rotate, X)
