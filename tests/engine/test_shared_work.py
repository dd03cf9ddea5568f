"""Work that threads share: the same numbers as one by one, and nothing of torch's settings is left changed."""

import threading

import pytest
import torch
from torch import nn

import bilrp
from bilrp.engine.parallel import parallel_for
from bilrp.sparse_parts import densify


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten()).double().eval()


def by_rows(x: torch.Tensor, model: nn.Module | None = None) -> torch.Tensor:
    from bilrp.encoder import as_encoder, read_item
    from bilrp.engine import executor, plan
    from bilrp.pipeline import prepare

    encoder = as_encoder(model or net())
    ready = prepare(encoder, read_item(encoder, x), regions=4)
    context = plan.PlanContext(ready.program, ready.regions, ready.program.result.numel())
    spatial = max(i for i in context.bottlenecks if i <= context.spatial_count)
    schedule = plan.Schedule("push", context.bottlenecks[0], spatial)
    return densify(executor.execute_plan(context, plan.plan_for(context, schedule))[ready.program.output])


def test_shared_rows_are_those_of_one_thread(two_threads):
    x = torch.rand(1, 3, 16, 16, dtype=torch.double)
    shared = by_rows(x)
    torch.set_num_threads(1)
    assert torch.equal(shared, by_rows(x))
    full = bilrp.decompose(net(), x, regions=4, mode="pull").parts
    assert torch.allclose(shared.reshape(full.shape), full, rtol=0, atol=1e-12)


def test_several_threads_work_and_torch_keeps_its_threads(two_threads):
    seen, meet = set(), threading.Barrier(2, timeout=60)

    def task(_):
        assert torch.get_num_threads() == 1
        seen.add(threading.get_ident())
        meet.wait()

    parallel_for(task, range(2))
    assert len(seen) == 2 and threading.get_ident() not in seen
    assert torch.get_num_threads() == 2
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


def test_an_error_in_one_thread_ends_all_and_is_raised(two_threads):
    done = []

    def task(i):
        if i == 3:
            raise ValueError("here")
        done.append(i)

    with pytest.raises(ValueError, match="here"):
        parallel_for(task, range(10_000))
    assert torch.get_num_threads() == 2


def test_operations_of_all_threads_are_counted(two_threads):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:

        def multiply(_: int) -> None:
            torch.matmul(torch.ones(2, 3), torch.ones(3, 4))

        parallel_for(multiply, range(5))
    assert counter.get_total_flops() == 5 * 2 * 2 * 3 * 4


def test_writes_into_a_tensor_made_in_inference_mode(two_threads):
    with torch.inference_mode():
        out = torch.zeros(4)

        def task(i):
            out[i] = i

        parallel_for(task, range(4))
    assert out.tolist() == [0, 1, 2, 3]


def test_rows_in_inference_mode():
    x = torch.rand(1, 3, 16, 16, dtype=torch.double)
    model = net()
    with torch.inference_mode():
        parts = by_rows(x, model)
    assert torch.equal(parts, by_rows(x, model))
