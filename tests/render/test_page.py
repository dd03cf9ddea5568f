"""The page as a string: its payload is exact, its size bounded, and nothing a user names can run in it."""

import base64
import io
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from bilrp import regions
from bilrp.decomposition import Decomposition
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.inputs import Image, Text
from bilrp.regions import Regions
from bilrp.render import links, page

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028'\"&{{js}}"


def grid(size=128, step=8):
    return regions.grid(step)(torch.zeros(1, 3, size, size))


def mask_regions(labels):
    return Regions(labels=labels[None], count=int(labels.max()) + 1, kind="mask")


def words(*names):
    return Regions(labels=torch.arange(len(names)), count=len(names), kind="tokens", names=names)


def make_explanation(
    regions_a, regions_b, *, pictures=(None, None), width=12, seed=0, unattributed=0.5, origin=None, **more
):
    """An explanation with random parts: the page needs no model."""
    draw = torch.Generator().manual_seed(seed)
    parts = [torch.randn(r.count, width, generator=draw) for r in (regions_a, regions_b)]
    sides = [
        Decomposition(
            p,
            p.sum(0),
            r,
            origin or {"encoder": "random", "layer": 3},
            None if picture is None else Image.from_image(picture),
        )
        for p, picture, r in zip(parts, pictures, (regions_a, regions_b), strict=True)
    ]
    relevance = parts[0] @ parts[1].T
    values = {"score": float(relevance.sum()) + unattributed, "relevance": relevance, **more}
    return Explanation(a=sides[0], b=sides[1], **values)


