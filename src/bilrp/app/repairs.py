"""Before and after a repair: what the repair of a suspect changes, neighbours with and without it, and heat maps."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from starlette.requests import Request
from starlette.responses import Response

from bilrp.answers.http_shapes import RepairedLabel, RepairHeatAnswer, RepairNeighboursAnswer
from bilrp.app.analyses import MAX_NEIGHBOURS, describe_item, round_values
from bilrp.app.cached_results import AUDIT_SAMPLE_ITEMS
from bilrp.app.collection_session import CollectionSession
from bilrp.app.job_queue import JobQueue
from bilrp.app.request_handling import ThreadLimiter, get_str, parse_int, read_json, respond
from bilrp.app.security import HTTPError
from bilrp.collection.repair import Repair
from bilrp.collection.repair_proposals import RepairProposal, propose_repair

MAX_SUSPECTS = 32
MAX_EXAMPLES = 24  # items that have the part
MAX_AGAINST = 12  # items that a heat map refers to


@dataclass(frozen=True, eq=False)
class SuspectRepair:
    """The repair of one suspect of a collection; `carriers` are the positions of the items that have the part."""

    proposal: RepairProposal
    where: str
    carriers: tuple[int, ...]

    @property
    def repair(self) -> Repair:
        """The repair, or a 409 that says why there is none."""
        if self.proposal.repair is None:
            raise HTTPError(409, self.proposal.refusal)
        return self.proposal.repair

    def to_dict(self, session: CollectionSession) -> dict[str, object]:
        """Return what the page shows above the comparison, as JSON values."""
        examples = [session.label(position) for position in self.carriers[:MAX_EXAMPLES]]
        counts = {"count": len(self.carriers), "of": len(session.collection)}
        label = self.proposal.report.after.label if self.proposal.report else ""
        return {"where": self.where, "examples": examples, "label": label} | counts | self.proposal.to_dict()


def compute_repair(session: CollectionSession, number: int) -> SuspectRepair:
    """Measure the repair of a suspect, numbered as the audit shows them, from 1."""
    with session.redact_paths():
        suspects = session.collection.audit(sample=AUDIT_SAMPLE_ITEMS).suspects
        if not 1 <= number <= len(suspects):
            raise HTTPError(404, f"no such suspect: the audit found {len(suspects)}")
        suspect = suspects[number - 1]
        return SuspectRepair(
            propose_repair(session.collection, suspect, number), suspect.where, suspect.carriers
        )


def compare_neighbours(
    session: CollectionSession, shown: SuspectRepair, key: str, k: int
) -> RepairNeighboursAnswer:
    """Return an item's k nearest items as it is and repaired; `has` says which of them have the part.

    Args:
        session, shown: the served collection, and the repair.
        key, k: the item or query, and the number of items.
    """
    collection, repair, at = session.collection, shown.repair, session.position(key)
    carriers = set(shown.carriers)
    order, scores = collection.items.top_k(session.embedding(key).numpy(), k + 1, repair.base)

    def label(ranked: Iterable[tuple[int, float]]) -> list[RepairedLabel]:
        rows = [(p, score) for p, score in ranked if p != at][:k]
        return [{**session.label(p), "score": score, "has": p in carriers} for p, score in rows]

    return {
        "before": label(zip(order.tolist(), scores.tolist(), strict=True)),
        "after": label(repair.rank(collection, session.item(key) if at is None else at, k + 1)),
    }


def compute_heat(
    session: CollectionSession, shown: SuspectRepair, key: str, against: Sequence[str], *, repaired: bool
) -> RepairHeatAnswer:
    """Return ⟨P_I(x), t⟩ for each region I of x, t the mean of the targets, all of them repaired or none.

    Args:
        session, shown: the served collection, and the repair.
        key, against: ids of x and of the targets.
        repaired: under the repaired similarity, else as it is.
    """
    side, cosine = session.parts(key), shown.repair.base == "cosine"
    targets = torch.stack([session.embedding(each) for each in against])
    if repaired:
        side, targets = shown.repair.correct(side), shown.repair.apply(targets)
    if cosine:
        lengths = torch.linalg.vector_norm(targets, dim=1, keepdim=True).clamp(min=1e-30)
        targets = targets / lengths / max(float(side.embedding.norm()), 1e-30)
    target = targets.mean(0).float()
    values = np.asarray(side.parts.float() @ target)
    score = float(side.embedding.float() @ target)
    return {
        "id": key,
        "repaired": repaired,
        "side": describe_item(session, key),
        "values": round_values(values),
        "score": score,
        "unattributed": score - float(values.sum()),
    }


class RepairHandlers:
    """Handlers of the repairs of a served collection, which adding an item replaces; each is computed once."""

    def __init__(
        self, get_session: Callable[[], CollectionSession], queue: JobQueue, limiter: ThreadLimiter
    ) -> None:
        self.get_session, self.queue, self.limiter = get_session, queue, limiter
        self._known: dict[tuple[int, int], SuspectRepair] = {}
        self._lock = threading.Lock()

    def list_handlers(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """Return {path: handler}, all of them POST."""
        return {
            "/api/repair": self.describe,
            "/api/repair/neighbours": self.neighbours,
            "/api/repair/heat": self.heat,
        }

    def _load(self, session: CollectionSession, number: int) -> SuspectRepair:
        key = len(session.collection), number  # items are only added
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = compute_repair(session, number)
            with self._lock:
                self._known[key] = known
        return known

    async def describe(self, request: Request) -> Response:
        number, session = parse_suspect(await read_json(request)), self.get_session()
        work = lambda: self._load(session, number).to_dict(session)  # noqa: E731
        return await respond(request, self.limiter, self.queue, work)

    async def neighbours(self, request: Request) -> Response:
        body, session = await read_json(request), self.get_session()
        number, key = parse_suspect(body), get_str(body, "id")
        k = max(1, parse_int(body.get("k"), "k", 12, MAX_NEIGHBOURS))
        session.position(key)  # 404 for an unknown id
        work = lambda: compare_neighbours(session, self._load(session, number), key, k)  # noqa: E731
        return await respond(request, self.limiter, self.queue, work)

    async def heat(self, request: Request) -> Response:
        body, session = await read_json(request), self.get_session()
        number, key, against = parse_suspect(body), get_str(body, "id"), body.get("against")
        if not isinstance(against, list) or not 1 <= len(against) <= MAX_AGAINST:
            raise HTTPError(422, f"against must be a list of 1 to {MAX_AGAINST} ids")
        ids = [get_str({"against": each}, "against") for each in against]
        for each in (key, *ids):
            session.position(each)
        repaired = body.get("repaired") is True
        work = lambda: compute_heat(  # noqa: E731
            session, self._load(session, number), key, ids, repaired=repaired
        )
        return await respond(request, self.limiter, self.queue, work)


def parse_suspect(body: Mapping[str, object]) -> int:
    """Return the number of a suspect, from 1."""
    number = parse_int(body.get("suspect"), "suspect", 1, MAX_SUSPECTS)
    if number < 1:
        raise HTTPError(422, f"suspect must be a number from 1 to {MAX_SUSPECTS}")
    return number
