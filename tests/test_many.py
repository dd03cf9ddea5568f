"""decompose_many: what decompose gives, in order, with reading and decomposing side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest
import torch

import bilrp
from bilrp import composites
from bilrp.errors import InputError
from models import randomize_norms, vgg_like
from type_asserts import assert_instance


def images(count: int, sizes=((12, 12), (8, 12))) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, 3, *sizes[i % len(sizes)], generator=generator, dtype=torch.float64)
        for i in range(count)
    ]


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_many_are_one_after_another(workers: int | None) -> None:
    model, items = randomize_norms(vgg_like()), images(6)
    options = {"regions": 4, "composite": composites.uniform(0.25)}
    results = list(bilrp.decompose_many(model, iter(items), workers=workers, **options))
    assert len(results) == len(items)
    for each, x in zip(results, items, strict=True):
        expected = bilrp.decompose(model, x, **options)
        torch.testing.assert_close(each.parts, expected.parts, rtol=1e-12, atol=1e-12)
        assert each.origin == expected.origin


def test_only_a_few_are_held_and_read_in_threads_of_their_own() -> None:
    taken, readers = [], set()

    def things():
        for i in range(100):
            taken.append(i)
            yield i

    def read(i: int) -> torch.Tensor:
        readers.add(threading.get_ident())
        return images(1)[0] + i

    encoder = bilrp.Encoder(randomize_norms(vgg_like()), read=read)
    decompositions = bilrp.decompose_many(encoder, things(), regions=6)
    next(decompositions)
    assert_instance(decompositions, Generator).close()
    assert len(taken) < 8
    assert threading.get_ident() not in readers


def test_what_cannot_be_read_is_reported_in_its_place() -> None:
    items = [*images(1), torch.full((1, 3, 12, 12), float("nan"), dtype=torch.float64), *images(1)]
    decompositions = bilrp.decompose_many(randomize_norms(vgg_like()), items, regions=4)
    next(decompositions)
    with pytest.raises(InputError, match="NaN"):
        next(decompositions)
    with pytest.raises(InputError, match="at least one worker"):
        next(bilrp.decompose_many(randomize_norms(vgg_like()), items, workers=0))


def test_torch_keeps_its_threads_and_each_worker_has_its_share() -> None:
    before, inside = torch.get_num_threads(), set()

    def read(x: torch.Tensor) -> torch.Tensor:
        return x

    class Looking(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.add(torch.get_num_threads())
            return x.flatten(1) * 2

    try:
        torch.set_num_threads(4)
        list(bilrp.decompose_many(bilrp.Encoder(Looking(), read=read), images(4), regions=4, workers=2))
        assert inside == {2} and torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_a_model_that_keeps_something_on_itself_is_run_by_one_thread_at_a_time() -> None:
    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = self.first(x)
            time.sleep(0.002)  # another thread would run here
            return self.second(self.kept + x)

    torch.manual_seed(0)
    net, items = Keeps().eval(), [torch.rand(1, 6) for _ in range(8)]
    expected = [bilrp.decompose(net, x) for x in items]
    for each, result in zip(expected, bilrp.decompose_many(net, items, workers=4), strict=True):
        torch.testing.assert_close(result.embedding, each.embedding)
        torch.testing.assert_close(result.parts, each.parts)
