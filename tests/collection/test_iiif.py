"""IIIF: manifests of both versions in, from disk and from a server; annotations, a manifest and region pairs out."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import bilrp
from bilrp.collection import iiif
from bilrp.errors import InputError
from bilrp.explanation import Explanation
from bilrp.inputs import Image
from bilrp.io import web

SIZES = {"p1": (120, 80), "p2": (90, 90)}
SCALE = 10  # canvas units per pixel of the images


def draw(name: str) -> bytes:
    rng, buffer = np.random.default_rng(len(name) + int(name[1])), io.BytesIO()
    wide, high = SIZES[name]
    Pillow.fromarray(rng.integers(0, 255, (high, wide, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


class Library(BaseHTTPRequestHandler):
    """A small IIIF server: two manifests, an image service (one page of it level 0), and answers one should refuse."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requests.append(self.path)
        base = f"http://{self.headers['Host']}"
        routes = {
            "/v3/manifest.json": lambda: self.answer(json.dumps(make_manifest_3(base)).encode(), "application/ld+json"),
            "/v2/manifest.json": lambda: self.answer(json.dumps(make_manifest_2(base)).encode(), "application/json"),
            "/iiif/p1/full/max/0/default.jpg": lambda: self.answer(draw("p1"), "image/png"),
            "/iiif/p1/full/full/0/default.jpg": lambda: self.answer(draw("p1"), "image/png"),
            "/iiif/p2/info.json": lambda: self.answer(
                json.dumps({"sizes": [{"width": side, "height": side} for side in (45, 90)]}).encode(), "application/json"
            ),
            "/iiif/p2/full/90,90/0/default.jpg": lambda: self.answer(draw("p2"), "image/png"),
            "/iiif/p2/full/90,/0/default.jpg": lambda: self.answer(draw("p2"), "image/png"),
            "/page.html": lambda: self.answer(b"<p>no</p>", "text/html"),
            "/large": lambda: self.answer(b"x" * 3000, "image/png"),
            "/to-file": lambda: self.redirect("file:///etc/hostname"),
            "/to-ftp": lambda: self.redirect("ftp://127.0.0.1/x"),
            "/loop": lambda: self.redirect("/loop"),
            "/moved": lambda: self.redirect("/iiif/p1/full/max/0/default.jpg"),
            "/elsewhere": lambda: self.redirect(f"{base.replace('127.0.0.1', 'localhost')}/large"),
        }  # fmt: skip
        routes.get(self.path, partial(self.send_error, 404))()

    def answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    def redirect(self, where: str) -> None:
        self.send_response(302)
        self.send_header("Location", where)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def make_manifest_3(base: str, *, services: bool = True) -> dict:
    """A manifest in the form of the Presentation API 3, as its cookbook has them (recipes 0005 and 0021)."""
    canvases = []
    for number, (name, (wide, high)) in enumerate(SIZES.items(), 1):
        body = {
            "id": f"{base}/iiif/{name}/full/max/0/default.jpg" if services else f"{name}.png",
            "type": "Image", "format": "image/jpeg", "width": wide * SCALE, "height": high * SCALE,
        }  # fmt: skip
        if services:
            level = "level2" if name == "p1" else "level0"
            body["service"] = [{"id": f"{base}/iiif/{name}", "type": "ImageService3", "profile": level}]
        canvas = f"{base}/v3/canvas/{number}"
        painting = {
            "id": f"{canvas}/image", "type": "Annotation", "motivation": "painting", "body": body, "target": canvas,
        }  # fmt: skip
        canvases.append({
            "id": canvas, "type": "Canvas", "label": {"la": [f"fol. {number}r"]},
            "width": wide * SCALE, "height": high * SCALE,
            "metadata": [{"label": {"en": ["Hand"]}, "value": {"none": [f"scribe {number}"]}}],
            "items": [{"id": f"{canvas}/page", "type": "AnnotationPage", "items": [painting]}],
        })  # fmt: skip
    return {
        "@context": "http://iiif.io/api/presentation/3/context.json", "id": f"{base}/v3/manifest.json", "type": "Manifest",
        "label": {"de": ["Ein Buch"], "en": ["A book"]}, "navDate": "1531-01-01T00:00:00Z",
        "metadata": [{"label": {"en": ["Place of printing"]}, "value": {"en": ["Wittenberg"]}}], "items": canvases,
    }  # fmt: skip


