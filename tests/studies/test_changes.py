"""The changes study: what is planted, how it is judged, and the whole study on drawn photographs with a small network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import bilrp
from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp.explanation import pair
from bilrp_studies.changes import planted, study
from bilrp_studies.changes.settings import ChangesSettings

ANNOTATION = """<annotation><size><width>120</width><height>90</height></size>
<object><bndbox><xmin>30</xmin><ymin>20</ymin><xmax>70</xmax><ymax>60</ymax></bndbox></object></annotation>"""


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "pascal_voc"
    for name in ("images", "annotations"):
        (folder / name).mkdir(parents=True)
    for number in range(4):
        coarse = Image.fromarray(rng.integers(40, 216, (6, 8, 3), dtype=np.uint8))
        coarse.resize((120, 90), Image.Resampling.BICUBIC).save(folder / "images" / f"{number}.jpg")
        (folder / "annotations" / f"{number}.xml").write_text(ANNOTATION)
    return folder


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    lines = [f'"The old farmer number {n} is selling his brown horse today.",x,1' for n in range(9)]
    (tmp_path / "stsb-en-dev.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_only_the_box_of_a_photograph_is_changed(photographs: Path) -> None:
    changes = list(planted.plant_in_photographs(photographs, 3, seed=0))
    assert [c.kind for c in changes] == ["pasted", "removed", "recoloured"] * 3
    for change in changes:
        assert (
            isinstance(change.a, Image.Image) and isinstance(change.b, Image.Image) and change.box is not None
        )
        differs = np.any(np.asarray(change.a) != np.asarray(change.b), axis=2)
        left, top, right, bottom = change.box
        assert differs[top:bottom, left:right].mean() > 0.5
        differs[top:bottom, left:right] = False
        assert not differs.any()


def test_one_word_of_a_sentence_is_changed(sentences: Path) -> None:
    changes = list(planted.plant_in_sentences(sentences, 2, seed=0))
    assert sorted(c.kind for c in changes) == ["inserted"] * 2 + ["negated"] * 2 + ["replaced"] * 2
    for change in changes:
        assert isinstance(change.a, str) and isinstance(change.b, str) and change.words is not None
        kept = [
            [word for n, word in enumerate(text.split()) if n not in changed]
            for text, changed in zip((change.a, change.b), change.words, strict=True)
        ]
        assert kept[0] == kept[1] and len(change.words[1]) == 1
        if change.kind == "negated":
            assert change.b == change.a.replace(" is ", " is not ")
    with pytest.raises(InputError, match="too few sentences"):
        list(planted.plant_in_sentences(sentences, 9, seed=0))


def test_the_whole_study(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    encoder = bilrp.Encoder(
        net, read=partial(images.read_with_view, size=64), regions=bilrp.regions.grid(8), name="tiny"
    )
    monkeypatch.setattr(study.registry, "load", lambda name: encoder)
    monkeypatch.setattr(
        study, "plant_in_sentences", lambda *_, **__: iter(())
    )  # the small network reads no texts
    report = study.run(ChangesSettings(data=photographs.parent, out=tmp_path / "out", cases=4))
    rows = report.results["rows"]
    assert set(rows) == {"pasted", "removed", "recoloured"} and all(
        row["cases"] == 4 for row in rows.values()
    )
    assert all(0 < row["chance"] < 0.5 for row in rows.values())
    assert np.mean([row["first"] for row in rows.values()]) > np.mean(
        [row["chance"] for row in rows.values()]
    )


def test_a_difference_elsewhere_is_not_the_change(photographs: Path) -> None:
    change = next(iter(planted.plant_in_photographs(photographs, 1, seed=0)))
    net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten())
    encoder = bilrp.Encoder(net, read=images.read_with_view, regions=bilrp.regions.grid(8))
    explanation = pair(*(bilrp.decompose(encoder, image) for image in (change.a, change.b)))
    assert change.box is not None
    right = [
        study.is_the_change(change, explanation, study.Difference("b", [n], 1.0))
        for n in range(explanation.b.regions.count)
    ]
    left, top, right_edge, bottom = change.box
    area = (right_edge - left) * (bottom - top) / (120 * 90)
    assert np.mean(right) == pytest.approx(area, abs=0.08)
