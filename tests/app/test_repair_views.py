"""The app's view of a repair: figures, neighbours and heat maps before and after, and the switch between them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from server_helpers import make_client, post_query, read_status, run_server, tiny_encoder, write_photographs

from bilrp import collection
from bilrp.app import repairs, server
from bilrp.app.cached_results import AUDIT_SAMPLE_ITEMS
from bilrp.collection.repair_proposals import RepairProposal


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> collection.Collection:
    """Pieces of photographs, every third with a bar."""
    path = tmp_path_factory.mktemp("stamped")
    for number, file in enumerate(sorted(write_photographs(path / "taken").rglob("*.jpg"))):
        picture = Image.open(file).resize((128, 128))
        if number % 3 == 0:
            ImageDraw.Draw(picture).rectangle((0, 96, 128, 128), "black", "white", 5)
        picture.save(file, quality=95)
    return collection.build(path / "taken", tiny_encoder(), path / "taken.lance")


@pytest.fixture(scope="module")
def client(stamped):
    with make_client(stamped) as test_client:
        yield test_client


def test_neighbours_and_heat_maps_before_and_after(client, stamped) -> None:
    answer = post_query(client, "/api/repair", suspect=1)
    suspect = stamped.audit(sample=AUDIT_SAMPLE_ITEMS).suspects[0]
    repair = stamped.repair(suspect=suspect)
    assert answer["proposed"] and answer["report"]["after"]["restored"] == repair.report.after.restored
    assert answer["count"] == len(suspect.carriers) == 10 and answer["where"] == suspect.where
    at = suspect.carriers[0]
    key = stamped.ids[at]
    near = post_query(client, "/api/repair/neighbours", suspect=1, id=key, k=8)
    expected = {
        "before": [n.position for n in stamped.nearest(at, 9)],
        "after": [position for position, _ in repair.rank(stamped, at, 9)],
    }
    for name, positions in expected.items():
        others = [p for p in positions if p != at][:8]
        assert [n["id"] for n in near[name]] == [stamped.ids[p] for p in others]
        assert [n["has"] for n in near[name]] == [p in suspect.carriers for p in others]
    against = near["after"][0]["id"]
    for repaired, similarity in ((False, "cosine"), (True, repair.similarity)):
        question = {"suspect": 1, "id": key, "against": [against], "repaired": repaired}
        heat = post_query(client, "/api/repair/heat", **question)
        explanation = stamped.explain(at, against, similarity=similarity)
        assert heat["score"] == pytest.approx(explanation.score, abs=1e-5)
        assert sum(heat["values"]) + heat["unattributed"] == pytest.approx(heat["score"], abs=1e-4)
    regions = torch.tensor(repair.corrections[0].list_regions(stamped.embedding(at), 64))
    assert len(regions) and not np.any(np.array(heat["values"])[regions])


def test_what_cannot_be_repaired_is_said(client, stamped, monkeypatch) -> None:
    def refuse(collection, suspect, number: int) -> RepairProposal:
        return RepairProposal(number, None, None, "leave the similarity as it is")

    monkeypatch.setattr(repairs, "propose_repair", refuse)
    with make_client(stamped) as other:
        answer = post_query(other, "/api/repair", suspect=1)
        assert not answer["proposed"] and answer["refusal"] == "leave the similarity as it is"
        question = {"suspect": 1, "id": stamped.ids[0]}
        assert read_status(other.post("/api/repair/neighbours", json=question)) == 409
    key = stamped.ids[0]
    for path, question, status in (
        ("/api/repair", {"suspect": 31}, 404),
        ("/api/repair", {"suspect": 0}, 422),
        ("/api/repair", {"suspect": "x"}, 422),
        ("/api/repair/neighbours", {"suspect": 1, "id": "0" * 32}, 404),
        ("/api/repair/heat", {"suspect": 1, "id": key, "against": []}, 422),
    ):
        assert read_status(client.post(path, json=question)) == status, (path, question)


@pytest.mark.browser
def test_before_and_after_side_by_side(chromium, stamped, visit) -> None:
    with run_server(partial(server.make_collection_app, stamped)) as address:
        tab = visit("/audit", at=address)
        tab.click("a[href*='/repair'] >> nth=0")
        tab.wait_for_selector(".beside[data-done=yes]")
        sides = tab.locator(".beside > section")
        assert sides.count() == 2 and tab.locator(".beside .heat.lit").count() == 18
        has = [sides.nth(n).locator("li[data-has=yes]").count() for n in range(2)]
        assert has[1] < has[0]
        assert f"{has[0]} of 8 neighbours have it." in sides.nth(0).inner_text()
        tab.uncheck("#repaired")
        assert not sides.nth(1).is_visible() and "off=1" in tab.url
        tab.check("#repaired")
        assert sides.nth(1).is_visible() and "off" not in tab.url
        tab.click(".picks button >> nth=1")
        tab.wait_for_selector(".picks button[aria-pressed=true] >> nth=0")
        tab.wait_for_selector(".beside[data-done=yes]")