def make_manifest_2(base: str) -> dict:
    """The same book in the form of the Presentation API 2.1."""
    canvases = []
    for number, (name, (wide, high)) in enumerate(SIZES.items(), 1):
        level = "level2" if name == "p1" else "level0"
        service = {
            "@context": "http://iiif.io/api/image/2/context.json", "@id": f"{base}/iiif/{name}",
            "profile": f"http://iiif.io/api/image/2/{level}.json",
        }  # fmt: skip
        resource = {
            "@id": f"{base}/iiif/{name}/full/full/0/default.jpg", "@type": "dctypes:Image", "width": wide * SCALE,
            "height": high * SCALE, "service": service,
        }  # fmt: skip
        canvas = f"{base}/v2/canvas/{number}"
        image = {"@type": "oa:Annotation", "motivation": "sc:painting", "resource": resource, "on": canvas}
        canvases.append({
            "@id": canvas, "@type": "sc:Canvas", "label": f"p. {number}", "width": wide * SCALE, "height": high * SCALE,
            "images": [image],
        })  # fmt: skip
    return {
        "@context": "http://iiif.io/api/presentation/2/context.json",
        "@id": f"{base}/v2/manifest.json", "@type": "sc:Manifest",
        "label": "A book", "metadata": [{"label": "Date", "value": [{"@value": "1531", "@language": "en"}]}],
        "sequences": [{"@type": "sc:Sequence", "canvases": canvases}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def library():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Library)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def make_encoder() -> bilrp.Encoder:
    from bilrp.encoders.images import open_image

    def read(source: object) -> bilrp.inputs.Item:
        picture = open_image(source)  # type: ignore[arg-type]
        small = np.asarray(picture.resize((32, 32)), np.float32)
        x = torch.from_numpy(small.copy() / 255).permute(2, 0, 1)[None]
        return bilrp.inputs.Item(x, view=Image.from_image(picture), name=str(source))

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, stride=8), torch.nn.ReLU(), torch.nn.Flatten()).eval()
    return bilrp.Encoder(net, read=read, name="small", regions=bilrp.regions.grid(8), similarity="cosine")


@pytest.fixture(scope="module")
def book(library, tmp_path_factory) -> tuple[bilrp.collection.Collection, Path]:
    path = tmp_path_factory.mktemp("iiif") / "pages.lance"
    return bilrp.collection.build(f"{library}/v3/manifest.json", make_encoder(), path), path


def test_a_manifest_of_version_3_becomes_items_with_metadata(book, library):
    collection, path = book
    assert collection.names == ["fol. 1r", "fol. 2r"]
    assert [each["Hand"] for each in collection.metadata] == ["scribe 1", "scribe 2"]
    for number, each in enumerate(collection.metadata, 1):
        assert each["navDate"] == "1531-01-01T00:00:00Z" and each["Place_of_printing"] == "Wittenberg"
        assert (
            each["canvas"] == f"{library}/v3/canvas/{number}"
            and each["manifest"] == f"{library}/v3/manifest.json"
        )
    assert [*collection.groups()] == ["A book"]
    assert len([*path.with_suffix(".images").iterdir()]) == 2
    assert "/iiif/p2/full/90,90/0/default.jpg" in Library.requests  # level 0: only a listed size


def test_an_image_is_downloaded_once(book, library):
    before = [*Library.requests]
    again = bilrp.collection.build(f"{library}/v3/manifest.json", make_encoder(), book[1])
    new = Library.requests[len(before) :]
    assert len(again) == 2 and not any(path.endswith("default.jpg") for path in new)


def test_a_manifest_of_version_2_gives_the_same_images(book, library, tmp_path):
    collection = bilrp.collection.build(f"{library}/v2/manifest.json", make_encoder(), tmp_path / "two.lance")
    assert collection.names == ["p. 1", "p. 2"] and collection.metadata[0]["Date"] == "1531"
    assert np.allclose(collection.embeddings, book[0].embeddings, atol=1e-6)


