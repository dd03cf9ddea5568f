"""Constants that no recorded call produced: rejected if they depend on the input (another thread), else allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bilrp
from bilrp import composites, regions
from bilrp.errors import TapeError

X = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
TABLES = [torch.linspace(0.5, 1.5, 4, dtype=torch.float64)]  # in a list: no attribute of a model


def run_in_thread(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    def without_gradients() -> Tensor:
        with torch.no_grad():
            return call(x)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(without_gradients).result()


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(6, 4).double(), nn.Linear(6, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + run_in_thread(self.right, x)


class Filled(Sides):
    """Another thread writes into a tensor that this one made."""

    def forward(self, x: Tensor) -> Tensor:
        buffer = torch.zeros(1, 4, dtype=x.dtype)

        def fill() -> None:
            with torch.no_grad():
                buffer.copy_(self.right(x))

        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()
        return self.left(x) + buffer


class Twice(Sides):
    """What the thread returns is used by calls on constants first."""

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.relu(run_in_thread(self.right, x)) * 2


class Buffered(Sides):
    """Another thread writes into a buffer of the model, or gives it other memory."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: Tensor
        self.register_buffer("buffer", torch.zeros(1, 4, dtype=torch.float64))

    def keep(self, x: Tensor) -> Tensor:
        return self.buffer.copy_(self.right(x))

    def forward(self, x: Tensor) -> Tensor:
        run_in_thread(self.keep, x)
        return self.left(x) + self.buffer


class Exchanged(Buffered):
    def keep(self, x: Tensor) -> Tensor:
        self.buffer.data = self.right(x)
        return self.buffer


class Attribute(Buffered):
    """An attribute that is not a buffer, already used once in the run."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(1, 4, dtype=torch.float64)

    def keep(self, x: Tensor) -> Tensor:
        return self.table.copy_(self.right(x))

    def forward(self, x: Tensor) -> Tensor:
        before = self.left(x) + self.table * 0
        run_in_thread(self.keep, x)
        return before + self.table


@pytest.mark.parametrize("kind", [Sides, Filled, Twice, Buffered, Exchanged, Attribute])
def test_a_part_in_another_thread_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(
        TapeError, match=rf"\({kind.__name__}, test_untracked_constants.py:\d+\) .*another thread"
    ) as raised:
        bilrp.decompose(kind(), X)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 420


@torch.jit.script
def scripted_table(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.float64)


class Scale(nn.Module):
    """Uses the constant that `make` gives, and remembers it where it is told to."""

    def __init__(self, make: Callable[[], Tensor], remember: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.make, self.remember = nn.Linear(6, 4).double(), make, remember
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        table = self.cache.get("table")
        if table is None:
            table = self.make()
        if self.remember:
            self.cache["table"] = table
        return self.linear(x) * table


class Labelled(torch.Tensor):
    """A subclass of tensors without anything of its own."""


CONSTANTS: dict[str, Callable[[], Tensor]] = {
    "numpy": lambda: torch.from_numpy(np.linspace(0.5, 1.5, 4)),
    "legacy constructor": lambda: torch.DoubleTensor([0.5, 1.0, 1.5, 2.0]),
    "buffer": lambda: torch.frombuffer(bytearray(np.linspace(0.5, 1.5, 4).tobytes()), dtype=torch.float64),
    "tensor": lambda: torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64),
    "arange": lambda: torch.arange(1.0, 5.0, dtype=torch.float64),
    "parameter": lambda: nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64)),
    "in a list": lambda: TABLES[0],
    "rows": lambda: list(torch.eye(4, dtype=torch.float64))[1],
    "subclass": lambda: torch.linspace(0.5, 1.5, 4, dtype=torch.float64).as_subclass(Labelled),
    "scripted": lambda: scripted_table(4),
    "thread": lambda: run_in_thread(lambda t: t * 2, TABLES[0]),
}


@pytest.mark.parametrize("remember", [False, True], ids=["made", "remembered"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_other_constants_do_not_matter(name: str, remember: bool) -> None:
    model = Scale(CONSTANTS[name], remember)
    expected = model.linear.weight.detach().T * X[0][:, None] * CONSTANTS[name]().detach()
    for _ in range(2):
        actual = bilrp.decompose(model, X, regions=regions.features(), composite=composites.uniform(0.0))
        torch.testing.assert_close(actual.parts, expected.as_subclass(Tensor))


class Lazy(Scale):
    """Makes a table in its first run, and uses it before the untracked constant."""

    positions: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.positions is None:
            self.positions = torch.arange(6, dtype=x.dtype)
        return super().forward(x + self.positions)


def test_what_a_model_stores_for_its_next_run_does_not_matter() -> None:
    model = Lazy(CONSTANTS["in a list"])
    expected = model.linear.weight.detach().T * X[0][:, None] * TABLES[0]
    for _ in range(2):
        actual = bilrp.decompose(model, X, regions=regions.features(), composite=composites.uniform(0.0))
        torch.testing.assert_close(actual.parts, expected)


def test_a_sparse_constant_is_refused_as_one() -> None:
    tables = [torch.eye(6, dtype=torch.float64).to_sparse()]
    with pytest.raises(TapeError, match=r"sparse tensor of shape \(6, 6\).*to_dense"):
        bilrp.decompose(lambda x: torch.sparse.mm(tables[0], x.T).T, X)


def test_a_module_runs_once() -> None:
    """The second run happens only for untracked constants."""
    runs: list[Tensor] = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.table = nn.Linear(6, 4).double(), torch.ones(4, dtype=torch.float64)
            self.register_buffer("mask", torch.ones(4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            runs.append(x)
            return self.linear(x) * self.table * self.mask * torch.ones(4, dtype=x.dtype)

    table = torch.linspace(0.5, 1.5, 4, dtype=torch.float64)
    model = Counting()
    for encoder in (model, lambda x: model(x) * table):
        runs.clear()
        bilrp.decompose(encoder, X)
        assert len(runs) == 1
