"""One pair, live: other settings give what `explain` gives with them, and the plan is said before."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from server_helpers import PORT, post_query, run_server
from starlette.testclient import TestClient

import bilrp
from bilrp import composites
from bilrp.app import server
from bilrp.app.pair_session import PairSession, PairSettings
from bilrp.app.security import AccessPolicy
from bilrp.encoder import read_item
from type_asserts import assert_not_none


@pytest.fixture(scope="module")
def two(folder, random_weights):
    """Five layers of VGG-16's shape, and two photographs."""
    encoder = bilrp.encoders.vgg16(5, weights=random_weights, size=32)
    paths = [folder / "cat" / f"cat-{k}.jpg" for k in (0, 1)]
    return encoder, paths, [read_item(encoder, path) for path in paths]


def test_other_settings_give_what_explain_gives(two):
    encoder, paths, (a, b) = two
    with TestClient(
        server.make_pair_app(encoder, a, b, AccessPolicy(PORT)), base_url=f"http://127.0.0.1:{PORT}"
    ) as client:
        about = client.get("/api/about").json()
        assert (
            about["live"] and about["choices"]["layers"] == [5] and about["name"] == "cat-0.jpg and cat-1.jpg"
        )
        options = {"rules": "γ = 0.1", "similarity": "dot", "regions": "16"}
        before = post_query(client, "/api/plan", **options)
        (shown,) = post_query(client, "/api/live", **options)
        composite = composites.uniform(0.1)
        expected = bilrp.explain(
            encoder, *paths, composite=composite, similarity="dot", regions=bilrp.regions.grid(16)
        )
        assert shown["breakdown"]["score"] == pytest.approx(expected.score) and shown["a"]["count"] == 4
        work = sum(
            assert_not_none(
                bilrp.decompose(encoder, p, composite=composite, regions=bilrp.regions.grid(16)).plan
            ).flops
            for p in paths
        )
        assert before["gflop"] == pytest.approx(work / 1e9) and before["seconds"] > 0
        assert post_query(client, "/api/plan", **options)["gflop"] == 0  # at hand
        layered = post_query(client, "/api/live", layers=[5], regions="16")
        assert layered[0]["title"].startswith("Layer 5")
        for bad in (
            {"layers": [99]},
            {"layers": [[5]]},
            {"layers": [5.0]},
            {"rules": "exec"},
            {"regions": "../x"},
            {"similarity": 3},
            {"layers": "5"},
        ):
            assert client.post("/api/live", json=bad).status_code == 422
        assert client.get("/api/items").status_code == 404


@pytest.mark.parametrize("own", ["maxsim", bilrp.similarity.bilinear(2 * torch.eye(3), name="twice")])
def test_the_encoders_own_similarity_is_the_default(own):
    net = torch.nn.Linear(2, 3, bias=False)
    module = net if own == "maxsim" else torch.nn.Sequential(net, torch.nn.AdaptiveAvgPool2d((1, 3)))
    encoder = bilrp.Encoder(module, name="net", similarity=own, regions=bilrp.regions.tokens())
    torch.manual_seed(0)
    x, y = torch.rand(1, 4, 2), torch.rand(1, 5, 2)
    session = PairSession(encoder, read_item(encoder, x), read_item(encoder, y))
    name = session.list_choices()["similarity"][0]
    assert name == getattr(own, "name", own)
    payload: Any = session.explain(PairSettings(similarity=name))[0]
    assert payload["breakdown"]["score"] == pytest.approx(bilrp.explain(encoder, x, y).score)


@pytest.mark.browser
def test_settings_are_changed_and_seen_again(two, visit):
    encoder, _, items = two
    torch.manual_seed(0)
    with run_server(partial(server.make_pair_app, encoder, *items)) as at:
        tab = visit("/", at=at)
        tab.wait_for_selector(".layers[data-done=yes]")
        tab.select_option("[name=regions]", "16")
        tab.wait_for_selector(".note:has-text('FLOP')")
        tab.click("text=See it")
        tab.wait_for_selector(".layers[data-done=yes]")
        assert tab.locator(".layers .region[data-side=a]").count() == 4 and "regions=16" in tab.url
        tab.reload()
        tab.wait_for_selector(".layers[data-done=yes]")
        assert tab.locator(".layers .region[data-side=a]").count() == 4
        tab.close()