def test_a_manifest_on_disk_uses_the_images_next_to_it(book, tmp_path):
    for name in SIZES:
        (tmp_path / f"{name}.png").write_bytes(draw(name))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(make_manifest_3("https://library.example", services=False)))
    collection = bilrp.collection.build(manifest, make_encoder(), tmp_path / "x.lance")
    assert np.allclose(collection.embeddings, book[0].embeddings, atol=1e-6)
    assert not (tmp_path / "x.images").exists()
    outside = json.loads(
        manifest.read_text().replace("p1.png", "../secret.png").replace("p2.png", "../secret.png")
    )
    manifest.write_text(json.dumps(outside))
    with pytest.raises(InputError, match="outside of the manifest's folder"):
        bilrp.collection.build(manifest, make_encoder(), tmp_path / "y.lance")


def test_findings_are_web_annotations_with_two_targets_on_the_canvases(book, library, tmp_path):
    explanation = book[0].explain(0, 1)
    page = json.loads(explanation.save(tmp_path / "why.jsonld").read_text())
    assert page["@context"] == "http://www.w3.org/ns/anno.jsonld" and page["type"] == "AnnotationPage"
    findings = explanation.findings()
    assert len(page["items"]) == len(findings) > 0
    for annotation, finding in zip(page["items"], findings, strict=True):
        for side, (target, regions) in enumerate(
            zip(annotation["target"], (finding.a, finding.b), strict=True)
        ):
            canvas, x, y, w, h = re.fullmatch(r"(.*)#xywh=(\d+),(\d+),(\d+),(\d+)", target).groups()  # type: ignore[union-attr]
            assert canvas == f"{library}/v3/canvas/{side + 1}"
            wide, high = (SCALE * size / 4 for size in SIZES[f"p{side + 1}"])  # 4 × 4 regions
            rows, columns = zip(*(divmod(n, 4) for n in regions), strict=True)
            slow = min(columns) * wide, min(rows) * high, (max(columns) + 1) * wide, (max(rows) + 1) * high
            box = int(x), int(y), int(x) + int(w), int(y) + int(h)
            assert np.allclose(box, slow, atol=1.01)  # whole units


def test_canvases_survive_files(book, tmp_path):
    explanation = book[0].explain(0, 1)
    loaded = Explanation.load(explanation.save(tmp_path / "why.npz"))
    texts = [each.save(tmp_path / "why.iiif.json").read_text() for each in (explanation, loaded)]
    assert texts[0] == texts[1]


def test_the_manifest_is_valid_and_can_be_indexed_again(book, library, tmp_path):
    path = book[0].explain(0, 1).save(tmp_path / "why.iiif.json")
    manifest = json.loads(path.read_text())
    assert [canvas["id"] for canvas in manifest["items"]] == [f"{library}/v3/canvas/{n}" for n in (1, 2)]
    for canvas in manifest["items"]:
        for annotation in canvas["annotations"][0]["items"]:
            assert annotation["target"][0].startswith(canvas["id"] + "#")  # viewers read the first target
    prezi3 = pytest.importorskip("iiif_prezi3", reason="needs iiif-prezi3")
    prezi3.Manifest(**manifest)
    with pytest.raises(ValueError, match="label"):
        prezi3.Manifest(**manifest | {"label": 3})
    again = iiif.iter_manifest(path, tmp_path / "images")
    with pytest.raises(InputError, match="private network"):  # a manifest on disk may not name this machine
        list(again)


def test_region_pairs_have_the_form_of_aikon(book, tmp_path):
    rows = [*csv.DictReader(io.StringIO(book[0].explain(0, 1).save(tmp_path / "why.csv").read_text()))]
    pattern = r"p\d_\d+,\d+,\d+,\d+\.jpg"
    assert rows and all(re.fullmatch(pattern, row[name]) for row in rows for name in ("img_1", "img_2"))
    assert all(
        row["similarity_type"] == "1" and row["is_manual"] == "f" and row["img_1"] < row["img_2"]
        for row in rows
    )


