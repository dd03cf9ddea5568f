"""Explain an unmodified model with a functional ReLU and a skip connection, on two random inputs."""

import torch
import torch.nn.functional as F
from torch import nn

import bilrp


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, kernel_size=3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(x)) + x


torch.manual_seed(0)
model = Residual().eval()
a, b = torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32)
explanation = bilrp.explain(model, a, b, regions=bilrp.regions.grid(8))
print(explanation)
print("strongest pairs of regions:", explanation.top(3))

assert abs(explanation.unattributed) < 1e-3 * abs(
    explanation.score
)  # no biases: the whole score is explained
