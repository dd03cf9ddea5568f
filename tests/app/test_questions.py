"""What the app answers is what the library says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch
from server_helpers import make_client, post_query

import bilrp
from bilrp import collection
from bilrp.app import analyses, exports, static_files
from bilrp.app.collection_session import CollectionSession
from text_folders import ARCHITECTURES


@pytest.fixture(scope="module")
def client(photographs):
    with make_client(photographs) as test_client:
        yield test_client


def test_items_come_page_by_page_with_groups_and_a_filter(client, photographs):
    about = client.get("/api/about").json()
    assert about["count"] == 30 and about["kind"] == "image" and about["encoder"] == "tiny"
    assert [g["name"] for g in about["groups"]] == ["astronaut", "cat", "coffee", "flower", "temple"]
    first, rest = (client.get(f"/api/items?offset={o}&limit=20").json() for o in (0, 20))
    assert [i["id"] for i in first["items"] + rest["items"]] == photographs.ids and first["total"] == 30
    response = client.get("/api/items?group=cat&words=T-3").json()
    assert [i["name"] for i in response["items"]] == ["cat-3.jpg"] and response["total"] == 1


def test_pictures_by_id(client, photographs):
    small = client.get(f"/api/items/{photographs.ids[0]}/thumbnail")
    large = client.get(f"/api/items/{photographs.ids[0]}/picture")
    assert small.headers["content-type"] == large.headers["content-type"] == "image/jpeg"
    assert (
        "immutable" in small.headers["cache-control"]
        and small.content[:2] == large.content[:2] == b"\xff\xd8"
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"part": [9, 10, 17]},
        {"without": [0, 1]},
        {"part": [9, 10], "without": [10]},
        {"part": list(range(5, 60))},
        {"without": list(range(3, 40))},
    ],
)
def test_neighbours_are_the_collections_own(client, photographs, similarity, how):
    at = 7
    response = post_query(
        client, "/api/neighbours", id=photographs.ids[at], k=8, similarity=similarity, **how
    )
    expected = [n for n in photographs.nearest(at, 9, similarity=similarity, **how) if n.position != at][:8]
    assert [n["id"] for n in response["neighbours"]] == [n.id for n in expected]
    np.testing.assert_allclose(
        [n["score"] for n in response["neighbours"]], [n.score for n in expected], rtol=1e-4, atol=1e-6
    )


def test_a_heat_map_is_the_share_of_each_region(client, photographs):
    a, b = photographs.ids[3], photographs.ids[11]
    response = post_query(client, "/api/heat", id=a, against=[{"id": b}], similarity="dot")
    np.testing.assert_allclose(
        response["values"], photographs.share(3, [11], similarity="dot")[:, 0].numpy(), rtol=1e-4, atol=1e-6
    )
    assert sum(response["values"]) + response["unattributed"] == pytest.approx(response["score"], rel=1e-4)
    by_part = post_query(client, "/api/heat", id=a, against=[{"id": b, "part": [4, 5]}], similarity="dot")
    parts = photographs.decomposition(11).parts.float()[[4, 5]].sum(0)
    np.testing.assert_allclose(
        by_part["values"], (photographs.decomposition(3).parts.float() @ parts).numpy(), rtol=1e-4, atol=1e-6
    )


def test_a_pair_is_the_pages_payload(client, photographs):
    response = post_query(
        client, "/api/pair", a=photographs.ids[0], b=photographs.ids[8], similarity="cosine"
    )
    expected = photographs.explain(0, 8, similarity="cosine")
    assert response["breakdown"]["score"] == pytest.approx(expected.score)
    assert response["summary"] == expected.summary() and response["names"] == ["astronaut-0.jpg", "cat-2.jpg"]


def test_a_contrast_speaks_for_one_and_against_the_other(client, photographs):
    one = {"group": "cat"}, {"group": "coffee"}
    response = post_query(
        client, "/api/contrast", id=photographs.ids[0], first=one[0], second=one[1], similarity="dot"
    )
    np.testing.assert_allclose(
        response["values"],
        photographs.contrast("cat", "coffee", similarity="dot").share(0).numpy(),
        rtol=1e-3,
        atol=1e-5,
    )
    assert [s["name"] for s in response["sides"]] == ["cat", "coffee"]
    assert response["sides"][0]["score"] - response["sides"][1]["score"] == pytest.approx(response["score"])
    of_items = post_query(
        client,
        "/api/contrast",
        id=photographs.ids[0],
        first={"id": photographs.ids[9]},
        second={"id": photographs.ids[20]},
        similarity="dot",
    )
    shares = photographs.share(0, [9, 20], similarity="dot")
    np.testing.assert_allclose(
        of_items["values"], (shares[:, 0] - shares[:, 1]).numpy(), rtol=1e-3, atol=1e-5
    )


def test_a_group_has_its_most_typical_first(client, photographs):
    response = client.get("/api/groups?name=cat").json()
    mean = photographs.mean("cat")
    cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(photographs.embeddings), mean[None])
    inside = photographs.groups()["cat"]
    assert response["typical"][0]["id"] == photographs.ids[max(inside, key=lambda p: float(cosine[p]))]
    assert response["inside"] == pytest.approx(float(cosine[inside].mean()), rel=1e-5)
    outside = [p for p in range(30) if p not in inside]
    assert response["outside"] == pytest.approx(float(cosine[outside].mean()), rel=1e-5)
    neighbours = sorted(outside, key=lambda p: -float(cosine[p]))[:6]
    assert [n["id"] for n in response["near"]] == [photographs.ids[p] for p in neighbours]
    assert response["count"] == 6 and response["untypical"] == [], "all six are typical"


def test_untypical_items_of_a_large_group_begin_with_the_least_typical(photographs):
    reopened = collection.open(photographs.path, photographs.encoder)
    reopened.items.groups = lambda: {"all": list(range(30))}
    shown = analyses.describe_group(CollectionSession(reopened), "all")
    cosine = torch.nn.functional.cosine_similarity(
        torch.from_numpy(reopened.embeddings), reopened.mean("all")[None]
    )
    order = cosine.argsort(descending=True, stable=True).tolist()
    assert [n["id"] for n in shown["typical"]] == [photographs.ids[p] for p in order[:6]]
    assert [n["id"] for n in shown["untypical"]] == [photographs.ids[p] for p in order[::-1][:6]]
    assert shown["near"] == [] and shown["outside"] is None


def test_equal_neighbours_come_by_position_whatever_the_blocks(photographs, monkeypatch):
    reopened = collection.open(photographs.path, photographs.encoder).items
    same = np.repeat(reopened.resident[:3], 10, axis=0)
    for size in (30, 7, 1):
        monkeypatch.setattr(
            reopened, "iter_blocks", lambda size=size: (same[s : s + size] for s in range(0, 30, size))
        )
        reopened.norms = np.linalg.norm(same, axis=1)
        for similarity in ("dot", "cosine"):
            scores = reopened.scores(same[0], similarity)
            positions, best = reopened.top_k(same[0], 12, similarity)
            assert positions.tolist() == np.argsort(-scores, kind="stable")[:12].tolist()
            assert best.tolist() == scores[positions].tolist()


def test_a_cover_up_has_the_models_true_score_and_the_prediction(client, photographs, folder):
    regions, (a, b) = [18, 19, 26, 27], (2, 14)
    response = post_query(
        client, "/api/cover", a=photographs.ids[a], b=photographs.ids[b], regions=regions, similarity="dot"
    )
    encoder = photographs.encoder
    item = bilrp.encoder.read_item(encoder, folder / "astronaut" / "astronaut-2.jpg")
    x = item.x.clone()
    for r in regions:
        x[..., r // 8 * 8 : r // 8 * 8 + 8, r % 8 * 8 : r % 8 * 8 + 8] = 0
    with torch.no_grad():
        before, after = (encoder.module(t).flatten() for t in (item.x, x))
    other = torch.from_numpy(photographs.embeddings[b])
    assert response["before"] == pytest.approx(float(before @ other), rel=1e-5)
    assert response["true"] == pytest.approx(float(after @ other), rel=1e-5)
    shares = photographs.share(a, [b], similarity="dot")[:, 0]
    assert response["predicted"] == pytest.approx(
        float(before @ other) - float(shares[regions].sum()), rel=1e-3
    )


def test_the_map_is_made_once_and_kept(client, photographs):
    response = post_query(client, "/api/map")
    places = np.frombuffer(base64.b64decode(response["places"]), "<f4").reshape(-1, 2).astype(float)
    unit = photographs.embeddings / np.linalg.norm(photographs.embeddings, axis=1, keepdims=True)
    centred = unit.astype(float) - unit.mean(0, dtype=float)
    left, spectrum, _ = np.linalg.svd(centred, full_matrices=False)
    for axis in range(2):
        expected = left[:, axis] * spectrum[axis]
        agree = abs(np.corrcoef(expected, places[:, axis])[0, 1])
        assert agree == pytest.approx(1, abs=1e-3)
    assert response["holds"] == pytest.approx((spectrum[:2] ** 2).sum() / (spectrum**2).sum(), rel=1e-2)
    clusters = photographs.clusters(4, similarity="cosine", resamples=5)  # of 30 items
    assert [each["count"] for each in response["clusters"]] == [len(each) for each in clusters]
    for cluster, shown in zip(clusters, response["clusters"], strict=True):
        middle = np.median(places[list(cluster.members)], axis=0)
        assert [shown["x"], shown["y"]] == pytest.approx(middle.tolist(), abs=1e-6)
        assert shown["typical"]["id"] == photographs.ids[cluster.members[0]]
        assert shown["stability"] == pytest.approx(cluster.stability)
        groups = [photographs.items.label_values("group")[n] for n in cluster.members]
        assert shown["text"] == "" or groups.count(shown["text"]) >= len(groups) / 2
    assert any(each["text"] for each in response["clusters"])
    path = Path(photographs.path) / "app" / "map.json"
    stored = json.loads(path.read_text())
    assert stored["made"] == response
    path.write_text(json.dumps(stored | {"made": {"by": "what is kept is not made again"}}))
    assert post_query(client, "/api/map") == {"by": "what is kept is not made again"}
    path.write_text("{damaged")
    assert post_query(client, "/api/map") == response


def test_the_audit_is_the_collections(client, photographs):
    response = post_query(client, "/api/audit")
    report = photographs.audit(sample=48)
    assert [s["description"] for s in response["suspects"]] == [str(s) for s in report.suspects]
    assert report.suspects and all(len(pair) == 2 for s in response["suspects"] for pair in s["pairs"])


def test_what_is_brought_is_a_query_and_not_added(client, photographs, folder):
    content = (folder / "cat" / "cat-1.jpg").read_bytes()
    brought = client.post("/api/query?name=mine.jpg", content=content, headers={"content-type": "image/jpeg"})
    key = brought.json()["id"]
    assert brought.json()["name"] == "mine.jpg" and client.get("/api/about").json()["count"] == 30
    neighbours = post_query(client, "/api/neighbours", id=key, k=3)["neighbours"]
    assert neighbours[0]["name"] == "cat-1.jpg" and neighbours[0]["score"] == pytest.approx(1, rel=1e-5)
    by_part = post_query(client, "/api/neighbours", id=key, k=30, part=[3], similarity="dot")["neighbours"]
    own = post_query(client, "/api/neighbours", id=photographs.ids[7], k=29, part=[3], similarity="dot")[
        "neighbours"
    ]
    assert [n["id"] for n in by_part if n["id"] != photographs.ids[7]][:5] == [n["id"] for n in own][:5]
    assert post_query(client, "/api/side", id=key)["count"] == 64


def test_a_pair_leaves_as_a_page_a_picture_and_numbers(client, photographs):
    a, b = photographs.ids[0], photographs.ids[8]
    post_query(client, "/api/pair", a=a, b=b)
    get = lambda kind: client.get(f"/api/export/{kind}?a={a}&b={b}")  # noqa: E731
    assert get("png").content[:4] == b"\x89PNG" and b"<!doctype html>" in get("html").content.lower()
    top = photographs.explain(0, 8, similarity="cosine").top(1)[0]
    assert get("csv").text.splitlines()[1].startswith(f"{top.a},{top.b},")
    assert get("json").json()["matches"][0]["a"] == top.a
    assert "attachment" in get("html").headers["content-disposition"]
    assert client.get(f"/api/export/exe?a={a}&b={b}").status_code == 404
    kinds = [kind for kind, _ in client.get("/api/about").json()["exports"]]
    assert kinds == list(exports.EXPORTS) and all(get(kind).status_code == 200 for kind in kinds)


def test_the_app_is_whole_and_the_same_at_every_address(client, photographs):
    assert {"/web/index.html", "/web/main.js", "/web/app.css", "/page/mount.js"} <= set(
        static_files.load_static_files()
    )
    pages = {
        client.get(p).text
        for p in ("/", "/map", f"/item/{photographs.ids[0]}", "/audit", "/group?name=a/b", "/contrast")
    }
    assert len(pages) == 1


def test_hits_are_highlighted_without_parts(client, photographs):
    key, hits = photographs.ids[0], [photographs.ids[3], photographs.ids[8]]
    response = post_query(client, "/api/highlight", id=key, hits=hits, similarity="dot")
    expected = photographs.highlight(0, [3, 8], similarity="dot")
    assert [row["id"] for row in response["highlights"]] == hits
    for row, hit in zip(response["highlights"], expected, strict=True):
        assert row["values"] == pytest.approx(hit.values.tolist()) and row["score"] == pytest.approx(
            hit.score
        )
    for wrong in ([], "x", [1], [key] * 100):
        assert client.post("/api/highlight", json={"id": key, "hits": wrong}).status_code == 422
    assert client.post("/api/highlight", json={"id": key, "hits": ["0" * 16]}).status_code == 404


def test_records_are_asked_for_by_ids_of_their_own(tmp_path):
    """Any characters: ids of records come from other systems."""
    ids = ["docs/a b.md#1?x=1", "../../etc", "ü-1", "7"]
    records = [{"id": key, "text": f"{n} kittens slept on the mat.", "year": n} for n, key in enumerate(ids)]
    encoder = bilrp.encoders.sentence(ARCHITECTURES[0].save(tmp_path / "model"))
    stored = bilrp.collection.build(records, encoder, tmp_path / "c.lance")
    client = make_client(stored)
    for n, key in enumerate(ids):
        text = client.get(f"/api/items/{quote(key, safe='')}/text").json()
        assert text["text"] == records[n]["text"] and text["metadata"]["year"] == n
        assert client.get(f"/item/{quote(key, safe='')}").headers["content-type"].startswith("text/html")
        near = post_query(client, "/api/neighbours", id=key, k=2)["neighbours"]
        assert {each["id"] for each in near} < set(ids) - {key}
    answer = post_query(client, "/api/search", text="Where do cats sleep?", k=4, highlight=True)
    assert {hit["id"] for hit in answer["neighbours"]} == set(ids)
    assert client.get("/pair/" + "/".join(quote(key, safe="") for key in ids[:2])).status_code == 200
    assert (
        client.get(f"/api/items/{quote(str(tmp_path), safe='')}/text").status_code == 404
    )  # no path is followed