def test_images_without_a_canvas_are_their_own_targets(book, tmp_path):
    explanation = book[0].explain(0, 1)
    bare = [
        replace(side, view=Image(side.view.pixels, side.view.box, side.view.original_size), name=f"{n} x.png")
        for n, side in enumerate((explanation.a, explanation.b))
        if isinstance(side.view, Image)
    ]
    plain = replace(explanation, a=bare[0], b=bare[1])
    page = json.loads(plain.save(tmp_path / "why.jsonld").read_text())
    assert page["items"][0]["target"][1].startswith("1%20x.png#xywh=")
    manifest = json.loads(plain.save(tmp_path / "why.iiif.json").read_text())
    assert manifest["items"][0]["items"][0]["items"][0]["body"]["id"].startswith("data:image/")
    net = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="need two images"):
        bilrp.explain(net, torch.ones(1, 2), torch.ones(1, 2)).save(tmp_path / "why.jsonld")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/page.html", "expected image/"),
        ("/large", "more than"),
        ("/to-file", "only http and https|cannot be fetched|answered 302"),
        ("/to-ftp", "only http and https|cannot be fetched|answered 302"),
        ("/loop", "infinite loop|answered 302"),
        ("/missing", "answered 404"),
        ("/elsewhere", "private network"),
    ],
)  # fmt: skip
def test_answers_that_are_refused(library, path, message):
    with pytest.raises(InputError, match=message):
        web.fetch(f"{library}{path}", kinds=("image/",), max_bytes=2000, host="127.0.0.1")


def test_only_the_host_that_the_user_named_may_be_private(library):
    picture = web.fetch(f"{library}/moved", kinds=("image/",), max_bytes=100_000, host="127.0.0.1")
    assert picture == draw("p1")
    for address in (
        f"{library}/moved",
        "http://[::1]/x",
        "http://169.254.169.254/latest",
        "http://10.0.0.1/",
    ):
        with pytest.raises(InputError, match="private network"):
            web.fetch(address, kinds=("image/",), max_bytes=2000)
    for address in ("file:///etc/hostname", "ftp://example.org/x", "http:///x"):
        with pytest.raises(InputError, match="only http and https"):
            web.fetch(address, kinds=("image/",), max_bytes=2000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a IIIF manifest"),
        ('{"type": "Collection", "items": []}', "one by one"),
        ('{"type": "Manifest"}', "no canvases"),
        ('{"type": "Manifest", "items": [{"id": "x", "items": 3}]}', "no image is painted"),
        ('{"type": "Manifest", "items": [{"id": "x", "width": 1, "items": [{"items": [{"body": {"id": "y"}}]}]}]}', "width"),
    ],
)  # fmt: skip
def test_other_json_is_one_line(tmp_path, text, message):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InputError, match=message):
        list(iiif.iter_manifest(tmp_path / "m.json", tmp_path))


def make_canvas(
    image: str, width: object = 40, *, target: str = "", label: object = "page", name: str = "c"
) -> dict:
    painting = {"body": {"id": image}, "target": target}
    return {"id": name, "label": label, "width": width, "height": 30, "items": [{"items": [painting]}]}


@pytest.mark.parametrize(
    ("canvas", "message"),
    [
        (make_canvas("a.png", 10**400), "width and height are not numbers"),
        (make_canvas("a.png", float("inf")), "width and height are not numbers"),
        (make_canvas("a%00.png"), "not the name of a file"),
        (make_canvas("x" * 5000), "not the name of a file"),
        (make_canvas("loop.png"), "not the name of a file"),
        (make_canvas("http://[x/y.png"), "not an address"),
        (make_canvas("http://h:99999999/y.png"), "not an address"),
        (make_canvas(f"http://{'a' * 80}.com/y.png"), "not an address"),
    ],
)  # fmt: skip
def test_a_canvas_that_cannot_be_read_does_not_lose_the_others(tmp_path, canvas, message, caplog):
    (tmp_path / "a.png").write_bytes(draw("p1"))
    (tmp_path / "loop.png").symlink_to("loop.png")
    nested: list = ["deep"]
    for _ in range(300):
        nested = [nested]
    others = [
        make_canvas("a.png", label=nested, name=chr(0xD800)),
        make_canvas("a.png", target="c#xywh=1.2.3,0,1,1", name="d"),
    ]
    manifest = {"type": "Manifest", "items": [canvas, *others]}
    (tmp_path / "m.json").write_text(json.dumps(manifest))
    items = list(iiif.iter_manifest(tmp_path / "m.json", tmp_path))
    assert [each.metadata["canvas"] for each in items] == ["\\ud800", "d"]
    assert message in caplog.text


def test_an_own_column_called_iiif_is_no_canvas():
    assert iiif.find_canvas({"iiif": "yes"}) is None
    with pytest.raises(InputError, match="damaged"):
        iiif.find_canvas({"iiif": "{}"})
