"""One pair without a collection: change layer, rules, similarity or region size and see it again; the plan says how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bilrp.app import request_handling
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import ThreadLimiter, read_json, respond
from bilrp.app.routes import handle_errors, serve_index
from bilrp.app.security import HTTPError
from bilrp.decomposition import Decomposition, decompose_item, prepare
from bilrp.encoder import Encoder
from bilrp.engine import plan
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key
from bilrp.explanation import pair
from bilrp.inputs import Item, Text
from bilrp.render import page
from bilrp.rules import composites
from bilrp.similarity import similarity_name

PAPER_LAYERS = (5, 10, 17, 24, 31)  # as in the paper
MAX_LAYERS = 3
GAMMAS = {"γ = 0": 0.0, "γ = 0.1": 0.1, "γ = 0.25": 0.25, "γ = 0.5": 0.5}
DEFAULT_COMPOSITE = "the encoder's own"
SIMILARITIES = ("cosine", "dot", "squared_distance")
PATCH_SIDES_PIXELS = ("4", "8", "16", "32")
TEXT_REGIONS = ("words", "tokens", "sentences")


@dataclass(frozen=True)
class PairSettings:
    """What a visitor set."""

    layers: tuple[int, ...] = ()
    rules: str = DEFAULT_COMPOSITE
    similarity: str | None = None
    regions: str = ""


class PairSession:
    """Two inputs under one encoder; decompositions are kept by what they were asked with."""

    def __init__(self, encoder: Encoder, a: Item, b: Item) -> None:
        self.encoder, self.sides = encoder, (a, b)
        self._decompositions: dict[tuple[Any, ...], Decomposition] = {}
        self._flops_per_second = 0.0  # FLOP a second, as of the last run

    def list_choices(self) -> dict[str, Any]:
        """What can be set, and what to."""
        words = isinstance(self.sides[0].view, Text)
        layers: list[int] = []
        if self.encoder.layers is not None:
            with torch.no_grad():
                steps = len(self.encoder.record(self.sides[0].x, self.sides[0].model_input).steps)
            layers = [n for n in PAPER_LAYERS if n <= steps]
        return {
            "layers": layers, "rules": [DEFAULT_COMPOSITE, *GAMMAS], "similarity": self._list_similarities(),
            "regions": list(TEXT_REGIONS if words else PATCH_SIDES_PIXELS), "region": "words" if words else "8",
        }  # fmt: skip

    def _list_similarities(self) -> list[str]:
        """The encoder's own similarity first: it is the default."""
        own = similarity_name(self.encoder.similarity)
        return sorted(SIMILARITIES, key=lambda name: name != own)

    def describe(self) -> dict[str, Any]:
        names = " and ".join(item.name or f"input {'AB'[k]}" for k, item in enumerate(self.sides))
        return {
            "live": True,
            "name": names,
            "encoder": self.encoder.name,
            "kind": "pair",
            "choices": self.list_choices(),
        }

    def _decompose_options(self, settings: PairSettings) -> dict[str, Any]:
        spec = int(settings.regions) if settings.regions.isdigit() else settings.regions or None
        book = composites.uniform(GAMMAS[settings.rules]) if settings.rules in GAMMAS else None
        return {"regions": spec, "composite": book, "layers": list(settings.layers) or None}

    def estimate_cost(self, settings: PairSettings) -> dict[str, Any]:
        """The work that is still to be done, from the plan of each side, and the time that takes at the last run's speed."""
        work = 0
        for number, item in enumerate(self.sides):
            if self._missing_layers(settings, number):
                ready = prepare(self.encoder, item, **self._decompose_options(settings))
                count = ready.program.result.numel()
                taps = frozenset(map(Key, ready.taps.values()))
                work += plan.make_plan(PlanContext(ready.program, ready.partition, count, taps)).flops
        if not self._flops_per_second:
            self._flops_per_second = _measure_flops_per_second()
        return {"gflop": work / 1e9, "seconds": work / self._flops_per_second}

    def _missing_layers(self, settings: PairSettings, number: int) -> list[int | None]:
        wanted: list[int | None] = list(settings.layers) or [None]
        return [
            n for n in wanted if (number, n, settings.rules, settings.regions) not in self._decompositions
        ]

    def explain(self, settings: PairSettings) -> list[dict[str, Any]]:
        """The pair at each layer asked for, as the page draws it."""
        for number, item in enumerate(self.sides):
            if self._missing_layers(settings, number):
                start = time.perf_counter()
                made = decompose_item(self.encoder, item, **self._decompose_options(settings))
                spent = max(time.perf_counter() - start, 1e-6)
                done = next(iter(made.values())).plan
                self._flops_per_second = (
                    max(done.flops, 1) / spent if done is not None else self._flops_per_second
                )
                self._decompositions |= {
                    (number, n, settings.rules, settings.regions): found for n, found in made.items()
                }
        while len(self._decompositions) > 24:
            self._decompositions.pop(next(iter(self._decompositions)))
        found = []
        for n in settings.layers or (None,):
            a, b = (self._decompositions[number, n, settings.rules, settings.regions] for number in (0, 1))
            title = "Why are these two similar?" if n is None else f"Layer {n}: why are these two similar?"
            found.append(page.build_payload(pair(a, b, similarity=settings.similarity), title=title))
        return found


def _measure_flops_per_second() -> float:
    """FLOP a second of a product of matrices: a first guess, until something was run."""
    one = torch.rand(512, 512)
    start = time.perf_counter()
    for _ in range(4):
        torch.mm(one, one)
    return 4 * 2 * 512**3 / max(time.perf_counter() - start, 1e-6)


def _parse_settings(body: dict[str, Any], choices: dict[str, Any]) -> PairSettings:
    """What was asked for, of what there is."""
    layers = body.get("layers") or []
    if (
        not isinstance(layers, list)
        or len(layers) > MAX_LAYERS
        or not all(isinstance(n, int) and n in choices["layers"] for n in layers)
    ):
        raise HTTPError(422, f"layers are up to {MAX_LAYERS} of {choices['layers']}")
    picked = {name: body.get(name, choices[name][0]) for name in ("rules", "similarity")}
    picked["regions"] = body.get("regions", choices["region"])
    for name, value in picked.items():
        if value not in choices[name]:
            raise HTTPError(422, f"{name} is one of {', '.join(choices[name])}")
    return PairSettings(tuple(dict.fromkeys(layers)), **picked)


def make_routes(session: PairSession, queue: JobQueue, limiter: ThreadLimiter) -> list[Route]:
    """The addresses of the app on a pair."""
    about = session.describe()

    async def said(request: Request) -> Response:
        return Response(request_handling.dump_json(about), media_type="application/json")

    async def planned(request: Request) -> Response:
        wish = _parse_settings(await read_json(request), about["choices"])
        return await respond(request, limiter, queue, partial(session.estimate_cost, wish), ready=False)

    async def explained(request: Request) -> Response:
        wish = _parse_settings(await read_json(request), about["choices"])
        return await respond(request, limiter, queue, partial(session.explain, wish), ready=False)

    return [
        Route("/", serve_index),
        Route("/api/about", handle_errors(said)),
        Route("/api/plan", handle_errors(planned), methods=["POST"]),
        Route("/api/live", handle_errors(explained), methods=["POST"]),
    ]
