"""What the app answers is what the library says."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from server_helpers import make_client, post_query

import bilrp
from bilrp import collection
from bilrp.app import analyses, static_files
from bilrp.app.collection_session import CollectionSession


@pytest.fixture(scope="module")
def talking(made):
    with make_client(made) as found:
        yield found


def test_items_come_page_by_page_with_groups_and_a_filter(talking, made):
    about = talking.get("/api/about").json()
    assert about["count"] == 30 and about["kind"] == "image" and about["encoder"] == "tiny"
    assert [g["name"] for g in about["groups"]] == ["astronaut", "cat", "coffee", "flower", "temple"]
    first, rest = (talking.get(f"/api/items?offset={o}&limit=20").json() for o in (0, 20))
    assert [i["id"] for i in first["items"] + rest["items"]] == made.ids and first["total"] == 30
    found = talking.get("/api/items?group=cat&words=T-3").json()
    assert [i["name"] for i in found["items"]] == ["cat-3.jpg"] and found["total"] == 1


def test_pictures_by_id(talking, made):
    small = talking.get(f"/api/items/{made.ids[0]}/thumbnail")
    large = talking.get(f"/api/items/{made.ids[0]}/picture")
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
def test_neighbours_are_the_collections_own(talking, made, similarity, how):
    at = 7
    found = post_query(talking, "/api/neighbours", id=made.ids[at], k=8, similarity=similarity, **how)
    expected = [n for n in made.nearest(at, 9, similarity=similarity, **how) if n.position != at][:8]
    assert [n["id"] for n in found["neighbours"]] == [n.id for n in expected]
    np.testing.assert_allclose(
        [n["score"] for n in found["neighbours"]], [n.score for n in expected], rtol=1e-4, atol=1e-6
    )


def test_a_heat_map_is_the_share_of_each_region(talking, made):
    a, b = made.ids[3], made.ids[11]
    found = post_query(talking, "/api/heat", id=a, against=[{"id": b}], similarity="dot")
    np.testing.assert_allclose(
        found["values"], made.share(3, [11], similarity="dot")[:, 0].numpy(), rtol=1e-4, atol=1e-6
    )
    assert sum(found["values"]) + found["unattributed"] == pytest.approx(found["score"], rel=1e-4)
    by_part = post_query(talking, "/api/heat", id=a, against=[{"id": b, "part": [4, 5]}], similarity="dot")
    parts = made.decomposition(11).parts.float()[[4, 5]].sum(0)
    np.testing.assert_allclose(
        by_part["values"], (made.decomposition(3).parts.float() @ parts).numpy(), rtol=1e-4, atol=1e-6
    )


def test_a_pair_is_the_pages_payload(talking, made):
    found = post_query(talking, "/api/pair", a=made.ids[0], b=made.ids[8], similarity="cosine")
    expected = made.explain(0, 8, similarity="cosine")
    assert found["account"]["score"] == pytest.approx(expected.score)
    assert found["summary"] == expected.summary() and found["names"] == ["astronaut-0.jpg", "cat-2.jpg"]


def test_a_contrast_speaks_for_one_and_against_the_other(talking, made):
    one = {"group": "cat"}, {"group": "coffee"}
    found = post_query(
        talking, "/api/contrast", id=made.ids[0], first=one[0], second=one[1], similarity="dot"
    )
    np.testing.assert_allclose(
        found["values"],
        made.contrast("cat", "coffee", similarity="dot").share(0).numpy(),
        rtol=1e-3,
        atol=1e-5,
    )
    assert [s["name"] for s in found["sides"]] == ["cat", "coffee"]
    assert found["sides"][0]["score"] - found["sides"][1]["score"] == pytest.approx(found["score"])
    of_items = post_query(
        talking,
        "/api/contrast",
        id=made.ids[0],
        first={"id": made.ids[9]},
        second={"id": made.ids[20]},
        similarity="dot",
    )
    shares = made.share(0, [9, 20], similarity="dot")
    np.testing.assert_allclose(
        of_items["values"], (shares[:, 0] - shares[:, 1]).numpy(), rtol=1e-3, atol=1e-5
    )


def test_a_group_has_its_most_typical_first(talking, made):
    found = talking.get("/api/groups?name=cat").json()
    mean = made.mean("cat")
    cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(made.embeddings), mean[None])
    inside = made.groups()["cat"]
    assert found["typical"][0]["id"] == made.ids[max(inside, key=lambda p: float(cosine[p]))]
    assert found["inside"] == pytest.approx(float(cosine[inside].mean()), rel=1e-5)
    outside = [p for p in range(30) if p not in inside]
    assert found["outside"] == pytest.approx(float(cosine[outside].mean()), rel=1e-5)
    near = sorted(outside, key=lambda p: -float(cosine[p]))[:6]
    assert [n["id"] for n in found["near"]] == [made.ids[p] for p in near]
    assert found["count"] == 6 and found["untypical"] == [], "all six are typical"


def test_of_a_large_group_the_least_typical_come_last_first(made):
    found = collection.open(made.path, made.encoder)
    found.items.groups = lambda: {"all": list(range(30))}
    shown = analyses.describe_group(CollectionSession(found), "all")
    cosine = torch.nn.functional.cosine_similarity(
        torch.from_numpy(found.embeddings), found.mean("all")[None]
    )
    order = cosine.argsort(descending=True, stable=True).tolist()
    assert [n["id"] for n in shown["typical"]] == [made.ids[p] for p in order[:6]]
    assert [n["id"] for n in shown["untypical"]] == [made.ids[p] for p in order[::-1][:6]]
    assert shown["near"] == [] and shown["outside"] is None


def test_equal_neighbours_come_by_position_whatever_the_blocks(made, monkeypatch):
    found = collection.open(made.path, made.encoder).items
    same = np.repeat(found.resident[:3], 10, axis=0)
    for size in (30, 7, 1):
        monkeypatch.setattr(
            found, "iter_blocks", lambda size=size: (same[s : s + size] for s in range(0, 30, size))
        )
        found.norms = np.linalg.norm(same, axis=1)
        for similarity in ("dot", "cosine"):
            scores = found.scores(same[0], similarity)
            positions, best = found.top_k(same[0], 12, similarity)
            assert positions.tolist() == np.argsort(-scores, kind="stable")[:12].tolist()
            assert best.tolist() == scores[positions].tolist()


def test_a_cover_up_has_the_models_true_score_and_the_prediction(talking, made, folder):
    regions, (a, b) = [18, 19, 26, 27], (2, 14)
    found = post_query(talking, "/api/cover", a=made.ids[a], b=made.ids[b], regions=regions, similarity="dot")
    encoder = made.encoder
    item = bilrp.encoder.read_item(encoder, folder / "astronaut" / "astronaut-2.jpg")
    x = item.x.clone()
    for r in regions:
        x[..., r // 8 * 8 : r // 8 * 8 + 8, r % 8 * 8 : r % 8 * 8 + 8] = 0
    with torch.no_grad():
        before, after = (encoder.module(t).flatten() for t in (item.x, x))
    other = torch.from_numpy(made.embeddings[b])
    assert found["before"] == pytest.approx(float(before @ other), rel=1e-5)
    assert found["true"] == pytest.approx(float(after @ other), rel=1e-5)
    shares = made.share(a, [b], similarity="dot")[:, 0]
    assert found["predicted"] == pytest.approx(float(before @ other) - float(shares[regions].sum()), rel=1e-3)


def test_the_map_is_made_once_and_kept(talking, made):
    found = post_query(talking, "/api/map")
    places = np.frombuffer(base64.b64decode(found["places"]), "<f4").reshape(-1, 2).astype(float)
    unit = made.embeddings / np.linalg.norm(made.embeddings, axis=1, keepdims=True)
    centred = unit.astype(float) - unit.mean(0, dtype=float)
    left, spectrum, _ = np.linalg.svd(centred, full_matrices=False)
    for axis in range(2):
        expected = left[:, axis] * spectrum[axis]
        agree = abs(np.corrcoef(expected, places[:, axis])[0, 1])
        assert agree == pytest.approx(1, abs=1e-3)
    assert found["holds"] == pytest.approx((spectrum[:2] ** 2).sum() / (spectrum**2).sum(), rel=1e-2)
    path = Path(made.path) / "app" / "map.json"
    kept = json.loads(path.read_text())
    assert kept["made"] == found
    path.write_text(json.dumps(kept | {"made": {"by": "what is kept is not made again"}}))
    assert post_query(talking, "/api/map") == {"by": "what is kept is not made again"}
    path.write_text("{damaged")
    assert post_query(talking, "/api/map") == found


def test_the_audit_is_the_collections(talking, made):
    found = post_query(talking, "/api/audit")
    report = made.audit(sample=48)
    assert [s["said"] for s in found["suspects"]] == [str(s) for s in report.suspects]
    assert report.suspects and all(len(pair) == 2 for s in found["suspects"] for pair in s["pairs"])


def test_what_is_brought_is_a_query_and_not_added(talking, made, folder):
    content = (folder / "cat" / "cat-1.jpg").read_bytes()
    brought = talking.post(
        "/api/query?name=mine.jpg", content=content, headers={"content-type": "image/jpeg"}
    )
    key = brought.json()["id"]
    assert brought.json()["name"] == "mine.jpg" and talking.get("/api/about").json()["count"] == 30
    near = post_query(talking, "/api/neighbours", id=key, k=3)["neighbours"]
    assert near[0]["name"] == "cat-1.jpg" and near[0]["score"] == pytest.approx(1, rel=1e-5)
    by_part = post_query(talking, "/api/neighbours", id=key, k=30, part=[3], similarity="dot")["neighbours"]
    own = post_query(talking, "/api/neighbours", id=made.ids[7], k=29, part=[3], similarity="dot")[
        "neighbours"
    ]
    assert [n["id"] for n in by_part if n["id"] != made.ids[7]][:5] == [n["id"] for n in own][:5]
    assert post_query(talking, "/api/side", id=key)["count"] == 64


def test_a_pair_leaves_as_a_page_a_picture_and_numbers(talking, made):
    a, b = made.ids[0], made.ids[8]
    post_query(talking, "/api/pair", a=a, b=b)
    get = lambda kind: talking.get(f"/api/export/{kind}?a={a}&b={b}")  # noqa: E731
    assert get("png").content[:4] == b"\x89PNG" and b"<!doctype html>" in get("html").content.lower()
    top = made.explain(0, 8, similarity="cosine").top(1)[0]
    assert get("csv").text.splitlines()[1].startswith(f"{top.a},{top.b},")
    assert get("json").json()["matches"][0]["a"] == top.a
    assert "attachment" in get("html").headers["content-disposition"]
    assert talking.get(f"/api/export/exe?a={a}&b={b}").status_code == 404


def test_the_app_is_whole_and_the_same_at_every_address(talking, made):
    assert {"/web/index.html", "/web/main.js", "/web/app.css", "/page/mount.js"} <= set(
        static_files.load_static_files()
    )
    pages = {
        talking.get(p).text
        for p in ("/", "/map", f"/item/{made.ids[0]}", "/audit", "/group?name=a/b", "/contrast")
    }
    assert len(pages) == 1


def test_hits_are_highlighted_without_parts(talking, made):
    key, hits = made.ids[0], [made.ids[3], made.ids[8]]
    found = post_query(talking, "/api/highlight", id=key, hits=hits, similarity="dot")
    expected = made.highlight(0, [3, 8], similarity="dot")
    assert [row["id"] for row in found["highlights"]] == hits
    for row, hit in zip(found["highlights"], expected, strict=True):
        assert row["values"] == pytest.approx(hit.values.tolist()) and row["score"] == pytest.approx(
            hit.score
        )
    for wrong in ([], "x", [1], [key] * 100):
        assert talking.post("/api/highlight", json={"id": key, "hits": wrong}).status_code == 422
    assert talking.post("/api/highlight", json={"id": key, "hits": ["0" * 16]}).status_code == 404
