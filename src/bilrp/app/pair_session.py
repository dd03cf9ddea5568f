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
from bilrp.app.request_handling import Counter, answered, json_of
from bilrp.app.job_queue import Desk
from bilrp.app.security import Refused
from bilrp.app.routes import index, told
from bilrp.decomposition import Decomposition, decompose_item, prepare
from bilrp.encoder import Encoder
from bilrp.engine import plan
from bilrp.engine.program import Key
from bilrp.engine.plan_context import Setting
from bilrp.explanation import pair
from bilrp.inputs import Item, Text
from bilrp.render import page
from bilrp.rules import composites

LAYERS = (5, 10, 17, 24, 31)  # as in the paper
SIDE_BY_SIDE = 3
GAMMAS = {"γ = 0": 0.0, "γ = 0.1": 0.1, "γ = 0.25": 0.25, "γ = 0.5": 0.5}
OWN = "the encoder's own"
SIMILARITIES = ("cosine", "dot", "squared_distance")
SIDES = ("4", "8", "16", "32")
KINDS = ("words", "tokens", "sentences")


@dataclass(frozen=True)
class Wish:
    """What a visitor set."""

    layers: tuple[int, ...] = ()
    rules: str = OWN
    similarity: str = "cosine"
    regions: str = ""


class Live:
    """Two inputs under one encoder; decompositions are kept by what they were asked with."""

    def __init__(self, encoder: Encoder, a: Item, b: Item) -> None:
        self.encoder, self.sides = encoder, (a, b)
        self._kept: dict[tuple[Any, ...], Decomposition] = {}
        self._speed = 0.0  # FLOP a second, as of the last run

    def choices(self) -> dict[str, Any]:
        """What can be set, and what to."""
        words = isinstance(self.sides[0].view, Text)
        layers: list[int] = []
        if self.encoder.layers is not None:
            with torch.no_grad():
                steps = len(self.encoder.record(self.sides[0].x, self.sides[0].given).steps)
            layers = [n for n in LAYERS if n <= steps]
        return {
            "layers": layers, "rules": [OWN, *GAMMAS], "similarity": list(SIMILARITIES),
            "regions": list(KINDS if words else SIDES), "region": "words" if words else "8",
        }  # fmt: skip

    def about(self) -> dict[str, Any]:
        names = " and ".join(item.name or f"input {'AB'[k]}" for k, item in enumerate(self.sides))
        return {
            "live": True,
            "name": names,
            "encoder": self.encoder.name,
            "kind": "pair",
            "choices": self.choices(),
        }

    def _options(self, wish: Wish) -> dict[str, Any]:
        spec = int(wish.regions) if wish.regions.isdigit() else wish.regions or None
        book = composites.uniform(GAMMAS[wish.rules]) if wish.rules in GAMMAS else None
        return {"regions": spec, "rules": book, "layers": list(wish.layers) or None}

    def planned(self, wish: Wish) -> dict[str, Any]:
        """The work that is still to be done, from the plan of each side, and the time that takes at the last run's speed."""
        work = 0
        for number, item in enumerate(self.sides):
            if self._missing(wish, number):
                ready = prepare(self.encoder, item, **self._options(wish))
                count = ready.program.result.numel()
                taps = frozenset(map(Key, ready.taps.values()))
                work += plan.make(Setting(ready.program, ready.partition, count, taps)).flops
        if not self._speed:
            self._speed = _speed()
        return {"gflop": work / 1e9, "seconds": work / self._speed}

    def _missing(self, wish: Wish, number: int) -> list[int | None]:
        wanted: list[int | None] = list(wish.layers) or [None]
        return [n for n in wanted if (number, n, wish.rules, wish.regions) not in self._kept]

    def explained(self, wish: Wish) -> list[dict[str, Any]]:
        """The pair at each layer asked for, as the page draws it."""
        for number, item in enumerate(self.sides):
            if self._missing(wish, number):
                start = time.perf_counter()
                made = decompose_item(self.encoder, item, **self._options(wish))
                spent = max(time.perf_counter() - start, 1e-6)
                done = next(iter(made.values())).plan
                self._speed = max(done.flops, 1) / spent if done is not None else self._speed
                self._kept |= {(number, n, wish.rules, wish.regions): found for n, found in made.items()}
        while len(self._kept) > 24:
            self._kept.pop(next(iter(self._kept)))
        found = []
        for n in wish.layers or (None,):
            a, b = (self._kept[number, n, wish.rules, wish.regions] for number in (0, 1))
            title = "Why are these two similar?" if n is None else f"Layer {n}: why are these two similar?"
            found.append(page.payload(pair(a, b, similarity=wish.similarity), title=title))
        return found


def _speed() -> float:
    """FLOP a second of a product of matrices: a first guess, until something was run."""
    one = torch.rand(512, 512)
    start = time.perf_counter()
    for _ in range(4):
        torch.mm(one, one)
    return 4 * 2 * 512**3 / max(time.perf_counter() - start, 1e-6)


def _wish(given: dict[str, Any], choices: dict[str, Any]) -> Wish:
    """What was asked for, of what there is."""
    layers = given.get("layers") or []
    if (
        not isinstance(layers, list)
        or len(layers) > SIDE_BY_SIDE
        or not all(isinstance(n, int) and n in choices["layers"] for n in layers)
    ):
        raise Refused(422, f"layers are up to {SIDE_BY_SIDE} of {choices['layers']}")
    picked = {name: given.get(name, choices[name][0]) for name in ("rules", "similarity")}
    picked["regions"] = given.get("regions", choices["region"])
    for name, value in picked.items():
        if value not in choices[name]:
            raise Refused(422, f"{name} is one of {', '.join(choices[name])}")
    return Wish(tuple(dict.fromkeys(layers)), **picked)


def routes(live: Live, desk: Desk, counter: Counter) -> list[Route]:
    """The addresses of the app on a pair."""
    about = live.about()

    async def said(request: Request) -> Response:
        return Response(request_handling.plainly(about), media_type="application/json")

    async def planned(request: Request) -> Response:
        wish = _wish(await json_of(request), about["choices"])
        return await answered(request, counter, desk, partial(live.planned, wish), ready=False)

    async def explained(request: Request) -> Response:
        wish = _wish(await json_of(request), about["choices"])
        return await answered(request, counter, desk, partial(live.explained, wish), ready=False)

    return [
        Route("/", index),
        Route("/api/about", told(said)),
        Route("/api/plan", told(planned), methods=["POST"]),
        Route("/api/live", told(explained), methods=["POST"]),
    ]
