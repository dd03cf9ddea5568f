"""Calls from several threads give the serial answer, and leave the process as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bilrp
from attack.threads import Attention
from bilrp import composites
from bilrp.encoder import MODEL_RUN_LOCK
from bilrp.errors import suppress_warnings

THREADS = 8


SCRIPT = """
from attack import threads
row = threads.attack(1, None, each=25)
print(row.trials, row.right, *row.failures[:5], sep="|")
"""


@pytest.mark.slow
def test_eight_threads_give_the_serial_answers() -> None:
    """ReLU, GELU and attention under three composites, 8 × 200 and more in all, in a process without checked types."""
    paths = (Path(bilrp.__file__).parents[1], Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "1800|1800", done.stdout + done.stderr


def test_warning_filters_are_put_back_by_the_last_to_leave() -> None:
    before, errors = list(warnings.filters), []
    gate = threading.Barrier(THREADS)

    def work() -> None:
        for _ in range(200):
            gate.wait()
            with suppress_warnings():
                try:
                    warnings.warn_explicit("odd", UserWarning, "x.py", 1, "PIL.Image")
                except UserWarning as error:
                    errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and warnings.filters == before


def test_random_numbers_of_other_threads_are_their_own() -> None:
    """Random draws in parallel with a decomposition neither stop it nor are rewound: no value comes twice."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).eval()
    stop, drawn = threading.Event(), []

    def draw() -> None:
        while not stop.is_set():
            drawn.append(float(torch.rand(1, dtype=torch.float64)))

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(200):
            bilrp.decompose(model, torch.ones(1, 6))
    finally:
        stop.set()
        thread.join()
    assert len(drawn) > 10 and len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("noisy", [nn.Dropout(0.5), nn.RReLU()], ids=["dropout", "rrelu"])
def test_noise_on_activations_is_refused_before_it_is_drawn(noisy: nn.Module) -> None:
    state = torch.get_rng_state()
    with pytest.raises(bilrp.errors.BilrpError):
        bilrp.decompose(noisy, torch.ones(1, 6))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "noisy",
    [lambda x: x + torch.randn_like(x), lambda x: x * torch.rand(6)],
    ids=["added", "multiplied"],
)
def test_a_refused_model_draws_no_more_than_one_run_of_it(noisy: Callable[[Tensor], Tensor]) -> None:
    """Whether anything depends on a draw shows only after it: some models draw numbers that they never use."""
    noisy(torch.ones(1, 6))
    after_one_run = torch.get_rng_state()
    torch.manual_seed(0)
    with pytest.raises(bilrp.errors.BilrpError):
        bilrp.decompose(noisy, torch.ones(1, 6))
    assert torch.equal(after_one_run, torch.get_rng_state())


def test_a_seeded_generator_is_not_random() -> None:
    def fixed(x: Tensor) -> Tensor:
        return x @ torch.randn(6, 3, generator=torch.Generator().manual_seed(0))

    assert bilrp.decompose(fixed, torch.ones(1, 6)).parts.shape == (6, 3)


def test_attention_has_its_derivative_whatever_the_kernel() -> None:
    """Push = pull = autograd through fused attention and nn.MultiheadAttention without weights."""
    torch.manual_seed(0)

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(x, x, x, need_weights=False)[0].mean(1)

    for model in (Attention().double().eval(), Heads().double().eval()):
        x = torch.rand(1, 5, 6, dtype=torch.float64)
        truth = torch.autograd.functional.jacobian(lambda t, model=model: model(t)[0], x)[:, 0] * x
        for mode in ("push", "pull"):
            parts = bilrp.decompose(
                model, x, composite=composites.hessian_product(), regions=bilrp.regions.features(), mode=mode
            ).parts
            torch.testing.assert_close(parts.T.reshape(truth.shape), truth, atol=1e-12, rtol=1e-10)


def test_every_run_of_the_model_holds_the_lock() -> None:
    """A model may write to its own buffers."""
    free: list[bool] = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            def probe() -> None:
                free.append(MODEL_RUN_LOCK.acquire(blocking=False))
                if free[-1]:
                    MODEL_RUN_LOCK.release()

            other = threading.Thread(target=probe)
            other.start()
            other.join()
            return x.mean(1)

    bilrp.explain(Watched(), torch.rand(1, 3, 4), torch.rand(1, 5, 4), similarity="dot")
    assert len(free) >= 2 and not any(free)
