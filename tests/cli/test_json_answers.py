"""Every `--json` answer: validated against its schema, and its regions and offsets cut the inputs exactly."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from bilrp.answers import shapes
from bilrp.answers.schema import NAMES, load_schema
from bilrp.errors import InputError
from text_folders import ARCHITECTURES

BY = ("-e", "tinymodel:tiny", "--size", "32")
AGAIN = ("-e", "tinymodel:tiny")


def check(out: str, name: str) -> dict[str, Any]:
    """Validate an answer; return it."""
    answer = json.loads(out)
    jsonschema.Draft202012Validator(load_schema(name)).validate(answer)
    assert answer["schema"] == f"bilrp/{name}/1"
    return answer


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sentence:{ARCHITECTURES[0].save(tmp_path_factory.mktemp('bert'), dtype=torch.float32)}"


def test_the_files_are_made_from_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    make_schemas = importlib.import_module("make_schemas")
    for name in NAMES:
        schema = load_schema(name)
        assert schema == make_schemas.make_schema(name), "run python docs/make_schemas.py"
        jsonschema.Draft202012Validator.check_schema(schema)
    assert set(NAMES) == set(shapes.ANSWERS)


def test_an_unknown_schema_raises_an_error() -> None:
    with pytest.raises(InputError, match="choose one of explain"):
        load_schema("../x")


def test_answers_about_pictures(more: Path, bilrp_command) -> None:
    answer = check(bilrp_command("explain", "a.png", "b.png", *BY, "--json")[1], "explain")
    regions = answer["sides"][0]["regions"]
    assert answer["sides"][0]["kind"] == "image" and len(regions) == answer["regions"][0]
    total = sum(region["contribution"] for region in regions)
    assert total + answer["unattributed"] == pytest.approx(answer["score"], abs=1e-5)
    assert regions[0]["box"] == {"top": 0, "left": 0, "bottom": 8, "right": 8}
    check(bilrp_command("explain", "a.png", "b.png", *BY, "--project", "4", "--json")[1], "explain")
    check(bilrp_command("explain", "a.png", "b.png", "c.png", *BY, "--json")[1], "explain-many")
    check(bilrp_command("sets", "left", "right", *BY, "--json")[1], "sets")
    contrast = check(bilrp_command("contrast", "a.png", "b.png", "c.png", *BY, "--json")[1], "contrast")
    assert [[r["contribution"] for r in side["regions"]] for side in contrast["sides"]] == list(
        contrast["contributions"].values()
    )
    pytest.importorskip("lance", reason="collections need bilrp[collection]")
    bilrp_command("index", "left", "right", "d.png", *BY, "-o", "x.lance")
    check(bilrp_command("search", "x.lance", *AGAIN, "a.png", "--json")[1], "search")
    asked = ("search", "x.lance", *AGAIN, "a.png", "--part", "0,0,30,20", "--explain", "--json")
    explained = check(bilrp_command(*asked)[1], "search")
    assert explained["regions"] and explained["neighbours"][0]["findings"]
    audit = check(bilrp_command("audit", "x.lance", *AGAIN, "--json", "-o", "report")[1], "audit")
    assert audit["kind"] == "image" and audit["items"] == 4


def test_answers_about_texts(workdir: Path, bilrp_command, bert: str) -> None:
    texts = ["The cat sat.", "Two kittens rested on a rug! 猫が", "It rains. Stay in!", "A dog sat."]
    answer = check(bilrp_command("explain", *texts[:2], "-e", bert, "--json")[1], "explain")
    for side in answer["sides"]:
        spans = [region for region in side["regions"] if "start" in region]
        assert spans and all(side["text"][r["start"] : r["end"]] == r["text"] for r in spans)
    output = bilrp_command("highlight", *texts, "-e", bert, "--matrix", "--json")[1]
    for row, passage in zip(check(output, "highlight")["highlights"], texts[1:], strict=True):
        assert all(passage[s["start"] : s["end"]] == s["text"] for s in row["passage"])
        weights = [sum(span["weight"] for span in row[side]) for side in ("query", "passage")]
        assert weights[0] + row["query_unattributed"] == pytest.approx(row["score"], abs=1e-6)
        assert weights[1] + row["unattributed"] == pytest.approx(row["score"], abs=1e-6)
    contrast = check(bilrp_command("contrast", *texts[:3], "-e", bert, "--json")[1], "contrast")
    assert [side["text"] for side in contrast["sides"]] == texts[:3]
    pytest.importorskip("lance", reason="collections need bilrp[collection]")
    records = [{"text": text, "year": 2000 + n} for n, text in enumerate(texts)]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    assert bilrp_command("index", "t.jsonl", "-e", bert, "-o", "t.lance")[0] == 0
    search = check(bilrp_command("search", "t.lance", "A cat.", "-e", bert, "--json")[1], "search")
    assert search["neighbours"][0]["metadata"]["year"] >= 2000 and search["neighbours"][0]["text"] in texts
    audit = check(bilrp_command("audit", "t.lance", "-e", bert, "--json", "-o", "report.html")[1], "audit")
    assert audit["kind"] == "text" and audit["pairs"] and Path("report.html").exists()
