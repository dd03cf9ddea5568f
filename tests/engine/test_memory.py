"""The peak that a plan names is the peak that is measured, and what cannot fit is refused before the work starts."""

from __future__ import annotations

import random
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import bilrp
from bilrp import composites
from bilrp.engine import memory, tapped_parts
from bilrp.engine.maps.base import Cost, Map, Shapes
from bilrp.engine.program import Key, Link
from bilrp.errors import InputError
from bilrp.trace import devices, forward_memory
from models import Residual, randomize_norms, transformer
from type_asserts import assert_not_none


class Measured(TorchDispatchMode):
    """Bytes of the storages made under it: those alive now, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        arguments = {
            t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage(), arguments)
        return out

    def count(self, storage, arguments) -> None:
        path, size = storage._cdata, storage.nbytes()
        if path in self.known or path in arguments:
            return

        def gone(_) -> None:
            self.now -= size
            del self.known[path]

        self.known[path] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def vgg() -> nn.Module:
    layers, inside = [], 3
    for width in (16, 32, 64):
        layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        inside = width
    return nn.Sequential(*layers, nn.Flatten())


def wide() -> nn.Module:
    """Its weights are what is large: γ keeps changed copies of them."""
    return nn.Sequential(nn.Linear(600, 900), nn.GELU(), nn.Linear(900, 300))


NETS = {
    "vgg": (vgg, (3, 64, 64), 8),
    "residual": (Residual, (3, 48, 48), 4),
    "wide": (wide, (600,), bilrp.regions.labels(torch.arange(600) % 20)),
    "transformer": (lambda: transformer(True, False), (40, 8), None),
}


@pytest.mark.parametrize("mode", ["auto", "push", "pull"])
@pytest.mark.parametrize("gamma", [0.0, 0.25])
@pytest.mark.parametrize("name", NETS)
def test_the_planned_peak_is_the_measured_one(name, gamma, mode):
    build, shape, regions = NETS[name]
    model = randomize_norms(build()).float()
    x = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    with Measured() as measured:
        decomposition = bilrp.decompose(
            model, x, regions=regions, composite=composites.uniform(gamma), mode=mode
        )
    planned = assert_not_none(decomposition.plan).peak_bytes
    assert planned / 1.5 <= measured.most <= 1.5 * planned, (planned / 2**20, measured.most / 2**20)


def test_layers_that_are_kept_without_their_zeros_count_as_what_they_take(monkeypatch):
    encoder = bilrp.Encoder(randomize_norms(vgg()).float(), layers=lambda tape, n: tape.steps[n - 1].output)
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    options = {"regions": 8, "layers": [2, 5, 10, 15], "mode": "push"}
    with Measured() as measured:
        planned = bilrp.decompose(encoder, x, **options)[15].plan.peak_bytes
    assert planned / 1.5 <= measured.most <= 1.5 * planned, (planned / 2**20, measured.most / 2**20)
    monkeypatch.setattr(tapped_parts, "MAX_SPARSE_FRACTION", 0.0)  # none are
    matrices = 4 * 144 * 16 * (96**2 + 48**2)
    assert planned < matrices < bilrp.decompose(encoder, x, **options)[15].plan.peak_bytes


def test_weight_copies_of_gamma_count_and_the_models_own_weights_do_not():
    x = torch.randn(1, 600, generator=torch.Generator().manual_seed(0))
    regions = bilrp.regions.labels(torch.arange(600) % 20)
    plain, changed = (
        assert_not_none(
            bilrp.decompose(wide(), x, regions=regions, composite=composites.uniform(g), mode="push").plan
        ).peak_bytes
        for g in (0.0, 0.25)
    )
    weights = 4 * (600 * 900 + 900 * 300)
    assert plain < weights < changed


def test_what_cannot_fit_is_refused_before_it_starts(monkeypatch):
    net, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten()), torch.rand(1, 3, 64, 64)
    expected = bilrp.decompose(net, x, regions=1, project=4)
    assert assert_not_none(expected.plan).working_bytes > 2**20
    monkeypatch.setattr(devices, "get_free_bytes", lambda device: 2**20)
    with pytest.raises(
        InputError, match=r"4096 regions × 4 coordinates needs about .* GB.*use larger regions"
    ):
        bilrp.decompose(net, x, regions=1, project=4)


def test_a_run_that_cannot_fit_is_refused_before_it_runs(monkeypatch):
    called = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 64, 3)

        def forward(self, x):
            called.append(type(x))
            return self.conv(x).mean((2, 3))

    x = torch.zeros(1, 3, 1280, 1280)
    assert forward_memory.forward_bytes(Net(), x) == pytest.approx(4 * 64 * 1278**2, rel=0.01)
    called.clear()
    monkeypatch.setattr(devices, "get_free_bytes", lambda device: 2**28)
    with pytest.raises(InputError, match=r"one run on an input of shape \(1, 3, 1280, 1280\).*smaller input"):
        bilrp.decompose(Net(), x, regions=640)
    assert torch.Tensor not in called


def test_what_shapes_cannot_answer_is_left_to_the_run():
    assert forward_memory.forward_bytes(lambda x: x if float(x.sum()) > 0 else -x, torch.ones(1, 3)) is None


def test_inputs_too_large_for_any_model_are_refused():
    from PIL import Image

    from bilrp.encoders import images

    with pytest.raises(InputError, match="99999×99999 is too large: use a smaller size"):
        images.resize_image(Image.new("RGB", (8, 8)), size=99999)


def test_free_memory_is_asked_of_the_system(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4 kB\nSwapFree: 1 kB\n")
    assert devices.read_system_free_bytes(tmp_path / "meminfo") == 5 * 1024
    assert devices.read_system_free_bytes(tmp_path / "none") is None
    for name, text in {
        "memory.max": "max",
        "memory.current": "50",
        "memory.stat": "inactive_file 20",
    }.items():
        (tmp_path / name).write_text(text + "\n")
    assert devices.read_cgroup_free_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("100\n")
    assert devices.read_cgroup_free_bytes(tmp_path) == 70
    free = devices.get_free_bytes(torch.device("cpu"))
    assert free is None or free > 2**20


def test_what_is_alive_at_the_worst_moment_is_what_walking_through_all_links_says() -> None:
    for seed in range(300):
        links, expected = _random_links(random.Random(seed))
        assert memory.peak_push_numel(links, expected) == _peak_by_definition(links, expected, back=False)
        assert memory.peak_pull_numel(links) == _peak_by_definition(links, frozenset(), back=True)


class WorkspaceMap(Map):
    """A map with a cost only: the workspace that it needs in addition to its values."""

    def __init__(self, least: int) -> None:
        self.least = least

    def push(self, *tangents):
        raise NotImplementedError

    def pull(self, cotangent):
        raise NotImplementedError

    def cost(self, shapes: Shapes, *, back: bool = False) -> Cost:
        return Cost(workspace=self.least + 3 * back)


def _random_links(draw: random.Random) -> tuple[list[Link], frozenset[Key]]:
    """Links with random sources and sizes, and some values that are kept to the end."""
    shapes = {Key(0): torch.Size([draw.randint(1, 9)])}
    links = []
    for target in map(Key, range(1, draw.randint(1, 11))):
        sources = tuple(draw.choice(list(shapes)) for _ in range(draw.randint(1, 2)))
        shapes[target] = torch.Size([draw.randint(1, 9)])
        seen = Shapes(tuple(shapes[source] for source in sources), shapes[target])
        links.append(Link(WorkspaceMap(draw.randint(0, 5)), sources, target, seen, torch.float32))
    return links[draw.randint(0, 2) :], frozenset(key for key in shapes if draw.random() < 0.2)


def _peak_by_definition(links: list[Link], expected: frozenset[Key], *, back: bool) -> int:
    worst = 0
    for now, link in enumerate(links):
        alive = {}
        for other in links:
            sizes = {other.target: other.shape.numel()}
            sizes |= {s: n.numel() for s, n in zip(other.sources, other.shapes.sources, strict=True)}
            for key, size in sizes.items():
                uses = [k for k, one in enumerate(links) if key in one.sources]
                producer = next((k for k, one in enumerate(links) if one.target == key), -1)
                until = len(links) if key in expected else max(uses, default=producer)
                if back:
                    lives = now == producer or (
                        min(uses, default=producer) <= now <= until and now >= producer
                    )
                else:
                    lives = producer <= now <= until
                if lives:
                    alive[key] = size
        worst = max(worst, sum(alive.values()) + link.cost(back=back).workspace)
    return worst