def noise(height=128, width=128, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def read_payload(text):
    """Return the payload and the tags of a page, by parsing it as a browser does."""
    parsed = {}

    class Reader(HTMLParser):
        inside = False

        def handle_starttag(self, tag, attrs):
            self.inside = dict(attrs).get("type") == "application/json"
            parsed.setdefault("tags", []).append((tag, dict(attrs)))

        def handle_data(self, data):
            if self.inside:
                parsed["text"] = parsed.get("text", "") + data

        def handle_endtag(self, tag):
            self.inside = False

    Reader().feed(text)
    return json.loads(parsed["text"]), parsed["tags"]


def decode_pairs(pairs):
    """Undo `encode_pairs`, as the browser does."""
    shape = (pairs["rows"], pairs["columns"])

    def steps(data, scale):
        return np.frombuffer(base64.b64decode(data), "<i2").reshape(-1, len(scale)) * np.array(scale)

    if pairs["kind"] == "factors":
        left, right = (steps(pairs[k]["data"], pairs[k]["scale"]) for k in ("left", "right"))
        return left @ right.T
    raw = base64.b64decode(pairs["data"])
    if pairs["kind"] == "matrix":
        return np.frombuffer(raw, "<f4").reshape(shape)
    low, high = np.frombuffer(zlib.decompress(raw), np.uint8).reshape(2, -1)
    return ((high.astype(np.int8).astype(int) * 256 + low) * pairs["scale"]).reshape(shape)


def test_payload_holds_the_relevance_and_a_breakdown_that_adds_up():
    explanation = make_explanation(grid(), grid())
    data, _ = read_payload(page.render_html(explanation))
    np.testing.assert_array_equal(decode_pairs(data["pairs"]), explanation.relevance.numpy())
    breakdown = data["breakdown"]
    total = breakdown["positive"] + breakdown["negative"] + breakdown["unattributed"]
    assert total == pytest.approx(breakdown["score"], rel=1e-12)
    assert breakdown["unattributed"] == pytest.approx(explanation.unattributed, rel=1e-3)
    assert breakdown["negative"] < 0 < breakdown["positive"]


def test_a_128_pixel_pair_stays_below_one_and_a_half_megabytes_even_for_noise():
    explanation = make_explanation(grid(), grid(), pictures=(noise(), noise(seed=1)), width=8192)
    assert len(page.render_html(explanation).encode()) < 1.5e6


@pytest.mark.parametrize(("rank", "kind"), [(40, "factors"), (2000, "deflated")])
def test_fine_regions_travel_in_the_smaller_form_within_the_stated_error(rank, kind):
    draw = np.random.default_rng(0)
    relevance = draw.normal(size=(600, rank)) @ draw.normal(size=(rank, 500))
    pairs = page.encode_pairs(relevance)
    error = np.abs(decode_pairs(pairs) - relevance).max()
    assert pairs["kind"] == kind
    assert error <= pairs["error"] * (1 + 1e-6)
    assert pairs["error"] <= 1e-4 * np.abs(relevance).max()
    assert len(json.dumps(pairs)) < 4 / 3 * 2 * relevance.size


def test_grid_regions_have_rows_and_columns_and_masks_have_outlines():
    assert page.build_payload(make_explanation(grid(), grid()))["a"]["places"]["grid"] == [16, 16]
    labels = torch.full((6, 8), -1)
    labels[:3, :3], labels[2:, 2:] = 0, 1
    places = page.build_payload(make_explanation(mask_regions(labels), grid()))["a"]["places"]
    assert places["grid"] is None
    assert places["boxes"] == [[0, 0, 3, 3], [2, 2, 6, 8]]
    runs = np.array(places["runs"]).reshape(-1, 2)
    np.testing.assert_array_equal(np.repeat(runs[:, 0], runs[:, 1]).reshape(6, 8), labels.numpy())


def test_uneven_grid_with_smaller_patches_at_the_edge_is_still_a_grid():
    labels = torch.arange(10)[:, None] // 4 * 2 + torch.arange(7)[None] // 4
    places = page.build_payload(make_explanation(mask_regions(labels), grid()))["a"]["places"]
    assert places["grid"] == [3, 2] and places["runs"] is None
    assert places["boxes"][-1] == [8, 4, 10, 7]


def test_words_have_no_place_and_keep_their_names():
    data = page.build_payload(make_explanation(words("two", "goats"), words("a", "pair", "of", "kids")))
    assert data["b"]["names"] == ["a", "pair", "of", "kids"]
    assert data["a"]["places"] is None and data["a"]["view"] is None


def test_a_large_photograph_is_sent_bounded_with_everything_in_its_place():
    photograph = Image.from_image(noise(2000, 3200), box=(600, 0, 2600, 2000))
    explanation = make_explanation(grid(), grid())
    explanation = replace(explanation, a=replace(explanation.a, view=photograph, name="sky.jpg"))
    side = page.build_payload(explanation)["a"]
    view = side["view"]
    assert side["name"] == "sky.jpg" and view["kind"] == "image"
    assert (view["width"], view["height"], view["full"]) == (1600, 1000, [3200, 2000])
    assert view["box"] == [300, 0, 1300, 1000] and view["frame"] == [0, 0, 1600, 1000]
    assert view["regions"][0] == [300, 0, 362.5, 62.5] and len(view["regions"]) == 256
    head, _, data = view["src"].partition(",")
    assert head == "data:image/jpeg;base64"
    assert Pillow.open(io.BytesIO(base64.b64decode(data))).size == (1600, 1000)
    assert page.build_payload(explanation)["names"] == ["sky.jpg", ""]


def test_texts_travel_whole():
    explanation = make_explanation(words("two", "goats"), words("a"))
    text = Text("two, goats", ((0, 3), (5, 10)))
    explanation = replace(explanation, a=replace(explanation.a, view=text))
    view = read_payload(page.render_html(explanation))[0]["a"]["view"]
    assert view == {"kind": "text", "text": "two, goats", "spans": [[0, 3], [5, 10]]}


def test_nothing_a_user_names_can_close_its_element():
    explanation = make_explanation(
        words(HOSTILE), words("y", "z"), similarity=HOSTILE, origin={HOSTILE: HOSTILE}
    )
    text = page.render_html(explanation, title=HOSTILE)
    data, tags = read_payload(text)
    assert data["a"]["names"] == [HOSTILE] and data["title"] == HOSTILE
    assert not [tag for tag, _ in tags if tag == "img"]
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert text.lower().count("</script") == 2


def test_the_page_names_no_address_and_its_policy_admits_only_its_own_script():
    text = page.render_html(make_explanation(grid(), grid()))
    outside = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    policy = next(a["content"] for _, a in read_payload(text)[1] if "Security" in a.get("http-equiv", ""))
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_embed_is_a_frame_that_holds_the_whole_page():
    explanation = make_explanation(words("a", "b"), words("c"))
    frame = page.embed(explanation, height=300)
    _, tags = read_payload(f'<p type="application/json">0</p>{frame}')
    attributes = dict(tags)["iframe"]
    assert attributes["srcdoc"] == page.render_html(explanation, compact=True)
    assert "allow-same-origin" not in attributes["sandbox"]


def test_write_is_all_or_nothing(tmp_path, monkeypatch):
    explanation = make_explanation(words("a", "b"), words("c"))
    target = page.write(explanation, tmp_path / "why ü.html")
    assert target.read_text("utf-8") == page.render_html(explanation)
    before = target.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match="disk full"):
        page.write(explanation, target, title="new")
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_styles_are_the_papers_and_others_are_refused():
    relevance = np.eye(300)
    assert page.resolve_link_parameters(relevance, "pascal_voc") == {"l": 0.25, "h": 13, "p": 2}
    assert page.resolve_link_parameters(relevance, links.resolve_style("faces", power=3)) == {
        "l": 0.3,
        "h": 60,
        "p": 3,
    }
    assert set(page.build_payload(make_explanation(words("a"), words("b")))["styles"]) == set(links.STYLES)
    with pytest.raises(InputError, match="pascal_voc"):
        page.resolve_link_parameters(relevance, "nonsense")


def test_default_drawing_lets_the_strongest_pair_of_a_small_explanation_reach_full_colour():
    relevance = np.random.default_rng(0).uniform(-1, 1, (40, 40))
    unit = np.mean(relevance**4) ** 0.25
    assert page.resolve_link_parameters(relevance)["h"] == pytest.approx(
        np.abs(relevance).max() / unit, abs=1e-3
    )
    assert (
        page.resolve_link_parameters(np.zeros((2, 2)))["h"]
        > page.resolve_link_parameters(np.zeros((2, 2)))["l"]
    )


def test_a_distance_also_counts_its_self_terms():
    within = (torch.full((2, 2), 3.0), torch.full((1, 1), 5.0))
    explanation = make_explanation(
        words("a", "b"), words("c"), self_terms=within, similarity="squared distance"
    )
    terms = page.serialize_breakdown(explanation)
    assert (terms["self_terms_a"], terms["self_terms_b"]) == (12, 5)
    total = sum(value for name, value in terms.items() if name != "score")
    assert total == pytest.approx(explanation.score)


def test_too_many_pairs_and_nan_are_one_clear_line():
    many = make_explanation(grid(), grid(), relevance=torch.zeros(1, 1).expand(3000, 3000))
    with pytest.raises(InputError, match="coarsen"):
        page.render_html(many)
    broken = make_explanation(words("a"), words("b"), relevance=torch.full((1, 1), float("nan")))
    with pytest.raises(InputError, match="NaN"):
        page.render_html(broken)
