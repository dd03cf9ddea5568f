"""One operation by its several names: torch's functions, aten's overloads and packets, exported programs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bilrp
from bilrp import composites
from bilrp.errors import BilrpError
from bilrp.trace.recorder import record
from models import randomize_norms

aten = torch.ops.aten
COMPOSITES = {
    composite.name: composite for composite in (composites.uniform(0.25), composites.hessian_product())
}


class Small(nn.Module):
    """A convolutional front with batch norm, an attention block behind it, and writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.query, self.key, self.value = (nn.Linear(4, 8) for _ in range(3))
        self.layer_norm, self.last = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 2).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        y = self.layer_norm(y)
        y += 1
        return self.last(F.gelu(y[:, 1:])).mean(1)


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = randomize_norms(Small()), torch.rand(1, 3, 8, 8, dtype=torch.float64)
    return model, torch.export.export(model, (x,)).module(), x


@pytest.mark.parametrize("composite", COMPOSITES)
def test_an_exported_program_is_the_model_it_was_made_of(small, composite: str) -> None:
    model, exported, x = small
    expected, result = (
        bilrp.decompose(m, x, regions=4, composite=COMPOSITES[composite]) for m in (model, exported)
    )
    assert expected.parts.abs().max() > 0
    torch.testing.assert_close(result.parts, expected.parts, rtol=1e-10, atol=1e-12)


def test_overloads_and_packets_are_their_functions() -> None:
    x, w = torch.rand(1, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)

    def run(x: Tensor) -> Tensor:
        y = aten.relu_.default(aten.linear.default(x, w))
        return aten.mul(aten.add_.Tensor(y, 1), 2)

    assert [step.op for step in record(run, x).steps] == ["linear", "relu", "add", "mul"]


@pytest.mark.parametrize("call", [torch.batch_norm, aten.batch_norm.default], ids=["torch", "aten"])
def test_batch_norm_with_its_weights_first(call) -> None:
    torch.manual_seed(0)
    x, (mean, var, weight, bias) = torch.rand(1, 3, 2, 2).double(), torch.rand(4, 3).double()
    arguments = (weight, bias, mean, var, False, 0.1, 1e-5, False)
    expected = bilrp.decompose(lambda x: F.batch_norm(x, mean, var, weight, bias), x, regions=1).parts
    result = bilrp.decompose(lambda x: call(x, *arguments), x, regions=1).parts
    torch.testing.assert_close(result, expected)


def test_another_librarys_operator_is_not_torchs() -> None:
    @torch.library.custom_op("bilrp_tests::relu", mutates_args=())
    def relu(x: Tensor) -> Tensor:
        return x.square()

    with pytest.raises(BilrpError, match="bilrp_tests::relu"):
        bilrp.decompose(lambda x: torch.ops.bilrp_tests.relu(x), torch.rand(1, 4))
