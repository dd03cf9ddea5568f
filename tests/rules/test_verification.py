"""Torch's derivatives of operations without a verified row are compared with each other before they are used."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bilrp
from bilrp import composites, regions
from bilrp.errors import RuleError
from bilrp.pipeline import Mode
from bilrp.rules.verification import verify_adjoint
from bilrp.trace.operation_table import OPERATIONS
from bilrp.trace.recorder import record
from bilrp.trace.rewrite import simplify

X = torch.randn(1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
POINTS = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def distances(x: Tensor) -> Tensor:
    return torch.cdist(x.reshape(4, 2), POINTS)


@pytest.mark.parametrize("mode", ["push", "pull", "auto"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_derivative_that_torch_gets_wrong_is_refused(mode: Mode, dtype: torch.dtype) -> None:
    """Under vmap cdist's gradient is off by as much as it is."""
    with pytest.raises(RuleError, match=r"step 'cdist_1' \(cdist.*contradict each other") as raised:
        bilrp.decompose(
            lambda x: torch.cdist(x.reshape(4, 2), POINTS.to(dtype)),
            X.to(dtype),
            composite=composites.hessian_product(),
            mode=mode,
        )
    assert "\n" not in str(raised.value) and "write the operation out" in str(raised.value)


def test_the_same_written_out_is_fine() -> None:
    def written_out(x: Tensor) -> Tensor:
        return (x.reshape(4, 1, 2) - POINTS).square().sum(-1).sqrt()

    jacobian = torch.autograd.functional.jacobian(lambda t: distances(t).flatten(), X)
    assert isinstance(jacobian, Tensor)
    expected = (jacobian.flatten(1) * X.flatten()).T
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(
            written_out, X, regions=regions.features(), composite=composites.hessian_product(), mode=mode
        )
        torch.testing.assert_close(decomposition.parts, expected)


def foreign(x: Tensor) -> Tensor:
    """An operation that is not in the table, whose derivatives torch gets right."""
    assert OPERATIONS.find("logcumsumexp").kind == "unknown"
    return torch.logcumsumexp(x, 1)


def test_unknown_operations_pass_where_torch_is_right() -> None:
    jacobian = torch.autograd.functional.jacobian(lambda t: foreign(t).flatten(), X)
    assert isinstance(jacobian, Tensor)
    decomposition = bilrp.decompose(
        foreign, X, regions=regions.features(), composite=composites.hessian_product(), mode="pull"
    )
    torch.testing.assert_close(decomposition.parts, (jacobian.flatten(1) * X.flatten()).T)


def test_what_has_no_derivative_is_refused_in_one_line() -> None:
    """igamma says so when it is asked; bessel_y0 answers 0 and says nothing."""
    for name, function in {
        "igamma": lambda x: torch.igamma(x, x),
        "bessel_y0": torch.special.bessel_y0,
    }.items():
        with pytest.raises(RuleError, match=f"torch has no derivative of step '.*{name}_1'") as raised:
            bilrp.decompose(function, X.abs(), composite=composites.hessian_product())
        assert "\n" not in str(raised.value)


def test_what_only_counts_has_a_derivative_of_zero() -> None:
    decomposition = bilrp.decompose(lambda x: torch.histc(x, 4), X, composite=composites.hessian_product())
    assert not decomposition.parts.any() and decomposition.unattributed.sum() == 8


def test_the_trial_costs_a_handful_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two vectors there and back, and one alone, however many regions and coordinates there are; nothing for known steps."""
    vjp, taken = torch.func.vjp, []
    monkeypatch.setattr(torch.func, "vjp", lambda f, *at: taken.append(len(at)) or vjp(f, *at))

    def trials(function) -> int:
        tape, count = simplify(record(function, X)), 0
        for step in tape.steps:
            rule = composites.hessian_product()(step)
            assert rule is not None
            linear_map = rule(step)
            taken.clear()
            verify_adjoint(linear_map, step)
            count += len(taken)
        return count

    assert trials(F.gelu) == 0 and trials(lambda x: F.gelu(foreign(x))) == trials(foreign) <= 3


def test_a_batch_norm_has_its_derivative_whatever_follows() -> None:
    """Torch's backward pass of it is wrong for some orders in memory, so autograd is no witness here: differences are."""
    generator = torch.Generator().manual_seed(4)
    mean, spread, scale = (torch.rand(3, generator=generator, dtype=torch.float64) + 0.5 for _ in range(3))
    x = torch.randn(1, 3, 3, 3, generator=generator, dtype=torch.float64)

    def model(t: Tensor) -> Tensor:
        return F.batch_norm(t, mean, spread, scale).flatten(2).transpose(1, 2)

    steps = torch.eye(27, dtype=torch.float64).reshape(27, 3, 3, 3)
    expected = torch.stack(
        [(model(x + s[None]) - model(x - s[None])).flatten() / 2 for s in steps]
    )  # it is affine
    for mode in ("push", "pull"):
        decomposition = bilrp.decompose(
            model, x, regions=regions.features(), composite=composites.hessian_product(), mode=mode
        )
        torch.testing.assert_close(decomposition.parts, expected * x.flatten()[:, None])


def test_elementwise_derivatives_need_neither_vmap_nor_forward_levels() -> None:
    from bilrp.engine.maps import Scale
    from bilrp.rules.freezing import freeze
    from bilrp.trace.recorder import record

    with torch.no_grad():
        program = freeze(record(lambda x: torch.sigmoid(F.gelu(x)), X), composites.hessian_product())
    assert [type(link.map) for link in program.links] == [Scale, Scale]


def test_rows_of_a_users_own_are_tried_too() -> None:
    from bilrp.trace.operation import Op

    encoder = bilrp.Encoder(distances, operations=(Op("cdist", "distance"),))
    with pytest.raises(RuleError, match="contradict each other"):
        bilrp.decompose(encoder, X, composite=composites.hessian_product())
