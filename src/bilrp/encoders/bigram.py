"""The bigram network of Section 6: ten digit maps, then every pair of neighbouring digits, then their sums."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

STRIDE = 2
"""Input pixels from one cell of the digit maps to the next; cell i is centred on pixel edge 2 i + 1."""

SHIFTS = (8, 10, 12, 14)
"""Horizontal shifts τ in input pixels: the pitch of printed digits (8.6), and across a decimal point (13)."""


class DigitNet(nn.Module):
    """Part one: a convolution/ReLU stack from inkedness to ten maps with a small blob at every digit.

    There are no biases, so a = 0 where there is no ink and explanations conserve exactly.

    >>> DigitNet()(torch.zeros(1, 1, 40, 60)).shape
    torch.Size([1, 10, 20, 30])
    """

    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, 6, stride=STRIDE, padding=2, bias=False), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.ReLU()]
        self.stack = nn.Sequential(*layers, nn.Conv2d(width, 10, 3, padding=1, bias=False))
        self.gate = nn.ReLU()

    def forward(self, ink: Tensor) -> Tensor:
        return self.gate(self.stack(ink))


class BigramNet(nn.Module):
    """Part two on top of part one: φ_jk(x) = ‖max_τ min{a_j(x), τ(a_k(x))}‖₁, 100 coordinates 10 j + k.

    Because max_τ min{a, b_τ} = min{a, max_τ b_τ}, the shifts are joined first, on ten maps instead of a
    hundred: the same function at a fraction of the memory.

    >>> BigramNet(DigitNet())(torch.zeros(1, 1, 40, 60)).shape
    torch.Size([1, 100])
    """

    def __init__(self, digits: nn.Module, shifts: tuple[int, ...] = SHIFTS) -> None:
        super().__init__()
        self.digits = digits
        self.cells = tuple(sorted({round(s / STRIDE) for s in shifts}))

    def forward(self, ink: Tensor) -> Tensor:
        maps = self.digits(ink)
        following = _from_right(maps, self.cells[0])
        for cells in self.cells[1:]:
            following = torch.maximum(following, _from_right(maps, cells))
        pairs = torch.minimum(maps.unsqueeze(2), following.unsqueeze(1))
        return pairs.sum(dim=(3, 4)).flatten(1)


def _from_right(maps: Tensor, cells: int) -> Tensor:
    """τ: what is `cells` further right comes here; nothing comes in from beyond the page."""
    return functional.pad(maps[..., cells:], (0, min(cells, maps.shape[-1])))
