"""App on one pair: explain it again with another layer, composite, similarity or region size, with a time estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bilrp.answers.http_shapes import Choices, PairAboutAnswer, PlanAnswer
from bilrp.app import request_handling
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import ThreadLimiter, read_json, respond
from bilrp.app.routes import Handler, handle_errors, serve_index
from bilrp.app.security import HTTPError
from bilrp.decomposition import Decomposition
from bilrp.encoder import Encoder
from bilrp.engine import plan
from bilrp.engine.plan_context import PlanContext
from bilrp.engine.program import Key
from bilrp.explanation import pair
from bilrp.inputs import Item, Text
from bilrp.pipeline import decompose_item, prepare
from bilrp.render import page
from bilrp.rules import composites
from bilrp.similarity import similarity_name

PAPER_LAYERS = (5, 10, 17, 24, 31)
MAX_LAYERS = 3  # per request
MAX_CACHED_DECOMPOSITIONS = 24
GAMMAS = {"γ = 0": 0.0, "γ = 0.1": 0.1, "γ = 0.25": 0.25, "γ = 0.5": 0.5}
DEFAULT_COMPOSITE = "the encoder's own"
OFFERED_SIMILARITIES = ("cosine", "dot", "squared_distance")  # besides the encoder's own
PATCH_SIDES_PIXELS = ("4", "8", "16", "32")
TEXT_REGIONS = ("words", "tokens", "sentences")


@dataclass(frozen=True)
class PairSettings:
    """The settings of one request; the fields are the keys of its JSON."""

    layers: tuple[int, ...] = ()
    rules: str = DEFAULT_COMPOSITE
    similarity: str | None = None
    regions: str = ""


class PairSession:
    """Two inputs and one encoder, with a cache of decompositions by their settings."""

    def __init__(self, encoder: Encoder, a: Item, b: Item) -> None:
        self.encoder, self.sides = encoder, (a, b)
        self._decompositions: dict[tuple[Any, ...], Decomposition] = {}
        self._flops_per_second = 0.0  # measured in the last run

    def list_choices(self) -> Choices:
        """Return the choices of each setting."""
        is_text = isinstance(self.sides[0].view, Text)
        layers: list[int] = []
        if self.encoder.layers is not None:
            with torch.no_grad():
                steps = len(self.encoder.record(self.sides[0].x, self.sides[0].model_input).steps)
            layers = [n for n in PAPER_LAYERS if n <= steps]
        return {
            "layers": layers, "rules": [DEFAULT_COMPOSITE, *GAMMAS], "similarity": self._list_similarities(),
            "regions": list(TEXT_REGIONS if is_text else PATCH_SIDES_PIXELS), "region": "words" if is_text else "8",
        }  # fmt: skip

    def _list_similarities(self) -> list[str]:
        """The encoder's own similarity first: it is the default."""
        return list(dict.fromkeys([similarity_name(self.encoder.similarity), *OFFERED_SIMILARITIES]))

    def describe(self) -> PairAboutAnswer:
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
        composite = composites.uniform(GAMMAS[settings.rules]) if settings.rules in GAMMAS else None
        return {"regions": spec, "composite": composite, "layers": list(settings.layers) or None}

    def estimate_cost(self, settings: PairSettings) -> PlanAnswer:
        """Return the remaining GFLOP of both sides by their plans, and the seconds at the speed of the last run."""
        work = 0
        for number, item in enumerate(self.sides):
            if self._missing_layers(settings, number):
                prepared = prepare(self.encoder, item, **self._decompose_options(settings))
                count = prepared.program.result.numel()
                taps = frozenset(map(Key, prepared.taps.values()))
                work += plan.make_plan(PlanContext(prepared.program, prepared.regions, count, taps)).flops
        if not self._flops_per_second:
            self._flops_per_second = _measure_flops_per_second()
        return {"gflop": work / 1e9, "seconds": work / self._flops_per_second}

    def _missing_layers(self, settings: PairSettings, number: int) -> list[int | None]:
        layers: list[int | None] = list(settings.layers) or [None]
        return [
            n for n in layers if (number, n, settings.rules, settings.regions) not in self._decompositions
        ]

    def explain(self, settings: PairSettings) -> list[dict[str, object]]:
        """Return the page payload of the pair at each layer of the settings."""
        for number, item in enumerate(self.sides):
            if self._missing_layers(settings, number):
                start = time.perf_counter()
                by_layer = decompose_item(self.encoder, item, **self._decompose_options(settings))
                seconds = max(time.perf_counter() - start, 1e-6)
                executed = next(iter(by_layer.values())).plan
                if executed is not None:
                    self._flops_per_second = max(executed.flops, 1) / seconds
                self._decompositions |= {
                    (number, n, settings.rules, settings.regions): side for n, side in by_layer.items()
                }
        while len(self._decompositions) > MAX_CACHED_DECOMPOSITIONS:
            self._decompositions.pop(next(iter(self._decompositions)))
        is_own = settings.similarity == similarity_name(self.encoder.similarity)
        similarity = (
            self.encoder.similarity if is_own else settings.similarity
        )  # its own may have no known name
        payloads = []
        for n in settings.layers or (None,):
            a, b = (self._decompositions[number, n, settings.rules, settings.regions] for number in (0, 1))
            title = "Why are these two similar?" if n is None else f"Layer {n}: why are these two similar?"
            payloads.append(page.build_payload(pair(a, b, similarity=similarity), title=title))
        return payloads


def _measure_flops_per_second() -> float:
    """Return the speed of a matrix product: a first guess, until a decomposition has run."""
    matrix = torch.rand(512, 512)
    start = time.perf_counter()
    for _ in range(4):
        torch.mm(matrix, matrix)
    return 4 * 2 * 512**3 / max(time.perf_counter() - start, 1e-6)


def _parse_settings(body: Mapping[str, Any], choices: Choices) -> PairSettings:
    """Return the settings of a request; 422 if a value is not one of the choices."""
    layers = body.get("layers") or []
    if (
        not isinstance(layers, list)
        or len(layers) > MAX_LAYERS
        or not all(isinstance(n, int) and n in choices["layers"] for n in layers)
    ):
        raise HTTPError(422, f"layers must be up to {MAX_LAYERS} of {choices['layers']}")
    values = {name: body.get(name, choices[name][0]) for name in ("rules", "similarity")}
    values["regions"] = body.get("regions", choices["region"])
    for name, value in values.items():
        if value not in choices[name]:
            raise HTTPError(422, f"{name} must be one of {', '.join(choices[name])}")
    return PairSettings(tuple(dict.fromkeys(layers)), **values)


def make_routes(session: PairSession, queue: JobQueue, limiter: ThreadLimiter) -> list[Route]:
    """Return the routes of the app on a pair.

    Args:
        session: the pair.
        queue, limiter: run slow and quick requests.
    """
    description = session.describe()

    async def describe(request: Request) -> Response:
        return Response(request_handling.dump_json(description), media_type="application/json")

    def with_settings(work: Callable[[PairSettings], object]) -> Handler:
        async def handle(request: Request) -> Response:
            settings = _parse_settings(await read_json(request), description["choices"])
            return await respond(request, limiter, queue, partial(work, settings))

        return handle_errors(handle)

    return [
        Route("/", serve_index),
        Route("/api/about", handle_errors(describe)),
        Route("/api/plan", with_settings(session.estimate_cost), methods=["POST"]),
        Route("/api/live", with_settings(session.explain), methods=["POST"]),
    ]
